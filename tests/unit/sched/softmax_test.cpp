#include "sched/softmax.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace baton::sched {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(Softmax, WeightsAreExpWithinTwoUlp) {
    std::mt19937 rng(1);
    std::uniform_real_distribution<float> below(-86.0f, 0.0f);
    std::vector<float> logits{0.0f, -0.0f, -1e-30f, -86.5f};
    for (int i = 0; i < 20'000; ++i) logits.push_back(below(rng));
    std::vector<float> weights;
    std::vector<double> sums;
    const double total = softmax_weights(logits, 0.0f, 1.0f, 0.0f, weights, sums);
    double want = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
        const double exact = std::exp(static_cast<double>(logits[i]));
        want += exact;
        ASSERT_NEAR(weights[i] / exact, 1.0, 2.5e-7) << logits[i];
    }
    EXPECT_NEAR(total / want, 1.0, 1e-6);
    EXPECT_EQ(weights[0], 1.0f);
}

TEST(Softmax, FarTailBarAndInfinityAreZero) {
    std::vector<float> weights;
    std::vector<double> sums;
    const std::vector<float> logits{5, -100, -kInf, 4, -3e38f, 5};
    softmax_weights(logits, 5.0f, 1.0f, 0.0f, weights, sums);
    EXPECT_EQ(weights[0], 1.0f);
    EXPECT_EQ(weights[1], 0.0f);
    EXPECT_EQ(weights[2], 0.0f);
    EXPECT_EQ(weights[4], 0.0f);
    EXPECT_GT(weights[3], 0.3f);
    const double kept = softmax_weights(logits, 5.0f, 1.0f, 0.5f, weights, sums);
    EXPECT_EQ(weights[3], 0.0f);
    EXPECT_EQ(kept, 2.0);
}

TEST(Softmax, MaxIsTheLargestOfAnyLength) {
    std::mt19937 rng(2);
    std::normal_distribution<float> normal(-50, 20);
    for (size_t n = 1; n < 200; ++n) {
        std::vector<float> row(n);
        for (float& v : row) v = normal(rng);
        ASSERT_EQ(max_of(row), *std::max_element(row.begin(), row.end()));
    }
    EXPECT_EQ(max_of({}), -kInf);
}

TEST(Softmax, FindMassIsTheFirstIndexAbove) {
    std::mt19937 rng(3);
    for (int round = 0; round < 300; ++round) {
        // Small whole numbers, so that sums are exact however they are grouped.
        std::vector<float> logits(1 + rng() % 3000, -kInf);
        std::vector<float> weights(logits.size());
        for (float& w : weights) w = static_cast<float>(rng() % 4);
        weights[rng() % weights.size()] = 2;
        std::vector<double> sums;
        double total = 0;
        for (size_t at = 0; at < weights.size(); at += kSumBlock) {
            sums.push_back(0);
            for (size_t i = at; i < std::min(at + kSumBlock, weights.size()); ++i)
                sums.back() += static_cast<double>(weights[i]);
            total += sums.back();
        }
        const double mass = std::floor(total * (static_cast<double>(rng() % 1000) / 1000.0));
        size_t want = 0;
        for (double left = mass; left >= static_cast<double>(weights[want]); ++want)
            left -= static_cast<double>(weights[want]);
        ASSERT_EQ(find_mass(weights, sums, mass), want);
        const size_t last = find_mass(weights, sums, total + 5);
        ASSERT_GT(weights[last], 0.0f) << "a crumb of rounding draws a possible token";
    }
}

}  // namespace
}  // namespace baton::sched
