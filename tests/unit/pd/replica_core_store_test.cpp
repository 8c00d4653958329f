#include <gtest/gtest.h>

#include "unit/pd/replica_core_rig.hpp"

namespace baton::pd {
namespace {

using namespace rig;

CoreConfig with_store(Role role, uint32_t blocks = 64) {
    CoreConfig c = config(role, blocks);
    c.snapshots = true;
    return c;
}

/// A hybrid replica with a store.
struct StoreRig : Rig {
    explicit StoreRig(const CoreConfig& c = with_store(Role::kHybrid)) : Rig(c) {
        core.on_store_up(now, true);
        pump();
    }
    void give(uint64_t ask, std::vector<uint32_t> slots) {
        from_store(wire::StoreSlots{ask, std::move(slots)});
    }
    /// Writes what the store would copy: the first blocks of `tokens`.
    void fill(const StoreCopy& copy, const std::vector<TokenId>& tokens, uint32_t first_block) {
        uint64_t state = 0;
        for (uint32_t at = 0; at < tokens.size(); ++at) {
            state = mix(state, tokens[at]);
            const uint32_t b = at / kTokens;
            if (b < first_block || b - first_block >= copy.blocks.size()) continue;
            rows.at(size_t{copy.blocks[b - first_block]} * kTokens + at % kTokens) = state;
        }
    }
    /// Answers each question for room with nothing.
    void refuse_room() {
        for (const auto& m : asked<wire::StoreAllot>())
            give(m.ask, std::vector<uint32_t>(m.keys.size(), UINT32_MAX));
    }
};

wire::Sequence recovering(uint64_t id, std::vector<TokenId> prompt, uint32_t max_tokens) {
    auto s = sequence(id, std::move(prompt), max_tokens);
    s.recovering = true;
    return s;
}

TEST(ReplicaCoreStore, HoldsNoMoreBlocksForCopiesThanItMay) {
    CoreConfig c = with_store(Role::kHybrid);
    c.snapshot_blocks_max = 3;
    StoreRig r(c);
    r.supervise(wire::Run{sequence(1, ids(16), 1)});
    r.supervise(wire::Run{sequence(2, ids(16, 100), 1)});
    r.run_dry();
    const auto allots = r.asked<wire::StoreAllot>();
    ASSERT_EQ(allots.size(), 1u);
    EXPECT_EQ(allots[0].keys.size(), 3u);
    r.give(allots[0].ask, {0, 1, 2});
    r.supervise(wire::Run{sequence(3, ids(16, 200), 1)});
    r.run_dry();
    EXPECT_EQ(r.asked<wire::StoreAllot>().size(), 1u) << "until they are copied";
    ASSERT_EQ(r.copies.size(), 1u);
    r.copied(r.copies[0].copy);
    r.supervise(wire::Run{sequence(4, ids(9, 300), 1)});
    r.run_dry();
    EXPECT_EQ(r.asked<wire::StoreAllot>().size(), 2u);
    r.refuse_room();
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCoreStore, PublishesCompleteBlocksAfterThePrompt) {
    StoreRig r;
    r.supervise(wire::Run{sequence(1, ids(18), 12)});
    r.step();
    EXPECT_TRUE(r.store.empty()) << "not in the middle of a prompt";
    r.step();
    ASSERT_EQ(r.asked<wire::StoreAllot>().size(), 1u);
    const wire::StoreAllot allot = r.asked<wire::StoreAllot>()[0];
    EXPECT_EQ(allot.keys, kv::block_keys(sha256("model"), ids(18), kTokens));
    r.give(allot.ask, {7, UINT32_MAX, 9, 3});
    ASSERT_EQ(r.copies.size(), 1u);
    EXPECT_TRUE(r.copies[0].to_store);
    EXPECT_EQ(r.copies[0].slots, (std::vector<uint32_t>{7, 9, 3}));
    EXPECT_EQ(r.copies[0].blocks.size(), 3u);
    r.run_dry();
    EXPECT_EQ(r.tokens(1), expected(ids(18), 12));
    EXPECT_FALSE(r.core.idle()) << "the copy holds its blocks";
    EXPECT_GE(r.core.stats().blocks_used, 3u);
    r.copied(r.copies[0].copy);
    ASSERT_EQ(r.asked<wire::StorePublish>().size(), 1u);
    EXPECT_TRUE(r.asked<wire::StorePublish>()[0].ok);
    EXPECT_EQ(r.asked<wire::StorePublish>()[0].slots, (std::vector<uint32_t>{7, 9, 3}));
    // 29 rows are complete: blocks 4, 5 and 6 while decoding.
    EXPECT_EQ(r.asked<wire::StoreAllot>().size(), 4u);
    for (size_t i = 1; i < 4; ++i) r.give(r.asked<wire::StoreAllot>()[i].ask, {UINT32_MAX});
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCoreStore, DecodeReplicaStoresWhatItCompletes) {
    StoreRig r(with_store(Role::kDecode));
    r.link(kP);
    auto s = sequence(1, ids(9), 9);
    r.peer(kP, rig::offer(1, s));
    uint64_t state = 0;
    for (uint32_t at = 0; at < 9; ++at) {
        state = mix(state, static_cast<TokenId>(at));
        r.rows[size_t{r.pulls[0].target_blocks[at / kTokens]} * kTokens + at % kTokens] = state;
    }
    r.pull_done(1, true);
    r.peer(kP, wire::Commit{OfferId{1}, expected(ids(9), 1), {}});
    r.run_dry();
    std::vector<TokenId> all = ids(9);
    const auto more = expected(ids(9), 9);
    all.insert(all.end(), more.begin(), more.end());
    const auto keys = kv::block_keys(sha256("model"), all, kTokens);
    ASSERT_EQ(r.asked<wire::StoreAllot>().size(), 2u);
    EXPECT_EQ(r.asked<wire::StoreAllot>()[0].keys, std::vector<Digest>{keys[2]});
    EXPECT_EQ(r.asked<wire::StoreAllot>()[1].keys, std::vector<Digest>{keys[3]});
    r.refuse_room();
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCoreStore, FailedCopyPublishesNothing) {
    StoreRig r;
    r.supervise(wire::Run{sequence(1, ids(8), 1)});
    r.run_dry();
    r.give(r.asked<wire::StoreAllot>()[0].ask, {1, 2});
    r.copied(r.copies[0].copy, false);
    EXPECT_FALSE(r.asked<wire::StorePublish>()[0].ok);
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCoreStore, LateRoomIsGivenBack) {
    StoreRig r;
    r.supervise(wire::Run{sequence(1, ids(8), 1)});
    r.run_dry();
    EXPECT_FALSE(r.all_free());
    r.tick(500);
    EXPECT_TRUE(r.all_free());
    r.give(r.asked<wire::StoreAllot>()[0].ask, {1, UINT32_MAX});
    ASSERT_EQ(r.asked<wire::StorePublish>().size(), 1u);
    EXPECT_EQ(r.asked<wire::StorePublish>()[0].slots, std::vector<uint32_t>{1});
    EXPECT_FALSE(r.asked<wire::StorePublish>()[0].ok);
    EXPECT_TRUE(r.copies.empty());
}

TEST(ReplicaCoreStore, RecoveringSequenceReadsWhatItsCacheLacks) {
    StoreRig r;
    r.supervise(wire::Run{recovering(1, ids(22), 3)});
    EXPECT_TRUE(r.plan().empty()) << "waits for the store";
    ASSERT_EQ(r.asked<wire::StoreLease>().size(), 1u);
    EXPECT_EQ(r.asked<wire::StoreLease>()[0].keys.size(), 5u);
    r.give(r.asked<wire::StoreLease>()[0].ask, {4, 5, 6});
    ASSERT_EQ(r.copies.size(), 1u);
    EXPECT_FALSE(r.copies[0].to_store);
    EXPECT_TRUE(r.plan().empty());
    r.fill(r.copies[0], ids(22), 0);
    r.copied(r.copies[0].copy);
    EXPECT_EQ(r.asked<wire::StoreUnlease>().at(0).slots, (std::vector<uint32_t>{4, 5, 6}));
    r.run_dry();
    EXPECT_EQ(r.tokens(1), expected(ids(22), 3));
    EXPECT_EQ(r.told<wire::TokenBatch>()[0].items[0].cached_tokens, 12u);
    EXPECT_EQ(r.core.stats().prefill_tokens, 10u);
    r.refuse_room();
    EXPECT_TRUE(r.all_free());
    // Now its own cache has them: nothing to ask.
    r.supervise(wire::Run{recovering(2, ids(22), 3)});
    r.run_dry();
    EXPECT_EQ(r.asked<wire::StoreLease>().size(), 1u);
}

TEST(ReplicaCoreStore, ReadsFollowALocalHit) {
    StoreRig r;
    r.supervise(wire::Run{sequence(1, ids(8), 1)});
    r.run_dry();
    r.supervise(wire::Run{recovering(2, ids(22), 3)});
    (void)r.plan();
    EXPECT_EQ(r.asked<wire::StoreLease>().at(0).keys.size(), 3u);
    r.give(r.asked<wire::StoreLease>()[0].ask, {4, 5});
    r.fill(r.copies[0], ids(22), 2);
    r.copied(r.copies[0].copy);
    r.run_dry();
    EXPECT_EQ(r.tokens(2), expected(ids(22), 3));
    EXPECT_EQ(r.core.stats().prefill_tokens, 8u + 6);
}

TEST(ReplicaCoreStore, AnyMissMeansComputing) {
    for (int miss = 0; miss < 6; ++miss) {
        StoreRig r;
        r.supervise(wire::Run{recovering(1, ids(22), 3)});
        (void)r.plan();
        const uint64_t ask = r.asked<wire::StoreLease>().at(0).ask;
        if (miss == 0) r.give(ask, {});
        if (miss == 1) r.tick(500);
        if (miss == 2) {
            r.give(ask, {1, 2});
            r.copied(r.copies[0].copy, false);
            EXPECT_EQ(r.asked<wire::StoreUnlease>().size(), 1u);
        }
        if (miss == 3) {
            r.core.on_store_up(r.now, false);
            r.pump();
        }
        if (miss == 4) {
            r.give(ask, {1, 2});
            r.core.on_store_up(r.now, true);  // another store: what the old one gave is void
            r.pump();
            EXPECT_TRUE(r.plan().empty()) << "the copy still writes";
            r.copied(r.copies[0].copy);
            EXPECT_TRUE(r.asked<wire::StoreUnlease>().empty());
        }
        if (miss == 5) {
            r.give(ask, {1, 2});
            r.tick(3'000);  // the lease is over: the slots may hold something else by now
            r.copied(r.copies[0].copy);
        }
        r.run_dry();
        EXPECT_EQ(r.tokens(1), expected(ids(22), 3)) << miss;
        EXPECT_EQ(r.core.stats().prefill_tokens, 22u);
        r.refuse_room();
        if (miss == 1) {
            r.give(ask, {8, 9});
            EXPECT_EQ(r.asked<wire::StoreUnlease>().at(0).slots, (std::vector<uint32_t>{8, 9}))
                << "came too late";
        }
        EXPECT_TRUE(r.all_free()) << miss;
    }
}

TEST(ReplicaCoreStore, AnswersThatDoNotFitAreGivenBack) {
    StoreRig r;
    r.supervise(wire::Run{recovering(1, ids(6), 3)});
    (void)r.plan();
    r.give(r.asked<wire::StoreLease>().at(0).ask, {1, 2, 3});
    EXPECT_TRUE(r.copies.empty());
    EXPECT_EQ(r.asked<wire::StoreUnlease>().at(0).slots.size(), 3u);
    r.run_dry();
    EXPECT_EQ(r.tokens(1), expected(ids(6), 3));
}

TEST(ReplicaCoreStore, AbortWaitsForTheCopyAndGivesTheLeaseBack) {
    StoreRig r;
    r.supervise(wire::Run{recovering(1, ids(22), 3)});
    (void)r.plan();
    r.give(r.asked<wire::StoreLease>().at(0).ask, {1, 2});
    r.supervise(wire::Abort{{SequenceId{1}, 1}});
    EXPECT_EQ(r.core.stats().blocks_used, 6u);
    r.copied(r.copies[0].copy);
    EXPECT_EQ(r.asked<wire::StoreUnlease>().size(), 1u);
    EXPECT_TRUE(r.all_free());

    r.supervise(wire::Run{recovering(2, ids(22), 3)});
    (void)r.plan();
    r.supervise(wire::Abort{{SequenceId{2}, 1}});
    EXPECT_TRUE(r.all_free()) << "a question holds nothing";
    r.give(r.asked<wire::StoreLease>().back().ask, {1, 2});
    EXPECT_EQ(r.asked<wire::StoreUnlease>().size(), 2u);
}

TEST(ReplicaCoreStore, PrefillReplicaOffersWhileItReads) {
    StoreRig r(with_store(Role::kPrefill));
    r.link(kD);
    r.supervise(wire::Prefill{recovering(1, ids(22), 3), kD});
    (void)r.plan();
    EXPECT_EQ(r.sent<wire::Offer>().size(), 1u);
    r.give(r.asked<wire::StoreLease>().at(0).ask, {1, 2, 3, 4, 5});
    r.peer(kD, wire::Accept{OfferId{1}, 0});
    r.fill(r.copies[0], ids(22), 0);
    r.copied(r.copies[0].copy);
    const StepPlan p = r.plan();
    EXPECT_EQ(p.items[0].position, 20u) << "progress of the step names all before it complete";
    r.done(p);
    EXPECT_EQ(r.sent<wire::Commit>().size(), 1u);
    EXPECT_EQ(r.core.stats().prefill_tokens, 2u);
}

TEST(ReplicaCoreStore, NothingIsAskedWithoutAStore) {
    Rig r(with_store(Role::kHybrid));
    r.supervise(wire::Run{recovering(1, ids(22), 6)});
    r.run_dry();
    EXPECT_TRUE(r.store.empty());
    CoreConfig c = config(Role::kHybrid);
    StoreRig off(c);
    off.supervise(wire::Run{recovering(1, ids(22), 6)});
    off.run_dry();
    EXPECT_TRUE(off.store.empty());
}

TEST(ReplicaCoreStore, ReadAlwaysAsksForNewSequencesToo) {
    CoreConfig c = with_store(Role::kHybrid);
    c.snapshot_read_always = true;
    StoreRig r(c);
    r.supervise(wire::Run{sequence(1, ids(22), 6)});
    (void)r.plan();
    EXPECT_EQ(r.asked<wire::StoreLease>().size(), 1u);
}

}  // namespace
}  // namespace baton::pd
