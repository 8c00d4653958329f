#include "baton/pd/router.hpp"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace baton::pd {
namespace {

using wire::Finish;
using wire::ReplicaTarget;
using wire::SeqRef;

constexpr ReplicaTarget kP1{ReplicaId{1}, Epoch{10}};
constexpr ReplicaTarget kP2{ReplicaId{2}, Epoch{20}};
constexpr ReplicaTarget kD1{ReplicaId{11}, Epoch{110}};
constexpr ReplicaTarget kD2{ReplicaId{12}, Epoch{120}};
constexpr TimeMs kLate{1'000'000};

/// A router with its actions sorted by kind, and short words for what replicas say.
struct Bench {
    explicit Bench(RouterConfig config = {}) : router(config) {}

    void slots(const std::vector<std::pair<ReplicaTarget, Role>>& all) {
        for (const auto& [target, role] : all) {
            router.add_replica(target.replica, role);
            router.replica_up(now, target);
        }
        for (const auto& [p, p_role] : all) {
            for (const auto& [d, d_role] : all) {
                if (p_role == Role::kPrefill && d_role == Role::kDecode) router.link_state(now, p, d, true);
            }
        }
        drain();
    }
    void two_by_two() { slots({{kP1, Role::kPrefill}, {kP2, Role::kPrefill}, {kD1, Role::kDecode}, {kD2, Role::kDecode}}); }
    void one_by_one() { slots({{kP1, Role::kPrefill}, {kD1, Role::kDecode}}); }
    void one_by_two() { slots({{kP1, Role::kPrefill}, {kD1, Role::kDecode}, {kD2, Role::kDecode}}); }

    Expected<void> submit(uint64_t id, uint32_t prompt = 4, TimeMs deadline = kLate) {
        wire::Sequence s;
        s.ref.id = SequenceId{id};
        s.prompt.assign(prompt, 7);
        s.sampling.max_tokens = 8;
        auto result = router.submit(now, std::move(s), deadline);
        drain();
        return result;
    }
    void say(ReplicaTarget from, wire::Message m) {
        router.on_message(now, from, m);
        drain();
    }
    void token(ReplicaTarget from, SeqRef ref, uint32_t index, std::vector<TokenId> ids, Finish finish = Finish::kNone) {
        wire::SeqTokens item{ref, index, {}, finish, 0};
        for (const TokenId id : ids) item.tokens.push_back({id, 0.0f, {}});
        say(from, wire::TokenBatch{{item}});
    }
    void first_token(ReplicaTarget from, SeqRef ref, int64_t queue_us, int64_t prefill_us) {
        say(from, wire::TokenBatch{{{ref, 0, {{5, 0.0f, {}}}, Finish::kNone, 0}}, {{ref, queue_us, prefill_us}}});
    }
    void failed(ReplicaTarget from, SeqRef ref, ErrorCode code, std::string reason) {
        say(from, wire::SequenceFailed{ref, static_cast<uint8_t>(code), std::move(reason)});
    }
    void down(ReplicaTarget target) {
        router.replica_down(now, target);
        drain();
    }
    void wait(int64_t ms) {
        now = now + ms;
        router.on_tick(now);
        drain();
    }
    void drain() {
        for (RouterAction& action : router.take_actions()) {
            if (auto* s = std::get_if<SendReplica>(&action)) sent.push_back(*s);
            if (auto* d = std::get_if<Deliver>(&action)) {
                stages[d->id.value] = d->stages;
                auto& list = delivered[d->id.value];
                EXPECT_EQ(d->first_index, list.size());
                for (const auto& t : d->tokens) list.push_back(t.id);
            }
            if (auto* again = std::get_if<Retried>(&action)) retried.push_back(*again);
            if (auto* e = std::get_if<End>(&action)) {
                EXPECT_FALSE(ended.contains(e->id.value)) << "ended twice";
                ended[e->id.value] = *e;
            }
        }
        EXPECT_EQ(router.check_invariants(), std::nullopt);
    }
    /// Messages of one kind sent since the last call, oldest first.
    template <class T>
    std::vector<std::pair<ReplicaTarget, T>> take() {
        std::vector<std::pair<ReplicaTarget, T>> found;
        std::erase_if(sent, [&](const SendReplica& s) {
            if (const T* m = std::get_if<T>(&s.message)) found.emplace_back(s.to, *m);
            return std::holds_alternative<T>(s.message);
        });
        return found;
    }
    /// The one Prefill sent since the last look.
    std::pair<ReplicaTarget, wire::Prefill> prefill() {
        auto list = take<wire::Prefill>();
        EXPECT_EQ(list.size(), 1u);
        return list.empty() ? std::pair<ReplicaTarget, wire::Prefill>{} : list[0];
    }
    bool aborted(ReplicaTarget at, SeqRef ref) {
        bool found = false;
        std::erase_if(sent, [&](const SendReplica& s) {
            const auto* m = std::get_if<wire::Abort>(&s.message);
            const bool is = m != nullptr && s.to == at && m->ref == ref;
            found = found || is;
            return is;
        });
        return found;
    }
    uint64_t count(const std::vector<std::pair<std::string, uint64_t>>& list, std::string_view label) const {
        for (const auto& [name, n] : list) {
            if (name == label) return n;
        }
        return 0;
    }

    TimeMs now{1'000};
    Router router;
    std::vector<SendReplica> sent;
    std::map<uint64_t, std::vector<TokenId>> delivered;
    std::map<uint64_t, Stages> stages;  ///< with the newest of them
    std::map<uint64_t, End> ended;
    std::vector<Retried> retried;
};

SeqRef ref(uint64_t id, uint32_t attempt = 1) { return {SequenceId{id}, attempt}; }

// ---- admission and choice -----------------------------------------------------------------------------------------

TEST(Router, RefusesWithoutBothRoles) {
    Bench b;
    b.router.add_replica(kP1.replica, Role::kPrefill);
    b.router.add_replica(kD1.replica, Role::kDecode);
    EXPECT_FALSE(b.router.ready());
    b.router.replica_up(b.now, kP1);
    const auto refused = b.submit(1);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
    EXPECT_EQ(refused.error().message, "Both prefill and decode replicas must be available");
    b.router.replica_up(b.now, kD1);
    b.router.link_state(b.now, kP1, kD1, true);
    EXPECT_TRUE(b.router.ready());
    EXPECT_TRUE(b.submit(1));
    b.router.replica_draining(b.now, kD1, true);
    EXPECT_FALSE(b.router.ready());
    EXPECT_FALSE(b.submit(2));
    EXPECT_TRUE(b.ended.empty());
}

TEST(Router, RefusesBeyondTheLimit) {
    Bench b({.waiting_max = 2});
    b.one_by_one();
    EXPECT_TRUE(b.submit(1));
    EXPECT_TRUE(b.submit(2));
    const auto refused = b.submit(3);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kOverloaded);
    EXPECT_NE(refused.error().message.find("Rate limit reached"), std::string::npos);
    EXPECT_NE(refused.error().message.find("2"), std::string::npos);
    b.token(kP1, ref(1), 0, {5}, Finish::kStop);
    EXPECT_TRUE(b.submit(3));
}

TEST(Router, HybridDeploymentRunsWhole) {
    Bench b;
    b.router.add_replica(kP1.replica, Role::kHybrid);
    const auto refused = b.submit(1);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "No live replica is available");
    b.router.replica_up(b.now, kP1);
    ASSERT_TRUE(b.submit(1));
    ASSERT_EQ(b.take<wire::Run>().size(), 1u);
    EXPECT_EQ(b.router.phase_of(SequenceId{1}), Phase::kPrefill);
    b.token(kP1, ref(1), 0, {5});
    EXPECT_EQ(b.router.phase_of(SequenceId{1}), Phase::kDecode);
    b.token(kP1, ref(1), 1, {6, 7}, Finish::kStop);
    EXPECT_EQ(b.delivered[1], (std::vector<TokenId>{5, 6, 7}));
    EXPECT_EQ(b.ended.at(1).finish, Finish::kStop);
    EXPECT_EQ(b.ended.at(1).served_by, std::vector{kP1.replica});
}

TEST(Router, UsesAllPairsEvenly) {
    for (const auto& [prefills, decodes] : {std::pair{2, 2}, {1, 3}, {3, 1}, {2, 3}, {3, 3}, {2, 4}}) {
        Bench b;
        std::vector<std::pair<ReplicaTarget, Role>> all;
        for (int i = 0; i < prefills; ++i) all.push_back({{ReplicaId{static_cast<uint64_t>(1 + i)}, Epoch{1}}, Role::kPrefill});
        for (int i = 0; i < decodes; ++i) all.push_back({{ReplicaId{static_cast<uint64_t>(11 + i)}, Epoch{1}}, Role::kDecode});
        b.slots(all);
        std::map<std::pair<uint64_t, uint64_t>, int> pairs;
        const int requests = 20 * prefills * decodes;
        for (int i = 0; i < requests; ++i) {
            ASSERT_TRUE(b.submit(static_cast<uint64_t>(i + 1)));
            const auto [p, m] = b.prefill();
            ++pairs[{p.replica.value, m.target.replica.value}];
        }
        EXPECT_EQ(pairs.size(), static_cast<size_t>(prefills * decodes));
        for (const auto& [pair, n] : pairs) EXPECT_EQ(n, 20) << pair.first << "-" << pair.second;
    }
}

TEST(Router, SkipsWhatIsDeadDrainingOrUnlinked) {
    Bench b;
    b.two_by_two();
    b.router.replica_draining(b.now, kP2, true);
    b.router.link_state(b.now, kP1, kD1, false);
    for (uint64_t i = 1; i <= 10; ++i) {
        ASSERT_TRUE(b.submit(i));
        const auto [p, m] = b.prefill();
        EXPECT_EQ(p, kP1);
        EXPECT_EQ(m.target, kD2);
    }
    b.router.link_state(b.now, kD1, kP1, true);  // the other end's word does not undo it
    ASSERT_TRUE(b.submit(20));
    EXPECT_EQ(b.prefill().second.target, kD2);
}

TEST(Router, RemainingReplicasShareEvenlyAndReplacedOneKeepsItsPlace) {
    Bench b;
    const ReplicaTarget third{ReplicaId{3}, Epoch{30}};
    b.slots({{kP1, Role::kPrefill}, {kP2, Role::kPrefill}, {third, Role::kPrefill}, {kD1, Role::kDecode}});
    b.down(kP2);
    std::map<uint64_t, int> uses;
    for (uint64_t i = 1; i <= 20; ++i) {
        ASSERT_TRUE(b.submit(i));
        ++uses[b.prefill().first.replica.value];
    }
    EXPECT_EQ(uses[1], 10);
    EXPECT_EQ(uses[3], 10);
    const ReplicaTarget again{kP2.replica, Epoch{21}};
    b.router.replica_up(b.now, again);
    b.router.link_state(b.now, again, kD1, true);
    std::vector<uint64_t> order;
    for (uint64_t i = 21; i <= 26; ++i) {
        ASSERT_TRUE(b.submit(i));
        order.push_back(b.prefill().first.replica.value);
    }
    EXPECT_EQ(order, (std::vector<uint64_t>{1, 2, 3, 1, 2, 3}));
}

TEST(Router, RunsOnDecodeReplicaWhenNoPairIsLinked) {
    Bench b;
    b.one_by_one();
    b.router.link_state(b.now, kP1, kD1, false);
    ASSERT_TRUE(b.submit(1));
    const auto runs = b.take<wire::Run>();
    ASSERT_EQ(runs.size(), 1u);
    EXPECT_EQ(runs[0].first, kD1);
    EXPECT_EQ(b.count(b.router.stats().fallbacks_by_reason, "no_link"), 1u);
}

// ---- tokens -------------------------------------------------------------------------------------------------------

TEST(Router, TokensComeInOrderWhateverLinkIsFaster) {
    Bench b;
    b.one_by_one();
    ASSERT_TRUE(b.submit(1));
    b.say(kD1, wire::HandoffDone{ref(1), 4096, 0, "shm", 10, 700, 25});
    b.token(kD1, ref(1), 1, {6});
    b.token(kD1, ref(1), 2, {7});
    EXPECT_TRUE(b.delivered[1].empty());
    b.token(kP1, ref(1), 0, {5});
    EXPECT_EQ(b.delivered[1], (std::vector<TokenId>{5, 6, 7}));
    b.token(kD1, ref(1), 3, {8}, Finish::kStop);
    EXPECT_EQ(b.ended.at(1).finish, Finish::kStop);
    EXPECT_EQ(b.ended.at(1).served_by, (std::vector{kD1.replica, kP1.replica}));
    const auto stats = b.router.stats();
    EXPECT_EQ(stats.ended_ok, 1u);
    EXPECT_EQ(b.count(stats.handoffs_by_mover, "shm"), 1u);
    EXPECT_EQ(b.count(stats.handoff_bytes_by_mover, "shm"), 4096u);
    EXPECT_EQ(b.count(stats.handoff_pull_us_by_mover, "shm"), 700u);
    EXPECT_EQ(b.count(stats.handoff_exposed_us_by_mover, "shm"), 25u);
}

TEST(Router, TimesOfStagesComeWithTheTokensAndTheEnd) {
    Bench b;
    b.one_by_one();
    ASSERT_TRUE(b.submit(1));
    b.first_token(kP1, ref(1), 300, 4'000);
    EXPECT_EQ(b.stages[1].queue_us, 300);
    EXPECT_EQ(b.stages[1].prefill_us, 4'000);
    EXPECT_EQ(b.stages[1].handoff_us, -1) << "not over yet";
    EXPECT_EQ(b.stages[1].prefill_replica, kP1.replica);
    EXPECT_EQ(b.stages[1].decode_replica, kP1.replica);
    b.say(kD1, wire::HandoffDone{ref(1), 4096, 0, "shm", 90, 700, 25});
    b.token(kD1, ref(1), 1, {6});
    EXPECT_EQ(b.stages[1].handoff_us, 25);
    b.token(kD1, ref(1), 2, {7}, Finish::kStop);
    EXPECT_EQ(b.ended.at(1).stages.prefill_us, 4'000);
    EXPECT_EQ(b.ended.at(1).stages.handoff_us, 25);
    EXPECT_EQ(b.ended.at(1).stages.prefill_replica, kP1.replica);
    EXPECT_EQ(b.ended.at(1).stages.decode_replica, kD1.replica);

    ASSERT_TRUE(b.submit(2));
    b.first_token(kP1, ref(2), -5, -7);
    EXPECT_EQ(b.stages[2].queue_us, 0);
    EXPECT_EQ(b.stages[2].prefill_us, 0);
    b.say(kD1, wire::HandoffDone{ref(2), 4096, 0, "tcp", 90, 700, -1});
    b.token(kD1, ref(2), 1, {6}, Finish::kStop);
    EXPECT_EQ(b.ended.at(2).stages.handoff_us, 90) << "progress was not seen";

    ASSERT_TRUE(b.submit(3));
    b.say(kD1, wire::HandoffDone{ref(3), 4096, 0, "shm", 90, 700, 30});  // faster than P's token
    b.token(kD1, ref(3), 1, {6});
    b.first_token(kP1, ref(3), 300, 4'000);
    EXPECT_EQ(b.stages[3].prefill_replica, kP1.replica);
    EXPECT_EQ(b.stages[3].decode_replica, kD1.replica);
    EXPECT_EQ(b.stages[3].prefill_us, 4'000);
}

TEST(Router, ALostAttemptCountsAsWaiting) {
    Bench b;
    b.two_by_two();
    ASSERT_TRUE(b.submit(1));
    b.wait(50);
    const ReplicaTarget first = b.prefill().first;
    b.down(first);
    const auto [second, again] = b.prefill();
    EXPECT_NE(second, first);
    b.first_token(first, ref(1), 1, 1);
    EXPECT_FALSE(b.stages.contains(1)) << "of a replica that is gone";
    b.first_token(second, ref(1, 2), 300, 4'000);
    EXPECT_EQ(b.stages[1].queue_us, 50'300);
    EXPECT_EQ(b.stages[1].prefill_us, 4'000);
    b.down(again.target);
    b.first_token(b.prefill().first, ref(1, 3), 9, 9);  // the first token is out already: what came after it is no start
    EXPECT_EQ(b.stages[1].queue_us, 50'300);
}

TEST(Router, AHybridReplicaHasNoHandoffTime) {
    Bench b;
    b.slots({{kP1, Role::kHybrid}});
    ASSERT_TRUE(b.submit(1));
    b.first_token(kP1, ref(1), 10, 20);
    b.token(kP1, ref(1), 1, {6}, Finish::kStop);
    EXPECT_EQ(b.ended.at(1).stages.queue_us, 10);
    EXPECT_EQ(b.ended.at(1).stages.prefill_replica, kP1.replica);
    EXPECT_EQ(b.ended.at(1).stages.decode_replica, kP1.replica);
    EXPECT_EQ(b.ended.at(1).stages.handoff_us, -1);
}

TEST(Router, FinishWaitsForTheMissingToken) {
    Bench b;
    b.one_by_one();
    ASSERT_TRUE(b.submit(1));
    b.say(kD1, wire::HandoffDone{ref(1), 1, 0, "shm", 0});
    b.token(kD1, ref(1), 1, {6}, Finish::kStop);
    EXPECT_TRUE(b.ended.empty());
    b.token(kP1, ref(1), 0, {5});
    EXPECT_EQ(b.delivered[1], (std::vector<TokenId>{5, 6}));
    EXPECT_EQ(b.ended.at(1).finish, Finish::kStop);
}

TEST(Router, HoleThatStaysStartsANewAttempt) {
    Bench b;
    b.one_by_one();
    ASSERT_TRUE(b.submit(1));
    b.take<wire::Prefill>();
    b.say(kD1, wire::HandoffDone{ref(1), 1, 0, "shm", 0});
    b.token(kD1, ref(1), 1, {6}, Finish::kStop);
    b.wait(1'900);
    EXPECT_TRUE(b.take<wire::Prefill>().empty());
    b.wait(200);
    EXPECT_EQ(b.prefill().second.sequence.ref.attempt, 2u);
    EXPECT_TRUE(b.aborted(kD1, ref(1)));
    EXPECT_TRUE(b.delivered[1].empty());
}

TEST(Router, RepeatedAndStaleTokensAreIgnored) {
    Bench b;
    b.one_by_two();
    ASSERT_TRUE(b.submit(1));
    b.token(kP1, ref(1), 0, {5});
    b.token(kP1, ref(1), 0, {5});
    b.token(kP1, ref(1, 7), 1, {9});
    b.token(kD2, ref(1), 1, {9});                                     // no leg of this attempt
    b.token({kP1.replica, Epoch{9}}, ref(1), 1, {9});                 // older process
    b.token({kP1.replica, Epoch{11}}, ref(1), 1, {9});                // unknown process
    b.token(kP1, ref(99), 0, {1});
    EXPECT_EQ(b.delivered[1], (std::vector<TokenId>{5}));
}

TEST(Router, ContradictionEndsTheAttempt) {
    Bench b;
    b.one_by_one();
    ASSERT_TRUE(b.submit(1));
    b.token(kP1, ref(1), 0, {5});
    b.take<wire::Prefill>();
    b.token(kD1, ref(1), 0, {4});
    const auto [to, m] = b.prefill();
    EXPECT_EQ(m.sequence.emitted, (std::vector<TokenId>{5}));
    EXPECT_EQ(b.count(b.router.stats().failovers_by_reason, "token_mismatch"), 1u);
}

TEST(Router, WildIndicesEndTheAttemptWithoutHoldingMemory) {
    Bench b;
    b.one_by_one();
    ASSERT_TRUE(b.submit(1));
    b.take<wire::Prefill>();
    b.token(kD1, ref(1), UINT32_MAX, {4, 5});
    EXPECT_EQ(b.prefill().second.sequence.ref.attempt, 2u);
    b.token(kP1, ref(1, 2), 0, std::vector<TokenId>(9, 1));  // one more than max_tokens
    b.wait(1'000);
    EXPECT_EQ(b.prefill().second.sequence.ref.attempt, 3u);
    EXPECT_TRUE(b.delivered[1].empty());
}

TEST(Router, FirstTokenThatEndsNeedsNoDecodeReplica) {
    Bench b;
    b.one_by_one();
    ASSERT_TRUE(b.submit(1));
    b.token(kP1, ref(1), 0, {5}, Finish::kLength);
    EXPECT_EQ(b.ended.at(1).finish, Finish::kLength);
    EXPECT_EQ(b.router.in_flight(), 0u);
}

// ---- busy decode replicas -------------------------------------------------------------------------------------------

TEST(Router, BusyTargetLeadsToTheNextOneAndAFullRoundToAPause) {
    Bench b;
    b.one_by_two();
    ASSERT_TRUE(b.submit(1));
    b.say(kP1, wire::TargetBusy{ref(1), kD1, false});
    auto retargets = b.take<wire::Retarget>();
    ASSERT_EQ(retargets.size(), 1u);
    EXPECT_EQ(retargets[0].second.target, kD2);
    b.say(kP1, wire::TargetBusy{ref(1), kD1, false});  // about a target it was told to leave: told again
    retargets = b.take<wire::Retarget>();
    ASSERT_EQ(retargets.size(), 1u);
    EXPECT_EQ(retargets[0].second.target, kD2);
    b.say(kP1, wire::TargetBusy{ref(1), kD2, false});
    EXPECT_TRUE(b.take<wire::Retarget>().empty());
    b.wait(19);
    EXPECT_TRUE(b.take<wire::Retarget>().empty());
    b.wait(1);
    retargets = b.take<wire::Retarget>();
    ASSERT_EQ(retargets.size(), 1u);
    EXPECT_EQ(retargets[0].second.target, kD1);
    b.say(kD1, wire::HandoffDone{ref(1), 1, 0, "shm", 0});
    EXPECT_EQ(b.router.phase_of(SequenceId{1}), Phase::kDecode);
}

TEST(Router, SequencesThatWaitForADecodeReplicaAreCounted) {
    Bench b;
    b.one_by_one();
    ASSERT_TRUE(b.submit(1));
    const auto staged = [&] { return b.router.stats().staged; };
    EXPECT_EQ(staged(), 0u);
    b.say(kP1, wire::TargetBusy{ref(1), kD1, false});
    EXPECT_EQ(staged(), 0u) << "its prefill is not over";
    b.token(kP1, ref(1), 0, {5});
    EXPECT_EQ(staged(), 1u);
    b.wait(20);
    EXPECT_EQ(b.take<wire::Retarget>().size(), 1u);
    EXPECT_EQ(staged(), 1u) << "it was asked again, and nothing was heard yet";
    b.say(kD1, wire::HandoffDone{ref(1), 1, 0, "shm", 0});
    EXPECT_EQ(staged(), 0u);
    EXPECT_EQ(b.router.stats().unsent, 0u);
}

TEST(Router, WhatIsTriedAgainIsToldAndWaitsUnsent) {
    Bench b;
    b.two_by_two();
    ASSERT_TRUE(b.submit(1));
    b.failed(b.prefill().first, ref(1), ErrorCode::kInternal, "step_failed");
    ASSERT_EQ(b.retried.size(), 1u);
    EXPECT_EQ(b.retried[0].id, SequenceId{1});
    EXPECT_EQ(b.retried[0].attempt, 2u);
    EXPECT_EQ(b.retried[0].reason, "step_failed");
    EXPECT_EQ(b.router.stats().unsent, 0u) << "the first retry is sent at once";
    b.failed(b.prefill().first, ref(1, 2), ErrorCode::kInternal, "step_failed");
    EXPECT_EQ(b.retried.size(), 2u);
    EXPECT_EQ(b.router.stats().unsent, 1u) << "the next one after a pause";
    b.wait(100);
    EXPECT_EQ(b.router.stats().unsent, 0u);
}

TEST(Router, UnreachableTargetIsFencedByANewAttempt) {
    Bench b;
    b.one_by_two();
    ASSERT_TRUE(b.submit(1));
    b.take<wire::Prefill>();
    b.router.link_state(b.now, kP1, kD1, false);
    b.say(kP1, wire::TargetBusy{ref(1), kD1, true});
    const auto [p, m] = b.prefill();
    EXPECT_EQ(m.sequence.ref.attempt, 2u);
    EXPECT_EQ(m.target, kD2);
    EXPECT_TRUE(b.aborted(kD1, ref(1)));
    EXPECT_TRUE(b.aborted(kP1, ref(1)));
}

TEST(Router, HandOffThatNothingIsHeardOfIsTriedAgain) {
    Bench b;
    b.one_by_two();
    ASSERT_TRUE(b.submit(1));
    b.take<wire::Prefill>();
    b.wait(60'000);  // a long queue at P is no reason
    EXPECT_TRUE(b.take<wire::Prefill>().empty());
    b.token(kP1, ref(1), 0, {5});
    b.wait(9'000);
    b.say(kP1, wire::TargetBusy{ref(1), kD1, false});
    b.wait(9'900);
    EXPECT_TRUE(b.take<wire::Prefill>().empty());
    b.wait(200);
    EXPECT_EQ(b.prefill().second.sequence.ref.attempt, 2u);
    EXPECT_EQ(b.count(b.router.stats().failovers_by_reason, "handoff_timeout"), 1u);
}

TEST(Router, KvThatNobodyWaitsForIsAborted) {
    Bench b;
    b.one_by_one();
    ASSERT_TRUE(b.submit(1));
    b.token(kP1, ref(1), 0, {5});
    b.say(kD1, wire::HandoffDone{ref(1), 1, 0, "shm", 0});
    b.say(kP1, wire::TargetBusy{ref(1), kD1, true});
    EXPECT_TRUE(b.aborted(kP1, ref(1)));
    EXPECT_EQ(b.router.phase_of(SequenceId{1}), Phase::kDecode);
    b.token(kD1, ref(1), 1, {6}, Finish::kStop);
    b.say(kP1, wire::TargetBusy{ref(1), kD1, true});
    EXPECT_TRUE(b.aborted(kP1, ref(1)));
}

TEST(Router, NoDecodeReplicaLeftEndsABusyRound) {
    Bench b;
    b.one_by_one();
    ASSERT_TRUE(b.submit(1));
    b.say(kP1, wire::TargetBusy{ref(1), kD1, false});
    b.down(kD1);
    EXPECT_TRUE(b.ended.empty());
    b.wait(100);
    EXPECT_EQ(b.ended.at(1).error.code, ErrorCode::kUnavailable);
    EXPECT_TRUE(b.aborted(kP1, ref(1)));
}

// ---- lost replicas ----------------------------------------------------------------------------------------------------

TEST(Router, LostPrefillReplicaIsReplaced) {
    Bench b;
    b.two_by_two();
    ASSERT_TRUE(b.submit(1));
    const auto [first, m] = b.prefill();
    b.token(first, ref(1), 0, {5});
    b.down(first);
    const auto [second, again] = b.prefill();
    EXPECT_NE(second, first);
    EXPECT_TRUE(again.sequence.recovering);
    EXPECT_EQ(again.sequence.ref, ref(1, 2));
    EXPECT_EQ(again.sequence.emitted, (std::vector<TokenId>{5}));
    EXPECT_TRUE(b.aborted(m.target, ref(1)));
    b.token(second, ref(1, 2), 1, {6});
    EXPECT_EQ(b.delivered[1], (std::vector<TokenId>{5, 6}));
    EXPECT_EQ(b.count(b.router.stats().failovers_by_reason, "prefill_lost"), 1u);
}

TEST(Router, LastPrefillReplicaLostRunsOnDecodeReplica) {
    Bench b;
    b.one_by_one();
    ASSERT_TRUE(b.submit(1));
    b.down(kP1);
    const auto runs = b.take<wire::Run>();
    ASSERT_EQ(runs.size(), 1u);
    EXPECT_EQ(runs[0].first, kD1);
    EXPECT_EQ(runs[0].second.sequence.ref.attempt, 2u);
    EXPECT_EQ(b.count(b.router.stats().fallbacks_by_reason, "no_prefill_replica"), 1u);
    b.token(kD1, ref(1, 2), 0, {5}, Finish::kStop);
    EXPECT_EQ(b.ended.at(1).finish, Finish::kStop);
}

TEST(Router, PrefillReplicaLostAfterHandOffDoesNoHarm) {
    Bench b;
    b.two_by_two();
    ASSERT_TRUE(b.submit(1));
    const auto [p, m] = b.prefill();
    b.token(p, ref(1), 0, {5});
    b.say(m.target, wire::HandoffDone{ref(1), 1, 0, "shm", 0});
    b.down(p);
    EXPECT_TRUE(b.sent.empty());
    b.token(m.target, ref(1), 1, {6}, Finish::kStop);
    EXPECT_EQ(b.ended.at(1).finish, Finish::kStop);
}

TEST(Router, PrefillReplicaLostWithItsTokenIsReplacedEvenAfterHandOff) {
    Bench b;
    b.two_by_two();
    ASSERT_TRUE(b.submit(1));
    const auto [p, m] = b.prefill();
    b.say(m.target, wire::HandoffDone{ref(1), 1, 0, "shm", 0});
    b.token(m.target, ref(1), 1, {6});
    b.down(p);
    EXPECT_EQ(b.prefill().second.sequence.emitted.size(), 0u);
    EXPECT_TRUE(b.aborted(m.target, ref(1)));
}

TEST(Router, LostDecodeReplicaIsReplacedThroughTheSamePrefillReplica) {
    Bench b;
    b.two_by_two();
    ASSERT_TRUE(b.submit(1));
    const auto [p, m] = b.prefill();
    b.token(p, ref(1), 0, {5});
    b.say(m.target, wire::HandoffDone{ref(1), 1, 0, "shm", 0});
    b.token(m.target, ref(1), 1, {6, 7});
    b.down(m.target);
    const auto [p2, again] = b.prefill();
    EXPECT_EQ(p2, p);
    EXPECT_NE(again.target, m.target);
    EXPECT_EQ(again.sequence.emitted, (std::vector<TokenId>{5, 6, 7}));
    EXPECT_TRUE(b.aborted(p, ref(1)));
    b.token(m.target, ref(1), 3, {9});  // its last words
    b.token(p, ref(1, 2), 3, {8});
    b.say(again.target, wire::HandoffDone{ref(1, 2), 1, 0, "shm", 0});
    b.token(again.target, ref(1, 2), 4, {9}, Finish::kStop);
    EXPECT_EQ(b.delivered[1], (std::vector<TokenId>{5, 6, 7, 8, 9}));
}

TEST(Router, LastDecodeReplicaLostEndsAtOnce) {
    Bench b;
    b.one_by_one();
    ASSERT_TRUE(b.submit(1));
    b.token(kP1, ref(1), 0, {5});
    b.down(kD1);
    EXPECT_EQ(b.ended.at(1).error.code, ErrorCode::kUnavailable);
    EXPECT_EQ(b.ended.at(1).error.message, "the decode replica was lost and no other is available");
    EXPECT_TRUE(b.aborted(kP1, ref(1)));
}

/// 1P1D, whose decode replica is lost after the third token; its slot is about to be filled again.
void lose_decode(Bench& b) {
    b.one_by_one();
    EXPECT_TRUE(b.submit(1));
    b.token(kP1, ref(1), 0, {5});
    b.say(kD1, wire::HandoffDone{ref(1), 1, 0, "shm", 0});
    b.token(kD1, ref(1), 1, {6, 7});
    b.sent.clear();
    b.router.replica_expected(b.now, kD1.replica, true);
    b.down(kD1);
}
constexpr ReplicaTarget kD1Again{kD1.replica, Epoch{111}};

TEST(Router, ASequenceWaitsForTheReplacementOfTheLastDecodeReplica) {
    Bench b;
    lose_decode(b);
    EXPECT_TRUE(b.aborted(kP1, ref(1)));
    EXPECT_FALSE(b.submit(2));  // new ones do not
    b.wait(800);
    EXPECT_TRUE(b.ended.empty() && b.take<wire::Run>().empty() && b.take<wire::Prefill>().empty());
    EXPECT_EQ(b.router.phase_of(SequenceId{1}), Phase::kQueued);
    b.router.replica_up(b.now, kD1Again);
    b.drain();
    EXPECT_TRUE(b.take<wire::Run>().empty());  // nor does it compute the prompt on a decode replica that will have a link
    b.router.link_state(b.now, kD1Again, kP1, true);
    b.drain();
    const auto [p, m] = b.prefill();
    EXPECT_EQ(p, kP1);
    EXPECT_EQ(m.target, kD1Again);
    EXPECT_EQ(m.sequence.emitted, (std::vector<TokenId>{5, 6, 7}));
    b.token(kP1, m.sequence.ref, 3, {8});
    b.say(kD1Again, wire::HandoffDone{m.sequence.ref, 1, 0, "shm", 0});
    b.token(kD1Again, m.sequence.ref, 4, {9}, Finish::kStop);
    EXPECT_EQ(b.delivered[1], (std::vector<TokenId>{5, 6, 7, 8, 9}));
    EXPECT_EQ(b.ended.at(1).finish, Finish::kStop);
}

TEST(Router, TheWaitForAReplacementEnds) {
    for (const int what : {0, 1, 2, 3}) {
        Bench b({.replacement_wait_ms = 2'000});
        lose_decode(b);
        b.wait(1'999);
        ASSERT_TRUE(b.ended.empty());
        b.sent.clear();
        if (what == 0) b.wait(1);                                                 // by time
        if (what == 1) b.router.replica_expected(b.now, kD1.replica, false);      // by word that none comes
        if (what == 2) b.router.abort(b.now, SequenceId{1}, "the client is gone");
        if (what == 3) b.router.close(b.now, "the model was terminated");
        b.drain();
        ASSERT_TRUE(b.ended.contains(1)) << what;
        EXPECT_EQ(b.ended.at(1).error.message, what == 2   ? "the client is gone"
                                               : what == 3 ? "the model was terminated"
                                                           : "the decode replica was lost and no other is available");
        b.wait(10'000);
        b.router.replica_up(b.now, kD1Again);
        b.drain();
        EXPECT_TRUE(b.sent.empty());
    }
    Bench never({.replacement_wait_ms = 0});
    lose_decode(never);
    EXPECT_TRUE(never.ended.contains(1));
}

TEST(Router, TheWaitForAReplacementKeepsToTheDeadline) {
    Bench b;
    b.one_by_one();
    ASSERT_TRUE(b.submit(1, 4, b.now + 500));
    b.router.replica_expected(b.now, kD1.replica, true);
    b.down(kD1);
    b.wait(500);
    EXPECT_EQ(b.ended.at(1).error.code, ErrorCode::kTimeout);
}

/// A replacement whose links do not come up computes alone in the end.
TEST(Router, AReplacementWithoutALinkRunsAloneAfterTheWait) {
    Bench b({.replacement_wait_ms = 2'000});
    lose_decode(b);
    b.wait(500);
    b.router.replica_up(b.now, kD1Again);
    b.drain();
    b.wait(1'499);
    EXPECT_TRUE(b.take<wire::Run>().empty());
    b.wait(1);
    const auto runs = b.take<wire::Run>();
    ASSERT_EQ(runs.size(), 1u);
    EXPECT_EQ(runs[0].first, kD1Again);
    EXPECT_EQ(b.count(b.router.stats().fallbacks_by_reason, "no_link"), 1u);
}

TEST(Router, TheLastHybridReplicaIsWaitedForToo) {
    Bench b;
    b.slots({{kD1, Role::kHybrid}});
    ASSERT_TRUE(b.submit(1));
    b.token(kD1, ref(1), 0, {5});
    b.take<wire::Run>();
    b.router.replica_expected(b.now, kD1.replica, true);
    b.down(kD1);
    b.wait(1'000);
    EXPECT_TRUE(b.ended.empty());
    b.router.replica_up(b.now, kD1Again);
    b.drain();
    const auto runs = b.take<wire::Run>();
    ASSERT_EQ(runs.size(), 1u);
    EXPECT_EQ(runs[0].second.sequence.emitted, (std::vector<TokenId>{5}));
}

/// Where another replica of the role lives nothing waits, whatever is expected.
TEST(Router, NothingWaitsWhereAnotherReplicaLives) {
    Bench b;
    b.one_by_two();
    ASSERT_TRUE(b.submit(1));
    const auto [p, m] = b.prefill();
    b.router.replica_expected(b.now, m.target.replica, true);
    b.down(m.target);
    EXPECT_NE(b.prefill().second.target, m.target);
}

/// KV that waits at P for a busy decode replica, when the last of them is lost.
TEST(Router, AStagedSequenceWaitsForAReplacementToo) {
    Bench b;
    b.one_by_one();
    ASSERT_TRUE(b.submit(1));
    b.prefill();
    b.token(kP1, ref(1), 0, {5});
    b.say(kP1, wire::TargetBusy{ref(1), kD1, false});
    b.router.replica_expected(b.now, kD1.replica, true);
    b.down(kD1);
    b.wait(100);
    EXPECT_TRUE(b.ended.empty());
    EXPECT_TRUE(b.aborted(kP1, ref(1)));
    b.router.replica_up(b.now, kD1Again);
    b.router.link_state(b.now, kD1Again, kP1, true);
    b.wait(1'000);
    EXPECT_EQ(b.prefill().second.target, kD1Again);
}

/// A process that dies again and again is not waited for for ever.
TEST(Router, ReplacementsThatDieAreTriedSoManyTimesOnly) {
    Bench b;
    lose_decode(b);
    uint64_t epoch = 200;
    int lives = 0;
    for (; b.ended.empty() && lives < 100; ++lives) {
        const ReplicaTarget next{kD1.replica, Epoch{++epoch}};
        b.router.replica_up(b.now, next);
        b.router.link_state(b.now, next, kP1, true);
        b.wait(1'000);
        b.router.replica_expected(b.now, next.replica, true);
        b.down(next);
    }
    EXPECT_LT(lives, 10);
    EXPECT_EQ(b.ended.at(1).error.code, ErrorCode::kUnavailable);
}

TEST(Router, NewProcessInASlotEndsTheOldOne) {
    Bench b;
    b.two_by_two();
    ASSERT_TRUE(b.submit(1));
    const auto [p, m] = b.prefill();
    b.router.replica_up(b.now, {p.replica, Epoch{p.epoch.value + 1}});
    b.drain();
    EXPECT_EQ(b.prefill().second.sequence.ref.attempt, 2u);
    b.down(p);  // late word of the old one
    EXPECT_TRUE(b.take<wire::Prefill>().empty());
}

// ---- failures reported by replicas --------------------------------------------------------------------------------------

TEST(Router, FailureOfOneLegIsToldToTheOther) {
    Bench b;
    b.two_by_two();
    ASSERT_TRUE(b.submit(1));
    const auto [p, m] = b.prefill();
    b.failed(m.target, ref(1), ErrorCode::kPeerLost, "lease_expired");
    EXPECT_TRUE(b.aborted(p, ref(1)));
    EXPECT_EQ(b.prefill().second.sequence.ref.attempt, 2u);
    b.failed(p, ref(1), ErrorCode::kPeerLost, "late");
    EXPECT_TRUE(b.take<wire::Prefill>().empty());
}

TEST(Router, FinalCodesEndTheSequence) {
    for (const ErrorCode code : {ErrorCode::kInvalidArgument, ErrorCode::kTimeout}) {
        Bench b;
        b.one_by_one();
        ASSERT_TRUE(b.submit(1));
        b.failed(kP1, ref(1), code, "no");
        EXPECT_EQ(b.ended.at(1).error.code, code);
        EXPECT_TRUE(b.aborted(kD1, ref(1)));
    }
}

TEST(Router, FullQueueLeadsToAnotherPrefillReplicaThenToAnEnd) {
    Bench b;
    b.two_by_two();
    ASSERT_TRUE(b.submit(1));
    const auto [first, m] = b.prefill();
    b.failed(first, ref(1), ErrorCode::kOverloaded, "queue_full");
    const auto [second, again] = b.prefill();
    EXPECT_NE(second, first);
    EXPECT_FALSE(again.sequence.recovering);
    b.failed(second, again.sequence.ref, ErrorCode::kOverloaded, "queue_full");
    EXPECT_EQ(b.ended.at(1).error.code, ErrorCode::kOverloaded);
}

TEST(Router, TriesAreBoundedAndComeEverMoreSlowly) {
    Bench b({.attempts_max = 4});
    b.one_by_one();
    ASSERT_TRUE(b.submit(1));
    uint32_t attempt = 1;
    std::vector<int64_t> pauses;
    while (b.ended.empty()) {
        b.take<wire::Prefill>();
        b.failed(kD1, ref(1, attempt), ErrorCode::kInternal, "step_failed");
        int64_t paused = 0;
        while (b.ended.empty() && b.sent.empty()) b.wait(10), paused += 10;
        while (b.ended.empty() && !std::any_of(b.sent.begin(), b.sent.end(), [](const SendReplica& s) {
            return std::holds_alternative<wire::Prefill>(s.message);
        })) {
            b.wait(10);
            paused += 10;
            ASSERT_LT(paused, 10'000);
        }
        pauses.push_back(paused);
        ++attempt;
    }
    EXPECT_EQ(attempt, 5u);
    EXPECT_EQ(pauses, (std::vector<int64_t>{0, 20, 40, 0}));
    EXPECT_EQ(b.ended.at(1).error.code, ErrorCode::kUnavailable);
}

TEST(Router, TokenStartsTheCountOfTriesAnew) {
    Bench b({.attempts_max = 3});
    b.one_by_one();
    ASSERT_TRUE(b.submit(1));
    for (uint32_t attempt = 1; attempt <= 6; ++attempt) {
        b.token(kP1, ref(1, attempt), attempt - 1, {static_cast<TokenId>(attempt)});
        b.failed(kD1, ref(1, attempt), ErrorCode::kUnavailable, "preempted");
    }
    EXPECT_TRUE(b.ended.empty());
    EXPECT_EQ(b.delivered[1].size(), 6u);
}

TEST(Router, FallbackOfDecodeReplicaIsCountedAndGoesOn) {
    Bench b;
    b.one_by_one();
    ASSERT_TRUE(b.submit(1));
    b.token(kP1, ref(1), 0, {5});
    b.say(kD1, wire::Fallback{ref(1), "checksum"});
    EXPECT_EQ(b.router.phase_of(SequenceId{1}), Phase::kDecode);
    b.down(kP1);
    b.token(kD1, ref(1), 1, {6}, Finish::kStop);
    EXPECT_EQ(b.ended.at(1).finish, Finish::kStop);
    EXPECT_EQ(b.count(b.router.stats().fallbacks_by_reason, "checksum"), 1u);
}

// ---- recoveries ---------------------------------------------------------------------------------------------------------

TEST(Router, RecoveriesRunOldestFirstWithinTheBudgetAheadOfNewWork) {
    Bench b({.recovery_tokens = 250});
    b.one_by_two();
    for (uint64_t i = 1; i <= 6; ++i) ASSERT_TRUE(b.submit(i, 100));
    b.take<wire::Prefill>();
    b.down(kD1);
    b.down(kD2);  // all of them are lost, but nothing is left: they end
    EXPECT_EQ(b.ended.size(), 6u);

    Bench c({.recovery_tokens = 250});
    c.two_by_two();
    for (uint64_t i = 1; i <= 8; ++i) ASSERT_TRUE(c.submit(i, 100));
    c.take<wire::Prefill>();
    c.down(kP1);
    auto list = c.take<wire::Prefill>();
    ASSERT_EQ(list.size(), 2u);  // 2 × 100 of 250
    EXPECT_LT(list[0].second.sequence.ref.id, list[1].second.sequence.ref.id);
    ASSERT_TRUE(c.submit(9, 10));
    EXPECT_TRUE(c.take<wire::Prefill>().empty());
    EXPECT_EQ(c.router.phase_of(SequenceId{9}), Phase::kQueued);
    c.token(list[0].first, list[0].second.sequence.ref, 0, {5});
    auto next = c.take<wire::Prefill>();
    ASSERT_EQ(next.size(), 1u);
    EXPECT_GT(next[0].second.sequence.ref.id, list[1].second.sequence.ref.id);
    c.token(list[1].first, list[1].second.sequence.ref, 0, {5});
    next = c.take<wire::Prefill>();
    ASSERT_EQ(next.size(), 2u);  // the last recovery, then the new one
    EXPECT_EQ(next[1].second.sequence.ref.id, SequenceId{9});
}

TEST(Router, RecoveryLargerThanTheBudgetRunsAlone) {
    Bench b({.recovery_tokens = 10});
    b.two_by_two();
    ASSERT_TRUE(b.submit(1, 100));
    b.down(b.prefill().first);
    EXPECT_EQ(b.take<wire::Prefill>().size(), 1u);
}

// ---- ends ---------------------------------------------------------------------------------------------------------------

TEST(Router, AbortReachesBothLegsOnceAndIsCountedByPhase) {
    Bench b;
    b.one_by_one();
    for (uint64_t i = 1; i <= 3; ++i) ASSERT_TRUE(b.submit(i));
    b.token(kP1, ref(2), 0, {5});
    b.token(kP1, ref(3), 0, {5});
    b.say(kD1, wire::HandoffDone{ref(3), 1, 0, "shm", 0});
    for (uint64_t i = 1; i <= 3; ++i) {
        b.router.abort(b.now, SequenceId{i}, "client gone");
        b.router.abort(b.now, SequenceId{i}, "client gone");
        b.drain();
        EXPECT_EQ(b.ended.at(i).error.code, ErrorCode::kAborted);
        EXPECT_TRUE(b.aborted(kP1, ref(i)));
        EXPECT_TRUE(b.aborted(kD1, ref(i)));
    }
    b.router.abort(b.now, SequenceId{77}, "");
    const auto stats = b.router.stats();
    EXPECT_EQ(stats.ended_aborted, 3u);
    EXPECT_EQ(stats.aborts_by_phase[static_cast<size_t>(Phase::kPrefill)], 1u);
    EXPECT_EQ(stats.aborts_by_phase[static_cast<size_t>(Phase::kTransfer)], 1u);
    EXPECT_EQ(stats.aborts_by_phase[static_cast<size_t>(Phase::kDecode)], 1u);
    b.token(kD1, ref(3), 1, {6});
    EXPECT_EQ(b.delivered[3].size(), 1u);
}

TEST(Router, DeadlineEndsWithTimeoutAndAborts) {
    Bench b;
    b.one_by_one();
    ASSERT_TRUE(b.submit(1, 4, b.now + 500));
    EXPECT_EQ(b.prefill().second.sequence.time_left_ms, 500);
    b.wait(499);
    EXPECT_TRUE(b.ended.empty());
    b.wait(1);
    EXPECT_EQ(b.ended.at(1).error.code, ErrorCode::kTimeout);
    EXPECT_TRUE(b.aborted(kP1, ref(1)));
}

TEST(Router, CloseEndsAllAndRefusesMore) {
    Bench b;
    b.one_by_one();
    ASSERT_TRUE(b.submit(1));
    ASSERT_TRUE(b.submit(2));
    b.router.close(b.now, "the model was terminated");
    b.drain();
    EXPECT_EQ(b.ended.size(), 2u);
    EXPECT_EQ(b.ended.at(2).error.message, "the model was terminated");
    EXPECT_EQ(b.submit(3).error().code, ErrorCode::kUnavailable);
    EXPECT_FALSE(b.router.ready());
}

// Random words of replicas, sensible or not: nothing breaks, every sequence ends once, tokens stay in order.
TEST(Router, SurvivesAnyMessages) {
    for (uint32_t seed = 0; seed < 300; ++seed) {
        std::mt19937 random(seed);
        const auto pick = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
        Bench b({.waiting_max = 8, .recovery_tokens = 20, .attempts_max = 3});
        b.two_by_two();
        std::vector<ReplicaTarget> targets{kP1, kP2, kD1, kD2};
        uint64_t next_id = 1;
        for (int step = 0; step < 400; ++step) {
            ReplicaTarget& who = targets[pick(4)];
            const SeqRef about = ref(1 + (next_id > 1 ? pick(static_cast<uint32_t>(next_id)) : 0), 1 + pick(4));
            switch (pick(12)) {
                case 0:
                case 1:
                    if (b.submit(next_id, 1 + pick(20), b.now + pick(3'000))) ++next_id;
                    break;
                case 2: b.router.abort(b.now, about.id, "x"); b.drain(); break;
                case 3:
                case 4:
                case 5: b.token(who, about, pick(5), std::vector<TokenId>(pick(3), 5), pick(4) == 0 ? Finish::kStop : Finish::kNone); break;
                case 6: b.say(who, wire::TargetBusy{about, targets[pick(4)], pick(2) == 0}); break;
                case 7: b.say(who, wire::HandoffDone{about, 1, 0, std::to_string(pick(100)), 0}); break;
                case 8: b.failed(who, about, static_cast<ErrorCode>(pick(15)), std::to_string(pick(100))); break;
                case 9:
                    b.down(who);
                    if (pick(2) == 0) {
                        ++who.epoch.value;
                        b.router.replica_up(b.now, who);
                    }
                    break;
                case 10: b.router.link_state(b.now, who, targets[pick(4)], pick(3) != 0); b.drain(); break;
                default: b.wait(pick(200));
            }
            b.sent.clear();
        }
        b.wait(60'000);
        EXPECT_EQ(b.router.in_flight(), 0u) << "seed " << seed;
        EXPECT_EQ(b.ended.size(), next_id - 1) << "seed " << seed;
        const auto stats = b.router.stats();
        EXPECT_EQ(stats.ended_ok + stats.ended_error + stats.ended_aborted, next_id - 1);
    }
}

}  // namespace
}  // namespace baton::pd
