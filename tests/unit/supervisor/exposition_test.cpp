#include "supervisor/exposition.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <random>

namespace baton::supervisor {
namespace {

using ::testing::HasSubstr;

TEST(Histogram, CountsOfOthersAreThoseOfItsOwnObservations) {
    std::mt19937_64 random(3);
    for (int round = 0; round < 200; ++round) {
        Histogram own(kLatencyBounds);
        std::vector<uint64_t> counts(kLatencyBounds.size() + 1, 0);
        double sum = 0;
        for (size_t n = random() % 40; n > 0; --n) {
            const double v = static_cast<double>(random() % 100'000) / 1000;
            own.observe(v);
            size_t i = 0;
            while (i < kLatencyBounds.size() && v > kLatencyBounds[i]) ++i;
            ++counts[i];
            sum += v;
        }
        const Histogram other(kLatencyBounds, counts, sum);
        EXPECT_EQ(other.count(), own.count());
        EXPECT_DOUBLE_EQ(other.sum(), own.sum());
        for (size_t i = 0; i < kLatencyBounds.size(); ++i) EXPECT_EQ(other.up_to(i), own.up_to(i)) << i;
    }
    EXPECT_EQ(Histogram(kLatencyBounds, {}, 0).count(), 0u);
}

TEST(Exposition, AFamilyStandsOnceWithItsHistograms) {
    Exposition x;
    x.declare(std::array{Exposition::About{"a_seconds", "histogram", "Help."}});
    Histogram h(kTtftBounds);
    h.observe(0.07);
    h.observe(99);
    x.add("a_seconds", {{"m", "x\"\\\ny"}}, h);
    x.add("a_seconds", {{"m", "z"}}, Histogram(kTtftBounds));
    const std::string text = x.text();
    EXPECT_THAT(text, HasSubstr("# HELP a_seconds Help.\n# TYPE a_seconds histogram\n"));
    EXPECT_EQ(text.find("# TYPE"), text.rfind("# TYPE"));
    EXPECT_THAT(text, HasSubstr("a_seconds_bucket{m=\"x\\\"\\\\\\ny\",le=\"0.05\"} 0\n"));
    EXPECT_THAT(text, HasSubstr("le=\"0.1\"} 1\n"));
    EXPECT_THAT(text, HasSubstr("a_seconds_bucket{m=\"x\\\"\\\\\\ny\",le=\"+Inf\"} 2\n"));
    EXPECT_THAT(text, HasSubstr("a_seconds_count{m=\"z\"} 0\n"));
}

TEST(Exposition, AFamilyIsAnnouncedBeforeItsFirstSample) {
    Exposition x;
    x.declare(std::array{Exposition::About{"b_total", "counter", "Of events."}, Exposition::About{"a_total", "counter", "Of others."}});
    x.add("a_total", {}, 3);
    EXPECT_EQ(x.text(), "# HELP a_total Of others.\n# TYPE a_total counter\na_total 3\n# HELP b_total Of events.\n# TYPE b_total counter\n");
}

}  // namespace
}  // namespace baton::supervisor
