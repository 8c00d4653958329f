#include "cli/line_buffer.hpp"

#include <algorithm>
#include <utility>

#include "cli/terminal.hpp"

namespace baton::cli {
namespace {

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n'; }

}  // namespace

// ---- LineBuffer -------------------------------------------------------------------------------------------------------

void LineBuffer::set(std::string text) {
    text_ = std::move(text);
    cursor_ = text_.size();
}

void LineBuffer::insert(std::string_view text) {
    text_.insert(cursor_, text);
    cursor_ += text.size();
}

/// Where the character before `at` begins, with the combining ones that follow it.
size_t LineBuffer::before(size_t at) const {
    size_t begin = 0;
    for (size_t next = 0; next < at;) {
        const size_t bytes = character_bytes(text_, next);
        if (columns_of(std::string_view(text_).substr(next, bytes)) > 0 || text_[next] == '\n') begin = next;
        next += bytes;
    }
    return begin;
}

void LineBuffer::left() { cursor_ = before(cursor_); }

void LineBuffer::right() {
    if (cursor_ == text_.size()) return;
    do cursor_ += character_bytes(text_, cursor_);
    while (cursor_ < text_.size() && text_[cursor_] != '\n' &&
           columns_of(std::string_view(text_).substr(cursor_, character_bytes(text_, cursor_))) == 0);
}

void LineBuffer::erase_before() {
    const size_t begin = before(cursor_);
    text_.erase(begin, cursor_ - begin);
    cursor_ = begin;
}

void LineBuffer::erase_after() {
    const size_t begin = cursor_;
    right();
    text_.erase(begin, cursor_ - begin);
    cursor_ = begin;
}

size_t LineBuffer::word_begin() const {
    size_t at = cursor_;
    while (at > 0 && is_space(text_[at - 1])) --at;
    while (at > 0 && !is_space(text_[at - 1])) --at;
    return at;
}

void LineBuffer::word_left() { cursor_ = word_begin(); }

void LineBuffer::word_right() {
    while (cursor_ < text_.size() && is_space(text_[cursor_])) ++cursor_;
    while (cursor_ < text_.size() && !is_space(text_[cursor_])) ++cursor_;
}

size_t LineBuffer::line_begin_of(size_t at) const {
    const size_t newline = at == 0 ? std::string::npos : text_.rfind('\n', at - 1);
    return newline == std::string::npos ? 0 : newline + 1;
}

size_t LineBuffer::line_end_of(size_t at) const { return std::min(text_.find('\n', at), text_.size()); }

void LineBuffer::line_begin() { cursor_ = line_begin_of(cursor_); }
void LineBuffer::line_end() { cursor_ = line_end_of(cursor_); }

void LineBuffer::to_column(size_t line_begin, size_t column) {
    cursor_ = line_begin;
    const size_t end = line_end_of(line_begin);
    while (cursor_ < end) {
        const size_t bytes = character_bytes(text_, cursor_);
        const size_t width = columns_of(std::string_view(text_).substr(cursor_, bytes));
        if (width > column) return;
        column -= width;
        cursor_ += bytes;
    }
}

bool LineBuffer::line_up() {
    const size_t begin = line_begin_of(cursor_);
    if (begin == 0) return false;
    const size_t column = columns_of(std::string_view(text_).substr(begin, cursor_ - begin));
    to_column(line_begin_of(begin - 1), column);
    return true;
}

bool LineBuffer::line_down() {
    const size_t end = line_end_of(cursor_);
    if (end == text_.size()) return false;
    const size_t begin = line_begin_of(cursor_);
    to_column(end + 1, columns_of(std::string_view(text_).substr(begin, cursor_ - begin)));
    return true;
}

void LineBuffer::cut(size_t from, size_t to) {
    if (from == to) return;
    cut_ = text_.substr(from, to - from);
    text_.erase(from, to - from);
    cursor_ = from;
}

void LineBuffer::cut_to_line_end() { cut(cursor_, line_end_of(cursor_)); }
void LineBuffer::cut_to_line_begin() { cut(line_begin_of(cursor_), cursor_); }
void LineBuffer::cut_word_before() { cut(word_begin(), cursor_); }
void LineBuffer::paste() { insert(std::string(cut_)); }

// ---- History ----------------------------------------------------------------------------------------------------------

void History::add(std::string entry) {
    draft_.clear();
    if (!entry.empty() && (entries_.empty() || entries_.back() != entry)) {
        entries_.push_back(std::move(entry));
        if (entries_.size() > entries_max_) entries_.erase(entries_.begin());
    }
    at_ = entries_.size();
}

const std::string* History::up(const std::string& current) {
    if (at_ == 0) return nullptr;
    if (at_ == entries_.size()) draft_ = current;
    return &entries_[--at_];
}

const std::string* History::down() {
    if (at_ == entries_.size()) return nullptr;
    ++at_;
    return at_ == entries_.size() ? &draft_ : &entries_[at_];
}

std::string History::to_text() const {
    std::string out;
    for (const std::string& entry : entries_) {
        for (const char c : entry) {
            if (c == '\\') out += "\\\\";
            else if (c == '\n') out += "\\n";
            else out += c;
        }
        out += '\n';
    }
    return out;
}

void History::from_text(std::string_view text) {
    std::string entry;
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\n') add(std::exchange(entry, {}));
        else if (text[i] == '\\' && i + 1 < text.size()) entry += text[++i] == 'n' ? '\n' : text[i];
        else entry += text[i];
    }
    add(std::move(entry));
}

// ---- layout -----------------------------------------------------------------------------------------------------------

Screen lay_out(const LineBuffer& buffer, std::string_view prompt, std::string_view continuation, size_t columns) {
    columns = std::max<size_t>(columns, 2);
    Screen out;
    out.rows.emplace_back(prompt);
    size_t column = columns_of(prompt);
    const std::string& text = buffer.text();
    const auto place_cursor = [&] {
        out.cursor_row = out.rows.size() - 1;
        out.cursor_column = column;
    };
    for (size_t at = 0, bytes = 0; at < text.size(); at += bytes) {
        bytes = character_bytes(text, at);
        if (text[at] == '\n') {
            if (at == buffer.cursor()) place_cursor();
            out.rows.emplace_back(continuation);
            column = columns_of(continuation);
            continue;
        }
        const std::string shown = text[at] == '\t' ? std::string(std::min<size_t>(4, columns), ' ') : printable(std::string_view(text).substr(at, bytes));
        const size_t width = columns_of(shown);
        if (column + width > columns) {
            out.rows.emplace_back();
            column = 0;
        }
        if (at == buffer.cursor()) place_cursor();
        out.rows.back() += shown;
        column += width;
    }
    if (buffer.cursor() == text.size()) {
        // Behind a full row the cursor stands at the begin of the next one.
        if (column >= columns) {
            out.rows.emplace_back();
            column = 0;
        }
        place_cursor();
    }
    return out;
}

}  // namespace baton::cli
