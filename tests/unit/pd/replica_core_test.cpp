#include "baton/pd/replica_core.hpp"

#include <gtest/gtest.h>

#include "unit/pd/replica_core_rig.hpp"

namespace baton::pd {
namespace {

using namespace rig;

wire::Message run(const wire::Sequence& s) {
    return wire::Run{s};
}

TEST(ReplicaCore, HybridComputesInChunksAndDecodes) {
    Rig r(config(Role::kHybrid));
    r.supervise(run(sequence(1, ids(22), 5)));
    StepPlan first = r.plan();
    ASSERT_EQ(first.items.size(), 1u);
    EXPECT_EQ(first.items[0].tokens, 16u);
    EXPECT_FALSE(first.items[0].sample);
    EXPECT_FALSE(first.items[0].progress_slot);
    EXPECT_TRUE(r.plan().empty()) << "a sequence is in one plan at a time";
    r.done(first);
    StepPlan second = r.plan();
    EXPECT_EQ(second.items[0].position, 16u);
    EXPECT_EQ(second.items[0].tokens, 6u);
    EXPECT_TRUE(second.items[0].sample);
    r.done(second);
    r.run_dry();
    EXPECT_EQ(r.tokens(1), expected(ids(22), 5));
    EXPECT_EQ(r.finish(1), wire::Finish::kLength);
    EXPECT_TRUE(r.all_free());
    const auto s = r.core.stats();
    EXPECT_EQ(s.prefill_tokens, 22u);
    EXPECT_EQ(s.generated_tokens, 5u);
    EXPECT_EQ(s.steps, 6u);
    EXPECT_EQ(s.blocks_free + s.blocks_cached, 64u);
}

TEST(ReplicaCore, TellsHowTheFirstTokenCameAbout) {
    Rig r(config(Role::kHybrid));
    r.supervise(run(sequence(1, ids(22), 3)));
    r.now = r.now + 5;  // waits
    const StepPlan first = r.plan();
    r.now = r.now + 7;
    r.done(first);
    r.now = r.now + 2;
    const StepPlan second = r.plan();
    r.now = r.now + 4;
    r.done(second);
    r.run_dry();
    const auto batches = r.told<wire::TokenBatch>();
    ASSERT_EQ(batches.size(), 3u);
    ASSERT_EQ(batches[0].starts.size(), 1u);
    EXPECT_EQ(batches[0].starts[0].ref.id, SequenceId{1});
    EXPECT_EQ(batches[0].starts[0].queue_us, 5'000);
    EXPECT_EQ(batches[0].starts[0].prefill_us, 13'000);
    EXPECT_TRUE(batches[1].starts.empty());
    EXPECT_TRUE(batches[2].starts.empty());
}

TEST(ReplicaCore, StopTokenEndsASequence) {
    Rig r(config(Role::kHybrid));
    auto s = sequence(1, ids(9), 20);
    s.sampling.stop_ids = {expected(ids(9), 4)[3]};
    r.supervise(run(s));
    r.run_dry();
    EXPECT_EQ(r.tokens(1).size(), 4u);
    EXPECT_EQ(r.finish(1), wire::Finish::kStop);
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCore, PromptOfEveryLengthAroundBlockEdges) {
    for (const bool cache : {true, false}) {
        CoreConfig c = config(Role::kHybrid);
        c.prefix_cache = cache;
        Rig r(c);
        for (uint32_t n = 1; n <= 40; ++n) {
            r.supervise(run(sequence(n, ids(n), 7)));
            r.run_dry();
            ASSERT_EQ(r.tokens(n), expected(ids(n), 7)) << n;
        }
        EXPECT_TRUE(r.all_free());
    }
}

TEST(ReplicaCore, FullPrefixHitStillComputesTheLastBlock) {
    Rig r(config(Role::kHybrid));
    for (uint64_t id = 1; id <= 3; ++id) {
        r.supervise(run(sequence(id, ids(16), 2)));
        r.run_dry();
        EXPECT_EQ(r.tokens(id), expected(ids(16), 2));
    }
    const auto batches = r.told<wire::TokenBatch>();
    ASSERT_EQ(batches.size(), 6u);
    EXPECT_EQ(batches[0].items[0].cached_tokens, 0u);
    EXPECT_EQ(batches[2].items[0].cached_tokens, 12u);
    EXPECT_EQ(batches[3].items[0].cached_tokens, 0u) << "with the first token only";
    EXPECT_EQ(r.core.stats().prefill_tokens, 16u + 4 + 4);
}

TEST(ReplicaCore, PrefixHitsAreSharedAndDiverge) {
    Rig r(config(Role::kHybrid));
    auto longer = ids(12);
    longer.push_back(500);
    longer.push_back(501);
    r.supervise(run(sequence(1, ids(14), 9)));
    r.step();
    r.supervise(run(sequence(2, longer, 9)));  // shares three blocks with one that runs
    r.run_dry();
    EXPECT_EQ(r.tokens(1), expected(ids(14), 9));
    EXPECT_EQ(r.tokens(2), expected(longer, 9));
    EXPECT_EQ(r.core.stats().prefill_tokens, 14u + 2);
}

TEST(ReplicaCore, MixedStepsPutDecodeRowsFirstAndOldestPromptsFirst) {
    Rig r(config(Role::kHybrid));
    r.supervise(run(sequence(1, ids(4), 30)));
    r.step();
    r.supervise(run(sequence(2, ids(40, 100), 3)));
    r.supervise(run(sequence(3, ids(5, 300), 3)));
    const StepPlan p = r.plan();
    ASSERT_EQ(p.items.size(), 2u);
    EXPECT_EQ(p.items[0].ref.id, SequenceId{1});
    EXPECT_EQ(p.items[0].tokens, 1u);
    EXPECT_EQ(p.items[1].ref.id, SequenceId{2});
    EXPECT_EQ(p.items[1].tokens, 12u) << "15 rows left, chunks end at block edges";
    r.done(p);
    r.run_dry();
    EXPECT_EQ(r.tokens(1), expected(ids(4), 30));
    EXPECT_EQ(r.tokens(2), expected(ids(40, 100), 3));
    EXPECT_EQ(r.tokens(3), expected(ids(5, 300), 3));
}

TEST(ReplicaCore, DecodingNeverStarvesAPrompt) {
    CoreConfig c = config(Role::kHybrid);
    c.step_tokens = 2;  // less than a block
    Rig r(c);
    for (uint64_t id = 1; id <= 6; ++id)
        r.supervise(run(sequence(id, ids(9, static_cast<TokenId>(id * 20)), 30)));
    r.run_dry();
    for (uint64_t id = 1; id <= 6; ++id)
        EXPECT_EQ(r.tokens(id), expected(ids(9, static_cast<TokenId>(id * 20)), 30));
}

TEST(ReplicaCore, RecoveringSequencesGoFirst) {
    CoreConfig c = config(Role::kHybrid);
    c.max_running = 1;
    Rig r(c);
    r.supervise(run(sequence(1, ids(4), 2)));
    r.supervise(run(sequence(2, ids(4, 50), 2)));
    auto again = sequence(3, ids(4, 90), 4);
    again.emitted = expected(again.prompt, 2);
    again.recovering = true;
    r.supervise(run(again));
    EXPECT_EQ(r.plan().items[0].ref.id, SequenceId{3});
}

TEST(ReplicaCore, EmittedTokensAreNeverSampledAgain) {
    Rig r(config(Role::kHybrid));
    auto s = sequence(1, ids(6), 8);
    s.emitted = expected(ids(6), 5);
    s.recovering = true;
    r.supervise(run(s));
    r.run_dry();
    const auto whole = expected(ids(6), 8);
    EXPECT_EQ(r.first_indices.at(SequenceId{1}), 5u);
    EXPECT_EQ(r.tokens(1), std::vector<TokenId>(whole.begin() + 5, whole.end()));
    EXPECT_EQ(r.core.stats().prefill_tokens, 10u) << "the last emitted token's row is a decode row";
}

TEST(ReplicaCore, RefusesWhatItCannotTake) {
    CoreConfig c = config(Role::kHybrid, 8);
    c.waiting_max = 2;
    Rig r(c);
    r.supervise(run(sequence(1, {}, 2)));
    EXPECT_EQ(r.failure(), "empty_prompt");
    r.supervise(run(sequence(2, ids(33), 2)));
    EXPECT_EQ(r.failure(), "context") << "more than the whole pool holds";
    EXPECT_EQ(r.told<wire::SequenceFailed>().back().code,
              static_cast<uint8_t>(ErrorCode::kContextTooLong));
    for (uint64_t id = 3; id <= 5; ++id) r.supervise(run(sequence(id, ids(4), 2)));
    EXPECT_EQ(r.failure(), "queue_full");
    EXPECT_EQ(r.told<wire::SequenceFailed>().back().code,
              static_cast<uint8_t>(ErrorCode::kOverloaded));
    r.supervise(wire::Drain{true});
    r.supervise(run(sequence(6, ids(4), 2)));
    EXPECT_EQ(r.failure(), "draining");
    r.supervise(wire::Prefill{sequence(7, ids(4), 2), kD});
    EXPECT_EQ(r.failure(), "role");
    r.run_dry();
    EXPECT_EQ(r.tokens(3), expected(ids(4), 2)) << "draining finishes what was taken";
    EXPECT_TRUE(r.all_free());
    r.supervise(wire::Drain{false});
    r.supervise(run(sequence(8, ids(4), 2)));
    r.run_dry();
    EXPECT_EQ(r.tokens(8).size(), 2u);
}

TEST(ReplicaCore, ContextEndFinishes) {
    CoreConfig c = config(Role::kHybrid, 8);
    Rig r(c);
    r.supervise(run(sequence(1, ids(20), 1000)));
    r.supervise(run(sequence(2, ids(32, 100), 1000)));
    r.run_dry();
    EXPECT_EQ(r.tokens(1).size(), 12u);
    EXPECT_EQ(r.finish(1), wire::Finish::kLength);
    EXPECT_EQ(r.tokens(2).size(), 1u);
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCore, ATightPoolServesEverySequence) {
    CoreConfig c = config(Role::kHybrid, 14);
    Rig r(c);
    c.max_running = 4;
    for (uint64_t id = 1; id <= 4; ++id)
        r.supervise(run(
            sequence(id, ids(4 + static_cast<uint32_t>(id), static_cast<TokenId>(id * 100)), 30)));
    r.run_dry();
    for (uint64_t id = 1; id <= 4; ++id)
        EXPECT_EQ(r.tokens(id),
                  expected(ids(4 + static_cast<uint32_t>(id), static_cast<TokenId>(id * 100)), 30))
            << id;
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCore, PreemptsTheYoungestWhenBlocksRunOut) {
    // The reserve counts 64 tokens ahead; sequences that want more can run out.
    CoreConfig c = config(Role::kHybrid, 60);
    Rig r(c);
    r.supervise(run(sequence(1, ids(8), 180)));
    r.supervise(run(sequence(2, ids(8, 500), 180)));
    size_t most = 0;
    bool preempted = false;
    for (int i = 0; i < 1000 && r.step(); ++i) {
        const auto s = r.core.stats();
        preempted = preempted || (most == 2 && s.running == 1 && s.waiting == 1);
        most = std::max<size_t>(most, s.running);
    }
    EXPECT_TRUE(preempted);
    EXPECT_EQ(r.tokens(1), expected(ids(8), 180));
    EXPECT_EQ(r.tokens(2), expected(ids(8, 500), 180));
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCore, AbortFreesAtOnceOrAfterTheStep) {
    Rig r(config(Role::kHybrid));
    r.supervise(run(sequence(1, ids(9), 5)));
    r.supervise(wire::Abort{{SequenceId{1}, 1}});
    EXPECT_TRUE(r.all_free()) << "waiting";
    r.supervise(run(sequence(1, ids(9), 5)));
    EXPECT_TRUE(r.all_free()) << "an aborted attempt stays over";

    r.supervise(run(sequence(2, ids(9), 5)));
    r.step();
    r.supervise(wire::Abort{{SequenceId{2}, 1}});
    EXPECT_TRUE(r.all_free()) << "running, between steps";
    r.supervise(wire::Abort{{SequenceId{2}, 1}});

    r.supervise(run(sequence(3, ids(9), 5)));
    const StepPlan p = r.plan();
    r.supervise(wire::Abort{{SequenceId{3}, 1}});
    EXPECT_FALSE(r.core.idle()) << "the step still writes there";
    EXPECT_GT(r.core.stats().blocks_used, 0u);
    EXPECT_EQ(p.items[0].sequence->prompt, ids(9)) << "lives until the step is done";
    r.done(p);
    EXPECT_TRUE(r.all_free());
    EXPECT_TRUE(r.tokens(3).empty());
}

TEST(ReplicaCore, AttemptsFenceOlderOnes) {
    Rig r(config(Role::kHybrid));
    r.supervise(run(sequence(1, ids(9), 5, 2)));
    r.step();
    r.supervise(run(sequence(1, ids(9), 5, 1)));
    r.supervise(run(sequence(1, ids(9), 5, 2)));
    r.supervise(wire::Abort{{SequenceId{1}, 1}});
    EXPECT_EQ(r.core.stats().running, 1u) << "older attempts and doubles are ignored";
    auto newer = sequence(1, ids(9), 5, 3);
    newer.emitted = expected(ids(9), 1);
    r.supervise(run(newer));
    EXPECT_EQ(r.core.stats().running + r.core.stats().waiting, 1u);
    r.run_dry();
    EXPECT_EQ(r.tokens(1), expected(ids(9), 5));
    EXPECT_TRUE(r.told<wire::SequenceFailed>().empty());
    EXPECT_TRUE(r.all_free());
    r.supervise(run(sequence(1, ids(9), 5, 3)));
    EXPECT_TRUE(r.all_free()) << "over";
    r.supervise(wire::Abort{{SequenceId{1}, 9}});
    r.supervise(run(sequence(1, ids(9), 5, 9)));
    EXPECT_TRUE(r.all_free()) << "an abort may come first";
}

TEST(ReplicaCore, DeadlineFails) {
    Rig r(config(Role::kHybrid));
    auto s = sequence(1, ids(9), 50);
    s.time_left_ms = 500;
    r.supervise(run(s));
    s.ref.id = SequenceId{2};
    r.supervise(run(s));
    r.step();
    const StepPlan p = r.plan();
    r.tick(499);
    EXPECT_TRUE(r.told<wire::SequenceFailed>().empty());
    r.tick(1);
    ASSERT_EQ(r.told<wire::SequenceFailed>().size(), 2u);
    EXPECT_EQ(r.failure(), "deadline");
    EXPECT_EQ(r.told<wire::SequenceFailed>().back().code,
              static_cast<uint8_t>(ErrorCode::kTimeout));
    r.done(p);
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCore, FailedStepFailsItsSequencesOnly) {
    Rig r(config(Role::kHybrid));
    r.supervise(run(sequence(1, ids(9), 5)));
    const StepPlan p = r.plan();
    r.supervise(run(sequence(2, ids(9, 50), 5)));
    r.core.on_step_failed(r.now, p, "device");
    r.pump();
    EXPECT_EQ(r.failure(), "device");
    r.run_dry();
    EXPECT_EQ(r.tokens(2), expected(ids(9, 50), 5));
    EXPECT_EQ(r.told<wire::SequenceFailed>().size(), 1u);
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCore, StepWithoutATokenFailsThatSequence) {
    Rig r(config(Role::kHybrid));
    r.supervise(run(sequence(1, ids(3), 5)));
    const StepPlan p = r.plan();
    r.core.on_step_done(r.now, p, {});
    r.pump();
    EXPECT_EQ(r.failure(), "no_token");
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCore, SupervisorLostFreesEverythingAndForgetsAttempts) {
    Rig r(config(Role::kHybrid));
    r.supervise(run(sequence(1, ids(9), 5, 4)));
    r.step();
    r.supervise(run(sequence(2, ids(9), 5)));
    r.core.on_supervisor_lost(r.now);
    r.pump();
    EXPECT_TRUE(r.all_free());
    r.supervise(run(sequence(1, ids(5), 2, 1)));  // a new supervisor counts anew
    EXPECT_EQ(r.core.stats().waiting, 1u);
}

TEST(ReplicaCore, TwoPlansMayBeUnderWay) {
    Rig r(config(Role::kHybrid));
    r.supervise(run(sequence(1, ids(9), 5)));
    const StepPlan a = r.plan();
    r.supervise(run(sequence(2, ids(9, 50), 5)));
    const StepPlan b = r.plan();
    ASSERT_EQ(b.items.size(), 1u);
    EXPECT_EQ(b.items[0].ref.id, SequenceId{2});
    r.done(a);
    const StepPlan c = r.plan();
    EXPECT_EQ(c.items[0].ref.id, SequenceId{1});
    r.done(b);
    r.done(c);
    r.run_dry();
    EXPECT_EQ(r.tokens(1), expected(ids(9), 5));
    EXPECT_EQ(r.tokens(2), expected(ids(9, 50), 5));
}

TEST(ReplicaCore, PlantedDoubleGrantIsFound) {
    CoreConfig c = config(Role::kHybrid);
    ReplicaCore core(c);
    core.plant({.double_grant = true});
    core.on_supervisor(TimeMs{0}, run(sequence(1, ids(9), 5)));
    (void)core.plan_step(TimeMs{0});
    core.on_supervisor(TimeMs{0}, run(sequence(2, ids(9, 50), 5)));
    (void)core.plan_step(TimeMs{0});
    EXPECT_TRUE(core.check_invariants());
}

}  // namespace
}  // namespace baton::pd
