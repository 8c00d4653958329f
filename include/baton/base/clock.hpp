#pragma once

#include <chrono>
#include <cstdint>

namespace baton {

/// Milliseconds on the steady clock. Pure state machines take it as an argument and never read a clock.
struct TimeMs {
    int64_t ms = 0;
    friend constexpr auto operator<=>(TimeMs, TimeMs) = default;
    friend constexpr TimeMs operator+(TimeMs t, int64_t add_ms) { return {t.ms + add_ms}; }
    friend constexpr int64_t operator-(TimeMs a, TimeMs b) { return a.ms - b.ms; }
};
inline constexpr TimeMs kNever{INT64_MAX / 2};

/// Reads the steady clock. Only processes and threads call this, never a state machine.
[[nodiscard]] inline TimeMs steady_now() {
    return {std::chrono::duration_cast<std::chrono::milliseconds>(
                std::chrono::steady_clock::now().time_since_epoch())
                .count()};
}
/// Microseconds on the steady clock, for measurements.
[[nodiscard]] inline int64_t steady_now_us() {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

}  // namespace baton
