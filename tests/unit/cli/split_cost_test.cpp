#include "cli/split_cost.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace baton::cli::split {
namespace {

constexpr double kA = 900, kB = 350, kC = 0.04, kD = 3000, kE = 400, kF = 0.8, kG = 500;

StepSample chunk(uint32_t n, uint32_t position) { return {n, position, 0, 0, kA + kB * n + kC * (2.0 * position * n + 1.0 * n * n)}; }
StepSample decode(uint32_t rows, uint32_t context) { return {0, 0, rows, context, kD + kE * rows + kF * rows * context}; }

std::vector<StepSample> made() {
    std::vector<StepSample> out{chunk(16, 0), chunk(128, 0), chunk(512, 0), chunk(512, 512), decode(1, 64), decode(1, 1024), decode(8, 64), decode(8, 1024), decode(32, 512)};
    StepSample mixed = chunk(256, 0);
    mixed.rows = 8;
    mixed.context = 600;
    mixed.us += kG * 8 + kF * 8 * 600;
    out.push_back(mixed);
    return out;
}

TEST(StepCost, FindsTheCoefficientsThatMadeTheTimes) {
    const auto cost = StepCost::fit(made());
    ASSERT_TRUE(cost);
    EXPECT_LT(cost->worst_error(), 1e-6);
    EXPECT_NEAR(cost->prefill_us(0, 300, 512), chunk(300, 0).us, 1e-3);
    EXPECT_NEAR(cost->prefill_us(512, 300, 512), chunk(300, 512).us, 1e-3);
    EXPECT_NEAR(cost->decode_us(20, 300), decode(20, 300).us, 1e-3);
    StepLoad load;
    load.add_chunk(100, 50);
    for (int i = 0; i < 4; ++i) load.add_row(200);
    EXPECT_NEAR(cost->us(load), chunk(100, 50).us + 4 * kG + kF * 800, 1e-3);
    EXPECT_NEAR(cost->prompt_share(load), chunk(100, 50).us / cost->us(load), 1e-6);
}

TEST(StepCost, AWholePromptHasALineAndASquareWhateverItsChunks) {
    const auto cost = StepCost::fit(made());
    ASSERT_TRUE(cost);
    for (const uint32_t step : {64u, 256u, 500u}) {
        const double chunks = std::ceil(2000.0 / step);
        EXPECT_NEAR(cost->prefill_us(0, 2000, step), chunks * kA + kB * 2000 + kC * 2000.0 * 2000.0, 1);
    }
    EXPECT_EQ(cost->prefill_us(512, 0, 512), 0);
}

TEST(StepCost, ATimeNeverFallsWithMoreInAStep) {
    std::mt19937_64 random(3);
    std::uniform_real_distribution<double> noise(0.6, 1.5);
    for (int round = 0; round < 50; ++round) {
        std::vector<StepSample> samples = made();
        for (StepSample& s : samples) s.us *= noise(random);
        const auto cost = StepCost::fit(samples);
        ASSERT_TRUE(cost);
        double before = 0;
        for (uint32_t n = 1; n < 3000; n += 97) {
            const double now = cost->prefill_us(0, n, 512);
            EXPECT_GE(now, before);
            before = now;
        }
        StepLoad load;
        load.add_chunk(64, 0);
        StepLoad more = load;
        more.add_row(500);
        EXPECT_GE(cost->us(more), cost->us(load));
        EXPECT_GE(cost->us(more), cost->decode_us(1, 500));
        EXPECT_GE(cost->decode_us(8, 900), cost->decode_us(8, 100));
    }
}

TEST(StepCost, GoesThroughWhatWasTimedAtEachBatch) {
    // Steps of GPUs fall in stairs that no line follows.
    std::vector<StepSample> samples{chunk(64, 0), chunk(512, 0)};
    const std::pair<uint32_t, double> stairs[]{{1, 500}, {8, 820}, {16, 830}, {17, 1300}, {64, 1500}};
    for (const auto& [rows, us] : stairs) samples.push_back({0, 0, rows, 1, us});
    const auto cost = StepCost::fit(samples);
    ASSERT_TRUE(cost);
    for (const auto& [rows, us] : stairs) EXPECT_NEAR(cost->decode_us(rows, 1), us, 1e-6 * us) << rows;
    EXPECT_GT(cost->decode_us(12, 1), 700);
    EXPECT_LT(cost->decode_us(12, 1), 1000);
    EXPECT_GT(cost->decode_us(128, 1), 1500);  // beyond: as the line goes on
}

TEST(StepCost, OnePromptSaysHowLongATokenTakes) {
    const std::vector<StepSample> samples{{1000, 0, 0, 0, 50'000}, {0, 0, 1, 512, 4000}};
    const auto cost = StepCost::fit(samples);
    ASSERT_TRUE(cost);
    EXPECT_NEAR(cost->prefill_us(0, 100, 512), 5000, 1e-6);
    EXPECT_NEAR(cost->decode_us(1, 512), 4000, 1e-6);
}

TEST(StepCost, BothKindsOfStepsAreNeededAndTimesArePositive) {
    const std::vector<StepSample> prompts{chunk(16, 0)}, rows{decode(1, 64)};
    EXPECT_EQ(StepCost::fit(prompts).error().param, "decode");
    EXPECT_EQ(StepCost::fit(rows).error().param, "prefill");
    EXPECT_FALSE(StepCost::fit({}));
    for (const double us : {0.0, -1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
        std::vector<StepSample> samples = made();
        samples[2].us = us;
        EXPECT_FALSE(StepCost::fit(samples)) << us;
    }
}

TEST(FitNonnegative, NoSmallChangeIsBetter) {
    std::mt19937_64 random(7);
    std::uniform_real_distribution<double> value(0.1, 10), y_of(1, 50);
    for (int round = 0; round < 100; ++round) {
        std::vector<std::vector<double>> x;
        std::vector<double> y;
        for (int row = 0; row < 8; ++row) {
            x.push_back({1, value(random), value(random)});
            y.push_back(y_of(random));
        }
        const auto error = [&](const std::vector<double>& c) {
            double sum = 0;
            for (size_t row = 0; row < x.size(); ++row) {
                const double e = (c[0] * x[row][0] + c[1] * x[row][1] + c[2] * x[row][2]) / y[row] - 1;
                sum += e * e;
            }
            return sum;
        };
        const std::vector<double> found = fit_nonnegative(x, y);
        ASSERT_EQ(found.size(), 3u);
        const double least = error(found);
        for (size_t i = 0; i < 3; ++i) {
            EXPECT_GE(found[i], 0);
            for (const double by : {-0.01, 0.01}) {
                std::vector<double> other = found;
                other[i] = std::max(0.0, other[i] + by);
                EXPECT_GE(error(other), least - 1e-9);
            }
        }
    }
}

TEST(FitNonnegative, FewRowsHaveFewCoefficients) {
    const std::vector<double> one = fit_nonnegative({{1, 2, 3}}, {6});
    EXPECT_EQ(std::count_if(one.begin(), one.end(), [](double c) { return c > 0; }), 1);
    EXPECT_NEAR(one[0] + 2 * one[1] + 3 * one[2], 6, 1e-9);
    EXPECT_TRUE(fit_nonnegative({}, {}).empty());
}

}  // namespace
}  // namespace baton::cli::split
