#include <gtest/gtest.h>

#include "unit/pd/replica_core_rig.hpp"

namespace baton::pd {
namespace {

using namespace rig;

wire::Message prefill(const wire::Sequence& s, wire::ReplicaTarget target = kD) {
    return wire::Prefill{s, target};
}

/// A prefill replica linked with D.
struct PrefillRig : Rig {
    explicit PrefillRig(uint32_t blocks = 64) : Rig(config(Role::kPrefill, blocks)) { link(kD); }
    explicit PrefillRig(const CoreConfig& c) : Rig(c) { link(kD); }
    [[nodiscard]] OfferId last_offer() const { return sent<wire::Offer>().back().offer; }
};

TEST(PrefillSide, OffersComputesCommitsAndHoldsUntilRelease) {
    PrefillRig r;
    r.supervise(prefill(sequence(1, ids(22), 5)));
    const StepPlan p = r.plan();
    ASSERT_EQ(r.sent<wire::Offer>().size(), 1u);
    const wire::Offer o = r.sent<wire::Offer>()[0];
    EXPECT_EQ(o.tokens, 22u);
    EXPECT_EQ(o.blocks.size(), 6u);
    EXPECT_EQ(o.keys, kv::block_keys(sha256("model"), ids(22), kTokens));
    for (size_t b = 0; b < 6; ++b)
        EXPECT_EQ(o.generations[b], r.generations[o.blocks[b]]) << "published before";
    EXPECT_EQ(r.opened.at(0).slot, o.progress_slot);
    EXPECT_EQ(r.opened[0].done_tokens, 0u);
    EXPECT_EQ(r.opened[0].blocks, o.blocks);
    EXPECT_EQ(p.items[0].progress_slot, o.progress_slot);
    EXPECT_TRUE(std::ranges::equal(p.items[0].blocks, o.blocks));
    EXPECT_EQ(r.core.stats().leases, 1u);
    EXPECT_EQ(r.core.stats().blocks_offered, 6u);
    r.done(p);
    r.peer(kD, wire::Accept{o.offer, 0});
    EXPECT_TRUE(r.sent<wire::Commit>().empty());
    r.supervisor.clear();
    r.step();
    ASSERT_EQ(r.sent<wire::Commit>().size(), 1u);
    EXPECT_EQ(r.sent<wire::Commit>()[0].emitted, expected(ids(22), 1));
    EXPECT_EQ(r.tokens(1), expected(ids(22), 1));
    EXPECT_EQ(r.logs, std::vector<std::string>{"kv.staged"});
    EXPECT_FALSE(r.step()) << "P decodes nothing";
    EXPECT_EQ(r.core.stats().blocks_used, 6u);
    r.tick(10'000);
    EXPECT_EQ(r.core.stats().leases, 1u) << "a linked peer renews its lease";
    r.peer(kD2, wire::Release{o.offer, true});
    EXPECT_EQ(r.core.stats().leases, 1u) << "another peer's word does not count";
    r.peer(kD, wire::Release{o.offer, true});
    EXPECT_TRUE(r.all_free());
    EXPECT_EQ(r.core.stats().blocks_cached, 5u);
    EXPECT_EQ(r.core.stats().prefill_tokens, 22u);
    r.peer(kD, wire::Release{o.offer, true});
    r.peer(kD, wire::Accept{o.offer, 0});
    r.peer(kD, wire::Busy{o.offer, "late"});
    EXPECT_TRUE(r.all_free());
    EXPECT_TRUE(r.told<wire::SequenceFailed>().empty());
    EXPECT_TRUE(r.told<wire::TargetBusy>().empty());
}

TEST(PrefillSide, TokenGoesOutBeforeAcceptAndCommitFollowsIt) {
    PrefillRig r;
    r.supervise(prefill(sequence(1, ids(5), 5)));
    r.step();
    EXPECT_EQ(r.tokens(1).size(), 1u);
    EXPECT_TRUE(r.sent<wire::Commit>().empty());
    r.peer(kD, wire::Accept{r.last_offer(), 0});
    EXPECT_EQ(r.sent<wire::Commit>().size(), 1u);
    r.peer(kD, wire::Accept{r.last_offer(), 0});
    EXPECT_EQ(r.sent<wire::Commit>().size(), 1u) << "once";
}

TEST(PrefillSide, SequenceThatEndsWithItsFirstTokenIsWithdrawn) {
    PrefillRig r;
    auto s = sequence(1, ids(5), 5);
    s.sampling.stop_ids = expected(ids(5), 1);
    r.supervise(prefill(s));
    r.step();
    EXPECT_EQ(r.finish(1), wire::Finish::kStop);
    ASSERT_EQ(r.sent<wire::Withdraw>().size(), 1u);
    EXPECT_EQ(r.sent<wire::Withdraw>()[0].reason, "finished");
    EXPECT_TRUE(r.all_free());
    r.peer(kD, wire::Accept{r.last_offer(), 0});
    EXPECT_TRUE(r.sent<wire::Commit>().empty());
    EXPECT_TRUE(r.logs.empty());
}

TEST(PrefillSide, OneTokenAnswersAreNeverOffered) {
    PrefillRig r;
    r.supervise(prefill(sequence(1, ids(5), 1)));
    r.supervise(prefill(sequence(2, ids(9), 1), kD2));  // not even linked
    r.run_dry();
    EXPECT_EQ(r.finish(1), wire::Finish::kLength);
    EXPECT_EQ(r.finish(2), wire::Finish::kLength);
    EXPECT_TRUE(r.peers.empty());
    EXPECT_TRUE(r.told<wire::TargetBusy>().empty());
    EXPECT_TRUE(r.all_free());
}

TEST(PrefillSide, BusyTargetIsReplacedUnderANewOffer) {
    PrefillRig r;
    r.link(kD2);
    r.supervise(prefill(sequence(1, ids(22), 5)));
    r.step();
    const OfferId first = r.last_offer();
    r.peer(kD, wire::Busy{first, "no_blocks"});
    ASSERT_EQ(r.told<wire::TargetBusy>().size(), 1u);
    EXPECT_FALSE(r.told<wire::TargetBusy>()[0].unreachable);
    EXPECT_TRUE(r.progress.empty());
    EXPECT_EQ(r.core.stats().leases, 0u);
    r.supervise(wire::Retarget{{SequenceId{1}, 1}, kD2});
    const wire::Offer o = r.sent<wire::Offer>().back();
    EXPECT_GT(o.offer, first);
    EXPECT_EQ(r.peers.back().first, kD2);
    EXPECT_EQ(r.opened.back().done_tokens, 16u) << "progress starts at what is there";
    r.peer(kD2, wire::Accept{o.offer, 0});
    r.run_dry();
    EXPECT_EQ(r.sent<wire::Commit>().size(), 1u);
    EXPECT_EQ(r.core.stats().prefill_tokens, 22u) << "nothing is computed twice";
    r.peer(kD2, wire::Release{o.offer, true});
    EXPECT_TRUE(r.all_free());
}

TEST(PrefillSide, RetargetAfterTheFirstTokenOffersWithoutIt) {
    PrefillRig r;
    r.link(kD2);
    r.supervise(prefill(sequence(1, ids(8), 5)));
    r.step();
    r.peer(kD, wire::Busy{r.last_offer(), ""});
    r.supervise(wire::Retarget{{SequenceId{1}, 1}, kD2});
    const wire::Offer o = r.sent<wire::Offer>().back();
    EXPECT_EQ(o.tokens, 8u);
    EXPECT_TRUE(o.sequence.emitted.empty());
    EXPECT_EQ(o.keys.size(), 2u);
    EXPECT_EQ(r.opened.back().done_tokens, 8u);
    r.peer(kD2, wire::Accept{o.offer, 0});
    EXPECT_EQ(r.sent<wire::Commit>().back().emitted, expected(ids(8), 1));
    EXPECT_EQ(r.tokens(1).size(), 1u);
}

TEST(PrefillSide, RetargetDuringAStepWaitsForItAndItsSlotIsNotReused) {
    PrefillRig r;
    r.link(kD2);
    r.supervise(prefill(sequence(1, ids(22), 5)));
    const StepPlan p = r.plan();
    const uint32_t slot = *p.items[0].progress_slot;
    r.peer(kD, wire::Busy{r.last_offer(), ""});
    r.supervise(wire::Retarget{{SequenceId{1}, 1}, kD2});
    EXPECT_EQ(r.sent<wire::Offer>().size(), 1u);
    r.supervise(prefill(sequence(2, ids(4, 90), 5)));
    (void)r.plan();
    EXPECT_NE(r.sent<wire::Offer>().back().progress_slot, slot) << "the step still writes to it";
    r.done(p);
    EXPECT_EQ(r.sent<wire::Offer>().size(), 3u);
    EXPECT_EQ(r.opened.back().done_tokens, 16u);
    const StepPlan q = r.plan();
    EXPECT_EQ(*q.items[0].progress_slot, r.sent<wire::Offer>().back().progress_slot);
    r.done(q);
}

TEST(PrefillSide, RetargetWhileWaitingOnlyChangesTheTarget) {
    CoreConfig c = config(Role::kPrefill);
    c.max_running = 1;
    PrefillRig r(c);
    r.link(kD2);
    r.supervise(prefill(sequence(1, ids(22), 5)));
    r.supervise(prefill(sequence(2, ids(22, 100), 5)));
    r.step();
    r.supervise(wire::Retarget{{SequenceId{2}, 1}, kD2});
    EXPECT_EQ(r.sent<wire::Offer>().size(), 1u);
    r.run_dry();
    EXPECT_EQ(r.sent<wire::Offer>().size(), 2u);
    EXPECT_EQ(r.peers.back().first, kD2);
    r.supervise(wire::Retarget{{SequenceId{2}, 9}, kD});
    EXPECT_EQ(r.sent<wire::Offer>().size(), 2u) << "another attempt's word";
}

TEST(PrefillSide, UnreachableTargetIsReportedAndTheKvWaits) {
    PrefillRig r;
    r.supervise(prefill(sequence(1, ids(8), 5), kD2));
    r.run_dry();
    ASSERT_EQ(r.told<wire::TargetBusy>().size(), 1u);
    EXPECT_TRUE(r.told<wire::TargetBusy>()[0].unreachable);
    EXPECT_EQ(r.told<wire::TargetBusy>()[0].target, kD2);
    EXPECT_EQ(r.tokens(1).size(), 1u) << "computed all the same";
    r.supervise(wire::Retarget{{SequenceId{1}, 1}, kD2});
    EXPECT_EQ(r.told<wire::TargetBusy>().size(), 2u);
    r.supervise(wire::Retarget{{SequenceId{1}, 1}, {kD.replica, Epoch{7}}});
    EXPECT_EQ(r.told<wire::TargetBusy>().size(), 3u) << "another epoch is another replica";
    r.supervise(wire::Retarget{{SequenceId{1}, 1}, kD});
    EXPECT_EQ(r.sent<wire::Offer>().size(), 1u);
    r.supervise(wire::Abort{{SequenceId{1}, 1}});
    EXPECT_TRUE(r.all_free());
    EXPECT_EQ(r.sent<wire::Withdraw>().size(), 1u);
}

TEST(PrefillSide, OfferWithoutAnAnswerIsWithdrawn) {
    PrefillRig r;
    r.supervise(prefill(sequence(1, ids(8), 5)));
    r.step();
    r.tick(1'999);
    EXPECT_TRUE(r.told<wire::TargetBusy>().empty());
    r.tick(1);
    EXPECT_EQ(r.told<wire::TargetBusy>().size(), 1u);
    EXPECT_EQ(r.sent<wire::Withdraw>().size(), 1u);
    r.peer(kD, wire::Accept{r.last_offer(), 0});
    EXPECT_TRUE(r.sent<wire::Commit>().empty()) << "too late";
    r.supervise(wire::Retarget{{SequenceId{1}, 1}, kD});
    EXPECT_EQ(r.sent<wire::Offer>().size(), 2u);
}

TEST(PrefillSide, PeerDownBeforeCommitAsksForAnotherTarget) {
    PrefillRig r;
    r.supervise(prefill(sequence(1, ids(22), 5)));
    r.step();
    r.peer(kD, wire::Accept{r.last_offer(), 0});
    r.link(kD, false);
    ASSERT_EQ(r.told<wire::TargetBusy>().size(), 1u);
    EXPECT_TRUE(r.told<wire::TargetBusy>()[0].unreachable);
    EXPECT_TRUE(r.told<wire::SequenceFailed>().empty());
    EXPECT_TRUE(r.progress.empty());
}

TEST(PrefillSide, PeerDownAfterCommitFailsTheAttempt) {
    PrefillRig r;
    r.supervise(prefill(sequence(1, ids(22), 5)));
    r.run_dry();
    r.peer(kD, wire::Accept{r.last_offer(), 0});
    r.supervise(wire::Retarget{{SequenceId{1}, 1}, kD});
    EXPECT_EQ(r.sent<wire::Offer>().size(), 1u) << "D may be decoding already";
    r.link(kD, false);
    EXPECT_EQ(r.failure(), "peer_lost");
    EXPECT_TRUE(r.all_free());
}

TEST(PrefillSide, NewEpochOfAPeerEndsTheOldOnesLeases) {
    PrefillRig r;
    r.supervise(prefill(sequence(1, ids(22), 5)));
    r.run_dry();
    const wire::ReplicaTarget again{kD.replica, Epoch{2}};
    r.link(again);
    EXPECT_EQ(r.told<wire::TargetBusy>().size(), 1u);
    r.peer(kD, wire::Accept{r.last_offer(), 0});
    EXPECT_TRUE(r.sent<wire::Commit>().empty());
    r.link(kD, false);  // late news of the old one
    r.supervise(wire::Retarget{{SequenceId{1}, 1}, again});
    EXPECT_EQ(r.sent<wire::Offer>().size(), 2u);
}

TEST(PrefillSide, AbortInEveryStageFreesAndWithdraws) {
    for (int stage = 0; stage < 4; ++stage) {
        PrefillRig r;
        r.supervise(prefill(sequence(1, ids(22), 5)));
        if (stage > 0) r.step();
        if (stage > 1) r.run_dry();
        if (stage > 2) r.peer(kD, wire::Accept{r.last_offer(), 0});
        r.supervise(wire::Abort{{SequenceId{1}, 1}});
        EXPECT_TRUE(r.all_free()) << stage;
        EXPECT_EQ(r.sent<wire::Withdraw>().size(), stage > 0 ? 1u : 0u);
    }
}

TEST(PrefillSide, GivenUpByDecodeAfterCommitFrees) {
    PrefillRig r;
    r.supervise(prefill(sequence(1, ids(22), 5)));
    r.run_dry();
    r.peer(kD, wire::Accept{r.last_offer(), 0});
    r.peer(kD, wire::Release{r.last_offer(), false});
    EXPECT_TRUE(r.all_free());
    EXPECT_TRUE(r.told<wire::SequenceFailed>().empty()) << "D says what becomes of it";
}

TEST(PrefillSide, OwnPoolIsTheBackPressure) {
    PrefillRig r(12);
    for (uint64_t id = 1; id <= 3; ++id)
        r.supervise(prefill(sequence(id, ids(20, static_cast<TokenId>(id * 100)), 5)));
    r.run_dry();
    EXPECT_EQ(r.sent<wire::Offer>().size(), 2u);
    EXPECT_EQ(r.core.stats().waiting, 1u);
    r.peer(kD, wire::Accept{OfferId{1}, 0});
    r.peer(kD, wire::Release{OfferId{1}, true});
    r.run_dry();
    EXPECT_EQ(r.sent<wire::Offer>().size(), 3u);
    EXPECT_EQ(r.tokens(3).size(), 1u);
}

TEST(PrefillSide, ProgressSlotsBoundOpenOffers) {
    CoreConfig c = config(Role::kPrefill);
    c.progress_slots = 2;
    PrefillRig r(c);
    for (uint64_t id = 1; id <= 3; ++id)
        r.supervise(prefill(sequence(id, ids(4, static_cast<TokenId>(id * 100)), 5)));
    r.run_dry();
    EXPECT_EQ(r.core.stats().leases, 2u);
    EXPECT_EQ(r.core.stats().waiting, 1u);
    r.peer(kD, wire::Busy{OfferId{1}, ""});
    r.run_dry();
    EXPECT_EQ(r.tokens(3).size(), 1u);
    r.supervise(wire::Retarget{{SequenceId{1}, 1}, kD});
    EXPECT_EQ(r.told<wire::TargetBusy>().size(), 2u) << "no slot: asked again later";
}

TEST(PrefillSide, CachedTokensAreOwnHits) {
    PrefillRig r;
    for (uint64_t id = 1; id <= 2; ++id) {
        r.supervise(prefill(sequence(id, ids(18), 5)));
        r.run_dry();
        r.peer(kD, wire::Accept{r.last_offer(), 0});
        r.peer(kD, wire::Release{r.last_offer(), true});
    }
    EXPECT_EQ(r.told<wire::TokenBatch>()[0].items[0].cached_tokens, 0u);
    EXPECT_EQ(r.told<wire::TokenBatch>()[1].items[0].cached_tokens, 16u);
    EXPECT_EQ(r.opened[1].done_tokens, 16u);
    EXPECT_EQ(r.core.stats().prefill_tokens, 20u);
}

TEST(PrefillSide, RecoveringSequenceContinuesItsFacts) {
    PrefillRig r;
    auto s = sequence(1, ids(6), 9, 2);
    s.emitted = expected(ids(6), 3);
    s.recovering = true;
    r.supervise(prefill(s));
    r.run_dry();
    EXPECT_EQ(r.sent<wire::Offer>()[0].tokens, 9u);
    r.peer(kD, wire::Accept{r.last_offer(), 0});
    EXPECT_EQ(r.first_indices.at(SequenceId{1}), 3u);
    EXPECT_EQ(r.sent<wire::Commit>()[0].emitted, expected(ids(6), 4));
    EXPECT_EQ(r.core.stats().prefill_tokens, 9u);
}

TEST(PrefillSide, ChecksumsTravelWithCommit) {
    PrefillRig r;
    r.verify = true;
    r.supervise(prefill(sequence(1, ids(6), 9)));
    r.run_dry();
    r.peer(kD, wire::Accept{r.last_offer(), 0});
    EXPECT_EQ(r.sent<wire::Commit>()[0].checksums.size(), 2u);
}

TEST(PrefillSide, DeadlineOfAStagedSequenceWithdraws) {
    PrefillRig r;
    auto s = sequence(1, ids(6), 9);
    s.time_left_ms = 900;
    r.supervise(prefill(s));
    r.run_dry();
    EXPECT_EQ(r.sent<wire::Offer>()[0].sequence.time_left_ms, 900);
    r.peer(kD, wire::Accept{r.last_offer(), 0});
    r.tick(900);
    EXPECT_EQ(r.failure(), "deadline");
    EXPECT_EQ(r.sent<wire::Withdraw>().size(), 1u);
    EXPECT_TRUE(r.all_free());
}

TEST(PrefillSide, FreedBlocksKeepTheirGenerationUntilTheyAreTakenAgain) {
    PrefillRig r(6);
    r.supervise(prefill(sequence(1, ids(21), 5)));
    r.run_dry();
    const wire::Offer o = r.sent<wire::Offer>()[0];
    r.supervise(wire::Abort{{SequenceId{1}, 1}});
    for (size_t b = 0; b < o.blocks.size(); ++b)
        EXPECT_EQ(r.generations[o.blocks[b]], o.generations[b]);
    r.supervise(prefill(sequence(2, ids(21, 300), 5)));
    (void)r.plan();
    for (size_t b = 0; b < o.blocks.size(); ++b)
        EXPECT_GT(r.generations[o.blocks[b]], o.generations[b]);
}

TEST(PrefillSide, PlantedLostReleaseKeepsTheBlocks) {
    PrefillRig r;
    r.core.plant({.lose_release = true});
    r.supervise(prefill(sequence(1, ids(6), 9)));
    r.run_dry();
    r.peer(kD, wire::Accept{r.last_offer(), 0});
    r.peer(kD, wire::Release{r.last_offer(), true});
    EXPECT_FALSE(r.core.idle());
}

}  // namespace
}  // namespace baton::pd
