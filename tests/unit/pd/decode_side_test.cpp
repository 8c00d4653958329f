#include <gtest/gtest.h>

#include "unit/pd/replica_core_rig.hpp"

namespace baton::pd {
namespace {

using namespace rig;

/// A decode replica linked with P; pulls bring the KV that P would have computed.
struct DecodeRig : Rig {
    explicit DecodeRig(uint32_t blocks = 64) : Rig(config(Role::kDecode, blocks)) { link(kP); }
    explicit DecodeRig(const CoreConfig& c) : Rig(c) { link(kP); }

    void offer(uint64_t id, const wire::Sequence& s) { peer(kP, rig::offer(id, s)); }
    void commit(uint64_t id, const wire::Sequence& s, std::vector<uint64_t> checksums = {}) {
        auto emitted = s.emitted;
        std::vector<TokenId> tokens = s.prompt;
        tokens.insert(tokens.end(), emitted.begin(), emitted.end());
        emitted.push_back(expected(tokens, 1)[0]);
        peer(kP, wire::Commit{OfferId{id}, emitted, std::move(checksums)});
    }
    /// Writes what the pull would copy.
    void fill(const StartPull& pull, const wire::Sequence& s) {
        uint64_t state = 0;
        for (uint32_t at = 0; at < pull.tokens; ++at) {
            state =
                mix(state, at < s.prompt.size() ? s.prompt[at] : s.emitted[at - s.prompt.size()]);
            if (at / kTokens >= pull.first_block)
                rows.at(size_t{pull.target_blocks.at(at / kTokens)} * kTokens + at % kTokens) =
                    state;
        }
    }
    void land(const wire::Sequence& s) {
        fill(pulls.back(), s);
        pull_done(pulls.back().pull, true);
    }
    /// The whole hand-off.
    void take(uint64_t id, const wire::Sequence& s) {
        offer(id, s);
        land(s);
        commit(id, s);
    }
    [[nodiscard]] std::string refusal() const {
        const auto busy = sent<wire::Busy>();
        return busy.empty() ? "" : busy.back().reason;
    }
};

TEST(DecodeSide, TakesOverAndDecodesFromTheSecondToken) {
    DecodeRig r;
    const auto s = sequence(1, ids(22), 6);
    EXPECT_FALSE(r.core.expects_sequence());
    r.offer(5, s);
    EXPECT_TRUE(r.core.expects_sequence());
    ASSERT_EQ(r.sent<wire::Accept>().size(), 1u);
    EXPECT_EQ(r.sent<wire::Accept>()[0].have_blocks, 0u);
    ASSERT_EQ(r.pulls.size(), 1u);
    const StartPull& pull = r.pulls[0];
    EXPECT_EQ(pull.peer, kP);
    EXPECT_EQ(pull.offer, OfferId{5});
    EXPECT_EQ(pull.tokens, 22u);
    EXPECT_EQ(pull.source_blocks.size(), 6u);
    EXPECT_EQ(pull.target_blocks.size(), 6u);
    EXPECT_FALSE(r.step());
    r.land(s);
    EXPECT_TRUE(r.sent<wire::Release>().empty()) << "complete, but not committed";
    r.now = r.now + 3;
    r.commit(5, s);
    EXPECT_FALSE(r.core.expects_sequence()) << "it is here";
    ASSERT_EQ(r.sent<wire::Release>().size(), 1u);
    EXPECT_TRUE(r.sent<wire::Release>()[0].ok);
    ASSERT_EQ(r.told<wire::HandoffDone>().size(), 1u);
    EXPECT_EQ(r.told<wire::HandoffDone>()[0].bytes, 1000u);
    EXPECT_EQ(r.told<wire::HandoffDone>()[0].mover, "shm");
    EXPECT_EQ(r.told<wire::HandoffDone>()[0].tail_us, -1) << "the rig's mover sees no progress";
    EXPECT_EQ(r.logs, std::vector<std::string>{"kv.loaded"});
    r.run_dry();
    const auto whole = expected(ids(22), 6);
    EXPECT_EQ(r.first_indices.at(SequenceId{1}), 1u);
    EXPECT_EQ(r.tokens(1), std::vector<TokenId>(whole.begin() + 1, whole.end()));
    for (const auto& batch : r.told<wire::TokenBatch>()) EXPECT_TRUE(batch.starts.empty()) << "its prompt was computed elsewhere";
    EXPECT_EQ(r.core.stats().prefill_tokens, 0u);
    EXPECT_EQ(r.core.stats().generated_tokens, 5u);
    EXPECT_EQ(r.core.stats().handoff_bytes, 1000u);
    EXPECT_TRUE(r.all_free());
    r.commit(5, s);
    EXPECT_TRUE(r.all_free()) << "a late double changes nothing";
}

TEST(DecodeSide, CommitBeforeThePullIsComplete) {
    DecodeRig r;
    const auto s = sequence(1, ids(22), 6);
    r.offer(5, s);
    r.commit(5, s);
    r.commit(5, s);
    EXPECT_TRUE(r.told<wire::HandoffDone>().empty());
    r.now = r.now + 7;
    r.land(s);
    ASSERT_EQ(r.told<wire::HandoffDone>().size(), 1u);
    EXPECT_EQ(r.told<wire::HandoffDone>()[0].exposed_us, 7000);
    r.run_dry();
    EXPECT_EQ(r.tokens(1).size(), 5u);
}

TEST(DecodeSide, PullsOnlyWhatItDoesNotHold) {
    DecodeRig r;
    r.take(1, sequence(1, ids(12), 3));
    r.run_dry();
    auto longer = ids(12);
    longer.push_back(700);
    const auto s = sequence(2, longer, 4);
    r.offer(2, s);
    EXPECT_EQ(r.sent<wire::Accept>().back().have_blocks, 3u);
    EXPECT_EQ(r.pulls.back().first_block, 3u);
    r.land(s);
    r.commit(2, s);
    EXPECT_EQ(r.told<wire::HandoffDone>().back().blocks_reused, 3u);
    r.run_dry();
    EXPECT_EQ(r.tokens(2).size(), 3u);
    // All there: nothing is pulled, and nobody writes into the shared blocks.
    const auto again = sequence(3, ids(12), 5);
    const size_t pulls = r.pulls.size();
    r.offer(3, again);
    EXPECT_EQ(r.sent<wire::Accept>().back().have_blocks, 3u);
    EXPECT_EQ(r.pulls.size(), pulls);
    r.commit(3, again);
    r.run_dry();
    const auto whole = expected(ids(12), 5);
    EXPECT_EQ(r.tokens(3), std::vector<TokenId>(whole.begin() + 1, whole.end()));
    EXPECT_EQ(r.core.stats().prefill_tokens, 0u);
    EXPECT_TRUE(r.all_free());
}

TEST(DecodeSide, RefusesWithoutRoomForAllBlocksAndGrowth) {
    DecodeRig r(30);
    r.offer(1, sequence(1, ids(20), 50));  // 6 blocks, grows to 18
    EXPECT_EQ(r.sent<wire::Accept>().size(), 1u);
    r.offer(2, sequence(2, ids(68, 200), 50));  // 18 blocks: 6 + 12 + 18 > 30
    EXPECT_EQ(r.refusal(), "no_blocks");
    r.offer(3, sequence(3, ids(40, 300), 1000));  // 11 blocks fit
    EXPECT_EQ(r.sent<wire::Accept>().size(), 2u);
    EXPECT_EQ(r.core.stats().blocks_used, 17u);
}

TEST(DecodeSide, RefusesAboveMaxRunningWhenDrainingAndMalformed) {
    CoreConfig c = config(Role::kDecode);
    c.max_running = 2;
    DecodeRig r(c);
    r.offer(1, sequence(1, ids(4), 5));
    r.offer(2, sequence(2, ids(4), 5));
    r.offer(3, sequence(3, ids(4), 5));
    EXPECT_EQ(r.refusal(), "max_running");
    r.supervise(wire::Abort{{SequenceId{1}, 1}});
    r.supervise(wire::Drain{true});
    r.offer(4, sequence(4, ids(4), 5));
    EXPECT_EQ(r.refusal(), "draining");
    r.supervise(wire::Drain{false});
    auto bad = rig::offer(5, sequence(5, ids(9), 5));
    bad.generations.pop_back();
    r.peer(kP, bad);
    EXPECT_EQ(r.refusal(), "malformed");
    bad = rig::offer(6, sequence(5, ids(9), 5));
    bad.tokens = 4'000'000'000u;
    r.peer(kP, bad);
    EXPECT_EQ(r.refusal(), "malformed");
    bad = rig::offer(7, sequence(5, ids(9), 5));
    bad.keys.clear();
    r.peer(kP, bad);
    EXPECT_EQ(r.refusal(), "malformed");
    r.offer(8, sequence(6, ids(300), 5));
    EXPECT_EQ(r.refusal(), "context");
    EXPECT_EQ(r.failure(), "context");
}

TEST(DecodeSide, OffersAreSingleUse) {
    DecodeRig r;
    const auto s = sequence(1, ids(9), 5);
    r.offer(5, s);
    r.offer(5, s);
    EXPECT_EQ(r.sent<wire::Accept>().size(), 1u);
    EXPECT_EQ(r.pulls.size(), 1u);
    r.peer(kP, wire::Withdraw{OfferId{5}, "retargeted"});
    r.pull_done(r.pulls[0].pull, false, "cancelled");
    EXPECT_TRUE(r.all_free());
    r.offer(5, s);
    EXPECT_TRUE(r.all_free()) << "an old offer";
    r.offer(6, s);
    EXPECT_EQ(r.sent<wire::Accept>().size(), 2u) << "the same attempt under a new one";
    r.offer(7, s);
    EXPECT_EQ(r.sent<wire::Accept>().size(), 3u) << "replaces the one before";
    EXPECT_EQ(r.cancels.size(), 2u);
    r.pull_done(r.pulls[1].pull, false, "cancelled");
    r.land(s);
    r.commit(7, s);
    r.offer(8, s);
    EXPECT_EQ(r.refusal(), "running");
    r.run_dry();
    EXPECT_EQ(r.tokens(1).size(), 4u);
    r.offer(9, s);
    EXPECT_EQ(r.refusal(), "stale");
    EXPECT_TRUE(r.all_free());
}

TEST(DecodeSide, HigherAttemptEndsTheOlder) {
    DecodeRig r;
    r.take(1, sequence(1, ids(9), 9));
    r.step();
    auto newer = sequence(1, ids(9), 9, 2);
    newer.emitted = expected(ids(9), 2);
    r.offer(2, sequence(1, ids(9), 9, 1));
    EXPECT_EQ(r.refusal(), "running");
    r.offer(3, newer);
    EXPECT_EQ(r.core.stats().running, 1u);
    r.land(newer);
    r.commit(3, newer);
    r.offer(4, sequence(1, ids(9), 9, 1));
    EXPECT_EQ(r.refusal(), "stale");
    EXPECT_TRUE(r.told<wire::SequenceFailed>().empty());
}

TEST(DecodeSide, AbortMayComeBeforeTheOffer) {
    DecodeRig r;
    r.supervise(wire::Abort{{SequenceId{1}, 1}});
    r.offer(1, sequence(1, ids(9), 5));
    EXPECT_EQ(r.refusal(), "stale");
    EXPECT_TRUE(r.all_free());
}

TEST(DecodeSide, AbortKeepsTheBlocksUntilThePullIsQuiet) {
    DecodeRig r;
    r.offer(1, sequence(1, ids(9), 5));
    r.supervise(wire::Abort{{SequenceId{1}, 1}});
    EXPECT_EQ(r.cancels, std::vector<uint64_t>{r.pulls[0].pull});
    EXPECT_EQ(r.core.stats().blocks_used, 3u);
    EXPECT_EQ(r.sent<wire::Release>().size(), 1u);
    EXPECT_FALSE(r.sent<wire::Release>()[0].ok);
    r.supervise(wire::Abort{{SequenceId{1}, 1}});
    r.pull_done(r.pulls[0].pull, true);
    EXPECT_TRUE(r.all_free());
    r.pull_done(r.pulls[0].pull, true);
    r.commit(1, sequence(1, ids(9), 5));
    EXPECT_TRUE(r.all_free());
    EXPECT_EQ(r.sent<wire::Release>().size(), 2u) << "P must not wait for a sequence that is gone";
}

TEST(DecodeSide, WithdrawnOfferIsDroppedInSilence) {
    DecodeRig r;
    r.offer(1, sequence(1, ids(9), 5));
    r.peer(kP, wire::Withdraw{OfferId{1}, "finished"});
    r.pull_done(r.pulls[0].pull, false, "cancelled");
    EXPECT_TRUE(r.all_free());
    EXPECT_TRUE(r.supervisor.empty());
    EXPECT_TRUE(r.sent<wire::Release>().empty());
}

TEST(DecodeSide, FailedPullIsComputedHere) {
    for (const char* reason : {"generation", "checksum", "timeout", "transfer"}) {
        for (const bool commit_first : {true, false}) {
            DecodeRig r;
            const auto s = sequence(1, ids(22), 6);
            r.offer(1, s);
            if (commit_first) r.commit(1, s);
            r.pull_done(r.pulls[0].pull, false, reason);
            if (!commit_first) {
                EXPECT_TRUE(r.told<wire::Fallback>().empty()) << "the first token is not known yet";
                r.commit(1, s);
            }
            ASSERT_EQ(r.told<wire::Fallback>().size(), 1u);
            EXPECT_EQ(r.told<wire::Fallback>()[0].reason, reason);
            EXPECT_EQ(r.logs, std::vector<std::string>{"kv.fallback"});
            EXPECT_FALSE(r.sent<wire::Release>().at(0).ok);
            EXPECT_TRUE(r.told<wire::HandoffDone>().empty());
            r.run_dry();
            const auto whole = expected(ids(22), 6);
            EXPECT_EQ(r.tokens(1), std::vector<TokenId>(whole.begin() + 1, whole.end()));
            EXPECT_EQ(r.core.stats().prefill_tokens, 22u);
            EXPECT_TRUE(r.all_free());
        }
    }
}

TEST(DecodeSide, FallbackComputesOnlyWhatTheCacheLacks) {
    DecodeRig r;
    r.take(1, sequence(1, ids(12), 3));
    r.run_dry();
    const auto s = sequence(2, ids(20), 5);
    r.offer(2, s);
    r.commit(2, s);
    r.pull_done(r.pulls.back().pull, false, "generation");
    r.run_dry();
    EXPECT_EQ(r.core.stats().prefill_tokens, 8u);
    EXPECT_EQ(r.tokens(2).size(), 4u);
}

TEST(DecodeSide, TransferThatHangsAfterCommitIsGivenUp) {
    DecodeRig r;
    const auto s = sequence(1, ids(9), 5);
    r.offer(1, s);
    r.tick(20'000);
    EXPECT_TRUE(r.cancels.empty()) << "a long prompt takes its time";
    r.commit(1, s);
    r.tick(4'999);
    EXPECT_TRUE(r.cancels.empty());
    r.tick(1);
    EXPECT_EQ(r.cancels.size(), 1u);
    r.tick(100);
    EXPECT_EQ(r.cancels.size(), 1u);
    EXPECT_FALSE(r.step()) << "the mover may still write";
    r.pull_done(r.pulls[0].pull, false, "cancelled");
    EXPECT_EQ(r.told<wire::Fallback>().at(0).reason, "timeout");
    r.run_dry();
    EXPECT_EQ(r.tokens(1).size(), 4u);
}

TEST(DecodeSide, PeerDownFailsWhatIsNotComplete) {
    for (int window = 0; window < 4; ++window) {
        DecodeRig r;
        const auto s = sequence(1, ids(9), 5);
        r.offer(1, s);
        if (window == 1 || window == 3) r.commit(1, s);
        if (window == 2 || window == 3) r.land(s);
        r.link(kP, false);
        if (window == 3) {
            EXPECT_EQ(r.failure(), "") << "all is here";
            r.run_dry();
            EXPECT_EQ(r.tokens(1).size(), 4u);
        } else {
            EXPECT_EQ(r.failure(), "peer_lost") << window;
            EXPECT_EQ(r.told<wire::SequenceFailed>()[0].code,
                      static_cast<uint8_t>(ErrorCode::kPeerLost));
            EXPECT_EQ(r.cancels.size(), window < 2 ? 1u : 0u);
            if (window < 2) {
                EXPECT_GT(r.core.stats().blocks_used, 0u);
                r.pull_done(r.pulls[0].pull, false, "cancelled");
            }
        }
        EXPECT_TRUE(r.all_free()) << window;
    }
}

TEST(DecodeSide, PullThatLostItsPeerFailsTheAttempt) {
    DecodeRig r;
    const auto s = sequence(1, ids(9), 5);
    r.offer(1, s);
    r.commit(1, s);
    r.pull_done(r.pulls[0].pull, false, "peer_lost");
    EXPECT_EQ(r.failure(), "peer_lost");
    EXPECT_TRUE(r.told<wire::Fallback>().empty());
    EXPECT_TRUE(r.all_free());
}

TEST(DecodeSide, VerifyComparesBeforeDecoding) {
    for (const bool equal : {true, false}) {
        DecodeRig r;
        const auto s = sequence(1, ids(9), 5);
        r.offer(1, s);
        r.land(s);
        r.commit(1, s, {11, 12, 13});
        ASSERT_EQ(r.verifies.size(), 1u);
        EXPECT_EQ(r.verifies[0].checksums, (std::vector<uint64_t>{11, 12, 13}));
        EXPECT_EQ(r.verifies[0].blocks, r.pulls[0].target_blocks);
        EXPECT_FALSE(r.step());
        r.core.on_pull_verified(r.now, r.pulls[0].pull, equal);
        r.pump();
        EXPECT_EQ(r.told<wire::HandoffDone>().size(), equal ? 1u : 0u);
        EXPECT_EQ(r.told<wire::Fallback>().size(), equal ? 0u : 1u);
        r.run_dry();
        EXPECT_EQ(r.tokens(1).size(), 4u);
        EXPECT_EQ(r.core.stats().prefill_tokens, equal ? 0u : 9u);
        EXPECT_TRUE(r.all_free());
    }
}

TEST(DecodeSide, ChecksumsOfAnotherSizeAreAFailure) {
    DecodeRig r;
    const auto s = sequence(1, ids(9), 5);
    r.offer(1, s);
    r.land(s);
    r.commit(1, s, {11});
    EXPECT_EQ(r.told<wire::Fallback>().at(0).reason, "checksum");
}

TEST(DecodeSide, CommitThatContradictsTheOfferFails) {
    DecodeRig r;
    auto s = sequence(1, ids(9), 9);
    s.emitted = expected(ids(9), 2);
    r.offer(1, s);
    r.peer(kP, wire::Commit{OfferId{1}, {1, 2, 3}, {}});
    EXPECT_EQ(r.failure(), "commit");
    r.pull_done(r.pulls[0].pull, false, "cancelled");
    EXPECT_TRUE(r.all_free());
}

TEST(DecodeSide, PreemptsTheYoungestToTheRouter) {
    DecodeRig r(40);
    r.take(1, sequence(1, ids(8), 100));
    r.take(2, sequence(2, ids(8, 500), 100));
    r.run_dry();
    EXPECT_EQ(r.tokens(1).size(), 99u);
    EXPECT_EQ(r.failure(), "preempted");
    EXPECT_EQ(r.told<wire::SequenceFailed>()[0].ref.id, SequenceId{2});
    EXPECT_EQ(r.told<wire::SequenceFailed>()[0].code, static_cast<uint8_t>(ErrorCode::kOverloaded));
    EXPECT_TRUE(r.all_free());
}

TEST(DecodeSide, ReserveMakesShortAnswersRunWithoutPreemption) {
    DecodeRig r(40);
    uint64_t taken = 0;
    for (uint64_t id = 1; id <= 20; ++id) {
        const auto s = sequence(id, ids(8, static_cast<TokenId>(id * 30)), 30);
        const size_t before = r.sent<wire::Accept>().size();
        r.offer(id, s);
        if (r.sent<wire::Accept>().size() == before) continue;
        ++taken;
        r.land(s);
        r.commit(id, s);
    }
    EXPECT_EQ(taken, 4u);
    r.run_dry();
    EXPECT_EQ(r.failure(), "");
    EXPECT_TRUE(r.all_free());
}

TEST(DecodeSide, RunsASequenceItselfAsLastResort) {
    DecodeRig r;
    r.supervise(wire::Run{sequence(1, ids(22), 6)});
    ASSERT_EQ(r.told<wire::Fallback>().size(), 1u);
    EXPECT_EQ(r.logs, std::vector<std::string>{"kv.fallback"});
    r.run_dry();
    EXPECT_EQ(r.tokens(1), expected(ids(22), 6));
    EXPECT_EQ(r.core.stats().prefill_tokens, 22u);
    EXPECT_TRUE(r.all_free());
}

TEST(DecodeSide, OffersDoNotStarveALocalRun) {
    DecodeRig r(12);
    r.take(1, sequence(1, ids(8), 20));
    r.supervise(wire::Run{sequence(2, ids(24, 100), 4)});
    EXPECT_TRUE(r.step());
    EXPECT_EQ(r.core.stats().waiting, 1u);
    r.offer(3, sequence(3, ids(3, 300), 2));
    EXPECT_EQ(r.refusal(), "no_blocks");
    r.run_dry();
    EXPECT_EQ(r.tokens(2), expected(ids(24, 100), 4));
}

TEST(DecodeSide, MessagesOfUnknownPeersAreIgnored) {
    DecodeRig r;
    r.peer(kD2, rig::offer(1, sequence(1, ids(9), 5)));
    r.peer({kP.replica, Epoch{9}}, rig::offer(1, sequence(1, ids(9), 5)));
    EXPECT_TRUE(r.peers.empty());
    EXPECT_TRUE(r.all_free());
}

TEST(DecodeSide, DeadlineWhilePullingLetsPrefillGo) {
    DecodeRig r;
    auto s = sequence(1, ids(9), 5);
    s.time_left_ms = 100;
    r.offer(1, s);
    EXPECT_EQ(r.pulls[0].deadline, r.now + 100);
    r.tick(100);
    EXPECT_EQ(r.failure(), "deadline");
    EXPECT_EQ(r.sent<wire::Release>().size(), 1u);
    r.pull_done(r.pulls[0].pull, false, "cancelled");
    EXPECT_TRUE(r.all_free());
}

}  // namespace
}  // namespace baton::pd
