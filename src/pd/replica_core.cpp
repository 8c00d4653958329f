#include "baton/pd/replica_core.hpp"

#include <algorithm>

#include "baton/base/check.hpp"
#include "baton/base/limits.hpp"
#include "baton/base/log.hpp"
#include "pd/replica_core_impl.hpp"

namespace baton::pd {
namespace {

constexpr size_t kFencesMax = 1 << 16;

}  // namespace

bool Fences::open(wire::SeqRef ref) const {
    const auto it = fences_.find(ref.id);
    if (it == fences_.end()) return true;
    return ref.attempt > it->second.attempt ||
           (ref.attempt == it->second.attempt && !it->second.ended);
}

void Fences::note(wire::SeqRef ref, bool ended) {
    const auto [it, added] = fences_.try_emplace(ref.id, Fence{ref.attempt, ended});
    if (added) {
        order_.push_back(ref.id);
        if (order_.size() > kFencesMax) {
            fences_.erase(order_.front());
            order_.pop_front();
        }
        return;
    }
    Fence& f = it->second;
    if (ref.attempt > f.attempt)
        f = {ref.attempt, ended};
    else if (ref.attempt == f.attempt)
        f.ended = f.ended || ended;
}

void Fences::clear() {
    fences_.clear();
    order_.clear();
}

Leg& LegTable::add() {
    if (free_.empty()) {
        BATON_CHECK(slots_.size() < size_t{1} << kSlotBits);
        free_.push_back(static_cast<uint32_t>(slots_.size()));
        slots_.emplace_back();
    }
    const uint32_t slot = free_.back();
    free_.pop_back();
    slots_[slot] = std::make_unique<Leg>();
    slots_[slot]->handle = next_serial_++ << kSlotBits | slot;
    return *slots_[slot];
}

Leg* LegTable::find(uint64_t handle) const {
    const uint64_t slot = handle & ((uint64_t{1} << kSlotBits) - 1);
    if (slot >= slots_.size() || !slots_[slot] || slots_[slot]->handle != handle) return nullptr;
    return slots_[slot].get();
}

void LegTable::erase(uint64_t handle) {
    BATON_CHECK(find(handle) != nullptr);
    const auto slot = static_cast<uint32_t>(handle & ((uint64_t{1} << kSlotBits) - 1));
    slots_[slot].reset();
    free_.push_back(slot);
}

std::vector<Leg*> LegTable::all() const {
    std::vector<Leg*> out;
    out.reserve(slots_.size() - free_.size());
    for (const auto& leg : slots_)
        if (leg) out.push_back(leg.get());
    std::ranges::sort(out, {}, &Leg::handle);
    return out;
}

ReplicaCore::Impl::Impl(CoreConfig config_in)
    : config(config_in), pool(config.blocks, config.block_tokens, config.prefix_cache) {
    const uint64_t held = uint64_t{config.blocks} * config.block_tokens;
    context = static_cast<uint32_t>(std::min<uint64_t>(config.max_model_len, held));
    for (uint32_t s = config.progress_slots; s > 0; --s) free_slots.push_back(s - 1);
    for (uint32_t s = config.max_running; s > 0; --s) free_states.push_back(s - 1);
}

// ---- inputs
// -------------------------------------------------------------------------------------------------------

ReplicaCore::ReplicaCore(CoreConfig config) : impl_(std::make_unique<Impl>(config)) {}
ReplicaCore::~ReplicaCore() = default;
ReplicaCore::ReplicaCore(ReplicaCore&&) noexcept = default;
ReplicaCore& ReplicaCore::operator=(ReplicaCore&&) noexcept = default;

void ReplicaCore::on_supervisor(TimeMs now, const wire::Message& message) {
    if (const auto* prefill = std::get_if<wire::Prefill>(&message))
        impl_->submit(now, prefill->sequence, prefill->target);
    else if (const auto* run = std::get_if<wire::Run>(&message))
        impl_->submit(now, run->sequence, std::nullopt);
    else if (const auto* retarget = std::get_if<wire::Retarget>(&message))
        impl_->retarget(now, *retarget);
    else if (const auto* abort = std::get_if<wire::Abort>(&message))
        impl_->abort(abort->ref);
    else if (const auto* drain = std::get_if<wire::Drain>(&message))
        impl_->draining = drain->on;
}

void ReplicaCore::on_peer(TimeMs now, wire::ReplicaTarget from, const wire::Message& message) {
    if (!impl_->linked(from)) return;
    if (const auto* offer = std::get_if<wire::Offer>(&message))
        impl_->on_offer(now, from, *offer);
    else if (const auto* accept = std::get_if<wire::Accept>(&message))
        impl_->on_accept(from, *accept);
    else if (const auto* busy = std::get_if<wire::Busy>(&message))
        impl_->on_busy(from, *busy);
    else if (const auto* commit = std::get_if<wire::Commit>(&message))
        impl_->on_commit(now, from, *commit);
    else if (const auto* release = std::get_if<wire::Release>(&message))
        impl_->on_release(from, *release);
    else if (const auto* withdraw = std::get_if<wire::Withdraw>(&message))
        impl_->on_withdraw(from, *withdraw);
}

void ReplicaCore::on_store(TimeMs now, const wire::Message& message) {
    if (const auto* slots = std::get_if<wire::StoreSlots>(&message)) impl_->on_slots(now, *slots);
}

void ReplicaCore::on_peer_up(TimeMs, wire::ReplicaTarget peer) {
    const auto known = impl_->peers.find(peer.replica);
    if (known != impl_->peers.end()) {
        if (known->second.epoch == peer.epoch) return;
        impl_->peer_down({peer.replica, known->second.epoch});
    }
    impl_->peers[peer.replica] = {peer.epoch, OfferId{}};
}

void ReplicaCore::on_peer_down(TimeMs, wire::ReplicaTarget peer) {
    impl_->peer_down(peer);
}

void ReplicaCore::on_store_up(TimeMs, bool up) {
    if (impl_->store_up) impl_->store_lost();
    impl_->store_up = up && impl_->config.snapshots;
}

void ReplicaCore::on_supervisor_lost(TimeMs) {
    impl_->lose_supervisor();
}
void ReplicaCore::on_pull_done(TimeMs now, const PullResult& r) {
    impl_->pull_done(now, r);
}
void ReplicaCore::on_pull_verified(TimeMs now, uint64_t pull, bool equal) {
    impl_->pull_verified(now, pull, equal);
}
void ReplicaCore::on_store_copied(TimeMs now, uint64_t copy, bool ok) {
    impl_->copied(now, copy, ok);
}
void ReplicaCore::on_tick(TimeMs now) {
    impl_->tick(now);
}

StepPlan ReplicaCore::plan_step(TimeMs now, StepPlan recycled) {
    recycled.tokens.clear();
    recycled.items.clear();
    impl_->plan(now, recycled);
    return recycled;
}
void ReplicaCore::on_step_done(TimeMs now, const StepPlan& plan, std::span<const Sampled> sampled) {
    impl_->step_done(now, plan, sampled);
}
void ReplicaCore::fetch_for(const StepPlan& plan) const {
    impl_->fetch_for(plan);
}
void ReplicaCore::on_step_failed(TimeMs, const StepPlan& plan, std::string_view reason) {
    impl_->step_failed(plan, reason);
}

std::vector<Action> ReplicaCore::take_actions() {
    return std::exchange(impl_->actions, {});
}
void ReplicaCore::take_actions(std::vector<Action>& actions) {
    actions.clear();
    actions.swap(impl_->actions);
}
void ReplicaCore::recycle(wire::TokenBatch batch) {
    impl_->spare = std::move(batch);
}
wire::ReplicaStats ReplicaCore::stats() const {
    return impl_->stats();
}
Generation ReplicaCore::generation(BlockId block) const {
    return impl_->pool.generation(block);
}
bool ReplicaCore::expects_sequence() const {
    return impl_->pulling > 0;
}
bool ReplicaCore::idle() const {
    return impl_->legs.empty() && impl_->asks.empty() && impl_->transfers.empty();
}
std::optional<std::string> ReplicaCore::check_invariants() const {
    return impl_->check();
}

void ReplicaCore::plant(Faults faults) {
    impl_->faults = faults;
    impl_->pool.plant_double_grant(faults.double_grant);
    impl_->pool.plant_skip_generation_raise(faults.skip_generation_raise);
}

// ---- life of a leg
// ------------------------------------------------------------------------------------------------

/// Takes a sequence from the supervisor into the queue, or refuses it at once.
void ReplicaCore::Impl::submit(TimeMs now, const wire::Sequence& sequence,
                               std::optional<wire::ReplicaTarget> target) {
    if (!fence_in(sequence.ref)) return;
    const auto refuse = [&](ErrorCode code, std::string_view reason) {
        fences.note(sequence.ref, true);
        send_failed(sequence.ref, code, reason);
    };
    if (target.has_value() != (config.role == Role::kPrefill))
        return refuse(ErrorCode::kUnsupported, "role");
    if (draining) return refuse(ErrorCode::kUnavailable, "draining");
    if (sequence.prompt.empty()) return refuse(ErrorCode::kInvalidArgument, "empty_prompt");
    if (sequence.prompt.size() + sequence.emitted.size() > context)
        return refuse(ErrorCode::kContextTooLong, "context");
    if (recovering.size() + fresh.size() >= config.waiting_max)
        return refuse(ErrorCode::kOverloaded, "queue_full");
    Leg& leg = make_leg(now, sequence);
    if (target) {
        leg.handout = std::make_unique<Handout>();
        leg.handout->target = *target;
    }
    if (config.role == Role::kDecode) {
        to_supervisor(wire::Fallback{sequence.ref, "no_prefill"});
        actions.push_back(LogEvent{log::kKvFallback, sequence.request_id, "no_prefill"});
    }
    enqueue(leg, false);
}

/// True where a leg of this attempt may start now; ends the leg of an older attempt first.
bool ReplicaCore::Impl::fence_in(wire::SeqRef ref) {
    if (!fences.open(ref)) return false;
    if (Leg* older = active(ref.id)) {
        if (older->sequence.ref.attempt >= ref.attempt) return false;
        end(*older, "superseded");
    }
    fences.note(ref, false);
    return true;
}

Leg& ReplicaCore::Impl::make_leg(TimeMs now, const wire::Sequence& sequence) {
    Leg& leg = legs.add();
    leg.sequence = sequence;
    leg.ref = sequence.ref;
    leg.constrained = sequence.sampling.constraint.kind != wire::ConstraintKind::kNone;
    const uint64_t most = uint64_t{sequence.prompt.size()} + sequence.sampling.max_tokens;
    leg.prompt = static_cast<uint32_t>(sequence.prompt.size());
    leg.ends_at = static_cast<uint32_t>(std::min<uint64_t>(most, context));
    leg.stops_from = static_cast<uint32_t>(
        std::min<uint64_t>(uint64_t{leg.prompt} + sequence.sampling.min_tokens, UINT32_MAX));
    for (const TokenId id : sequence.sampling.stop_ids)
        leg.stops |= uint64_t{1} << (static_cast<uint32_t>(id) % 64);
    leg.tokens.reserve(std::max<uint64_t>(std::min<uint64_t>(most, context),
                                          sequence.prompt.size() + sequence.emitted.size()));
    leg.tokens = sequence.prompt;
    leg.tokens.insert(leg.tokens.end(), sequence.emitted.begin(), sequence.emitted.end());
    leg.deadline = now + sequence.time_left_ms;
    leg.arrived_us = us(now);
    by_id[sequence.ref.id] = &leg;
    return leg;
}

Leg* ReplicaCore::Impl::active(SequenceId id) {
    const auto it = by_id.find(id);
    return it == by_id.end() ? nullptr : it->second;
}

void ReplicaCore::Impl::abort(wire::SeqRef ref) {
    Leg* leg = active(ref.id);
    if (leg && leg->sequence.ref.attempt <= ref.attempt) end(*leg, "aborted");
    fences.note(ref, true);
}

void ReplicaCore::Impl::enqueue(Leg& leg, bool first) {
    leg.stage = Stage::kWaiting;
    if (first)
        recovering.push_front(&leg);
    else
        (leg.sequence.recovering ? recovering : fresh).push_back(&leg);
}

/// Ends a leg: it leaves every list, the peer is told, its blocks come back now or when the last
/// user is done. `attempt_over` false leaves the attempt open for another offer. `leg` may be gone
/// afterwards.
void ReplicaCore::Impl::end(Leg& leg, std::string_view reason, bool attempt_over) {
    BATON_CHECK(!leg.dying);
    leg.dying = true;
    if (leg.stage == Stage::kWaiting) {
        std::erase(recovering, &leg);
        std::erase(fresh, &leg);
    }
    leave_running(leg);
    if (leg.handout) withdraw(leg, reason);
    if (leg.takeover) drop_takeover(leg);
    drop_store(leg);
    by_id.erase(leg.sequence.ref.id);
    fences.note(leg.sequence.ref, attempt_over);
    reap(leg);
}

/// Frees what a dying leg holds once no step, pull or copy touches its blocks.
void ReplicaCore::Impl::reap(Leg& leg) {
    if (!leg.dying || leg.copy != 0) return;
    if (leg.in_flight > 0 && !faults.free_under_step) return;
    if (leg.takeover && leg.takeover->pulling) return;
    if (leg.takeover) pulls.erase(leg.takeover->pull);
    if (leg.handout) free_retired_slots(leg);
    pool.release_all(leg.blocks);
    legs.erase(leg.handle);
}

/// Ends a leg and tells the supervisor why. `leg` may be gone afterwards.
void ReplicaCore::Impl::fail(Leg& leg, ErrorCode code, std::string_view reason) {
    const wire::SeqRef ref = leg.sequence.ref;
    end(leg, reason);
    send_failed(ref, code, reason);
}

void ReplicaCore::Impl::send_failed(wire::SeqRef ref, ErrorCode code, std::string_view reason) {
    to_supervisor(wire::SequenceFailed{ref, static_cast<uint8_t>(code), std::string(reason)});
}

/// Nobody can receive anything any more. The next supervisor counts its sequences anew, so fences
/// go too.
void ReplicaCore::Impl::lose_supervisor() {
    for (Leg* leg : legs.all())
        if (!leg->dying) end(*leg, "supervisor_lost");
    fences.clear();
    draining = false;
}

bool ReplicaCore::Impl::linked(wire::ReplicaTarget peer) const {
    const auto it = peers.find(peer.replica);
    return it != peers.end() && it->second.epoch == peer.epoch;
}

/// The link is the lease: both sides of every hand-off over it end now.
void ReplicaCore::Impl::peer_down(wire::ReplicaTarget peer) {
    if (!linked(peer)) return;
    peers.erase(peer.replica);
    for (Leg* leg : legs.all()) {
        if (leg->dying) continue;
        if (leg->handout && leg->handout->offer && leg->handout->target == peer) {
            const bool committed = leg->handout->committed;
            close_offer(*leg);
            if (committed)
                fail(*leg, ErrorCode::kPeerLost, "peer_lost");
            else
                target_busy(*leg, true);
        } else if (leg->stage == Stage::kPulling && leg->takeover->source == peer) {
            const Takeover& t = *leg->takeover;
            if (!(t.committed && t.pull_ok)) fail(*leg, ErrorCode::kPeerLost, "peer_lost");
        }
    }
}

/// Deadlines of sequences, offers, transfers and store questions.
void ReplicaCore::Impl::tick(TimeMs now) {
    for (Leg* leg : legs.all()) {
        if (leg->dying) continue;
        if (now >= leg->deadline) {
            fail(*leg, ErrorCode::kTimeout, "deadline");
            continue;
        }
        if (leg->handout && leg->handout->offer && !leg->handout->accepted &&
            now - leg->handout->sent_at >= kOfferTimeoutMs) {
            withdraw(*leg, "offer_timeout");
            target_busy(*leg, false);
        }
        if (leg->stage != Stage::kPulling) continue;
        Takeover& t = *leg->takeover;
        if (t.committed && t.pulling && !t.cancelled &&
            now - t.commit_at >= limits::kTransferTimeoutMs) {
            t.cancelled = t.timed_out = true;
            actions.push_back(CancelPull{t.pull});
        }
    }
    expire_asks(now);
}

}  // namespace baton::pd
