#include "cli/progress_line.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <utility>

#include "cli/terminal.hpp"

namespace baton::cli {
namespace {

constexpr size_t kBarMin = 8, kBarMax = 30;

std::string format_time(int64_t seconds) {
    char buf[48];
    std::snprintf(buf, sizeof buf, "%lld:%02lld", static_cast<long long>(seconds / 60), static_cast<long long>(seconds % 60));
    return buf;
}

}  // namespace

std::string format_bytes(double bytes) {
    static constexpr std::array<std::pair<double, const char*>, 4> kUnits = {{{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}}};
    char buf[48];
    for (const auto& [size, name] : kUnits)
        if (bytes >= size) {
            std::snprintf(buf, sizeof buf, size >= 1e9 ? "%.2f %s" : "%.1f %s", bytes / size, name);
            return buf;
        }
    std::snprintf(buf, sizeof buf, "%.0f B", std::max(0.0, bytes));
    return buf;
}

std::string format_progress(std::string_view name, const ProgressLine::State& state, size_t columns) {
    const double fraction = std::isfinite(state.fraction) ? std::clamp(state.fraction, 0.0, 1.0) : 0.0;
    char percent[16];
    // Not 100 % before it is done.
    std::snprintf(percent, sizeof percent, "%3.0f%%", std::floor(fraction * 100));
    const std::string left = printable(name) + "  " + printable(state.stage) + "  ";
    std::string right = std::string("  ") + percent;
    if (!state.detail.empty()) right += "  " + printable(state.detail);
    right += "  " + format_time(state.elapsed_s);
    const size_t around = columns_of(left) + columns_of(right);
    if (around + kBarMin > columns) return shortened(left + right.substr(2), columns);
    const size_t width = std::min(kBarMax, columns - around);
    const auto full = static_cast<size_t>(fraction * static_cast<double>(width));
    std::string bar;
    for (size_t i = 0; i < width; ++i) bar += i < full ? "█" : "░";
    return left + bar + right;
}

ProgressLine::ProgressLine(std::string name) : name_(std::move(name)), terminal_(is_terminal(STDERR_FILENO)) {}
ProgressLine::~ProgressLine() { clear(); }

void ProgressLine::show(const State& state) {
    if (terminal_) {
        const size_t columns = terminal_columns(STDERR_FILENO, 80);
        std::fprintf(stderr, "\r%s\x1b[K", format_progress(name_, state, columns > 1 ? columns - 1 : 1).c_str());
        drawn_ = true;
    } else if (state.stage != stage_) {
        std::fprintf(stderr, "%s: %s%s%s\n", printable(name_).c_str(), printable(state.stage).c_str(),
                     state.detail.empty() ? "" : ", ", printable(state.detail).c_str());
    }
    stage_ = state.stage;
    std::fflush(stderr);
}

void ProgressLine::clear() {
    if (!drawn_) return;
    std::fprintf(stderr, "\r\x1b[K");
    std::fflush(stderr);
    drawn_ = false;
}

}  // namespace baton::cli
