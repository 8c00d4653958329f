#include "baton/base/growing_pause.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace baton {
namespace {

/// The times, of all from 0 to `end_ms` in steps of `step_ms`, at which it was due.
std::vector<int64_t> due_times(GrowingPause& pause, int64_t begin_ms, int64_t end_ms, int64_t step_ms) {
    std::vector<int64_t> out;
    for (int64_t t = begin_ms; t <= end_ms; t += step_ms)
        if (pause.due(TimeMs{t})) out.push_back(t);
    return out;
}

TEST(GrowingPause, IsDueAtOnceThenAfterPausesThatDouble) {
    GrowingPause pause(5'000, 20'000);
    EXPECT_EQ(due_times(pause, 1'000, 80'000, 200), (std::vector<int64_t>{1'000, 6'000, 16'000, 36'000, 56'000, 76'000}));
}

TEST(GrowingPause, BeginsAgainAfterAReset) {
    GrowingPause pause(5'000, 20'000);
    EXPECT_EQ(due_times(pause, 0, 20'000, 200), (std::vector<int64_t>{0, 5'000, 15'000}));
    pause.reset();
    EXPECT_EQ(due_times(pause, 20'200, 30'000, 200), (std::vector<int64_t>{20'200, 25'200}));
}

}  // namespace
}  // namespace baton
