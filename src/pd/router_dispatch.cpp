#include <algorithm>

#include "baton/base/check.hpp"
#include "router_state.hpp"

// What is decided about a sequence: where it runs, what happens when a leg is lost, when it ends
// (docs/LIFE_OF_A_REQUEST.md, step 4 and "what can go wrong").
namespace baton::pd {

/// Sends what may be sent: recoveries by age within their token budget, then new sequences, once no recovery waits.
void Router::Impl::pump(TimeMs now) {
    while (!recoveries.empty()) {
        const SequenceId id = recoveries.begin()->second;
        Entry& e = entries.at(id);
        const uint64_t cost = e.sequence.prompt.size() + e.sequence.emitted.size();
        if (budget_used > 0 && budget_used + cost > config.recovery_tokens) return;
        recoveries.erase(recoveries.begin());
        e.queued = false;
        e.budget = cost;
        budget_used += cost;
        dispatch(now, id);
    }
    while (!fresh.empty()) {
        const SequenceId id = fresh.begin()->second;
        fresh.erase(fresh.begin());
        entries.at(id).queued = false;
        dispatch(now, id);
    }
}

void Router::Impl::dispatch(TimeMs now, SequenceId id) {
    Entry& e = entries.at(id);
    BATON_CHECK(e.state == State::kWaiting && !e.queued);
    const bool pairs = ring.any(Role::kPrefill) && ring.any(Role::kDecode);
    if (pairs) {
        const auto pair = ring.next_pair(e.refused, e.prefer);
        if (pair) return start_pair(now, e, *pair);
    }
    if (const auto hybrid = ring.next(Role::kHybrid, e.refused)) return start_sole(now, e, *hybrid);
    if (waits_for_replacement(now, e)) return;
    const bool prefill_refused = pairs && !e.refused.empty();
    if (!prefill_refused) {
        if (const auto alone = ring.next(Role::kDecode, e.refused)) {
            count(fallbacks, ring.any(Role::kPrefill) ? "no_link" : "no_prefill_replica");
            return start_sole(now, e, *alone);
        }
    }
    if (!e.refused.empty()) {
        return end(e, wire::Finish::kNone, {ErrorCode::kOverloaded, "Rate limit reached: the queue of every replica is full", {}});
    }
    end(e, wire::Finish::kNone, nobody_left(e));
}

/// The last replica that could take a sequence under way was lost, and the slot is about to be filled again: rather than end,
/// or be computed by one that has no link yet, the sequence waits a while. New sequences do not: they are refused at the door.
bool Router::Impl::waits_for_replacement(TimeMs now, Entry& e) {
    const bool none = !ring.any(Role::kDecode) && !ring.any(Role::kHybrid);
    const bool expected = none && (ring.expects(Role::kDecode) || ring.expects(Role::kHybrid));
    const bool unlinked = !none && ring.any(Role::kPrefill) && e.wait_until != kNever;
    const bool has_time = e.wait_until == kNever ? config.replacement_wait_ms > 0 : now < e.wait_until;
    if (!e.sequence.recovering || !e.refused.empty() || !has_time || (!expected && !unlinked)) {
        e.wait_until = kNever;
        return false;
    }
    if (e.wait_until == kNever) e.wait_until = now + config.replacement_wait_ms;
    give_budget_back(e);
    set_wake(e, e.wait_until);
    expecting.insert(e.sequence.ref.id);
    return true;
}

/// Something has changed in the rings: those that wait for a replica may find one, or have nothing to wait for.
void Router::Impl::look_again() {
    for (const SequenceId id : std::exchange(expecting, {})) {
        Entry& e = entries.at(id);
        set_wake(e, kNever);
        enqueue(e);
    }
}

void Router::Impl::start_pair(TimeMs now, Entry& e, const ReplicaRing::Pair& pair) {
    e.wait_until = kNever;
    e.state = State::kPrefill;
    e.sole = false;
    e.prefill = pair.prefill;
    e.decode = pair.decode;
    e.named.assign(1, pair.decode);
    e.base = e.emitted();
    e.sequence.time_left_ms = std::max<int64_t>(e.deadline - now, 1);
    e.sent = now;
    send(e.prefill, wire::Prefill{e.sequence, e.decode});
}

void Router::Impl::start_sole(TimeMs now, Entry& e, wire::ReplicaTarget target) {
    e.wait_until = kNever;
    e.state = State::kDecode;
    e.sole = true;
    e.prefill = {};
    e.decode = target;
    e.base = e.emitted();
    e.sequence.time_left_ms = std::max<int64_t>(e.deadline - now, 1);
    e.sent = now;
    send(target, wire::Run{e.sequence});
}

/// The KV waits at P: names the next decode replica of this round, or pauses when all were busy.
void Router::Impl::next_target(TimeMs now, Entry& e) {
    const auto next = ring.next_decode(e.prefill, e.last_busy, e.busy);
    if (next) {
        e.state = State::kPrefill;
        e.decode = *next;
        std::erase_if(e.named, [&](wire::ReplicaTarget d) { return d == *next || !ring.is_live(d); });
        e.named.push_back(*next);
        send(e.prefill, wire::Retarget{e.sequence.ref, *next});
        watch(now, e);
        return;
    }
    if (!ring.any(Role::kDecode)) {
        if (ring.expects(Role::kDecode)) return new_attempt(now, e, "decode_lost", {});
        end_with_legs(e, nobody_left(e));
    } else if (ring.next_decode(e.prefill, e.last_busy, {})) {
        e.state = State::kBusy;
        e.decode = {};
        e.busy.clear();
        set_wake(e, now + config.busy_retry_ms);
    } else {
        new_attempt(now, e, "no_link", {});
    }
}

/// Gives the current attempt up and queues another. `informed` knows already (it failed, or is gone).
void Router::Impl::new_attempt(TimeMs now, Entry& e, std::string_view reason, wire::ReplicaTarget informed) {
    release_legs(e, informed);
    give_budget_back(e);
    e.last_failure = reason;
    count(failovers, reason);
    e.ahead.clear();
    e.finish = wire::Finish::kNone;
    e.finish_at = 0;
    e.busy.clear();
    e.refused.clear();
    e.prefer = informed.replica && informed == e.decode ? e.prefill.replica : ReplicaId{};
    e.prefill = {};
    e.decode = {};
    e.sole = false;
    e.base = e.emitted();
    e.state = State::kWaiting;
    e.sequence.recovering = true;
    ++e.sequence.ref.attempt;
    if (++e.tries >= config.attempts_max) {
        end(e, wire::Finish::kNone,
            {ErrorCode::kUnavailable, "gave up after " + std::to_string(e.tries) + " attempts, the last one ended with " + e.last_failure, {}});
        return;
    }
    actions.emplace_back(Retried{e.sequence.ref.id, e.sequence.request_id, e.sequence.ref.attempt, e.last_failure});
    // Without a replica to go to it ends at once, in pump.
    const bool hopeless = !ring.any(Role::kDecode) && !ring.any(Role::kHybrid);
    if (e.tries <= 1 || hopeless) {
        set_wake(e, kNever);
        enqueue(e);
        return;
    }
    // Tries without a new token come ever more slowly.
    set_wake(e, now + std::min(config.busy_retry_ms << std::min(e.tries - 2, 10), kRetryPauseMax));
}

/// A replica's own queue is full: another one takes the sequence, and when all have refused, it ends. One that was
/// streaming already pauses and is tried everywhere again.
void Router::Impl::retry_full_queue(TimeMs now, Entry& e, wire::ReplicaTarget from) {
    const bool prefill_full = from == e.prefill || e.sole;
    if (!prefill_full || e.emitted() > 0 || e.sequence.recovering) {
        new_attempt(now, e, "queue_full", from);
        return;
    }
    release_legs(e, from);
    give_budget_back(e);
    e.refused.push_back(from.replica);
    e.ahead.clear();
    e.busy.clear();
    e.prefill = {};
    e.decode = {};
    e.state = State::kWaiting;
    ++e.sequence.ref.attempt;
    set_wake(e, kNever);
    enqueue(e);
}

/// Aborts the current attempt at every live leg. Before a hand-off D may not know of it yet: an abort of something
/// unknown does nothing there, and P's withdrawal, or the end of its link, ends the offer.
void Router::Impl::release_legs(Entry& e, wire::ReplicaTarget informed) {
    if (e.state == State::kWaiting) return;
    std::vector<wire::ReplicaTarget> legs = std::exchange(e.named, {});
    for (const wire::ReplicaTarget leg : {e.decode, e.prefill}) {
        if (std::find(legs.begin(), legs.end(), leg) == legs.end()) legs.insert(legs.begin(), leg);
    }
    for (const wire::ReplicaTarget leg : legs) {
        if (leg.replica && leg != informed && ring.is_live(leg)) send(leg, wire::Abort{e.sequence.ref});
    }
}

void Router::Impl::end_with_legs(Entry& e, Error error) {
    release_legs(e, {});
    end(e, wire::Finish::kNone, std::move(error));
}

/// The one place where a sequence leaves.
void Router::Impl::end(Entry& e, wire::Finish finish, Error error) {
    const SequenceId id = e.sequence.ref.id;
    give_budget_back(e);
    set_wake(e, kNever);
    deadlines.erase({e.deadline, id});
    fresh.erase({e.serial, id});
    recoveries.erase({e.serial, id});
    expecting.erase(id);
    if (finish != wire::Finish::kNone) ++ended_ok;
    else if (error.code == ErrorCode::kAborted) ++ended_aborted;
    else ++ended_error;
    if (finish != wire::Finish::kNone) error = Error{ErrorCode::kOk, {}, {}};
    actions.emplace_back(End{id, finish, std::move(error), e.cached_tokens, std::move(e.served_by), e.stages});
    entries.erase(id);
}

void Router::Impl::run_timers(TimeMs now) {
    while (!deadlines.empty() && deadlines.begin()->first <= now) {
        Entry& e = entries.at(deadlines.begin()->second);
        end_with_legs(e, {ErrorCode::kTimeout, "the request's deadline passed", {}});
    }
    while (!wakes.empty() && wakes.begin()->first <= now) {
        Entry& e = entries.at(wakes.begin()->second);
        set_wake(e, kNever);
        switch (e.state) {
            case State::kWaiting:
                expecting.erase(e.sequence.ref.id);
                enqueue(e);
                break;
            case State::kBusy: next_target(now, e); break;
            case State::kPrefill:
            case State::kDecode: new_attempt(now, e, e.has_hole() ? "token_gap" : "handoff_timeout", {}); break;
        }
    }
}

void Router::Impl::enqueue(Entry& e) {
    e.queued = true;
    (e.sequence.recovering ? recoveries : fresh).emplace(e.serial, e.sequence.ref.id);
}

void Router::Impl::set_wake(Entry& e, TimeMs at) {
    const SequenceId id = e.sequence.ref.id;
    if (e.wake != kNever) wakes.erase({e.wake, id});
    e.wake = at;
    if (at != kNever) wakes.emplace(at, id);
}

/// Sets when a sequence that is under way is looked at again, where something is missing.
void Router::Impl::watch(TimeMs now, Entry& e) {
    if (e.state == State::kWaiting || e.state == State::kBusy) return;  // the wake is the end of a pause
    if (e.has_hole()) set_wake(e, now + kGapMs);
    else if (e.state == State::kPrefill && e.emitted() > e.base) set_wake(e, now + kHandoffMs);
    else set_wake(e, kNever);
}

void Router::Impl::give_budget_back(Entry& e) {
    budget_used -= e.budget;
    e.budget = 0;
}

void Router::Impl::served(Entry& e, ReplicaId by) {
    if (std::find(e.served_by.begin(), e.served_by.end(), by) == e.served_by.end()) e.served_by.push_back(by);
}

void Router::Impl::send(wire::ReplicaTarget to, wire::Message message) {
    actions.emplace_back(SendReplica{to, std::move(message)});
}

Phase Router::Impl::phase(const Entry& e) const {
    if (e.state == State::kWaiting) return Phase::kQueued;
    if (e.sole) return e.emitted() == e.base ? Phase::kPrefill : Phase::kDecode;
    if (e.state == State::kDecode) return Phase::kDecode;
    return e.emitted() == e.base ? Phase::kPrefill : Phase::kTransfer;
}

Error Router::Impl::nobody_left(const Entry& e) const {
    if (!ring.split()) return {ErrorCode::kUnavailable, "No live replica is available", {}};
    if (e.last_failure == "decode_lost") {
        return {ErrorCode::kUnavailable, "the decode replica was lost and no other is available", {}};
    }
    return {ErrorCode::kUnavailable, "Both prefill and decode replicas must be available", {}};
}

void Router::Impl::count(Counters& counters, std::string_view label, uint64_t add) {
    auto at = counters.find(label);
    if (at == counters.end()) {
        const bool room = counters.size() < kLabelsMax;
        at = counters.emplace(room ? std::string(label.substr(0, 64)) : std::string("other"), 0).first;
    }
    at->second += add;
}

}  // namespace baton::pd
