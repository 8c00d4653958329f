/// What a step brought: tokens to the supervisor, full blocks to the prefix cache and the snapshot
/// store, sequences that end or are staged.
#include <algorithm>
#include <utility>

#include "baton/base/fetch.hpp"
#include "baton/sched/sampler.hpp"
#include "pd/replica_core_impl.hpp"

namespace baton::pd {

/// Asks for the memory of items that come soon: a step's sequences lie apart, and after a step nothing of them is in a cache.
void ReplicaCore::Impl::fetch_for_done(const StepPlan& plan, size_t item,
                                       const wire::TokenBatch& batch) const {
    const size_t near = item + kFetchAhead, far = near + kFetchAhead;
    if (far < plan.items.size())
        if (const Leg* leg = legs.guess(plan.items[far].handle)) leg->fetch();
    if (near < plan.items.size())
        if (const Leg* leg = legs.guess(plan.items[near].handle)) leg->fetch_ids();
    if (near < batch.items.size()) __builtin_prefetch(batch.items[near].tokens.data(), 1);
}

/// All that fetch_for_done asks for item by item, and the lists; in passes: what a line points to is asked for when the line is there.
void ReplicaCore::Impl::fetch_for(const StepPlan& plan) const {
    fetch(plan.items);
    fetch(running);
    for (const StepItem& item : plan.items)
        if (const Leg* leg = legs.guess(item.handle)) leg->fetch();
    fetch(sampled_of_item);
    fetch(after);
    fetch(spare.items);
    for (const StepItem& item : plan.items) {
        const Leg* leg = legs.guess(item.handle);
        if (!leg) continue;
        leg->fetch_ids();
        leg->fetch_blocks();
    }
    for (const wire::SeqTokens& item : spare.items) __builtin_prefetch(item.tokens.data(), 1);
}

void ReplicaCore::Impl::step_done(TimeMs now, const StepPlan& plan,
                                  std::span<const Sampled> sampled) {
    count_step(plan);
    sampled_of_item.assign(plan.items.size(), nullptr);
    for (const Sampled& s : sampled)
        if (s.item < sampled_of_item.size()) sampled_of_item[s.item] = &s;
    after.clear();
    wire::TokenBatch batch = std::exchange(spare, {});
    batch.starts.clear();
    batch_used = 0;
    for (size_t i = 0; i < plan.items.size(); ++i) {
        fetch_for_done(plan, i, batch);
        Leg* leg = legs.find(plan.items[i].handle);
        if (!leg || leg->in_flight == 0) continue;
        --leg->in_flight;
        if (leg->dying) {  // void: it ended meanwhile
            reap(*leg);
            continue;
        }
        const size_t before = batch_used;
        if (!item_done(now, *leg, plan.items[i], sampled_of_item[i], batch)) continue;
        const bool has_token = batch_used > before;
        after.push_back(
            {leg, has_token, has_token ? batch.items[before].finish : wire::Finish::kNone});
    }
    batch.items.resize(batch_used);
    // The tokens go first: a client sees its first one before the hand-off goes on.
    if (batch_used > 0) to_supervisor(std::move(batch));
    for (const After& a : after) after_item(now, *a.leg, a.sampled, a.finish);
    flush_snapshots(now);
}

void ReplicaCore::Impl::count_step(const StepPlan& plan) {
    ++steps;
    const auto at = std::ranges::lower_bound(wire::kStepSizeBounds, plan.items.size());
    ++steps_by_size[static_cast<size_t>(at - wire::kStepSizeBounds.begin())];
    step_sequences += plan.items.size();
    step_rows += plan.tokens.size();
}

/// False where the leg failed and is gone.
bool ReplicaCore::Impl::item_done(TimeMs now, Leg& leg, const StepItem& item,
                                  const Sampled* sampled, wire::TokenBatch& batch) {
    const bool decode_row = item.sample && leg.emitted() > 0 && !leg.handout;
    prefill_tokens += item.tokens - (decode_row ? 1 : 0);
    leg.computed = item.position + item.tokens;
    leg.ahead -= item.tokens;
    publish_complete(leg);
    if (!item.sample) return true;
    --leg.pending;
    if (!sampled) {
        fail(leg, ErrorCode::kInternal, "no_token");
        return false;
    }
    if (!sampled->failed.empty()) {
        fail(leg, ErrorCode::kInvalidArgument, sampled->failed);
        return false;
    }
    add_snapshots(leg);
    if (leg.handout) leg.handout->checksums = sampled->block_checksums;
    if (!leg.reported) tell_start(now, leg, batch);
    if (batch_used == batch.items.size()) batch.items.emplace_back();
    emit(leg, sampled->token, batch.items[batch_used++]);
    return true;
}

/// How the first token came about, where the prompt was computed here.
void ReplicaCore::Impl::tell_start(TimeMs now, const Leg& leg, wire::TokenBatch& batch) const {
    if (leg.begun_us < 0) return;
    batch.starts.push_back({leg.ref, leg.begun_us - leg.arrived_us, us(now) - leg.begun_us});
}

/// What follows a leg's part of a step once its token is out.
void ReplicaCore::Impl::after_item(TimeMs now, Leg& leg, bool sampled, wire::Finish finish) {
    if (finish != wire::Finish::kNone) return end(leg, "finished");
    if (!leg.handout || leg.in_flight > 0) return;
    free_retired_slots(leg);
    if (sampled) stage(leg);
    if (leg.handout->retarget_after_step) {
        leg.handout->retarget_after_step = false;
        open_offer(now, leg);
    }
}

/// Appends a sampled token to the facts, and says so in `out`, which may be one that was sent.
void ReplicaCore::Impl::emit(Leg& leg, const wire::Token& token, wire::SeqTokens& out) {
    out.ref = leg.ref;
    out.first_index = leg.emitted();
    out.tokens.resize(1);
    wire::Token& to = out.tokens.front();
    to.id = token.id;
    to.logprob = token.logprob;
    if (!to.top.empty() || !token.top.empty()) to.top = token.top;
    out.finish = finish_of(leg, token.id);
    out.cached_tokens = leg.reported ? 0 : leg.cached_tokens;
    leg.reported = true;
    leg.sequence.emitted.push_back(token.id);
    leg.tokens.push_back(token.id);
    ++generated_tokens;
}

/// sched::finish_after; the sequence's own settings are looked at only where they may matter.
wire::Finish ReplicaCore::Impl::finish_of(const Leg& leg, TokenId next) const {
    const uint32_t size = leg.size();
    const bool may_stop =
        size >= leg.stops_from && (leg.stops >> (static_cast<uint32_t>(next) % 64) & 1) != 0;
    if (!may_stop && size + 1 < leg.ends_at) return wire::Finish::kNone;
    return sched::finish_after(leg.sequence, next, context);
}

/// Gives the leg's complete blocks to the prefix cache.
void ReplicaCore::Impl::publish_complete(Leg& leg) {
    if (!config.prefix_cache) return;
    const uint32_t bt = config.block_tokens;
    const uint32_t complete = leg.computed / bt;
    if (leg.published >= complete) return;
    ensure_keys(leg, complete);
    for (uint32_t b = leg.published; b < complete; ++b)
        pool.publish(leg.blocks[b], leg.keys[b],
                     std::span<const TokenId>(leg.tokens).subspan(size_t{b} * bt, bt));
    leg.published = complete;
}

void ReplicaCore::Impl::step_failed(const StepPlan& plan, std::string_view reason) {
    for (const StepItem& item : plan.items) {
        Leg* leg = legs.find(item.handle);
        if (!leg || leg->in_flight == 0) continue;
        --leg->in_flight;
        if (leg->dying)
            reap(*leg);
        else
            fail(*leg, ErrorCode::kInternal, reason);
    }
}

}  // namespace baton::pd
