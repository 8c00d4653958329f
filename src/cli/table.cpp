#include "cli/table.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "cli/terminal.hpp"

namespace baton::cli {
namespace {

constexpr size_t kGap = 2;
constexpr size_t kColumnMin = 8;

/// One line a cell: newlines and tabs would break the columns.
std::string cell(const std::string& text) {
    std::string out = printable(text);
    std::replace(out.begin(), out.end(), '\n', ' ');
    std::replace(out.begin(), out.end(), '\t', ' ');
    return out;
}

/// Takes columns off the widest until all fit.
void shrink(std::vector<size_t>& widths, size_t columns_max) {
    const size_t gaps = kGap * (widths.size() - 1);
    size_t total = std::accumulate(widths.begin(), widths.end(), gaps);
    while (total > columns_max) {
        const auto widest = std::max_element(widths.begin(), widths.end());
        if (*widest <= kColumnMin) return;
        --*widest;
        --total;
    }
}

void add_line(const Table& table, const std::vector<std::string>& cells, const std::vector<size_t>& widths, std::string& out) {
    std::string line;
    for (size_t i = 0; i < cells.size(); ++i) {
        const std::string text = shortened(cells[i], widths[i]);
        const std::string room(widths[i] - std::min(widths[i], columns_of(text)), ' ');
        if (i > 0) line.append(kGap, ' ');
        line += table.columns[i].right ? room + text : text + room;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
}

}  // namespace

std::string format_table(const Table& table, size_t columns_max) {
    std::vector<std::string> heading;
    std::vector<size_t> widths;
    for (const Table::Column& c : table.columns) {
        heading.push_back(cell(c.name));
        widths.push_back(columns_of(heading.back()));
    }
    std::vector<std::vector<std::string>> rows;
    for (const auto& row : table.rows) {
        std::vector<std::string>& cells = rows.emplace_back();
        for (size_t i = 0; i < table.columns.size(); ++i) {
            cells.push_back(i < row.size() ? cell(row[i]) : "");
            widths[i] = std::max(widths[i], columns_of(cells[i]));
        }
    }
    if (columns_max > 0 && !widths.empty()) shrink(widths, columns_max);
    std::string out;
    add_line(table, heading, widths, out);
    for (const auto& row : rows) add_line(table, row, widths, out);
    return out;
}

void print_table(const Table& table) {
    const size_t columns_max = is_terminal(STDOUT_FILENO) ? terminal_columns(STDOUT_FILENO, 0) : 0;
    const std::string text = format_table(table, columns_max);
    std::fwrite(text.data(), 1, text.size(), stdout);
}

void print_table(const std::vector<std::vector<std::string>>& rows) {
    if (rows.empty()) return;
    Table table;
    for (const std::string& name : rows.front()) table.columns.push_back({name});
    table.rows.assign(rows.begin() + 1, rows.end());
    print_table(table);
}

}  // namespace baton::cli
