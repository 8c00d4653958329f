#include "cli/terminal.hpp"

#include <signal.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include <utf8proc.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <utility>
#include <vector>

namespace baton::cli {
namespace {

/// A signal handler reaches nothing but a variable of static duration.
volatile sig_atomic_t interrupt_pending = 0;

/// Whether a failed write to standard output has been seen; the stream itself forgets why.
bool output_failed = false;

/// The character at `at`, or -1 where the bytes are no UTF-8.
utf8proc_int32_t code_point(std::string_view text, size_t at, size_t& bytes) {
    utf8proc_int32_t code = -1;
    const auto* data = reinterpret_cast<const utf8proc_uint8_t*>(text.data()) + at;
    const auto taken = utf8proc_iterate(data, static_cast<utf8proc_ssize_t>(text.size() - at), &code);
    bytes = taken > 0 ? static_cast<size_t>(taken) : 1;
    return taken > 0 ? code : -1;
}

size_t width_of(utf8proc_int32_t code) {
    if (code < 0) return 1;
    return static_cast<size_t>(std::max(0, utf8proc_charwidth(code)));
}

bool is_control(utf8proc_int32_t code) { return (code >= 0 && code < 0x20) || (code >= 0x7f && code < 0xa0); }

}  // namespace

bool is_terminal(int fd) {
    if (::isatty(fd) != 1) return false;
    const char* term = std::getenv("TERM");
    return term != nullptr && *term != '\0' && std::string_view(term) != "dumb";
}

size_t terminal_columns(int fd, size_t otherwise) {
    if (const char* columns = std::getenv("COLUMNS"); columns != nullptr) {
        const long given = std::strtol(columns, nullptr, 10);
        if (given > 0) return static_cast<size_t>(given);
    }
    winsize size{};
    if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    return otherwise;
}

size_t character_bytes(std::string_view text, size_t at) {
    size_t bytes = 0;
    (void)code_point(text, at, bytes);
    return bytes;
}

size_t columns_of(std::string_view text) {
    size_t columns = 0;
    for (size_t at = 0, bytes = 0; at < text.size(); at += bytes) columns += width_of(code_point(text, at, bytes));
    return columns;
}

std::string printable(std::string_view text) {
    std::string out;
    out.reserve(text.size());
    for (size_t at = 0, bytes = 0; at < text.size(); at += bytes) {
        const auto code = code_point(text, at, bytes);
        if (code < 0 || (is_control(code) && code != '\n' && code != '\t')) out += '?';
        else out += text.substr(at, bytes);
    }
    return out;
}

std::string shortened(std::string_view text, size_t columns) {
    if (columns_of(text) <= columns) return std::string(text);
    if (columns == 0) return {};
    size_t used = 0, end = 0;
    for (size_t bytes = 0; end < text.size(); end += bytes) {
        const size_t width = width_of(code_point(text, end, bytes));
        if (used + width > columns - 1) break;
        used += width;
    }
    return std::string(text.substr(0, end)) + "…";
}

bool flush_output() {
    if (output_failed) return false;
    errno = 0;
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return true;
    const int why = errno;  // 0: an earlier write failed
    output_failed = true;
    if (why != EPIPE) complain("cannot write to standard output" + (why == 0 ? "" : ": " + std::string(std::strerror(why))));
    return false;
}

void complain(std::string_view message) {
    std::fflush(stdout);
    std::fprintf(stderr, "baton: %s\n", printable(message).c_str());
}

bool read_password(const std::string& prompt, std::string& out) {
    const bool terminal = ::isatty(STDIN_FILENO) == 1;
    termios before{};
    if (terminal && ::tcgetattr(STDIN_FILENO, &before) == 0) {
        std::fprintf(stderr, "%s", prompt.c_str());
        std::fflush(stderr);
        termios silent = before;
        silent.c_lflag &= ~static_cast<tcflag_t>(ECHO);
        silent.c_lflag |= ECHONL;
        ::tcsetattr(STDIN_FILENO, TCSAFLUSH, &silent);
    }
    const bool read = static_cast<bool>(std::getline(std::cin, out));
    if (terminal) ::tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
    if (out.ends_with('\r')) out.pop_back();
    return read;
}

bool confirm(const std::string& question) {
    std::fprintf(stderr, "%s [y/N] ", question.c_str());
    std::fflush(stderr);
    std::string answer;
    if (!std::getline(std::cin, answer)) {
        std::fprintf(stderr, "\n");
        return false;
    }
    std::transform(answer.begin(), answer.end(), answer.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return answer == "y" || answer == "yes";
}

struct InterruptWatch::Saved {
    std::vector<std::pair<int, struct sigaction>> before;
};

InterruptWatch::InterruptWatch(Of which) : saved_(new Saved{}) {
    interrupt_pending = 0;
    struct sigaction action {};
    action.sa_handler = [](int) { interrupt_pending = 1; };
    ::sigemptyset(&action.sa_mask);
    action.sa_flags = 0;  // not SA_RESTART: what waits must wake
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
        if (signal != SIGINT && which == Of::kInterrupt) continue;
        auto& [number, before] = saved_->before.emplace_back();
        number = signal;
        ::sigaction(signal, &action, &before);
        // nohup and shells that ignore a signal for their background jobs are obeyed.
        if (signal != SIGINT && before.sa_handler == SIG_IGN) ::sigaction(signal, &before, nullptr);
    }
}

InterruptWatch::~InterruptWatch() {
    for (const auto& [signal, before] : saved_->before) ::sigaction(signal, &before, nullptr);
    delete saved_;
}

bool InterruptWatch::pending() { return interrupt_pending != 0; }
void InterruptWatch::clear() { interrupt_pending = 0; }

}  // namespace baton::cli
