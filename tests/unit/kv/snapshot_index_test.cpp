#include "baton/kv/snapshot_index.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace baton::kv {
namespace {

constexpr uint64_t kAnn = 1;
constexpr uint64_t kBob = 2;

Digest key(uint8_t n) {
    Digest d{};
    d[0] = n;
    return d;
}

std::vector<Digest> keys(uint8_t first, uint8_t count) {
    std::vector<Digest> list;
    for (uint8_t i = 0; i < count; ++i) list.push_back(key(static_cast<uint8_t>(first + i)));
    return list;
}

void fill(SnapshotIndex& index, uint64_t owner, const std::vector<Digest>& k, TimeMs now = {}) {
    index.publish(now, owner, index.allot(now, owner, k), true);
}

TEST(SnapshotIndex, SlotIsFoundOnlyOncePublished) {
    SnapshotIndex index(4, 100);
    const auto slots = index.allot({0}, kAnn, keys(1, 2));
    EXPECT_NE(slots[0], slots[1]);
    EXPECT_TRUE(index.lease({0}, kBob, keys(1, 2)).empty());
    index.publish({0}, kAnn, std::vector{slots[0]}, true);
    EXPECT_EQ(index.lease({0}, kBob, keys(1, 2)), std::vector{slots[0]});
    index.publish({0}, kAnn, std::vector{slots[1]}, true);
    EXPECT_EQ(index.lease({0}, kBob, keys(1, 2)), slots);
    EXPECT_EQ(index.check_invariants(), std::nullopt);
}

TEST(SnapshotIndex, KeyThatIsThereOrBeingFilledGetsNoSlot) {
    SnapshotIndex index(4, 100);
    const auto slots = index.allot({0}, kAnn, keys(1, 1));
    EXPECT_EQ(index.allot({0}, kBob, keys(1, 1)), std::vector{UINT32_MAX});
    index.publish({0}, kAnn, slots, true);
    EXPECT_EQ(index.allot({0}, kBob, keys(1, 1)), std::vector{UINT32_MAX});
    const auto twice = index.allot({0}, kBob, std::vector{key(9), key(9)});
    EXPECT_NE(twice[0], UINT32_MAX);
    EXPECT_EQ(twice[1], UINT32_MAX);
}

TEST(SnapshotIndex, GivenUpFillingFreesTheSlot) {
    SnapshotIndex index(1, 100);
    index.publish({0}, kAnn, index.allot({0}, kAnn, keys(1, 1)), false);
    EXPECT_EQ(index.counts().free, 1u);
    EXPECT_TRUE(index.lease({0}, kBob, keys(1, 1)).empty());
}

TEST(SnapshotIndex, PublishOfForeignOrWildSlotsIsIgnored) {
    SnapshotIndex index(2, 100);
    const auto slots = index.allot({0}, kAnn, keys(1, 1));
    index.publish({0}, kBob, slots, true);
    index.publish({0}, kBob, std::vector<uint32_t>{77, UINT32_MAX}, true);
    index.unlease({0}, kBob, std::vector<uint32_t>{77, UINT32_MAX, 0});
    EXPECT_EQ(index.counts().filling, 1u);
    EXPECT_EQ(index.check_invariants(), std::nullopt);
}

TEST(SnapshotIndex, EvictsTheLeastRecentlyUsedCompleteSlot) {
    SnapshotIndex index(3, 100);
    fill(index, kAnn, keys(1, 3));
    index.unlease({1}, kBob, index.lease({1}, kBob, keys(1, 1)));
    EXPECT_NE(index.allot({2}, kAnn, keys(7, 1))[0], UINT32_MAX);
    EXPECT_EQ(index.lease({2}, kBob, keys(1, 1)).size(), 1u);
    EXPECT_TRUE(index.lease({2}, kBob, keys(2, 1)).empty());
    EXPECT_EQ(index.lease({2}, kBob, keys(3, 1)).size(), 1u);
}

TEST(SnapshotIndex, LeasedAndFillingSlotsAreNotEvicted) {
    SnapshotIndex index(3, 100);
    fill(index, kAnn, keys(1, 2));
    ASSERT_EQ(index.lease({0}, kBob, keys(1, 2)).size(), 2u);
    const auto slots = index.allot({0}, kAnn, keys(11, 3));
    EXPECT_NE(slots[0], UINT32_MAX);
    EXPECT_EQ(slots[1], UINT32_MAX);
    EXPECT_EQ(slots[2], UINT32_MAX);
    EXPECT_EQ(index.counts().leased, 2u);
}

TEST(SnapshotIndex, LeaseEndsByTime) {
    SnapshotIndex index(1, 100);
    fill(index, kAnn, keys(1, 1));
    ASSERT_EQ(index.lease({0}, kBob, keys(1, 1)).size(), 1u);
    index.on_tick({99});
    EXPECT_EQ(index.counts().leased, 1u);
    index.on_tick({100});
    EXPECT_EQ(index.counts().leased, 0u);
    EXPECT_NE(index.allot({100}, kAnn, keys(2, 1))[0], UINT32_MAX);
}

TEST(SnapshotIndex, LateWordOfAnEndedLeaseDoesNotEndANewerOne) {
    SnapshotIndex index(1, 100);
    fill(index, kAnn, keys(1, 1));
    const auto first = index.lease({0}, kBob, keys(1, 1));
    const auto second = index.lease({150}, kBob, keys(1, 1));
    index.unlease({160}, kBob, first);
    EXPECT_EQ(index.counts().leased, 1u);
    index.unlease({160}, kBob, second);
    EXPECT_EQ(index.counts().leased, 0u);
}

TEST(SnapshotIndex, DeathOfAWriterVoidsWhatItFilledAndKeepsWhatItFinished) {
    SnapshotIndex index(4, 100);
    fill(index, kAnn, keys(1, 2));
    (void)index.allot({0}, kAnn, keys(3, 1));
    ASSERT_EQ(index.lease({0}, kAnn, keys(1, 2)).size(), 2u);
    index.owner_gone({0}, kAnn);
    EXPECT_EQ(index.counts().filling, 0u);
    EXPECT_EQ(index.counts().leased, 0u);
    EXPECT_EQ(index.lease({0}, kBob, keys(1, 3)).size(), 2u);
    EXPECT_EQ(index.check_invariants(), std::nullopt);
}

TEST(SnapshotIndex, NoSlotsGiveNothing) {
    SnapshotIndex index(0, 100);
    EXPECT_EQ(index.allot({0}, kAnn, keys(1, 1)), std::vector{UINT32_MAX});
    EXPECT_TRUE(index.lease({0}, kAnn, keys(1, 1)).empty());
}

// Random use against what holds for any directory: a slot has one key at a time, a leased slot keeps its key.
TEST(SnapshotIndex, RandomUseKeepsLeasedSlotsAndBooks) {
    for (uint32_t seed = 0; seed < 200; ++seed) {
        std::mt19937 random(seed);
        SnapshotIndex index(6, 50);
        std::map<uint32_t, Digest> content;  // by slot, as the writers wrote it
        std::map<uint64_t, std::vector<uint32_t>> filling;
        struct Held { uint64_t owner; TimeMs until; std::vector<uint32_t> slots; std::vector<Digest> keys; };
        std::vector<Held> held;
        TimeMs now{0};
        for (int step = 0; step < 300; ++step) {
            now = now + static_cast<int64_t>(random() % 10);
            const uint64_t owner = 1 + random() % 3;
            const auto asked = keys(static_cast<uint8_t>(random() % 12), static_cast<uint8_t>(1 + random() % 3));
            switch (random() % 6) {
                case 0:
                case 1: {
                    const auto slots = index.allot(now, owner, asked);
                    for (size_t i = 0; i < slots.size(); ++i) {
                        if (slots[i] == UINT32_MAX) continue;
                        content[slots[i]] = asked[i];
                        filling[owner].push_back(slots[i]);
                    }
                    break;
                }
                case 2:
                    index.publish(now, owner, filling[owner], random() % 4 != 0);
                    filling[owner].clear();
                    break;
                case 3: {
                    const auto slots = index.lease(now, owner, asked);
                    std::vector<Digest> got(asked.begin(), asked.begin() + static_cast<long>(slots.size()));
                    if (!slots.empty()) held.push_back({owner, now + 50, slots, got});
                    break;
                }
                case 4:
                    if (!held.empty()) {
                        index.unlease(now, held.front().owner, held.front().slots);
                        held.erase(held.begin());
                    }
                    break;
                default:
                    if (random() % 10 == 0) {
                        index.owner_gone(now, owner);
                        filling[owner].clear();
                        std::erase_if(held, [&](const Held& h) { return h.owner == owner; });
                    }
            }
            for (const Held& h : held) {
                if (h.until <= now) continue;
                for (size_t i = 0; i < h.slots.size(); ++i) ASSERT_EQ(content[h.slots[i]], h.keys[i]) << "seed " << seed;
            }
            ASSERT_EQ(index.check_invariants(), std::nullopt) << "seed " << seed << " step " << step;
            const auto counts = index.counts();
            ASSERT_EQ(counts.free + counts.filling + counts.complete, 6u);
        }
    }
}

}  // namespace
}  // namespace baton::kv
