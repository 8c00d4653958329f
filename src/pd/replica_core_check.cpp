/// Figures for /metrics, and the invariants of a replica's state.
#include <algorithm>

#include "baton/sched/sampler.hpp"
#include "pd/replica_core_impl.hpp"

namespace baton::pd {

wire::ReplicaStats ReplicaCore::Impl::stats() const {
    wire::ReplicaStats s;
    s.prefill_tokens = prefill_tokens;
    s.generated_tokens = generated_tokens;
    s.steps = steps;
    s.steps_by_size.assign(steps_by_size.begin(), steps_by_size.end());
    s.step_sequences = step_sequences;
    s.step_rows = step_rows;
    s.found_tokens = found_tokens;
    s.received_tokens = received_tokens;
    s.handoff_bytes = handoff_bytes;
    s.blocks_free = pool.free_count();
    s.blocks_used = pool.used_count();
    s.blocks_cached = pool.cached_count();
    s.waiting = static_cast<uint32_t>(recovering.size() + fresh.size());
    s.running = static_cast<uint32_t>(by_id.size()) - s.waiting;
    s.leases = static_cast<uint32_t>(offers.size());
    for (const auto& [id, leg] : offers)
        s.blocks_offered += static_cast<uint32_t>(leg->blocks.size());
    return s;
}

std::optional<std::string> ReplicaCore::Impl::check() const {
    if (auto broken = pool.check_invariants()) return broken;
    if (auto broken = check_references()) return broken;
    if (auto broken = check_lists()) return broken;
    if (auto broken = check_states()) return broken;
    return check_slots();
}

/// Every reference has its holder, and only published blocks have two sequences.
std::optional<std::string> ReplicaCore::Impl::check_references() const {
    std::vector<uint32_t> held(pool.blocks(), 0), by_legs(pool.blocks(), 0);
    for (const Leg* leg : legs.all()) {
        for (const BlockId b : leg->blocks) {
            ++held[b];
            ++by_legs[b];
        }
    }
    for (const auto& [id, ask] : asks)
        for (const BlockId b : ask.blocks) ++held[b];
    for (const auto& [id, transfer] : transfers)
        for (const BlockId b : transfer.blocks) ++held[b];
    for (const BlockId b : snapshot_blocks) ++held[b];
    for (BlockId b = 0; b < pool.blocks(); ++b) {
        const std::string name = "block " + std::to_string(b);
        if (held[b] != pool.references(b))
            return name + " has " + std::to_string(pool.references(b)) + " references, " +
                   std::to_string(held[b]) + " holders";
        if (by_legs[b] > 1 && !pool.published(b)) return name + " has two owners";
    }
    return std::nullopt;
}

/// Each leg is in the lists of its stage and in no other.
std::optional<std::string> ReplicaCore::Impl::check_lists() const {
    size_t alive = 0, pulling_now = 0, in_steps = 0;
    for (const Leg* leg : legs.all()) {
        const std::string name = "leg " + std::to_string(leg->handle);
        const bool queued =
            std::ranges::count(recovering, leg) + std::ranges::count(fresh, leg) == 1;
        const auto in_running = std::ranges::count(running, leg);
        if (leg->dying) {
            if (queued || in_running != 0) return name + " is over but scheduled";
            if (leg->in_flight == 0 && leg->copy == 0 && !(leg->takeover && leg->takeover->pulling))
                return name + " is over and held by nobody";
            continue;
        }
        ++alive;
        const auto found = by_id.find(leg->sequence.ref.id);
        if (found == by_id.end() || found->second != leg) return name + " has lost its name";
        if (queued != (leg->stage == Stage::kWaiting)) return name + " is queued wrongly";
        if (leg->stage == Stage::kWaiting && !leg->blocks.empty())
            return name + " waits with blocks";
        const bool steps_stage = leg->stage == Stage::kLookup || leg->stage == Stage::kLoading ||
                                 leg->stage == Stage::kComputing;
        if ((in_running == 1) != steps_stage || in_running > 1) return name + " runs wrongly";
        in_steps += steps_stage ? 1 : 0;
        pulling_now += leg->stage == Stage::kPulling ? 1 : 0;
        if (size_t{leg->planned()} > leg->blocks.size() * config.block_tokens)
            return name + " computes more than it has blocks for";
        if (auto broken = check_steps(*leg)) return name + *broken;
    }
    if (alive != by_id.size()) return "names and live legs differ";
    if (in_steps != running.size()) return "running list holds strangers";
    if (pulling_now != pulling || pulling_now != takeovers.size()) return "pull counts differ";
    return std::nullopt;
}

/// What a live leg has under way adds up.
std::optional<std::string> ReplicaCore::Impl::check_steps(const Leg& leg) const {
    if (leg.in_flight > 1 + config.steps_ahead) return " is in too many plans";
    if (leg.pending > leg.in_flight) return " waits for more tokens than it has plans";
    if (leg.in_flight == 0 && (leg.ahead != 0 || leg.pending != 0)) return " counts rows of no plan";
    if (leg.planned() >= leg.size() + std::max(leg.pending, 1u) && leg.stage == Stage::kComputing)
        return " computes rows of no token";
    if (leg.in_flight > 0 && leg.state == kNoState) return " is in a plan without a state row";
    if (leg.emitted() != leg.sequence.emitted.size() || leg.ref != leg.sequence.ref)
        return " has other facts than its sequence";
    for (const TokenId next : {TokenId{-1}, TokenId{0}, TokenId{7}})
        if (finish_of(leg, next) != sched::finish_after(leg.sequence, next, context))
            return " ends elsewhere than its sequence";
    return std::nullopt;
}

/// Each row of the device's state is free or has one owner.
std::optional<std::string> ReplicaCore::Impl::check_states() const {
    std::vector<uint32_t> seen(config.max_running, 0);
    for (const uint32_t s : free_states) ++seen[s];
    for (const Leg* leg : running)
        if (leg->state != kNoState) ++seen[leg->state];
    for (size_t s = 0; s < seen.size(); ++s)
        if (seen[s] != 1)
            return "state row " + std::to_string(s) + " is held " + std::to_string(seen[s]) + " times";
    return std::nullopt;
}

/// Each progress slot is free, open or retired, once; open offers know their legs.
std::optional<std::string> ReplicaCore::Impl::check_slots() const {
    std::vector<uint32_t> seen(config.progress_slots, 0);
    size_t open = 0;
    for (const uint32_t s : free_slots) ++seen[s];
    for (const Leg* leg : legs.all()) {
        if (!leg->handout) continue;
        const Handout& h = *leg->handout;
        for (const uint32_t s : h.retired_slots) ++seen[s];
        if (!h.offer) continue;
        ++open;
        ++seen[h.slot];
        const auto found = offers.find(h.offer);
        if (found == offers.end() || found->second != leg) return "an offer lost its leg";
    }
    if (open != offers.size()) return "open offers and their table differ";
    for (size_t s = 0; s < seen.size(); ++s)
        if (seen[s] != 1)
            return "progress slot " + std::to_string(s) + " is held " + std::to_string(seen[s]) +
                   " times";
    return std::nullopt;
}

}  // namespace baton::pd
