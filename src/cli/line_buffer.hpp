#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace baton::cli {

/// Text under edit: UTF-8, possibly several lines, with a cursor between two characters. Every operation that cannot move
/// or remove anything does nothing.
class LineBuffer {
  public:
    [[nodiscard]] const std::string& text() const { return text_; }
    /// Bytes before the cursor.
    [[nodiscard]] size_t cursor() const { return cursor_; }

    /// Replaces all; the cursor stands at the end.
    void set(std::string text);
    void insert(std::string_view text);
    void erase_before();
    void erase_after();
    void left();
    void right();
    void word_left();
    void word_right();
    /// To the begin or end of the line the cursor is in.
    void line_begin();
    void line_end();
    /// To the line above or below, near the same column; false where there is none.
    bool line_up();
    bool line_down();
    /// What these remove, paste() inserts again.
    void cut_to_line_end();
    void cut_to_line_begin();
    void cut_word_before();
    void paste();

  private:
    [[nodiscard]] size_t before(size_t at) const;
    [[nodiscard]] size_t line_begin_of(size_t at) const;
    [[nodiscard]] size_t line_end_of(size_t at) const;
    [[nodiscard]] size_t word_begin() const;
    void to_column(size_t line_begin, size_t column);
    void cut(size_t from, size_t to);

    std::string text_;
    std::string cut_;
    size_t cursor_ = 0;
};

/// Lines entered before, oldest first, with the one under edit behind them.
class History {
  public:
    explicit History(size_t entries_max = 1000) : entries_max_(entries_max) {}
    /// Adds an entry, unless it is empty or the same as the last, and goes to the end.
    void add(std::string entry);
    /// The entry before or after the present one; nullptr where there is none. `current` is what stands in the buffer: it is
    /// kept and comes back when one goes down again.
    [[nodiscard]] const std::string* up(const std::string& current);
    [[nodiscard]] const std::string* down();
    [[nodiscard]] const std::vector<std::string>& entries() const { return entries_; }

    /// One entry a line, newlines and backslashes escaped.
    [[nodiscard]] std::string to_text() const;
    void from_text(std::string_view text);

  private:
    size_t entries_max_;
    std::vector<std::string> entries_;
    std::string draft_;
    size_t at_ = 0;  // index of the shown entry; entries_.size(): the draft
};

/// The buffer as terminal rows of at most `columns` columns. The first begins with `prompt`, those after a newline with
/// `continuation`; a row that is full goes on in the next one.
struct Screen {
    std::vector<std::string> rows;
    size_t cursor_row = 0, cursor_column = 0;
};
[[nodiscard]] Screen lay_out(const LineBuffer& buffer, std::string_view prompt, std::string_view continuation, size_t columns);

}  // namespace baton::cli
