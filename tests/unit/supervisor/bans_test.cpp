#include "supervisor/bans.hpp"

#include <gtest/gtest.h>

namespace baton::supervisor {
namespace {

constexpr Bans::Rule kRule{3, 1'000, 5'000};

TEST(Bans, TheLastFailureWithinTheWindowBeginsTheBan) {
    Bans bans(kRule);
    EXPECT_FALSE(bans.failed("a", {0}));
    EXPECT_FALSE(bans.failed("a", {900}));
    EXPECT_FALSE(bans.failed("a", {1'500})) << "the first is too old to count";
    EXPECT_EQ(bans.left_ms("a", {1'500}), 0);
    EXPECT_TRUE(bans.failed("a", {1'600}));
    EXPECT_EQ(bans.left_ms("a", {1'600}), 5'000);
    EXPECT_EQ(bans.left_ms("a", {6'599}), 1);
    EXPECT_EQ(bans.left_ms("a", {6'600}), 0);
    EXPECT_EQ(bans.left_ms("b", {1'600}), 0);
    EXPECT_EQ(bans.count({1'600}), 1u);
    EXPECT_EQ(bans.count({6'600}), 0u);
    EXPECT_FALSE(bans.failed("a", {6'700})) << "after a ban the count begins anew";
}

TEST(Bans, ForgivingEndsABan) {
    Bans bans(kRule);
    for (int i = 0; i < 3; ++i) bans.failed("a", {i});
    EXPECT_GT(bans.left_ms("a", {10}), 0);
    bans.forgive("a");
    EXPECT_EQ(bans.left_ms("a", {10}), 0);
}

TEST(Bans, ARuleOfNoneBansNobody) {
    Bans bans({0, 1'000, 5'000});
    for (int i = 0; i < 100; ++i) EXPECT_FALSE(bans.failed("a", {i}));
    EXPECT_EQ(bans.left_ms("a", {100}), 0);
}

TEST(Bans, VeryManyAddressesTakeBoundedRoomAndOldOnesMakeWay) {
    Bans bans({1, 1'000, 5'000});
    for (int i = 0; i < 10'000; ++i) bans.failed("a" + std::to_string(i), {0});
    EXPECT_LE(bans.count({1}), 5'000u);
    EXPECT_TRUE(bans.failed("new", {10'000}));
    EXPECT_EQ(bans.count({10'000}), 1u);
}

TEST(Bans, RetryAfterIsNeverTooEarly) {
    EXPECT_EQ(retry_after_s(0), 0);
    EXPECT_EQ(retry_after_s(1), 1);
    EXPECT_EQ(retry_after_s(1'000), 1);
    EXPECT_EQ(retry_after_s(1'001), 2);
}

}  // namespace
}  // namespace baton::supervisor
