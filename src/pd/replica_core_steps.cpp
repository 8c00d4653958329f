/// Which sequences a step computes: admission from the queue, decode rows first, then prompt
/// chunks, preemption.
#include <algorithm>

#include "baton/base/check.hpp"
#include "pd/replica_core_impl.hpp"

namespace baton::pd {

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
    leg.published = matched;
    leg.computed = matched * config.block_tokens;
    leg.cached_tokens = std::min(leg.computed, static_cast<uint32_t>(leg.sequence.prompt.size()));
    std::erase(recovering, &leg);
    std::erase(fresh, &leg);
    leg.stage = Stage::kComputing;
    running.push_back(&leg);
    if (leg.handout) open_offer(now, leg);
    if (matched < cacheable && wants_lookup(leg)) look_up(now, leg, cacheable);
    return true;
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

StepPlan ReplicaCore::Impl::plan(TimeMs now) {
    StepPlan plan;
    admit(now);
    if (running.empty()) return plan;
    plan.items.reserve(running.size());
    plan.tokens.reserve(config.step_tokens);
    for (size_t i = 0; i < running.size();) {
        Leg& leg = *running[i];
        const bool ready = leg.stage == Stage::kComputing && !leg.in_flight && leg.decoding();
        if (ready && !grow(leg)) continue;  // gone from this place
        if (ready) add_item(plan, leg, 1);
        ++i;
    }
    // A prompt gets a block's worth of rows in any case: decoding never starves it.
    const auto rows = static_cast<uint32_t>(plan.tokens.size());
    uint32_t budget = config.step_tokens > rows ? config.step_tokens - rows : 0;
    budget = std::max(budget, config.block_tokens);
    for (size_t i = 0; i < running.size() && budget > 0; ++i) {
        Leg& leg = *running[i];
        if (leg.stage != Stage::kComputing || leg.in_flight || leg.decoding()) continue;
        uint32_t take = leg.size() - leg.computed;
        if (take > budget) {
            const uint32_t last = leg.computed + budget;
            const uint32_t whole = last - last % config.block_tokens;
            if (whole <= leg.computed) break;
            take = whole - leg.computed;
        }
        add_item(plan, leg, take);
        budget -= take;
    }
    return plan;
}

void ReplicaCore::Impl::add_item(StepPlan& plan, Leg& leg, uint32_t rows) {
    StepItem& item = plan.items.emplace_back();
    item.ref = leg.sequence.ref;
    item.handle = leg.handle;
    item.first_token = static_cast<uint32_t>(plan.tokens.size());
    item.tokens = rows;
    item.position = leg.computed;
    item.blocks = leg.blocks;
    item.sample = leg.computed + rows == leg.size();
    item.sequence = &leg.sequence;
    if (leg.handout && leg.handout->offer) item.progress_slot = leg.handout->slot;
    const auto first = leg.tokens.begin() + static_cast<std::ptrdiff_t>(leg.computed);
    plan.tokens.insert(plan.tokens.end(), first, first + static_cast<std::ptrdiff_t>(rows));
    leg.in_flight = true;
}

/// Gives the leg a block for its next row; preempts the youngest for it. False: the leg itself was
/// preempted.
bool ReplicaCore::Impl::grow(Leg& leg) {
    while (leg.blocks.size() * config.block_tokens <= leg.computed) {
        if (const auto block = pool.allocate(1)) {
            leg.blocks.push_back(block->front());
            continue;
        }
        const auto victim = std::find_if(running.rbegin(), running.rend(), [](const Leg* other) {
            return other->stage == Stage::kComputing && !other->in_flight;
        });
        BATON_CHECK(victim != running.rend());  // at least the leg itself
        const bool self = *victim == &leg;
        preempt(**victim);
        if (self) return false;
    }
    return true;
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

void ReplicaCore::Impl::leave_running(Leg& leg) {
    std::erase(running, &leg);
}

}  // namespace baton::pd
