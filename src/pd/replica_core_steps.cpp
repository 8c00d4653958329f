/// Which sequences a step computes: admission from the queue, decode rows first, then prompt
/// chunks, preemption.
#include <algorithm>

#include "baton/base/check.hpp"
#include "pd/replica_core_impl.hpp"

namespace baton::pd {

uint32_t step_rows_max(const CoreConfig& config) {
    return std::max(config.step_tokens, config.max_running + config.block_tokens);
}

uint32_t ReplicaCore::Impl::blocks_for(uint32_t tokens) const {
    return (tokens + config.block_tokens - 1) / config.block_tokens;
}

uint32_t ReplicaCore::Impl::active_count() const {
    return static_cast<uint32_t>(running.size()) + pulling;
}

/// Blocks that the sequences here may soon need beside those they have, so that decoding seldom has
/// to preempt.
uint32_t ReplicaCore::Impl::growth_reserve() const {
    if (config.role == Role::kPrefill) return 0;
    uint32_t blocks = 0;
    const auto add = [&](const Leg& leg) {
        const size_t emitted = leg.sequence.emitted.size();
        const uint32_t most = leg.sequence.sampling.max_tokens;
        const uint32_t left = most > emitted ? most - static_cast<uint32_t>(emitted) : 0;
        const uint32_t size = std::min(leg.size() + std::min(left, kReserveTokens), context);
        const uint32_t wanted = blocks_for(size);
        const auto held = static_cast<uint32_t>(leg.blocks.size());
        blocks += wanted > held ? wanted - held : 0;
    };
    for (const Leg* leg : running) add(*leg);
    for (const auto& [key, leg] : takeovers) add(*leg);
    return blocks;
}

Leg* ReplicaCore::Impl::next_waiting() {
    if (!recovering.empty()) return recovering.front();
    return fresh.empty() ? nullptr : fresh.front();
}

/// Moves sequences from the queue into the steps, in order, while there is room.
void ReplicaCore::Impl::admit(TimeMs now) {
    while (active_count() < config.max_running) {
        Leg* leg = next_waiting();
        if (!leg || !try_admit(now, *leg)) return;
    }
}

/// Takes all blocks of prompt and emitted ids at once, cached ones first, or none. The block of the
/// last token is never taken from the cache: its row has to be computed for its logits, and nobody
/// writes into a shared block.
bool ReplicaCore::Impl::try_admit(TimeMs now, Leg& leg) {
    const Blocked state{leg.handle, pool.available(), active_count()};
    if (blocked == state) return false;
    if (leg.handout && free_slots.empty() && linked(leg.handout->target)) return false;
    const uint32_t cacheable = (leg.size() - 1) / config.block_tokens;
    if (config.prefix_cache || config.snapshots) ensure_keys(leg, cacheable);
    std::vector<BlockId> blocks;
    if (config.prefix_cache)
        blocks = pool.match(std::span<const Digest>(leg.keys).first(cacheable), leg.tokens);
    const auto matched = static_cast<uint32_t>(blocks.size());
    const uint32_t need = blocks_for(leg.size()) - matched;
    if (need + growth_reserve() > pool.available()) {
        pool.release_all(blocks);
        blocked = state;
        return false;
    }
    const auto more = pool.allocate(need);
    raise_generations(*more);
    blocks.insert(blocks.end(), more->begin(), more->end());
    leg.blocks = std::move(blocks);
    reserve_blocks(leg);
    leg.published = matched;
    leg.computed = matched * config.block_tokens;
    found_tokens += leg.computed;
    leg.cached_tokens = std::min(leg.computed, static_cast<uint32_t>(leg.sequence.prompt.size()));
    std::erase(recovering, &leg);
    std::erase(fresh, &leg);
    leg.stage = Stage::kComputing;
    running.push_back(&leg);
    if (leg.handout) open_offer(now, leg);
    if (matched < cacheable && wants_lookup(leg)) look_up(now, leg, cacheable);
    return true;
}

/// Room for all blocks the leg may ever have, so that plans may point into `blocks` while it grows.
void ReplicaCore::Impl::reserve_blocks(Leg& leg) const {
    const uint64_t most = uint64_t{leg.sequence.prompt.size()} + leg.sequence.sampling.max_tokens;
    leg.blocks.reserve(blocks_for(static_cast<uint32_t>(std::min<uint64_t>(most, context))));
}

void ReplicaCore::Impl::raise_generations(const std::vector<BlockId>& blocks) {
    if (config.role != Role::kPrefill || blocks.empty()) return;  // nobody reads the others
    RaiseGenerations raise{blocks, {}};
    for (const BlockId b : blocks) raise.generations.push_back(pool.generation(b));
    actions.push_back(std::move(raise));
}

/// Extends the leg's block keys to the first `count` blocks.
void ReplicaCore::Impl::ensure_keys(Leg& leg, uint32_t count) {
    const size_t bt = config.block_tokens;
    while (leg.keys.size() < count) {
        const size_t at = leg.keys.size() * bt;
        const Digest& previous = leg.keys.empty() ? config.model_identity : leg.keys.back();
        leg.keys.push_back(
            kv::block_key(previous, std::span<const TokenId>(leg.tokens).subspan(at, bt)));
    }
}

void ReplicaCore::Impl::plan(TimeMs now, StepPlan& plan) {
    admit(now);
    if (running.empty()) return;
    plan.items.reserve(running.size());
    plan.tokens.reserve(config.step_tokens);
    if (plan_rows(now, plan)) plan_prompts(now, plan);
}

/// True where the leg may be in one more plan. No rows are added while an offer waits for those under way.
bool ReplicaCore::Impl::may_step(const Leg& leg) const {
    if (leg.stage != Stage::kComputing || leg.in_flight > config.steps_ahead) return false;
    return leg.in_flight == 0 || !leg.handout || !leg.handout->retarget_after_step;
}

/// The token that a step under way samples is the sequence's last one, whatever it is.
bool ReplicaCore::Impl::next_token_is_last(const Leg& leg) const {
    return leg.pending > 0 && leg.size() + 1 >= leg.ends_at;
}

/// A row for each sequence that decodes. False where blocks ran out and a step under way still holds those of the
/// youngest: this plan must end here, so that it can be preempted when that step is done.
bool ReplicaCore::Impl::plan_rows(TimeMs now, StepPlan& plan) {
    for (size_t i = 0; i < running.size();) {
        if (i + 2 * kFetchAhead < running.size()) running[i + 2 * kFetchAhead]->fetch();
        if (i + kFetchAhead < running.size()) running[i + kFetchAhead]->fetch_blocks();
        Leg& leg = *running[i];
        if (may_step(leg) && leg.decoding() && !next_token_is_last(leg)) {
            const Growth growth = grow(leg);
            if (growth == Growth::kWait) return false;
            if (growth == Growth::kPreempted) continue;  // gone from this place
            add_item(now, plan, leg, 1);
        }
        ++i;
    }
    return true;
}

/// Chunks of prompts, oldest first.
void ReplicaCore::Impl::plan_prompts(TimeMs now, StepPlan& plan) {
    // A prompt gets a block's worth of rows in any case: decoding never starves it.
    const auto rows = static_cast<uint32_t>(plan.tokens.size());
    uint32_t budget = config.step_tokens > rows ? config.step_tokens - rows : 0;
    budget = std::max(budget, config.block_tokens);
    for (size_t i = 0; i < running.size() && budget > 0; ++i) {
        Leg& leg = *running[i];
        if (!may_step(leg) || leg.decoding() || leg.planned() >= leg.size()) continue;
        uint32_t take = leg.size() - leg.planned();
        if (take > budget) {
            const uint32_t last = leg.planned() + budget;
            const uint32_t whole = last - last % config.block_tokens;
            if (whole <= leg.planned()) break;
            take = whole - leg.planned();
        }
        add_item(now, plan, leg, take);
        budget -= take;
    }
}

void ReplicaCore::Impl::add_item(TimeMs now, StepPlan& plan, Leg& leg, uint32_t rows) {
    if (leg.state == kNoState) {
        BATON_CHECK(!free_states.empty());
        leg.state = free_states.back();
        free_states.pop_back();
    }
    if (!leg.reported && leg.begun_us < 0 && !leg.takeover) leg.begun_us = us(now);
    StepItem& item = plan.items.emplace_back();
    item.ref = leg.ref;
    item.handle = leg.handle;
    item.state = leg.state;
    item.first_token = static_cast<uint32_t>(plan.tokens.size());
    item.tokens = rows;
    item.position = leg.planned();
    item.blocks = leg.blocks;
    item.pending = leg.pending;
    item.sample = leg.planned() + rows == leg.size() + leg.pending;
    item.constrained = leg.constrained;
    item.sequence = &leg.sequence;
    if (leg.handout && leg.handout->offer) item.progress_slot = leg.handout->slot;
    if (leg.pending > 0) {
        plan.tokens.push_back(0);
    } else {
        const auto first = leg.tokens.begin() + static_cast<std::ptrdiff_t>(leg.planned());
        plan.tokens.insert(plan.tokens.end(), first, first + static_cast<std::ptrdiff_t>(rows));
    }
    ++leg.in_flight;
    leg.ahead += rows;
    leg.pending += item.sample ? 1 : 0;
}

/// Gives the leg a block for its next row; preempts the youngest for it. kPreempted: that was the leg itself. kWait: the
/// youngest is part of a step under way.
ReplicaCore::Impl::Growth ReplicaCore::Impl::grow(Leg& leg) {
    while (leg.blocks.size() * config.block_tokens <= leg.planned()) {
        if (const auto block = pool.allocate(1)) {
            BATON_CHECK(leg.blocks.size() < leg.blocks.capacity());  // plans point into it
            leg.blocks.push_back(block->front());
            continue;
        }
        const auto victim =
            std::find_if(running.rbegin(), running.rend(), [this](const Leg* other) {
                return other->stage == Stage::kComputing &&
                       (other->in_flight == 0 || config.steps_ahead > 0);
            });
        BATON_CHECK(victim != running.rend());  // at least the leg itself
        if ((*victim)->in_flight > 0) return Growth::kWait;
        const bool self = *victim == &leg;
        preempt(**victim);
        if (self) return Growth::kPreempted;
    }
    return Growth::kDone;
}

/// Takes a sequence's blocks away. A hybrid replica computes it again soon, mostly from its prefix
/// cache; a decode replica gives it back to the router, which sends it through a prefill replica.
/// Emitted tokens stay facts either way.
void ReplicaCore::Impl::preempt(Leg& leg) {
    if (config.role == Role::kDecode) return fail(leg, ErrorCode::kOverloaded, "preempted");
    leave_running(leg);
    pool.release_all(leg.blocks);
    leg.blocks.clear();
    leg.computed = leg.published = 0;
    leg.preempted = true;
    leg.store_tried = false;
    enqueue(leg, true);
}

/// The state row goes with it: the device runs steps in order, so a row of this leg that is still under way is done before
/// the next owner's first one.
void ReplicaCore::Impl::leave_running(Leg& leg) {
    std::erase(running, &leg);
    if (leg.state == kNoState) return;
    free_states.push_back(leg.state);
    leg.state = kNoState;
}

}  // namespace baton::pd
