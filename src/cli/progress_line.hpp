#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace baton::cli {

/// One line that says how far something is. On a terminal it is drawn over itself; elsewhere a line is printed when the
/// stage changes. On stderr, so that standard output holds results alone.
class ProgressLine {
  public:
    struct State {
        std::string stage;       ///< "loading"
        double fraction = 0;     ///< 0..1
        std::string detail;      ///< "1/2 replicas", "12.0 of 98.4 MB, 3.1 MB/s"
        int64_t elapsed_s = 0;
    };
    explicit ProgressLine(std::string name);
    ~ProgressLine();
    ProgressLine(const ProgressLine&) = delete;
    ProgressLine& operator=(const ProgressLine&) = delete;

    void show(const State& state);
    /// Takes the line off the terminal.
    void clear();

  private:
    std::string name_;
    std::string stage_;
    bool terminal_;
    bool drawn_ = false;
};

/// The line itself, in at most `columns` columns: name, stage, bar, percent, detail, time.
[[nodiscard]] std::string format_progress(std::string_view name, const ProgressLine::State& state, size_t columns);
/// "512 B", "98.4 MB", "1.20 GB" (powers of 1000).
[[nodiscard]] std::string format_bytes(double bytes);

}  // namespace baton::cli
