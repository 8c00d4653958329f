#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace baton::cli {

/// Rows in columns as wide as their widest cell.
struct Table {
    struct Column {
        std::string name;
        bool right = false;  ///< numbers: aligned at their ends
    };
    std::vector<Column> columns;
    std::vector<std::vector<std::string>> rows;  ///< each as long as `columns`
};

/// The table as text, a line each for the heading and the rows. Where it is wider than `columns_max` (0: no bound) the
/// widest columns are cut, down to eight characters; control characters are replaced.
[[nodiscard]] std::string format_table(const Table& table, size_t columns_max);
/// Prints it: as wide as the terminal on one, whole elsewhere.
void print_table(const Table& table);
/// The same of rows whose first is the heading.
void print_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace baton::cli
