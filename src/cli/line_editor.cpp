#include "cli/line_editor.hpp"

#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <utility>

#include "cli/terminal.hpp"

namespace baton::cli {
namespace {

constexpr int kEscapeWaitMs = 60;
constexpr const char* kContinuation = "... ";
constexpr std::string_view kBlock = "\"\"\"";

void write_all(std::string_view text) {
    while (!text.empty()) {
        const ssize_t n = ::write(STDOUT_FILENO, text.data(), text.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return;
        text.remove_prefix(static_cast<size_t>(n));
    }
}

size_t terminal_rows() {
    winsize size{};
    return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 1 ? size.ws_row : 24;
}

}  // namespace

// ---- Editing ----------------------------------------------------------------------------------------------------------

Editing::Outcome Editing::apply(const Key& key) {
    switch (key.kind) {
        case KeyKind::kEnter: return enter();
        case KeyKind::kInterrupt: return Outcome::kInterrupt;
        case KeyKind::kClearScreen: return Outcome::kClearScreen;
        case KeyKind::kSuspend: return Outcome::kSuspend;
        case KeyKind::kEndOfInput:
            if (buffer_.text().empty()) return Outcome::kEnd;
            buffer_.erase_after();
            return Outcome::kGoOn;
        default: edit(key); return Outcome::kGoOn;
    }
}

/// Enter sends, but for a backslash at the end and an open block of lines.
Editing::Outcome Editing::enter() {
    const std::string& text = buffer_.text();
    if (text.ends_with('\\') && buffer_.cursor() == text.size()) {
        buffer_.erase_before();
        buffer_.insert("\n");
        return Outcome::kGoOn;
    }
    if (text.starts_with(kBlock)) {
        if (text.size() < 2 * kBlock.size() || !text.ends_with(kBlock)) {
            buffer_.insert("\n");
            return Outcome::kGoOn;
        }
        std::string inside = text.substr(kBlock.size(), text.size() - 2 * kBlock.size());
        if (inside.starts_with('\n')) inside.erase(0, 1);
        if (inside.ends_with('\n')) inside.pop_back();
        buffer_.set(std::move(inside));
    }
    return Outcome::kSubmit;
}

void Editing::edit(const Key& key) {
    switch (key.kind) {
        case KeyKind::kText: buffer_.insert(key.text); break;
        case KeyKind::kNewline: buffer_.insert("\n"); break;
        case KeyKind::kBackspace: buffer_.erase_before(); break;
        case KeyKind::kDelete: buffer_.erase_after(); break;
        case KeyKind::kLeft: buffer_.left(); break;
        case KeyKind::kRight: buffer_.right(); break;
        case KeyKind::kWordLeft: buffer_.word_left(); break;
        case KeyKind::kWordRight: buffer_.word_right(); break;
        case KeyKind::kHome: buffer_.line_begin(); break;
        case KeyKind::kEnd: buffer_.line_end(); break;
        case KeyKind::kCutToEnd: buffer_.cut_to_line_end(); break;
        case KeyKind::kCutToBegin: buffer_.cut_to_line_begin(); break;
        case KeyKind::kCutWord: buffer_.cut_word_before(); break;
        case KeyKind::kPaste: buffer_.paste(); break;
        case KeyKind::kUp:
            if (buffer_.line_up()) break;
            if (const std::string* entry = history_.up(buffer_.text())) buffer_.set(*entry);
            break;
        case KeyKind::kDown:
            if (buffer_.line_down()) break;
            if (const std::string* entry = history_.down()) buffer_.set(*entry);
            break;
        default: break;
    }
}

// ---- the terminal -----------------------------------------------------------------------------------------------------

/// The terminal hands over every key at once and shows nothing by itself; resizing it wakes the wait for keys.
class LineEditor::Raw {
  public:
    Raw() {
        ::tcgetattr(STDIN_FILENO, &before_);
        struct sigaction action {};
        action.sa_handler = [](int) {};
        ::sigemptyset(&action.sa_mask);
        ::sigaction(SIGWINCH, &action, &resize_before_);
        enter();
    }
    ~Raw() {
        leave();
        ::sigaction(SIGWINCH, &resize_before_, nullptr);
    }
    Raw(const Raw&) = delete;
    Raw& operator=(const Raw&) = delete;

    void enter() const {
        termios raw = before_;
        raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG | IEXTEN);
        raw.c_iflag &= ~static_cast<tcflag_t>(IXON | ICRNL | INLCR);
        raw.c_cc[VMIN] = 1;
        raw.c_cc[VTIME] = 0;
        ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
        write_all("\x1b[?2004h");  // a paste comes in brackets
    }
    void leave() const {
        write_all("\x1b[?2004l");
        ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
    }

  private:
    termios before_{};
    struct sigaction resize_before_ {};
};

LineEditor::LineEditor(History& history)
    : history_(history), terminal_(::isatty(STDIN_FILENO) == 1 && is_terminal(STDOUT_FILENO)) {}
LineEditor::~LineEditor() = default;

LineEditor::Result LineEditor::read(const std::string& prompt, std::string& line) {
    std::fflush(stdout);
    if (!terminal_) return read_plain(prompt, line);
    prompt_ = prompt;
    drawn_rows_ = drawn_cursor_row_ = 0;
    const Raw raw;
    Editing editing(history_);
    draw(editing);
    for (Key key; next_key(key, editing);) {
        switch (editing.apply(key)) {
            case Editing::Outcome::kGoOn: break;
            case Editing::Outcome::kSubmit:
                leave(editing);
                line = editing.buffer().text();
                history_.add(line);
                return Result::kLine;
            case Editing::Outcome::kInterrupt:
                leave(editing);
                return Result::kInterrupted;
            case Editing::Outcome::kEnd: leave(editing); return Result::kEnd;
            case Editing::Outcome::kClearScreen:
                write_all("\x1b[H\x1b[2J");
                drawn_rows_ = drawn_cursor_row_ = 0;
                break;
            case Editing::Outcome::kSuspend:
                leave(editing);
                raw.leave();
                ::raise(SIGTSTP);
                raw.enter();
                drawn_rows_ = drawn_cursor_row_ = 0;
                break;
        }
        draw(editing);
    }
    leave(editing);
    return Result::kEnd;
}

LineEditor::Result LineEditor::read_plain(const std::string& prompt, std::string& line) {
    if (::isatty(STDIN_FILENO) == 1) write_all(prompt);
    if (!std::getline(std::cin, line)) {
        if (!InterruptWatch::pending()) return Result::kEnd;
        std::cin.clear();
        ::clearerr(stdin);
        return Result::kInterrupted;
    }
    if (line.ends_with('\r')) line.pop_back();
    history_.add(line);
    return Result::kLine;
}

bool LineEditor::next_key(Key& key, const Editing& editing) {
    while (!keys_.next(key)) {
        pollfd wait{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
        const int ready = ::poll(&wait, 1, keys_.is_partial() ? kEscapeWaitMs : -1);
        if (ready < 0 && errno == EINTR) {
            draw(editing);  // another size, or back from a pause
            continue;
        }
        if (ready == 0) {
            keys_.flush();
            continue;
        }
        char bytes[4096];
        const ssize_t n = ::read(STDIN_FILENO, bytes, sizeof bytes);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n <= 0) return false;
        keys_.feed({bytes, static_cast<size_t>(n)});
    }
    return true;
}

/// Draws over what was drawn before. Where the text is higher than the screen only the rows near the cursor are shown.
void LineEditor::draw(const Editing& editing) {
    const Screen screen = lay_out(editing.buffer(), prompt_, kContinuation, terminal_columns(STDOUT_FILENO, 80));
    const size_t rows_max = std::max<size_t>(terminal_rows() - 1, 1);
    const size_t first = screen.cursor_row >= rows_max ? screen.cursor_row - rows_max + 1 : 0;
    const size_t last = std::min(screen.rows.size(), first + rows_max);
    std::string out;
    if (drawn_cursor_row_ > 0) out += "\x1b[" + std::to_string(drawn_cursor_row_) + "A";
    out += "\r\x1b[J";
    for (size_t row = first; row < last; ++row) {
        if (row > first) out += "\r\n";
        out += screen.rows[row];
    }
    const size_t up = last - 1 - screen.cursor_row;
    if (up > 0) out += "\x1b[" + std::to_string(up) + "A";
    out += "\r";
    if (screen.cursor_column > 0) out += "\x1b[" + std::to_string(screen.cursor_column) + "C";
    write_all(out);
    drawn_rows_ = last - first;
    drawn_cursor_row_ = screen.cursor_row - first;
}

/// Puts the cursor below what is drawn.
void LineEditor::leave(const Editing& editing) {
    draw(editing);
    const size_t down = drawn_rows_ - 1 - drawn_cursor_row_;
    std::string out;
    if (down > 0) out += "\x1b[" + std::to_string(down) + "B";
    write_all(out + "\r\n");
}

struct QuietTerminal::Saved {
    termios before{};
};

QuietTerminal::QuietTerminal() {
    if (::isatty(STDIN_FILENO) != 1) return;
    saved_ = std::make_unique<Saved>();
    if (::tcgetattr(STDIN_FILENO, &saved_->before) != 0) {
        saved_.reset();
        return;
    }
    termios quiet = saved_->before;
    quiet.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    quiet.c_iflag &= ~static_cast<tcflag_t>(ICRNL);
    ::tcsetattr(STDIN_FILENO, TCSADRAIN, &quiet);
}

QuietTerminal::~QuietTerminal() {
    if (saved_) ::tcsetattr(STDIN_FILENO, TCSADRAIN, &saved_->before);
}

}  // namespace baton::cli
