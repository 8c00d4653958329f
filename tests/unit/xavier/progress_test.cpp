#include "xavier/progress.hpp"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace baton::xavier {
namespace {

TEST(Progress, PacksAndUnpacks) {
    std::mt19937 rng(1);
    for (int i = 0; i < 10'000; ++i) {
        const Progress p{static_cast<uint32_t>(rng()) & 0xffffff, static_cast<uint32_t>(rng()) & 0xffffff,
                         static_cast<uint32_t>(rng()) & 0xffff};
        EXPECT_EQ(unpack(pack(p)), p);
    }
    EXPECT_EQ(pack({1, 2, 3}), 0x0003'000002'000001u);
}

TEST(Progress, ReadyBlocksAgreeWithCountingPositions) {
    std::mt19937 rng(2);
    for (int i = 0; i < 20'000; ++i) {
        const uint32_t tokens = 1 + static_cast<uint32_t>(rng() % 70), bt = 1 + static_cast<uint32_t>(rng() % 17);
        const uint32_t layers = 1 + static_cast<uint32_t>(rng() % 6);
        const uint32_t end = static_cast<uint32_t>(rng() % (tokens + 1));
        const Progress p{end == 0 ? 0 : static_cast<uint32_t>(rng() % (end + 1)), end, static_cast<uint32_t>(rng() % (layers + 1))};
        const Ready ready = ready_blocks(p, tokens, bt, layers);
        for (uint32_t layer = 0; layer < layers; ++layer) {
            const uint32_t computed = layer < p.layers ? p.end : p.begin;
            uint32_t complete = 0;
            while (complete * bt < tokens && std::min((complete + 1) * bt, tokens) <= computed) ++complete;
            ASSERT_EQ(ready.in_layer(layer), complete) << tokens << " " << bt << " " << p.begin << " " << p.end << " " << p.layers;
        }
    }
}

TEST(ExtentCursor, TakesEachPageOnceAndOnlyReadyOnes) {
    std::mt19937 rng(3);
    for (int round = 0; round < 3'000; ++round) {
        const uint32_t layers = 1 + static_cast<uint32_t>(rng() % 7), indices = static_cast<uint32_t>(rng() % 30);
        ExtentCursor cursor(layers, indices);
        std::set<std::pair<uint32_t, uint32_t>> taken;
        uint32_t begin = 0;
        while (!cursor.done()) {
            // Progress in random chunks and layer groups, sometimes read late, sometimes a hostile step back.
            const uint32_t end = std::min(indices, begin + 1 + static_cast<uint32_t>(rng() % 9));
            Ready ready{end, static_cast<uint32_t>(rng() % (layers + 1)), begin};
            if (rng() % 3 == 0) {
                ready = {0, 0, end};
                begin = end;
            } else if (rng() % 20 == 0) {
                ready = {static_cast<uint32_t>(rng() % 3), layers, static_cast<uint32_t>(rng() % 3)};
            }
            const uint64_t pending = cursor.pending_pairs(ready);
            uint64_t got = 0;
            const uint64_t max = 1 + rng() % 40;
            while (const auto e = cursor.next(ready, max)) {
                ASSERT_TRUE(cursor.accepts(*e));
                ASSERT_LE(e->pairs(), max);
                for (uint32_t l = e->first_layer; l < e->first_layer + e->layers; ++l)
                    for (uint32_t i = e->first_index; i < e->first_index + e->indices; ++i) {
                        ASSERT_LT(i, ready.in_layer(l));
                        ASSERT_TRUE(taken.emplace(l, i).second);
                    }
                got += e->pairs();
                cursor.advance(*e);
                ASSERT_FALSE(cursor.accepts(*e));
            }
            ASSERT_EQ(got, pending);
        }
        ASSERT_EQ(taken.size(), size_t{layers} * indices);
    }
}

TEST(ExtentCursor, RefusesWhatDoesNotFit) {
    const ExtentCursor cursor(4, 10);
    for (const Extent& bad : {Extent{0, 0, 0, 1}, Extent{0, 1, 0, 0}, Extent{4, 1, 0, 1}, Extent{0, 5, 0, 1}, Extent{0, 1, 1, 1},
                              Extent{0, 1, 0, 11}, Extent{0, 1, 10, 1}, Extent{UINT32_MAX, 2, 0, 1}, Extent{1, UINT32_MAX, 0, 1},
                              Extent{0, 1, UINT32_MAX, 2}, Extent{0, 1, 0, UINT32_MAX}})
        EXPECT_FALSE(cursor.accepts(bad));
    EXPECT_TRUE(cursor.accepts({0, 4, 0, 10}));
}

}  // namespace
}  // namespace baton::xavier
