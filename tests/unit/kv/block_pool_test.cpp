#include "baton/kv/block_pool.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace baton::kv {
namespace {

constexpr uint32_t kTokens = 4;  // a block
const Digest kIdentity = sha256("model");

std::vector<TokenId> ids(uint32_t n, TokenId first = 0) {
    std::vector<TokenId> out(n);
    for (uint32_t i = 0; i < n; ++i) out[i] = first + static_cast<TokenId>(i);
    return out;
}

/// Allots blocks for all of `tokens`, publishes them and gives them back.
std::vector<BlockId> cache(BlockPool& pool, const std::vector<TokenId>& tokens) {
    const auto keys = block_keys(kIdentity, tokens, kTokens);
    auto blocks = pool.match(keys, tokens);
    const auto have = static_cast<uint32_t>(blocks.size());
    const auto more = pool.allocate(static_cast<uint32_t>(keys.size()) - have);
    EXPECT_TRUE(more);
    blocks.insert(blocks.end(), more->begin(), more->end());
    for (size_t b = have; b < keys.size(); ++b)
        pool.publish(blocks[b], keys[b], std::span(tokens).subspan(b * kTokens, kTokens));
    pool.release_all(blocks);
    return blocks;
}

TEST(BlockKey, ChainsAndSeparates) {
    const auto a = block_keys(kIdentity, ids(12), kTokens);
    ASSERT_EQ(a.size(), 3u);
    EXPECT_EQ(a[0], block_key(kIdentity, ids(4)));
    EXPECT_EQ(a[1], block_key(a[0], ids(4, 4)));
    EXPECT_EQ(block_keys(kIdentity, ids(11), kTokens).size(), 2u);
    EXPECT_NE(block_keys(sha256("other"), ids(4), kTokens)[0], a[0]);
    // Same ids after another block are another key.
    EXPECT_NE(block_key(a[0], ids(4)), a[0]);
    // Equal bytes in another split are another key.
    EXPECT_NE(block_key(kIdentity, ids(8)), block_key(block_key(kIdentity, ids(4)), ids(4, 4)));
}

TEST(BlockKey, IsFixed) {
    // Snapshots and peers of another build must agree: a change of this value is a change of
    // format.
    EXPECT_EQ(to_hex(block_key(Digest{}, std::vector<TokenId>{1, 2, 3})),
              to_hex(sha256(std::string("baton.block.1") + std::string(32, '\0') +
                            std::string("\3\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0", 16))));
}

TEST(BlockPool, GrantsAllOrNone) {
    BlockPool pool(4, kTokens, true);
    const auto a = pool.allocate(3);
    ASSERT_TRUE(a);
    EXPECT_EQ(std::set<BlockId>(a->begin(), a->end()).size(), 3u);
    EXPECT_FALSE(pool.allocate(2));
    EXPECT_EQ(pool.free_count(), 1u);
    EXPECT_TRUE(pool.allocate(0)->empty());
    pool.release_all(*a);
    EXPECT_EQ(pool.available(), 4u);
    EXPECT_EQ(pool.used_count(), 0u);
}

TEST(BlockPool, GenerationRisesWithEachGrant) {
    BlockPool pool(1, kTokens, true);
    Generation last = 0;
    for (int i = 0; i < 5; ++i) {
        const auto b = pool.allocate(1);
        EXPECT_GT(pool.generation(b->front()), last);
        last = pool.generation(b->front());
        pool.release(b->front());
        EXPECT_EQ(pool.generation(b->front()), last) << "freed content is still that content";
    }
    pool.plant_skip_generation_raise(true);
    const auto b = pool.allocate(1);
    EXPECT_EQ(pool.generation(b->front()), last);
}

TEST(BlockPool, MatchKeepsGenerationAndTakesReferences) {
    BlockPool pool(8, kTokens, true);
    const auto tokens = ids(16);
    const auto blocks = cache(pool, tokens);
    EXPECT_EQ(pool.cached_count(), 4u);
    const auto keys = block_keys(kIdentity, tokens, kTokens);
    const Generation before = pool.generation(blocks[0]);
    const auto a = pool.match(keys, tokens);
    const auto b = pool.match(std::span(keys).first(2), tokens);
    EXPECT_EQ(a, blocks);
    EXPECT_EQ(pool.references(blocks[0]), 2u);
    EXPECT_EQ(pool.references(blocks[3]), 1u);
    EXPECT_EQ(pool.cached_count(), 0u);
    EXPECT_EQ(pool.generation(blocks[0]), before);
    pool.release_all(a);
    EXPECT_EQ(pool.cached_count(), 2u);
    pool.release_all(b);
    EXPECT_EQ(pool.cached_count(), 4u);
    EXPECT_FALSE(pool.check_invariants());
}

TEST(BlockPool, MatchComparesTokenIds) {
    BlockPool pool(8, kTokens, true);
    const auto tokens = ids(8);
    cache(pool, tokens);
    const auto keys = block_keys(kIdentity, tokens, kTokens);
    auto other = tokens;
    other[6] = 99;  // as if two contents had one key
    EXPECT_EQ(pool.match(keys, other).size(), 1u);
    EXPECT_EQ(pool.match(keys, ids(7)).size(), 1u) << "the second block is not complete";
}

TEST(BlockPool, EvictsLeastRecentlyUsedAndChainEndsFirst) {
    BlockPool pool(6, kTokens, true);
    const auto old_tokens = ids(12);
    const auto new_tokens = ids(12, 100);
    const auto old_blocks = cache(pool, old_tokens);
    const auto new_blocks = cache(pool, new_tokens);
    const auto keys = block_keys(kIdentity, old_tokens, kTokens);
    const auto other = block_keys(kIdentity, new_tokens, kTokens);
    auto taken = pool.allocate(2);
    EXPECT_EQ(*taken, (std::vector<BlockId>{old_blocks[2], old_blocks[1]}));
    auto left = pool.match(keys, old_tokens);
    EXPECT_EQ(left.size(), 1u);
    pool.release_all(left);  // used just now: the other chain is older
    auto more = pool.allocate(1);
    EXPECT_EQ(more->front(), new_blocks[2]);
    EXPECT_EQ(pool.match(other, new_tokens).size(), 2u);
}

TEST(BlockPool, KeyAlreadyThereKeepsItsBlock) {
    BlockPool pool(8, kTokens, true);
    const auto tokens = ids(4);
    const auto first = cache(pool, tokens);
    const auto keys = block_keys(kIdentity, tokens, kTokens);
    const auto twin = pool.allocate(1);
    pool.publish(twin->front(), keys[0], tokens);
    EXPECT_FALSE(pool.published(twin->front()));
    pool.release(twin->front());
    EXPECT_EQ(pool.match(keys, tokens), first);
    EXPECT_FALSE(pool.check_invariants());
}

TEST(BlockPool, WithoutPrefixCacheNothingIsFound) {
    BlockPool pool(8, kTokens, false);
    const auto tokens = ids(8);
    cache(pool, tokens);
    EXPECT_EQ(pool.free_count(), 8u);
    EXPECT_TRUE(pool.match(block_keys(kIdentity, tokens, kTokens), tokens).empty());
}

TEST(BlockPool, DoubleGrantFaultGivesAHeldBlock) {
    BlockPool pool(8, kTokens, true);
    const auto a = pool.allocate(2);
    pool.plant_double_grant(true);
    const auto b = pool.allocate(2);
    std::set<BlockId> both(a->begin(), a->end());
    both.insert(b->begin(), b->end());
    EXPECT_EQ(both.size(), 3u);
}

/// Random calls against a model of who holds what.
TEST(BlockPool, PropertyMatchesAModel) {
    for (uint32_t seed = 0; seed < 40; ++seed) {
        std::mt19937 rng(seed);
        const auto below = [&](uint32_t n) { return static_cast<uint32_t>(rng() % n); };
        const uint32_t blocks = 8 + below(24);
        BlockPool pool(blocks, kTokens, true);
        std::map<BlockId, uint32_t> held;
        std::map<BlockId, std::vector<TokenId>> content;  // of published blocks
        std::vector<std::vector<BlockId>> owners;
        std::map<BlockId, Generation> generations;
        for (int step = 0; step < 600; ++step) {
            if (owners.empty() || below(2) == 0) {
                // A short vocabulary of prefixes, so that chains share and differ.
                std::vector<TokenId> tokens = ids(kTokens * (1 + below(5)));
                for (size_t b = below(4); b * kTokens < tokens.size(); ++b)
                    tokens[b * kTokens] = 1000 + static_cast<TokenId>(below(3));
                const auto keys = block_keys(kIdentity, tokens, kTokens);
                auto mine = pool.match(keys, tokens);
                for (size_t b = 0; b < mine.size(); ++b) {
                    const auto want = std::vector<TokenId>(
                        tokens.begin(),
                        tokens.begin() + static_cast<std::ptrdiff_t>((b + 1) * kTokens));
                    ASSERT_EQ(content.at(mine[b]), want) << "a hit holds the whole prefix";
                    ++held[mine[b]];
                }
                const auto need = static_cast<uint32_t>(keys.size() - mine.size());
                const bool fits = need <= pool.available();
                const auto more = pool.allocate(need);
                ASSERT_EQ(more.has_value(), fits);
                if (more) {
                    for (const BlockId b : *more) {
                        ASSERT_EQ(held[b], 0u) << "granted while held";
                        ASSERT_GT(pool.generation(b), generations[b]);
                        generations[b] = pool.generation(b);
                        content.erase(b);
                        ++held[b];
                    }
                    for (uint32_t i = 0; i < need; ++i) {
                        const size_t b = mine.size() + i;
                        const BlockId id = (*more)[i];
                        pool.publish(id, keys[b], std::span(tokens).subspan(b * kTokens, kTokens));
                        if (pool.published(id))
                            content[id] = {
                                tokens.begin(),
                                tokens.begin() + static_cast<std::ptrdiff_t>((b + 1) * kTokens)};
                    }
                    mine.insert(mine.end(), more->begin(), more->end());
                }
                owners.push_back(mine);
            } else {
                const size_t at = below(static_cast<uint32_t>(owners.size()));
                for (const BlockId b : owners[at]) --held[b];
                pool.release_all(owners[at]);
                owners.erase(owners.begin() + static_cast<std::ptrdiff_t>(at));
            }
            uint32_t used = 0;
            for (const auto& [b, n] : held) {
                ASSERT_EQ(pool.references(b), n);
                used += n > 0 ? 1 : 0;
            }
            ASSERT_EQ(pool.used_count(), used);
            ASSERT_EQ(pool.free_count() + pool.cached_count() + used, blocks);
            ASSERT_EQ(pool.check_invariants().value_or(""), "");
        }
    }
}

}  // namespace
}  // namespace baton::kv
