#pragma once

#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "baton/pd/router.hpp"
#include "router_ring.hpp"

namespace baton::pd {

/// Tokens a decode replica may be ahead of a token still missing before the attempt is given up.
inline constexpr uint32_t kTokensAheadMax = 1024;
/// How long a hole in the tokens may stay open.
inline constexpr int64_t kGapMs = 2'000;
/// How long a sequence whose first token is out may wait for word of its hand-off. Its replicas give up sooner.
inline constexpr int64_t kHandoffMs = 10'000;
/// Longest pause between two tries at a sequence.
inline constexpr int64_t kRetryPauseMax = 500;
/// Distinct label values a counter keeps; more are counted as "other".
inline constexpr size_t kLabelsMax = 32;

/// Router state. A sequence's life: kWaiting (in one of two queues, or pausing between tries) → kPrefill (P has it) ⇄
/// kBusy (every D was busy, KV waits at P) → kDecode (D or a hybrid has it) → ended. A new attempt leads back to kWaiting.
struct Router::Impl {
    enum class State : uint8_t { kWaiting, kPrefill, kBusy, kDecode };

    struct Entry {
        wire::Sequence sequence;  ///< `emitted` are the tokens delivered; `ref.attempt` the current try
        uint64_t serial = 0;      ///< order of submission
        TimeMs submitted, sent;   ///< to the router; of this attempt to a replica
        TimeMs deadline;
        TimeMs wake = kNever;     ///< when to look at it again (pause over, hole too old)
        TimeMs wait_until = kNever;  ///< kWaiting: no live replica can take it, one is expected until then
        State state = State::kWaiting;
        bool queued = false;      ///< in `fresh` or `recoveries`
        wire::ReplicaTarget prefill, decode;  ///< the two legs of this attempt; none: replica 0
        std::vector<wire::ReplicaTarget> named;  ///< decode replicas this attempt was ever offered to
        ReplicaId prefer;         ///< prefill replica whose cache may have the prompt
        bool sole = false;        ///< this attempt runs on `decode` alone
        uint32_t base = 0;        ///< tokens emitted when this attempt began; the prefill leg samples that one
        int tries = 0;            ///< since the last new token
        uint64_t budget = 0;      ///< recovery tokens this attempt holds
        std::vector<ReplicaId> busy;     ///< decode replicas that were busy in this round
        ReplicaId last_busy;             ///< the round goes on after it
        std::vector<ReplicaId> refused;  ///< replicas with full queues
        std::map<uint32_t, wire::Token> ahead;  ///< tokens after a hole, by index
        wire::Finish finish = wire::Finish::kNone;
        uint32_t finish_at = 0;   ///< tokens in all, once `finish` is known
        bool cached_known = false;
        uint32_t cached_tokens = 0;
        std::vector<ReplicaId> served_by;
        Stages stages;
        std::string last_failure;

        [[nodiscard]] uint32_t emitted() const { return static_cast<uint32_t>(sequence.emitted.size()); }
        /// Tokens are missing before ones that are here, or before the end.
        [[nodiscard]] bool has_hole() const { return !ahead.empty() || finish != wire::Finish::kNone; }
        /// The prefill leg still has something to give: the KV, or the token it samples.
        [[nodiscard]] bool needs_prefill() const {
            if (!prefill.replica || state == State::kWaiting) return false;
            return state != State::kDecode || emitted() == base;
        }
    };

    explicit Impl(RouterConfig c) : config(c) {}

    // router.cpp: inputs
    void on(TimeMs now, wire::ReplicaTarget from, const wire::TokenBatch& m);
    void on(TimeMs now, wire::ReplicaTarget from, const wire::TargetBusy& m);
    void on(TimeMs now, wire::ReplicaTarget from, const wire::HandoffDone& m);
    void on(TimeMs now, wire::ReplicaTarget from, const wire::SequenceFailed& m);
    void on(TimeMs now, wire::ReplicaTarget from, const wire::Fallback& m);
    template <class T>
    void on(TimeMs, wire::ReplicaTarget, const T&) {}  // not for the router
    void take_start(wire::ReplicaTarget from, const wire::SeqStart& m);
    void take_tokens(TimeMs now, wire::ReplicaTarget from, const wire::SeqTokens& m);
    void taken_over(TimeMs now, Entry& e, wire::ReplicaTarget by);
    void watch(TimeMs now, Entry& e);
    [[nodiscard]] bool store_tokens(Entry& e, wire::ReplicaTarget from, const wire::SeqTokens& m, std::vector<wire::Token>& next);
    /// The entry when `ref` is its current attempt and `from` one of its legs, or a decode replica named before: P offers
    /// to one at a time and commits once, so whichever of them says that it has the sequence is right, even when word of
    /// its being busy came twice or late.
    [[nodiscard]] Entry* current(wire::SeqRef ref, wire::ReplicaTarget from);

    // router_dispatch.cpp: decisions
    void pump(TimeMs now);
    void dispatch(TimeMs now, SequenceId id);
    void start_pair(TimeMs now, Entry& e, const ReplicaRing::Pair& pair);
    void start_sole(TimeMs now, Entry& e, wire::ReplicaTarget target);
    void next_target(TimeMs now, Entry& e);
    void new_attempt(TimeMs now, Entry& e, std::string_view reason, wire::ReplicaTarget informed);
    [[nodiscard]] bool waits_for_replacement(TimeMs now, Entry& e);
    void look_again();
    void retry_full_queue(TimeMs now, Entry& e, wire::ReplicaTarget from);
    void release_legs(Entry& e, wire::ReplicaTarget informed);
    void end(Entry& e, wire::Finish finish, Error error);
    void end_with_legs(Entry& e, Error error);
    void run_timers(TimeMs now);
    void enqueue(Entry& e);
    void set_wake(Entry& e, TimeMs at);
    void give_budget_back(Entry& e);
    void served(Entry& e, ReplicaId by);
    void send(wire::ReplicaTarget to, wire::Message message);
    [[nodiscard]] Phase phase(const Entry& e) const;
    [[nodiscard]] Error nobody_left(const Entry& e) const;

    // router_check.cpp
    [[nodiscard]] std::optional<std::string> check() const;
    [[nodiscard]] std::optional<std::string> check_entry(SequenceId id, const Entry& e) const;

    using Counters = std::map<std::string, uint64_t, std::less<>>;
    static void count(Counters& counters, std::string_view label, uint64_t add = 1);

    RouterConfig config;
    ReplicaRing ring;
    std::unordered_map<SequenceId, Entry> entries;
    /// Waiting sequences by age. Recoveries go first: while one of them waits for the budget, no new one is sent.
    std::set<std::pair<uint64_t, SequenceId>> fresh, recoveries;
    std::set<std::pair<TimeMs, SequenceId>> wakes, deadlines;
    std::set<SequenceId> expecting;  ///< those that wait for a replica to come up
    uint64_t next_serial = 1;
    uint64_t budget_used = 0;
    bool closed = false;
    std::vector<RouterAction> actions;
    uint64_t ended_ok = 0, ended_error = 0, ended_aborted = 0;
    uint64_t aborts_by_phase[4]{};
    Counters handoffs, handoff_bytes, handoff_pull_us, handoff_exposed_us, fallbacks, failovers;
};

}  // namespace baton::pd
