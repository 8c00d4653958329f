#pragma once

#include <algorithm>
#include <cstdint>

#include "baton/base/clock.hpp"

namespace baton {

/// When something that goes on is said again: the first time, then after pauses of which each is twice as long as the last.
/// No locks: one thread.
class GrowingPause {
  public:
    GrowingPause(int64_t first_ms, int64_t max_ms) : first_ms_(first_ms), max_ms_(max_ms) {}

    /// True the first time after construction or reset(), and when the pause since it was last true is over.
    [[nodiscard]] bool due(TimeMs now) {
        if (pause_ms_ != 0 && now < next_) return false;
        pause_ms_ = pause_ms_ == 0 ? first_ms_ : std::min(2 * pause_ms_, max_ms_);
        next_ = now + pause_ms_;
        return true;
    }
    /// It is over: the next time is a first time.
    void reset() { pause_ms_ = 0; }

  private:
    int64_t first_ms_, max_ms_;
    int64_t pause_ms_ = 0;
    TimeMs next_{};
};

}  // namespace baton
