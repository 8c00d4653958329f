#include "cli/split_beside.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace baton::cli::split {
namespace {

/// Steps of `alone_us` from 0 on, each followed by the next, that go on at 1/factor of their pace within `window`, until the one that
/// the window's end finds has ended.
std::vector<Span> steps_beside(const Span& window, double alone_us, double factor) {
    std::vector<Span> steps;
    for (double now = 0; now < window.end_us;) {
        const double begin = now;
        double left = alone_us;
        if (now < window.begin_us) {
            const double before = std::min(left, window.begin_us - now);
            now += before;
            left -= before;
        }
        const double within = std::min(left * factor, std::max(0.0, window.end_us - now));
        now += within;
        left -= within / factor;
        now += left;
        steps.push_back({begin, now});
    }
    return steps;
}

// Wherever the other's step begins and ends, and however many of ours there are meanwhile, less than one too.
TEST(Slowed, FindsTheFactorWhateverThePhase) {
    std::mt19937_64 random(1);
    const auto between = [&](double low, double high) { return std::uniform_real_distribution<double>(low, high)(random); };
    for (int i = 0; i < 2'000; ++i) {
        const double alone_us = between(1, 50), factor = between(1, 6), begin_us = alone_us * between(2, 9);
        const Span window{begin_us, begin_us + between(0.3 * alone_us, 20 * alone_us)};
        Slowed slowed;
        slowed.add(window, steps_beside(window, alone_us, factor));
        EXPECT_NEAR(slowed.factor(), factor, 1e-6 * factor) << "step " << alone_us << ", window " << window.begin_us << " to " << window.end_us;
    }
}

TEST(Slowed, AMachineThatGetsSlowerIsNoSlowingByTheOther) {
    for (const double drift : {0.5, 0.9, 1.2, 2.0}) {
        Slowed slowed;
        double pace = 1;
        for (int round = 0; round < 8; ++round, pace *= drift) {
            const Span window{35 * pace, 95 * pace};
            slowed.add(window, steps_beside(window, 10 * pace, 1.7));
        }
        EXPECT_NEAR(slowed.factor(), 1.7, 1e-6) << drift;
    }
}

// After a pause both threads of a replica may share a core until the system moves one.
TEST(Slowed, SlowStepsAfterAPauseAreNotTheMeasure) {
    const Span window{40, 100};
    for (int slow = 1; slow <= 8; ++slow) {
        auto steps = steps_beside(window, 10, 2);
        for (int i = 0; i < slow; ++i) steps.insert(steps.begin(), {-20.0 * (i + 1), -20.0 * i});
        Slowed slowed;
        slowed.add(window, steps);
        EXPECT_NEAR(slowed.factor(), 2, 1e-6) << slow << " of " << slow + 4;
    }
}

TEST(Slowed, ARoundThatWasDisturbedDoesNotCount) {
    Slowed slowed;
    for (const double factor : {1.8, 1.8, 9.0, 1.8, 1.0}) slowed.add({40, 100}, steps_beside({40, 100}, 10, factor));
    EXPECT_NEAR(slowed.factor(), 1.8, 1e-6);
}

TEST(Slowed, IsBoundedAndNeverBelowOne) {
    Slowed none;
    EXPECT_EQ(none.factor(), 1);
    none.add({10, 20}, {});
    none.add({10, 20}, {{0, 5}});    // nothing meanwhile
    none.add({10, 20}, {{12, 15}});  // nothing to compare with
    EXPECT_EQ(none.factor(), 1);
    Slowed quicker;
    quicker.add({30, 60}, {{0, 10}, {10, 20}, {20, 30}, {30, 35}, {35, 40}, {40, 45}, {45, 50}, {50, 60}});
    EXPECT_EQ(quicker.factor(), 1);
    Slowed stuck;
    stuck.add({20, 1'020}, {{0, 10}, {10, 20}, {20, 1'020}});
    EXPECT_EQ(stuck.factor(), 100);
}

}  // namespace
}  // namespace baton::cli::split
