#pragma once

#include <memory>
#include <string>

#include "cli/keys.hpp"
#include "cli/line_buffer.hpp"

namespace baton::cli {

/// One line under edit: what each key does to it.
class Editing {
  public:
    explicit Editing(History& history) : history_(history) {}
    enum class Outcome : uint8_t { kGoOn, kSubmit, kInterrupt, kEnd, kClearScreen, kSuspend };
    Outcome apply(const Key& key);
    [[nodiscard]] const LineBuffer& buffer() const { return buffer_; }

  private:
    void edit(const Key& key);
    Outcome enter();
    History& history_;
    LineBuffer buffer_;
};

/// Reads lines from a terminal with editing and history, or plainly where standard input or output is none. Main thread
/// only.
class LineEditor {
  public:
    explicit LineEditor(History& history);
    ~LineEditor();
    LineEditor(const LineEditor&) = delete;
    LineEditor& operator=(const LineEditor&) = delete;

    enum class Result : uint8_t { kLine, kInterrupted, kEnd };
    /// Asks with `prompt`. kInterrupted: Ctrl-C, the line is void. kEnd: Ctrl-D on an empty line, or no more input.
    [[nodiscard]] Result read(const std::string& prompt, std::string& line);
    [[nodiscard]] bool on_terminal() const { return terminal_; }

  private:
    class Raw;
    Result read_plain(const std::string& prompt, std::string& line);
    /// Waits for a key; false at the end of the input.
    bool next_key(Key& key, const Editing& editing);
    void draw(const Editing& editing);
    void leave(const Editing& editing);

    History& history_;
    bool terminal_;
    KeyReader keys_;
    std::string prompt_;
    size_t drawn_rows_ = 0, drawn_cursor_row_ = 0;
};

/// While it lives, keys typed on the terminal are neither shown nor taken; they are there for the next line. Ctrl-C works.
class QuietTerminal {
  public:
    QuietTerminal();
    ~QuietTerminal();
    QuietTerminal(const QuietTerminal&) = delete;
    QuietTerminal& operator=(const QuietTerminal&) = delete;

  private:
    struct Saved;
    std::unique_ptr<Saved> saved_;
};

}  // namespace baton::cli
