#include "router_state.hpp"

// The router's own books: statistics, and the invariants that tests check after every event.
namespace baton::pd {

RouterStats Router::stats() const {
    const Impl& r = *impl_;
    const auto list = [](const Impl::Counters& counters) {
        return std::vector<std::pair<std::string, uint64_t>>(counters.begin(), counters.end());
    };
    RouterStats stats;
    stats.ended_ok = r.ended_ok;
    stats.ended_error = r.ended_error;
    stats.ended_aborted = r.ended_aborted;
    for (size_t i = 0; i < 4; ++i) stats.aborts_by_phase[i] = r.aborts_by_phase[i];
    stats.handoffs_by_mover = list(r.handoffs);
    stats.handoff_bytes_by_mover = list(r.handoff_bytes);
    stats.handoff_pull_us_by_mover = list(r.handoff_pull_us);
    stats.handoff_exposed_us_by_mover = list(r.handoff_exposed_us);
    stats.fallbacks_by_reason = list(r.fallbacks);
    stats.failovers_by_reason = list(r.failovers);
    for (const auto& [id, e] : r.entries) {
        if (e.emitted() > 0) ++stats.running;
        else ++stats.waiting;
        if (e.state == Impl::State::kWaiting) ++stats.unsent;
        else if (e.state != Impl::State::kDecode && e.last_busy && e.emitted() > e.base) ++stats.staged;
    }
    return stats;
}

std::optional<std::string> Router::Impl::check() const {
    uint64_t budget = 0;
    size_t awake = 0;
    size_t queued = 0, expecting_replica = 0;
    for (const auto& [id, e] : entries) {
        if (auto broken = check_entry(id, e)) return "sequence " + std::to_string(id.value) + ": " + *broken;
        budget += e.budget;
        awake += e.wake != kNever ? 1 : 0;
        queued += e.queued ? 1 : 0;
        expecting_replica += expecting.contains(id) ? 1 : 0;
    }
    if (budget != budget_used) return "recovery budget does not add up";
    if (awake != wakes.size()) return "wakes of sequences that are gone";
    if (entries.size() != deadlines.size()) return "deadlines of sequences that are gone";
    if (queued != fresh.size() + recoveries.size()) return "queues hold sequences that are gone";
    if (expecting_replica != expecting.size()) return "sequences that are gone expect a replica";
    if (entries.size() > config.waiting_max) return "more sequences than allowed";
    if (budget_used == 0 && !recoveries.empty()) return "a recovery waits for a budget that is free";
    if (recoveries.empty() && !fresh.empty()) return "a new sequence waits for nothing";
    if (handoffs.size() > kLabelsMax + 1 || handoff_bytes.size() > kLabelsMax + 1 || fallbacks.size() > kLabelsMax + 1 ||
        failovers.size() > kLabelsMax + 1) {
        return "too many labels";
    }
    return std::nullopt;
}

std::optional<std::string> Router::Impl::check_entry(SequenceId id, const Entry& e) const {
    if (e.sequence.ref.id != id) return "filed under another id";
    if (!deadlines.contains({e.deadline, id})) return "has no deadline";
    if (e.wake != kNever && !wakes.contains({e.wake, id})) return "its wake is not filed";
    if (e.queued != (fresh.contains({e.serial, id}) || recoveries.contains({e.serial, id}))) return "queue flag is wrong";
    if (e.emitted() > std::max(e.sequence.sampling.max_tokens, uint32_t{1})) return "more tokens than asked for";
    if (!e.ahead.empty() && e.ahead.begin()->first <= e.emitted()) return "holds tokens that are due";
    if (e.ahead.size() > kTokensAheadMax) return "holds too many tokens ahead";
    if (e.base > e.emitted()) return "lost tokens";
    if (e.tries >= config.attempts_max) return "too many tries";
    if (e.state == State::kWaiting && !e.named.empty()) return "waits, but is offered to somebody";
    if (expecting.contains(id) && (e.state != State::kWaiting || e.queued || e.wake != e.wait_until)) return "expects a replica, but does something else";
    if (e.busy.size() > ring.size(Role::kDecode)) return "too many busy replicas";
    const bool has_prefill = e.prefill.replica.value != 0;
    const bool has_decode = e.decode.replica.value != 0;
    switch (e.state) {
        case State::kWaiting:
            if (has_prefill || has_decode || e.budget != 0) return "waits, but holds something";
            if (e.queued == (e.wake != kNever)) return "waits for nothing, or for two things";
            break;
        case State::kPrefill:
            if (!has_prefill || !has_decode || e.sole || e.queued) return "prefill without its legs";
            if (e.emitted() > e.base && e.wake == kNever) return "a hand-off that nothing ends";
            if (!ring.is_live(e.prefill) || !ring.is_live(e.decode)) return "prefill with a dead leg";
            break;
        case State::kBusy:
            if (!has_prefill || has_decode || e.wake == kNever || e.queued) return "a busy round that nothing ends";
            if (!ring.is_live(e.prefill)) return "KV waits at a dead replica";
            break;
        case State::kDecode:
            if (!has_decode || e.queued || e.sole == has_prefill) return "decode without its leg";
            if (!ring.is_live(e.decode)) return "decode on a dead replica";
            break;
    }
    if (e.has_hole() && e.wake == kNever) return "a hole that nothing ends";
    return std::nullopt;
}

}  // namespace baton::pd
