#include "baton/pd/router.hpp"

#include <algorithm>

#include "baton/base/check.hpp"
#include "router_state.hpp"

// What comes in: topology, sequences, messages of replicas. What is decided about them is in router_dispatch.cpp.
namespace baton::pd {

const char* to_string(Phase phase) {
    switch (phase) {
        case Phase::kQueued: return "queued";
        case Phase::kPrefill: return "prefill";
        case Phase::kTransfer: return "transfer";
        case Phase::kDecode: return "decode";
    }
    return "unknown";
}

Router::Router(RouterConfig config) : impl_(std::make_unique<Impl>(config)) {}
Router::~Router() = default;

void Router::add_replica(ReplicaId id, Role role) { impl_->ring.add(id, role); }

void Router::replica_up(TimeMs now, wire::ReplicaTarget target) {
    const auto before = impl_->ring.live(target.replica);
    if (before == target) return;
    if (before) replica_down(now, *before);
    impl_->ring.up(target);
    impl_->look_again();
    impl_->run_timers(now);
    impl_->pump(now);
}

void Router::replica_down(TimeMs now, wire::ReplicaTarget target) {
    Impl& r = *impl_;
    if (!r.ring.down(target)) return;
    std::vector<std::pair<uint64_t, SequenceId>> lost;  // oldest first
    for (const auto& [id, e] : r.entries) {
        if (e.decode == target || (e.prefill == target && e.needs_prefill())) lost.emplace_back(e.serial, id);
    }
    std::sort(lost.begin(), lost.end());
    for (const auto& [serial, id] : lost) {
        Impl::Entry& e = r.entries.at(id);
        r.new_attempt(now, e, e.decode == target ? "decode_lost" : "prefill_lost", target);
    }
    r.run_timers(now);
    r.pump(now);
}

void Router::replica_expected(TimeMs now, ReplicaId id, bool expected) {
    impl_->ring.expect(id, expected);
    if (!expected) impl_->look_again();
    impl_->run_timers(now);
    impl_->pump(now);
}

void Router::replica_draining(TimeMs now, wire::ReplicaTarget target, bool draining) {
    impl_->ring.draining(target, draining);
    impl_->look_again();
    impl_->run_timers(now);
    impl_->pump(now);
}

void Router::link_state(TimeMs now, wire::ReplicaTarget a, wire::ReplicaTarget b, bool up) {
    impl_->ring.link(a, b, up);
    impl_->look_again();
    impl_->run_timers(now);
    impl_->pump(now);
}

bool Router::ready() const {
    const ReplicaRing& ring = impl_->ring;
    if (impl_->closed) return false;
    return ring.any(Role::kHybrid) || (ring.any(Role::kPrefill) && ring.any(Role::kDecode));
}

Expected<void> Router::submit(TimeMs now, wire::Sequence sequence, TimeMs deadline) {
    Impl& r = *impl_;
    r.run_timers(now);
    r.pump(now);
    const SequenceId id = sequence.ref.id;
    BATON_CHECK(id && !r.entries.contains(id));
    if (r.closed) return fail(ErrorCode::kUnavailable, "the model is being terminated");
    if (!ready()) {
        return fail(ErrorCode::kUnavailable, r.ring.split() ? "Both prefill and decode replicas must be available"
                                                            : "No live replica is available");
    }
    if (r.entries.size() >= r.config.waiting_max) {
        return fail(ErrorCode::kOverloaded, "Rate limit reached: at most " + std::to_string(r.config.waiting_max) +
                                                " requests may be in flight for this model");
    }
    Impl::Entry& e = r.entries[id];
    e.sequence = std::move(sequence);
    e.sequence.ref.attempt = 1;
    e.sequence.recovering = false;
    e.serial = r.next_serial++;
    e.submitted = now;
    e.deadline = deadline;
    e.base = e.emitted();
    r.deadlines.emplace(deadline, id);
    r.enqueue(e);
    r.run_timers(now);
    r.pump(now);
    return {};
}

void Router::abort(TimeMs now, SequenceId id, std::string_view reason) {
    Impl& r = *impl_;
    const auto at = r.entries.find(id);
    if (at != r.entries.end()) {
        ++r.aborts_by_phase[static_cast<size_t>(r.phase(at->second))];
        r.end_with_legs(at->second, {ErrorCode::kAborted, reason.empty() ? "the request was aborted" : std::string(reason), {}});
    }
    r.run_timers(now);
    r.pump(now);
}

void Router::on_message(TimeMs now, wire::ReplicaTarget from, const wire::Message& message) {
    if (impl_->ring.is_live(from)) std::visit([&](const auto& m) { impl_->on(now, from, m); }, message);
    impl_->run_timers(now);
    impl_->pump(now);
}

void Router::on_tick(TimeMs now) {
    impl_->run_timers(now);
    impl_->pump(now);
}

void Router::close(TimeMs, std::string_view reason) {
    Impl& r = *impl_;
    r.closed = true;
    std::vector<std::pair<uint64_t, SequenceId>> all;
    for (const auto& [id, e] : r.entries) all.emplace_back(e.serial, id);
    std::sort(all.begin(), all.end());
    for (const auto& [serial, id] : all) {
        r.end_with_legs(r.entries.at(id), {ErrorCode::kUnavailable, std::string(reason), {}});
    }
}

std::vector<RouterAction> Router::take_actions(std::vector<RouterAction> recycled) {
    recycled.clear();
    recycled.swap(impl_->actions);
    return recycled;
}

std::optional<Phase> Router::phase_of(SequenceId id) const {
    const auto at = impl_->entries.find(id);
    if (at == impl_->entries.end()) return std::nullopt;
    return impl_->phase(at->second);
}

size_t Router::in_flight() const { return impl_->entries.size(); }

std::optional<std::string> Router::check_invariants() const { return impl_->check(); }

// ---- messages of replicas -----------------------------------------------------------------------------------------

Router::Impl::Entry* Router::Impl::current(wire::SeqRef ref, wire::ReplicaTarget from) {
    const auto at = entries.find(ref.id);
    if (at == entries.end()) return nullptr;
    Entry& e = at->second;
    if (e.state == State::kWaiting || e.sequence.ref.attempt != ref.attempt) return nullptr;
    if (e.prefill == from || e.decode == from) return &e;
    return std::find(e.named.begin(), e.named.end(), from) != e.named.end() ? &e : nullptr;
}

void Router::Impl::on(TimeMs now, wire::ReplicaTarget from, const wire::TokenBatch& m) {
    for (const wire::SeqStart& start : m.starts) take_start(from, start);
    for (const wire::SeqTokens& item : m.items) take_tokens(now, from, item);
}

/// Only what brought the first token counts.
void Router::Impl::take_start(wire::ReplicaTarget from, const wire::SeqStart& m) {
    Entry* e = current(m.ref, from);
    if (e == nullptr || e->emitted() > 0) return;
    e->stages.prefill_replica = from.replica;
    e->stages.queue_us = (e->sent - e->submitted) * 1000 + std::max<int64_t>(m.queue_us, 0);
    e->stages.prefill_us = std::max<int64_t>(m.prefill_us, 0);
}

/// Token 1 comes from P and token 2 from D, over two links: tokens are put in order by their index.
void Router::Impl::take_tokens(TimeMs now, wire::ReplicaTarget from, const wire::SeqTokens& m) {
    Entry* found = current(m.ref, from);
    if (found == nullptr || (found->prefill != from && found->decode != from)) return;
    Entry& e = *found;
    const uint32_t before = e.emitted();
    Deliver delivery{m.ref.id, {}, before};
    if (!store_tokens(e, from, m, delivery.tokens)) {
        new_attempt(now, e, "token_mismatch", {});
        return;
    }
    for (const wire::Token& token : delivery.tokens) e.sequence.emitted.push_back(token.id);
    while (!e.ahead.empty() && e.ahead.begin()->first == e.emitted()) {
        auto node = e.ahead.extract(e.ahead.begin());
        e.sequence.emitted.push_back(node.mapped().id);
        delivery.tokens.push_back(std::move(node.mapped()));
    }
    if (!delivery.tokens.empty()) {
        e.tries = 0;
        e.refused.clear();
        e.stages.decode_replica = e.state == State::kDecode ? e.decode.replica : from.replica;
        delivery.stages = e.stages;
        actions.emplace_back(std::move(delivery));
    }
    if (e.finish != wire::Finish::kNone && e.emitted() >= e.finish_at) {
        end(e, e.finish, {});
        return;
    }
    if (e.wake == kNever || e.emitted() > before || !e.has_hole()) watch(now, e);
}

/// Puts new tokens into `next` where they follow what is known, else into `ahead`; false where they contradict it or are too
/// far ahead.
bool Router::Impl::store_tokens(Entry& e, wire::ReplicaTarget from, const wire::SeqTokens& m, std::vector<wire::Token>& next) {
    const uint64_t end_index = uint64_t{m.first_index} + m.tokens.size();
    if (end_index > uint64_t{e.emitted()} + kTokensAheadMax) return false;
    const uint32_t longest = std::max(e.sequence.sampling.max_tokens, uint32_t{1});
    if (end_index > longest || (e.finish != wire::Finish::kNone && end_index > e.finish_at)) return false;
    bool fresh_token = false;
    for (uint32_t i = 0; i < m.tokens.size(); ++i) {
        const uint32_t index = m.first_index + i;
        if (index < e.emitted()) {
            if (e.sequence.emitted[index] != m.tokens[i].id) return false;
            continue;
        }
        if (e.ahead.empty() && index == e.emitted() + next.size()) {
            next.push_back(m.tokens[i]);
            fresh_token = true;
            continue;
        }
        const auto [at, added] = e.ahead.emplace(index, m.tokens[i]);
        if (!added && at->second.id != m.tokens[i].id) return false;
        fresh_token = fresh_token || added;
    }
    if (m.finish != wire::Finish::kNone && e.finish == wire::Finish::kNone) {
        if (end_index < e.emitted() || (!e.ahead.empty() && e.ahead.rbegin()->first >= end_index)) return false;
        e.finish = m.finish;
        e.finish_at = static_cast<uint32_t>(end_index);
    } else if (end_index == longest && e.finish == wire::Finish::kNone) {
        e.finish = wire::Finish::kLength;
        e.finish_at = longest;
    }
    if (m.first_index == 0 && !m.tokens.empty() && !e.cached_known) {
        e.cached_known = true;
        e.cached_tokens = std::min(m.cached_tokens, static_cast<uint32_t>(e.sequence.prompt.size()));
    }
    if (fresh_token) {
        served(e, from.replica);
        give_budget_back(e);
    }
    return true;
}

void Router::Impl::on(TimeMs now, wire::ReplicaTarget from, const wire::TargetBusy& m) {
    Entry* e = current(m.ref, from);
    if (e == nullptr || e->prefill != from || e->state == State::kDecode) {
        // Nobody waits for that KV any more: its holder must not keep it.
        send(from, wire::Abort{m.ref});
        return;
    }
    if (e->state == State::kBusy) return;  // will be told where to go when the pause is over
    if (m.target != e->decode) return send(from, wire::Retarget{m.ref, e->decode});  // somehow not where it was sent
    if (m.unreachable) {
        // What the other end got is not known: a new attempt fences it.
        new_attempt(now, *e, "target_unreachable", {});
        return;
    }
    e->busy.push_back(m.target.replica);
    e->last_busy = m.target.replica;
    next_target(now, *e);
}

void Router::Impl::on(TimeMs now, wire::ReplicaTarget from, const wire::HandoffDone& m) {
    Entry* e = current(m.ref, from);
    if (e == nullptr || e->prefill == from || e->state == State::kDecode) return;
    taken_over(now, *e, from);
    give_budget_back(*e);
    served(*e, from.replica);
    count(handoffs, m.mover);
    count(handoff_bytes, m.mover, m.bytes);
    count(handoff_pull_us, m.mover, static_cast<uint64_t>(std::max<int64_t>(m.pull_us, 0)));
    // Where P's progress is not seen, what the hand-off added is counted from its Commit on.
    e->stages.handoff_us = std::max<int64_t>(m.tail_us >= 0 ? m.tail_us : m.exposed_us, 0);
    count(handoff_exposed_us, m.mover, static_cast<uint64_t>(e->stages.handoff_us));
}

/// D has the sequence and goes on with it.
void Router::Impl::taken_over(TimeMs now, Entry& e, wire::ReplicaTarget by) {
    e.state = State::kDecode;
    e.decode = by;
    watch(now, e);
}

void Router::Impl::on(TimeMs now, wire::ReplicaTarget from, const wire::SequenceFailed& m) {
    Entry* found = current(m.ref, from);
    if (found == nullptr) return;
    Entry& e = *found;
    if (from == e.prefill && !e.needs_prefill()) return;  // P's leg is over; D has it all
    if (from != e.prefill && from != e.decode && e.state == State::kDecode) return;
    const auto code = static_cast<ErrorCode>(m.code);
    e.last_failure = m.reason.substr(0, 64);
    switch (code) {
        case ErrorCode::kInvalidArgument:
        case ErrorCode::kContextTooLong:
        case ErrorCode::kUnsupported:
        case ErrorCode::kTimeout:
            release_legs(e, from);
            end(e, wire::Finish::kNone, {code, e.last_failure, {}});
            return;
        case ErrorCode::kOverloaded:
            if (m.reason == "queue_full") return retry_full_queue(now, e, from);
            [[fallthrough]];
        default: new_attempt(now, e, e.last_failure.empty() ? "failed" : e.last_failure, from); return;
    }
}

void Router::Impl::on(TimeMs now, wire::ReplicaTarget from, const wire::Fallback& m) {
    Entry* e = current(m.ref, from);
    if (e == nullptr || e->prefill == from || e->sole) return;  // one that runs alone was counted when it was sent
    if (e->state == State::kDecode && e->decode != from) return;
    count(fallbacks, m.reason);
    taken_over(now, *e, from);
}

}  // namespace baton::pd
