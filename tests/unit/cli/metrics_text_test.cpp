#include "cli/metrics_text.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <sstream>

namespace baton::cli {
namespace {

TEST(MetricsText, ReadsSamplesAndTheirLabels) {
    const MetricsText m("# HELP a_total x\n# TYPE a_total counter\na_total{uid=\"x \\\"q\\\" \\\\ \\n}\",role=\"p\"} 3\na_total{uid=\"y\",role=\"p\"} 4 1700000000\nb 2.5e-3\n");
    EXPECT_EQ(m.sum("a_total"), 7);
    EXPECT_EQ(m.sum("a_total", {{"uid", "x \"q\" \\ \n}"}}), 3);
    EXPECT_EQ(m.sum("a_total", {{"role", "p"}, {"uid", "y"}}), 4);
    EXPECT_EQ(m.sum("a_total", {{"role", "d"}}), std::nullopt);
    EXPECT_EQ(m.sum("b"), 2.5e-3);
    EXPECT_EQ(m.sum("c"), std::nullopt);
}

TEST(MetricsText, WhatIsNoSampleIsLeftOut) {
    for (const char* text : {"", "\n\n", "a", "a ", "a x", "a{", "a{b", "a{b=", "a{b=\"", "a{b=\"c", "a{b=\"c\"", "a{b=\"c\"}", "a{b=\"c\"}1", "a{b=\"c\\", "# a 1", "{} 1\n{", " 1"})
        EXPECT_EQ(MetricsText(text).sum("a"), std::nullopt) << text;
    std::mt19937 random(20261130);
    for (int i = 0; i < 20'000; ++i) {
        std::string text;
        for (size_t n = random() % 40; n > 0; --n) text += "a{}=\"\\,\n 1.e+#"[random() % 14];
        (void)MetricsText(text).sum("a", {{"a", "a"}});
    }
}

TEST(MetricsText, ACounterThatWentBackCountsFromZero) {
    EXPECT_EQ(growth(MetricsText("a 5\n"), MetricsText("a 9\n"), "a"), 4);
    EXPECT_EQ(growth(MetricsText("a 5\n"), MetricsText("a 2\n"), "a"), 2);
    EXPECT_EQ(growth(MetricsText(""), MetricsText("a 2\n"), "a"), 2);
    EXPECT_EQ(growth(MetricsText("a 5\n"), MetricsText(""), "a"), std::nullopt);
}

/// Quantiles of random observations lie in the bucket where the sorted observations have them.
TEST(MetricsText, QuantilesLieInTheRightBucket) {
    const std::vector<double> bounds{0.01, 0.02, 0.05, 0.1, 0.5, 1};
    std::mt19937 random(7);
    for (int round = 0; round < 200; ++round) {
        std::vector<double> seen;
        std::exponential_distribution<double> draw(1 + static_cast<double>(random() % 30));
        for (size_t n = 1 + random() % 60; n > 0; --n) seen.push_back(draw(random));
        std::sort(seen.begin(), seen.end());
        std::ostringstream before, now;
        for (const double b : bounds) {
            before << "h_bucket{le=\"" << b << "\"} 100\n";
            now << "h_bucket{le=\"" << b << "\"} " << 100 + std::count_if(seen.begin(), seen.end(), [&](double v) { return v <= b; }) << "\n";
        }
        before << "h_bucket{le=\"+Inf\"} 100\n";
        now << "h_bucket{le=\"+Inf\"} " << 100 + seen.size() << "\n";
        for (const double q : {0.5, 0.95}) {
            const auto got = quantile(MetricsText(before.str()), MetricsText(now.str()), "h", q);
            ASSERT_TRUE(got);
            const double truth = seen[static_cast<size_t>(std::ceil(q * static_cast<double>(seen.size()))) - 1];
            const auto up = std::lower_bound(bounds.begin(), bounds.end(), truth);
            const double low = up == bounds.begin() ? 0 : *(up - 1), high = up == bounds.end() ? bounds.back() : *up;
            EXPECT_GE(*got, up == bounds.end() ? bounds.back() : low) << round;
            EXPECT_LE(*got, high) << round;
        }
    }
    EXPECT_EQ(quantile(MetricsText("h_bucket{le=\"1\"} 3\n"), MetricsText("h_bucket{le=\"1\"} 3\n"), "h", 0.5), std::nullopt);
}

}  // namespace
}  // namespace baton::cli
