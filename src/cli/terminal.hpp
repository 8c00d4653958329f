#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace baton::cli {

/// Whether the descriptor is a terminal that understands cursor movements (TERM is neither empty nor "dumb").
[[nodiscard]] bool is_terminal(int fd);
/// Columns of the terminal at `fd`: COLUMNS where it is set, else what the terminal says, else `otherwise`.
[[nodiscard]] size_t terminal_columns(int fd, size_t otherwise);

/// Columns that UTF-8 text takes in a terminal: wide characters two, combining ones none.
[[nodiscard]] size_t columns_of(std::string_view text);
/// Bytes of the character that begins at `at`; malformed bytes count as characters of one byte.
[[nodiscard]] size_t character_bytes(std::string_view text, size_t at);
/// The text with every control character but newline and tab replaced by '?': what a server says must not drive the terminal.
[[nodiscard]] std::string printable(std::string_view text);
/// The text in at most `columns` columns, with "…" where its end is cut off.
[[nodiscard]] std::string shortened(std::string_view text, size_t columns);

/// Writes what standard output still holds. False once a write to it has failed; the first time that is said on stderr, but
/// not where a reader has closed its end.
[[nodiscard]] bool flush_output();
/// Prints "baton: …" on stderr.
void complain(std::string_view message);
/// Asks on the terminal without echo, or reads a line of standard input where that is no terminal. False at its end.
[[nodiscard]] bool read_password(const std::string& prompt, std::string& out);
/// Asks a question that "y" or "yes" answers; everything else, and the end of the input, is no.
[[nodiscard]] bool confirm(const std::string& question);

/// While it lives, Ctrl-C (SIGINT) sets a flag instead of ending the process and wakes system calls; with kEveryEnd so do
/// SIGTERM and SIGHUP. One at a time, main thread only.
class InterruptWatch {
  public:
    enum class Of : uint8_t { kInterrupt, kEveryEnd };
    explicit InterruptWatch(Of which = Of::kInterrupt);
    ~InterruptWatch();
    InterruptWatch(const InterruptWatch&) = delete;
    InterruptWatch& operator=(const InterruptWatch&) = delete;
    /// Whether such a signal came since the last clear().
    [[nodiscard]] static bool pending();
    static void clear();

  private:
    struct Saved;
    Saved* saved_;
};

}  // namespace baton::cli
