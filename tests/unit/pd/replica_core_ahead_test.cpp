/// steps_ahead = 1: a plan is made while the one before runs on a device that samples by itself.
#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "baton/pd/replica_core.hpp"
#include "unit/pd/replica_core_rig.hpp"

namespace baton::pd {
namespace {

using namespace rig;

wire::Message run(const wire::Sequence& s) {
    return wire::Run{s};
}

CoreConfig ahead(Role role, uint32_t blocks = 64) {
    CoreConfig c = config(role, blocks);
    c.steps_ahead = 1;
    return c;
}

/// Runs until nothing is left, with two plans under way wherever the core makes two.
void run_ahead(Rig& r, int most = 2000) {
    std::deque<StepPlan> under_way;
    while (most-- > 0) {
        while (under_way.size() < 2) {
            StepPlan next = r.plan();
            if (next.empty()) break;
            under_way.push_back(std::move(next));
        }
        if (under_way.empty()) return;
        r.done(under_way.front());
        under_way.pop_front();
    }
    FAIL() << "steps without end";
}

TEST(ReplicaCoreAhead, NextRowIsPlannedBeforeItsTokenIsKnown) {
    Rig r(ahead(Role::kHybrid));
    r.supervise(run(sequence(1, ids(6), 4)));
    const StepPlan first = r.plan();
    ASSERT_EQ(first.items.size(), 1u);
    EXPECT_EQ(first.items[0].pending, 0u);
    const StepPlan second = r.plan();
    ASSERT_EQ(second.items.size(), 1u);
    EXPECT_EQ(second.items[0].pending, 1u);
    EXPECT_EQ(second.items[0].position, 6u);
    EXPECT_EQ(second.items[0].tokens, 1u);
    EXPECT_EQ(second.tokens, std::vector<TokenId>{0});
    EXPECT_TRUE(second.items[0].sample);
    EXPECT_EQ(second.items[0].state, first.items[0].state);
    EXPECT_TRUE(r.plan().empty()) << "one step ahead, not two";
    r.done(first);
    const StepPlan third = r.plan();
    EXPECT_EQ(third.items.at(0).position, 7u);
    EXPECT_EQ(third.items.at(0).pending, 1u);
    r.done(second);
    const StepPlan fourth = r.plan();
    EXPECT_EQ(fourth.items.at(0).position, 8u) << "samples the fourth and last token";
    r.done(third);
    EXPECT_TRUE(r.plan().empty()) << "nothing is planned past max_tokens";
    r.done(fourth);
    EXPECT_EQ(r.tokens(1), expected(ids(6), 4));
    EXPECT_EQ(r.finish(1), wire::Finish::kLength);
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCoreAhead, AWaitedForTokenIsGivenByItsId) {
    Rig r(ahead(Role::kHybrid));
    r.supervise(run(sequence(1, ids(6), 4)));
    r.done(r.plan());
    const StepPlan p = r.plan();
    EXPECT_EQ(p.items.at(0).pending, 0u);
    EXPECT_EQ(p.tokens, expected(ids(6), 1));
    r.done(p);
    run_ahead(r);
    EXPECT_EQ(r.tokens(1), expected(ids(6), 4));
}

TEST(ReplicaCoreAhead, ChunksOfAPromptFollowEachOther) {
    Rig r(ahead(Role::kHybrid));
    r.supervise(run(sequence(1, ids(38), 3)));
    const StepPlan a = r.plan(), b = r.plan();
    EXPECT_EQ(a.items.at(0).tokens, 16u);
    EXPECT_EQ(b.items.at(0).position, 16u);
    EXPECT_EQ(b.items.at(0).tokens, 16u);
    EXPECT_EQ(b.items.at(0).pending, 0u);
    r.done(a);
    const StepPlan c = r.plan();
    EXPECT_EQ(c.items.at(0).tokens, 6u);
    EXPECT_TRUE(c.items.at(0).sample);
    r.done(b);
    r.done(c);
    run_ahead(r);
    EXPECT_EQ(r.tokens(1), expected(ids(38), 3));
    EXPECT_EQ(r.core.stats().prefill_tokens, 38u);
}

TEST(ReplicaCoreAhead, LengthsAroundEveryEdge) {
    for (const bool cache : {true, false}) {
        CoreConfig c = ahead(Role::kHybrid);
        c.prefix_cache = cache;
        Rig r(c);
        uint64_t id = 0;
        for (uint32_t prompt = 1; prompt <= 18; ++prompt) {
            for (uint32_t answer = 1; answer <= 10; ++answer) {
                r.supervise(run(sequence(++id, ids(prompt), answer)));
                run_ahead(r);
                ASSERT_EQ(r.tokens(id), expected(ids(prompt), answer)) << prompt << "+" << answer;
                ASSERT_TRUE(r.all_free());
            }
        }
    }
}

TEST(ReplicaCoreAhead, ModelLengthIsNeverPassed) {
    CoreConfig c = ahead(Role::kHybrid);
    c.max_model_len = 11;
    Rig r(c);
    r.supervise(run(sequence(1, ids(6), 100)));
    run_ahead(r);
    EXPECT_EQ(r.tokens(1), expected(ids(6), 5));
    EXPECT_EQ(r.finish(1), wire::Finish::kLength);
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCoreAhead, AStopTokenMakesTheNextRowVoid) {
    Rig r(ahead(Role::kHybrid));
    auto s = sequence(1, ids(7), 20);
    s.sampling.stop_ids = {expected(ids(7), 1)[0]};
    r.supervise(run(s));
    const StepPlan first = r.plan(), second = r.plan();
    r.done(first);
    EXPECT_EQ(r.finish(1), wire::Finish::kStop);
    EXPECT_EQ(r.tokens(1), expected(ids(7), 1));
    EXPECT_FALSE(r.all_free()) << "the second step still writes there";
    const auto before = r.core.stats();
    EXPECT_EQ(before.blocks_used, 2u);
    EXPECT_EQ(second.items[0].blocks.size(), 2u);
    EXPECT_TRUE(r.plan().empty());
    r.done(second);
    EXPECT_TRUE(r.all_free());
    EXPECT_EQ(r.tokens(1).size(), 1u) << "what came after the end is dropped";
    EXPECT_EQ(r.core.stats().generated_tokens, 1u);
    EXPECT_EQ(r.core.stats().blocks_cached, 1u) << "the block of the void row is not published";
}

TEST(ReplicaCoreAhead, AnEndedSequencesStateRowIsUsedAgainAtOnce) {
    CoreConfig c = ahead(Role::kHybrid);
    c.max_running = 1;
    Rig r(c);
    auto s = sequence(1, ids(7), 20);
    s.sampling.stop_ids = {expected(ids(7), 1)[0]};
    r.supervise(run(s));
    r.supervise(run(sequence(2, ids(5, 50), 4)));
    const StepPlan first = r.plan(), second = r.plan();
    r.done(first);
    const StepPlan third = r.plan();
    ASSERT_EQ(third.items.size(), 1u);
    EXPECT_EQ(third.items[0].ref.id, SequenceId{2});
    EXPECT_EQ(third.items[0].state, second.items[0].state);
    EXPECT_EQ(third.items[0].pending, 0u);
    r.done(second);
    r.done(third);
    run_ahead(r);
    EXPECT_EQ(r.tokens(2), expected(ids(5, 50), 4));
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCoreAhead, StateRowsAreDistinctAndStay) {
    Rig r(ahead(Role::kHybrid));
    for (uint64_t id = 1; id <= 12; ++id)
        r.supervise(run(sequence(id, ids(3, static_cast<TokenId>(20 * id)), 4 + static_cast<uint32_t>(id % 5))));
    std::map<uint64_t, uint32_t> rows;
    std::deque<StepPlan> under_way;
    for (int i = 0; i < 500; ++i) {
        while (under_way.size() < 2) {
            StepPlan next = r.plan();
            if (next.empty()) break;
            std::set<uint32_t> in_step;
            for (const StepItem& item : next.items) {
                EXPECT_LT(item.state, 8u);
                EXPECT_TRUE(in_step.insert(item.state).second);
                EXPECT_EQ(rows.try_emplace(item.handle, item.state).first->second, item.state);
            }
            under_way.push_back(std::move(next));
        }
        if (under_way.empty()) break;
        r.done(under_way.front());
        under_way.pop_front();
    }
    EXPECT_EQ(rows.size(), 12u);
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCoreAhead, MemoryMayBeAskedForWhateverBecameOfAPlansSequences) {
    Rig r(ahead(Role::kHybrid));
    r.core.fetch_for({});
    for (uint64_t id = 1; id <= 3; ++id) r.supervise(run(sequence(id, ids(6, static_cast<TokenId>(id)), 4)));
    const StepPlan first = r.plan(), second = r.plan();
    r.core.fetch_for(first);
    r.supervise(wire::Abort{{SequenceId{2}, 1}});
    r.core.fetch_for(first);  // one is over, but its blocks are still written to
    r.done(first);
    r.core.fetch_for(second);
    r.done(second);
    r.core.fetch_for(second);  // now it is gone
    r.supervise(run(sequence(4, ids(5), 3)));
    r.core.fetch_for(second);  // and another one has its place
    run_ahead(r);
    r.core.fetch_for(first);
    for (const uint64_t id : {1, 3}) EXPECT_EQ(r.tokens(id), expected(ids(6, static_cast<TokenId>(id)), 4));
    EXPECT_EQ(r.tokens(4), expected(ids(5), 3));
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCoreAhead, AbortFreesAfterBothSteps) {
    Rig r(ahead(Role::kHybrid));
    r.supervise(run(sequence(1, ids(9), 9)));
    const StepPlan a = r.plan(), b = r.plan();
    r.supervise(wire::Abort{{SequenceId{1}, 1}});
    r.done(a);
    EXPECT_GT(r.core.stats().blocks_used, 0u);
    r.done(b);
    EXPECT_TRUE(r.all_free());
    EXPECT_TRUE(r.tokens(1).empty());
}

TEST(ReplicaCoreAhead, AFailedStepTakesTheNextOnesRowsWithIt) {
    Rig r(ahead(Role::kHybrid));
    r.supervise(run(sequence(1, ids(5), 9)));
    const StepPlan a = r.plan(), b = r.plan();
    (void)r.compute(a);
    r.core.on_step_failed(r.now, a, "device");
    r.pump();
    EXPECT_EQ(r.failure(), "device");
    r.done(b);
    EXPECT_TRUE(r.tokens(1).empty());
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCoreAhead, ATightPoolServesEverySequence) {
    Rig r(ahead(Role::kHybrid, 14));
    for (uint64_t id = 1; id <= 5; ++id)
        r.supervise(run(sequence(id, ids(3 + static_cast<uint32_t>(id), static_cast<TokenId>(100 * id)), 40)));
    run_ahead(r);
    for (uint64_t id = 1; id <= 5; ++id)
        EXPECT_EQ(r.tokens(id), expected(ids(3 + static_cast<uint32_t>(id), static_cast<TokenId>(100 * id)), 40));
    EXPECT_TRUE(r.told<wire::SequenceFailed>().empty());
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCoreAhead, PreemptionWaitsForTheStepUnderWay) {
    // Both sequences want more than the reserve counts: the younger one is preempted, never the older.
    CoreConfig c = ahead(Role::kHybrid, 60);
    Rig r(c);
    r.supervise(run(sequence(1, ids(8), 180)));
    r.supervise(run(sequence(2, ids(8, 500), 180)));
    run_ahead(r);
    EXPECT_EQ(r.tokens(1), expected(ids(8), 180));
    EXPECT_EQ(r.tokens(2), expected(ids(8, 500), 180));
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCoreAhead, PrefillReplicasPlanNoRowOfAPendingToken) {
    Rig r(ahead(Role::kPrefill));
    r.link(kD);
    r.supervise(wire::Prefill{sequence(1, ids(20), 9), kD});
    const StepPlan a = r.plan(), b = r.plan();
    ASSERT_EQ(b.items.size(), 1u);
    EXPECT_TRUE(b.items[0].sample);
    EXPECT_EQ(b.items[0].progress_slot, a.items.at(0).progress_slot);
    r.done(a);
    EXPECT_TRUE(r.plan().empty());
    const auto offers = r.sent<wire::Offer>();
    ASSERT_EQ(offers.size(), 1u);
    r.peer(kD, wire::Accept{offers[0].offer, 0});
    r.done(b);
    EXPECT_EQ(r.sent<wire::Commit>().size(), 1u);
    EXPECT_TRUE(r.plan().empty());
    r.peer(kD, wire::Release{offers[0].offer, true});
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCoreAhead, ARetargetWaitsForBothSteps) {
    Rig r(ahead(Role::kPrefill));
    r.link(kD);
    r.link(kD2);
    r.supervise(wire::Prefill{sequence(1, ids(40), 9), kD});
    const StepPlan a = r.plan(), b = r.plan();
    r.supervise(wire::Retarget{{SequenceId{1}, 1}, kD2});
    EXPECT_EQ(r.sent<wire::Offer>().size(), 1u);
    r.done(a);
    EXPECT_EQ(r.sent<wire::Offer>().size(), 1u) << "the second step's progress still goes to the old slot";
    EXPECT_TRUE(r.plan().empty()) << "no more rows until the new offer is out";
    r.done(b);
    const auto offers = r.sent<wire::Offer>();
    ASSERT_EQ(offers.size(), 2u);
    EXPECT_EQ(r.opened.back().done_tokens, 32u);
    const StepPlan c = r.plan();
    EXPECT_EQ(c.items.at(0).progress_slot, offers[1].progress_slot);
    r.peer(kD2, wire::Accept{offers[1].offer, 0});
    r.done(c);
    EXPECT_EQ(r.sent<wire::Commit>().size(), 1u);
    r.peer(kD2, wire::Release{offers[1].offer, true});
    EXPECT_TRUE(r.all_free());
}

TEST(ReplicaCoreAhead, AnAbortedOffersSlotStaysAwayUntilBothStepsAreDone) {
    CoreConfig c = ahead(Role::kPrefill);
    c.progress_slots = 1;
    Rig r(c);
    r.link(kD);
    r.supervise(wire::Prefill{sequence(1, ids(40), 9), kD});
    const StepPlan a = r.plan(), b = r.plan();
    r.supervise(wire::Abort{{SequenceId{1}, 1}});
    r.supervise(wire::Prefill{sequence(2, ids(9, 60), 9), kD});
    r.done(a);
    EXPECT_TRUE(r.plan().empty());
    r.done(b);
    EXPECT_EQ(r.plan().items.at(0).ref.id, SequenceId{2});
}

}  // namespace
}  // namespace baton::pd
