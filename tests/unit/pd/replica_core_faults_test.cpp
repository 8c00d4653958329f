#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <set>

#include "unit/pd/replica_core_rig.hpp"

/// One prefill and one decode core wired back to back, two sequences with a shared prefix, and one
/// fault put in at every single event of the conversation in turn. Afterwards everything is free
/// and no token was given twice.
namespace baton::pd {
namespace {

using namespace rig;

constexpr uint64_t kSequences = 2;
constexpr uint32_t kMaxTokens = 6;

/// The two cores, their link, D's mover and a router that gives up at the first bad news.
class Pair {
  public:
    explicit Pair(bool verify) : p(config(Role::kPrefill)), d(config(Role::kDecode)) {
        p.verify = verify;
        for (uint64_t id = 1; id <= kSequences; ++id) p.supervise(wire::Prefill{prompt(id), kD});
        p.link(kD);
        d.link(kP);
    }

    static wire::Sequence prompt(uint64_t id, uint32_t attempt = 1) {
        auto tokens = ids(16);
        for (uint32_t i = 0; i < 10; ++i) tokens.push_back(static_cast<TokenId>(id * 100 + i));
        auto s = sequence(id, tokens, kMaxTokens, attempt);
        s.time_left_ms = 8'000;
        return s;
    }

    /// One event; false where nothing is left to happen. Steps are split in two, so that faults hit
    /// their middle.
    bool advance() {
        collect();
        if (!to_d.empty()) return deliver(to_d, d, kP);
        if (!to_p.empty()) return deliver(to_p, p, kD);
        if (p_plan) return finish(p, p_plan);
        if (d_plan) return finish(d, d_plan);
        if (land_pull()) return true;
        if (verify_one()) return true;
        if (start(p, p_plan)) return true;
        return start(d, d_plan);
    }
    void settle() {
        for (int i = 0; i < 2000; ++i)
            if (!advance()) return;
        FAIL() << "no end";
    }
    /// What a router does that has no other replica: any failure ends the sequence on both.
    void route() {
        for (Rig* r : {&p, &d}) {
            for (const auto& m : r->told<wire::SequenceFailed>()) give_up(m.ref);
            for (const auto& m : r->told<wire::TargetBusy>()) give_up(m.ref);
        }
    }
    void give_up(wire::SeqRef ref) {
        if (!given_up.insert(ref).second) return;
        abort(ref);
    }
    void abort(wire::SeqRef ref) {
        p.supervise(wire::Abort{ref});
        d.supervise(wire::Abort{ref});
    }
    void link_down(bool at_p, bool at_d) {
        to_d.clear();
        to_p.clear();
        if (at_p) p.link(kD, false);
        if (at_d) d.link(kP, false);
        collect();
        to_d.clear();
        to_p.clear();
    }
    void tick(int64_t ms) {
        p.tick(ms);
        d.tick(ms);
    }
    void fail_step(Rig& r, std::optional<StepPlan>& plan) {
        if (!plan) return;
        r.core.on_step_failed(r.now, *plan, "device");
        plan.reset();
        r.pump();
    }
    void collect() {
        for (auto& [to, m] : p.peers) to_d.push_back(m);
        for (auto& [to, m] : d.peers) to_p.push_back(m);
        p.peers.clear();
        d.peers.clear();
        for (const StartPull& pull : d.pulls) open_pulls.push_back(pull);
        d.pulls.clear();
        for (const uint64_t c : d.cancels) cancelled.insert(c);
        d.cancels.clear();
    }

    Rig p, d;
    std::deque<wire::Message> to_d, to_p;
    std::optional<StepPlan> p_plan, d_plan;
    std::deque<StartPull> open_pulls;
    std::set<uint64_t> cancelled;
    std::set<wire::SeqRef> given_up;
    std::string pull_fault;  ///< every pull from now on ends with it
    bool duplicate = false;  ///< the next message comes twice
    bool drop = false;       ///< the next message is lost

  private:
    bool deliver(std::deque<wire::Message>& queue, Rig& to, wire::ReplicaTarget from) {
        const wire::Message m = queue.front();
        queue.pop_front();
        if (!std::exchange(drop, false)) to.peer(from, m);
        if (std::exchange(duplicate, false)) to.peer(from, m);
        route();
        return true;
    }
    bool start(Rig& r, std::optional<StepPlan>& plan) {
        StepPlan next = r.plan();
        if (next.empty()) return false;
        plan = std::move(next);
        return true;
    }
    bool finish(Rig& r, std::optional<StepPlan>& plan) {
        const StepPlan done = std::move(*plan);
        plan.reset();
        r.done(done);
        route();
        return true;
    }
    /// A pull ends when all of its offer is in P's pool, or when it is cancelled; it copies what P
    /// has there now.
    bool land_pull() {
        for (size_t i = 0; i < open_pulls.size(); ++i) {
            const StartPull pull = open_pulls[i];
            const auto slot = p.progress.find(pull.progress_slot);
            const bool open = slot != p.progress.end() && slot->second.offer == pull.offer;
            const bool stop = cancelled.contains(pull.pull);
            if (open && !stop && pull_fault.empty() && slot->second.done_tokens < pull.tokens)
                continue;
            open_pulls.erase(open_pulls.begin() + static_cast<std::ptrdiff_t>(i));
            std::string reason = stop ? "cancelled" : open ? pull_fault : "generation";
            for (size_t b = pull.first_block; b < pull.source_blocks.size(); ++b) {
                for (uint32_t t = 0; t < kTokens; ++t)
                    d.rows[size_t{pull.target_blocks[b]} * kTokens + t] =
                        p.rows[size_t{pull.source_blocks[b]} * kTokens + t];
                if (p.generations[pull.source_blocks[b]] != pull.source_generations[b] &&
                    reason.empty())
                    reason = "generation";
            }
            d.pull_done(pull.pull, reason.empty(), reason);
            route();
            return true;
        }
        return false;
    }
    bool verify_one() {
        if (d.verifies.empty()) return false;
        const VerifyPull v = d.verifies.front();
        d.verifies.erase(d.verifies.begin());
        d.core.on_pull_verified(d.now, v.pull, true);
        d.pump();
        return true;
    }
};

enum class Fault {
    kNone,
    kPeerDown,
    kPeerDownAtDOnly,
    kPeerDownAtPOnly,
    kAbort,
    kAbortAtP,
    kAbortAtD,
    kStepFails,
    kRetarget,
    kPullGeneration,
    kPullPeerLost,
    kPullTimeout,
    kDrainD,
    kDuplicate,
    kDrop,
    kDeadline,
    kSupervisorLost,
    kNewAttempt,
    kStaleAttempt,
    kCount
};

/// Whether the sequences are served to their end all the same, by a pair whose router tries nothing
/// twice.
bool survives(Fault fault) {
    return fault == Fault::kNone || fault == Fault::kPullGeneration ||
           fault == Fault::kPullTimeout || fault == Fault::kDuplicate ||
           fault == Fault::kStaleAttempt || fault == Fault::kNewAttempt;
}

/// Every token is the right one, and no attempt gave an index twice.
void check_tokens(const Pair& pair, Fault fault) {
    std::map<wire::SeqRef, std::set<uint32_t>> given;
    std::map<SequenceId, std::set<uint32_t>> indices;
    for (const Rig* r : {&pair.p, &pair.d}) {
        for (const auto& batch : r->told<wire::TokenBatch>()) {
            for (const auto& item : batch.items) {
                const auto want = expected(Pair::prompt(item.ref.id.value).prompt, kMaxTokens);
                ASSERT_TRUE(given[item.ref].insert(item.first_index).second) << "given twice";
                indices[item.ref.id].insert(item.first_index);
                ASSERT_EQ(item.tokens.at(0).id, want.at(item.first_index));
                ASSERT_EQ(item.finish != wire::Finish::kNone, item.first_index + 1 == kMaxTokens);
            }
        }
    }
    if (!survives(fault)) return;
    for (uint64_t id = 1; id <= kSequences; ++id)
        ASSERT_EQ(indices[SequenceId{id}].size(), kMaxTokens)
            << "sequence " << id << " was not served";
}

void inject(Pair& pair, Fault fault) {
    switch (fault) {
        case Fault::kPeerDown:
            pair.link_down(true, true);
            break;
        case Fault::kPeerDownAtDOnly:
            pair.link_down(false, true);
            break;
        case Fault::kPeerDownAtPOnly:
            pair.link_down(true, false);
            break;
        case Fault::kAbort:
            pair.abort({SequenceId{1}, 1});
            break;
        case Fault::kAbortAtP:
            pair.p.supervise(wire::Abort{{SequenceId{1}, 1}});
            break;
        case Fault::kAbortAtD:
            pair.d.supervise(wire::Abort{{SequenceId{1}, 1}});
            break;
        case Fault::kStepFails:
            pair.fail_step(pair.p, pair.p_plan);
            pair.fail_step(pair.d, pair.d_plan);
            break;
        case Fault::kRetarget:
            for (uint64_t id = 1; id <= kSequences; ++id)
                pair.p.supervise(wire::Retarget{{SequenceId{id}, 1}, kD2});
            break;
        case Fault::kPullGeneration:
            pair.pull_fault = "generation";
            break;
        case Fault::kPullPeerLost:
            pair.pull_fault = "peer_lost";
            break;
        case Fault::kPullTimeout:
            pair.pull_fault = "timeout";
            break;
        case Fault::kDrainD:
            pair.d.supervise(wire::Drain{true});
            break;
        case Fault::kDuplicate:
            pair.duplicate = true;
            break;
        case Fault::kDrop:
            pair.drop = true;
            break;
        case Fault::kDeadline:
            pair.tick(8'000);
            break;
        case Fault::kSupervisorLost:
            pair.p.core.on_supervisor_lost(pair.p.now);
            pair.d.core.on_supervisor_lost(pair.d.now);
            pair.p.pump();
            pair.d.pump();
            break;
        case Fault::kNewAttempt: {
            auto again = Pair::prompt(1, 2);
            again.emitted = pair.p.tokens(1);
            const auto more = pair.d.tokens(1);
            again.emitted.insert(again.emitted.end(), more.begin(), more.end());
            if (again.emitted.size() == kMaxTokens) break;
            again.recovering = true;
            pair.d.supervise(wire::Abort{{SequenceId{1}, 1}});
            pair.p.supervise(wire::Prefill{again, kD});
            break;
        }
        case Fault::kStaleAttempt:
            pair.p.supervise(wire::Prefill{Pair::prompt(1, 0), kD});
            pair.p.supervise(wire::Prefill{Pair::prompt(1, 1), kD});
            pair.p.supervise(wire::Abort{{SequenceId{1}, 0}});
            break;
        default:
            break;
    }
    pair.route();
}

/// Runs the conversation with one fault before event number `at`. Returns how many events there
/// were before the fault.
size_t converse(Fault fault, size_t at, bool verify) {
    Pair pair(verify);
    size_t events = 0;
    while (events < at && pair.advance()) ++events;
    inject(pair, fault);
    pair.settle();
    if (fault == Fault::kPeerDownAtDOnly || fault == Fault::kPeerDownAtPOnly) {
        pair.tick(1'000);
        pair.settle();
        pair.link_down(fault == Fault::kPeerDownAtDOnly, fault == Fault::kPeerDownAtPOnly);
        pair.route();
        pair.settle();
    }
    // An offer without an answer ends after two seconds; a lost message only shows when the time of
    // the sequence is up.
    for (const int64_t wait : {2'000, fault == Fault::kDrop ? 6'000 : 0}) {
        pair.tick(wait);
        pair.route();
        pair.settle();
    }
    EXPECT_TRUE(pair.p.all_free()) << "P holds something";
    EXPECT_TRUE(pair.d.all_free()) << "D holds something";
    check_tokens(pair, fault);
    return events;
}

TEST(ReplicaCoreFaults, EveryFaultAtEveryEventFreesEverything) {
    size_t runs = 0;
    for (const bool verify : {false, true}) {
        const size_t events = converse(Fault::kNone, SIZE_MAX, verify);
        ASSERT_GT(events, 25u);
        for (int f = 0; f < static_cast<int>(Fault::kCount); ++f) {
            for (size_t at = 0; at <= events; ++at) {
                SCOPED_TRACE("fault " + std::to_string(f) + " at event " + std::to_string(at) +
                             (verify ? ", verified" : ""));
                converse(static_cast<Fault>(f), at, verify);
                ++runs;
                if (HasFailure()) return;
            }
        }
    }
    RecordProperty("runs", static_cast<int>(runs));
}

}  // namespace
}  // namespace baton::pd
