/// P's side of a hand-off (docs/LIFE_OF_A_REQUEST.md, steps 6 to 9): offers a sequence's blocks
/// when it is admitted, commits when its first token is out, holds the blocks until the decode
/// replica releases them.
#include <algorithm>

#include "baton/base/log.hpp"
#include "baton/sched/sampler.hpp"
#include "pd/replica_core_impl.hpp"

namespace baton::pd {

/// Offers the leg's blocks to its target under a new offer id. Never while a step computes the leg:
/// that step's progress would go to the old slot. No offer where the next token ends the sequence
/// whatever it is.
void ReplicaCore::Impl::open_offer(TimeMs now, Leg& leg) {
    Handout& h = *leg.handout;
    if (leg.stage != Stage::kStaged &&
        sched::finish_after(leg.sequence, -1, context) == wire::Finish::kLength)
        return;
    if (!linked(h.target)) return target_busy(leg, true);
    if (free_slots.empty()) return target_busy(leg, false);
    h.offer = OfferId{next_offer++};
    h.slot = free_slots.back();
    free_slots.pop_back();
    h.sent_at = now;
    h.accepted = h.committed = false;
    offers[h.offer] = &leg;

    wire::Offer m;
    m.offer = h.offer;
    m.sequence = leg.sequence;
    // A staged leg has sampled one token whose KV is not there; Commit brings it.
    m.tokens = leg.stage == Stage::kStaged ? leg.size() - 1 : leg.size();
    m.sequence.emitted.resize(m.tokens - leg.sequence.prompt.size());
    m.sequence.time_left_ms = std::max<int64_t>(leg.deadline - now, 0);
    ensure_keys(leg, m.tokens / config.block_tokens);
    m.keys.assign(leg.keys.begin(), leg.keys.begin() + m.tokens / config.block_tokens);
    m.blocks = leg.blocks;
    for (const BlockId b : leg.blocks) m.generations.push_back(pool.generation(b));
    m.progress_slot = h.slot;
    actions.push_back(
        OpenProgress{h.slot, h.offer, m.tokens, leg.blocks, m.generations, leg.computed});
    to_peer(h.target, std::move(m));
}

/// The open offer is over: late readers see it, and the slot is free for another one once no step
/// writes to it.
void ReplicaCore::Impl::close_offer(Leg& leg) {
    Handout& h = *leg.handout;
    if (!h.offer) return;
    actions.push_back(CloseProgress{h.slot, h.offer});
    offers.erase(h.offer);
    if (leg.in_flight)
        h.retired_slots.push_back(h.slot);
    else
        free_slots.push_back(h.slot);
    h.offer = {};
    h.accepted = h.committed = false;
}

void ReplicaCore::Impl::free_retired_slots(Leg& leg) {
    std::vector<uint32_t>& retired = leg.handout->retired_slots;
    free_slots.insert(free_slots.end(), retired.begin(), retired.end());
    retired.clear();
}

void ReplicaCore::Impl::withdraw(Leg& leg, std::string_view reason) {
    const Handout& h = *leg.handout;
    if (!h.offer) return;
    to_peer(h.target, wire::Withdraw{h.offer, std::string(reason)});
    close_offer(leg);
}

void ReplicaCore::Impl::target_busy(Leg& leg, bool unreachable) {
    to_supervisor(wire::TargetBusy{leg.sequence.ref, leg.handout->target, unreachable});
}

/// The first token is out and does not end the sequence: the KV waits for D now, outside the steps.
void ReplicaCore::Impl::stage(Leg& leg) {
    leave_running(leg);
    leg.stage = Stage::kStaged;
    actions.push_back(LogEvent{log::kKvStaged, leg.sequence.request_id, {}, leg.computed});
    commit(leg);
}

/// Sends Commit once D has accepted and the first token is out.
void ReplicaCore::Impl::commit(Leg& leg) {
    Handout& h = *leg.handout;
    if (leg.stage != Stage::kStaged || !h.offer || !h.accepted || h.committed) return;
    h.committed = true;
    to_peer(h.target, wire::Commit{h.offer, leg.sequence.emitted, h.checksums});
}

/// Names another decode replica. Ignored after Commit: the first one may be decoding already.
void ReplicaCore::Impl::retarget(TimeMs now, const wire::Retarget& m) {
    Leg* leg = active(m.ref.id);
    if (!leg || leg->sequence.ref != m.ref || !leg->handout || leg->handout->committed) return;
    withdraw(*leg, "retargeted");
    leg->handout->target = m.target;
    if (leg->stage == Stage::kWaiting) return;
    if (leg->in_flight)
        leg->handout->retarget_after_step = true;
    else
        open_offer(now, *leg);
}

Leg* ReplicaCore::Impl::offered(wire::ReplicaTarget to, OfferId offer) {
    const auto it = offers.find(offer);
    return it != offers.end() && it->second->handout->target == to ? it->second : nullptr;
}

void ReplicaCore::Impl::on_accept(wire::ReplicaTarget from, const wire::Accept& m) {
    Leg* leg = offered(from, m.offer);
    if (!leg) return;
    leg->handout->accepted = true;
    commit(*leg);
}

void ReplicaCore::Impl::on_busy(wire::ReplicaTarget from, const wire::Busy& m) {
    Leg* leg = offered(from, m.offer);
    if (!leg || leg->handout->accepted) return;
    close_offer(*leg);
    target_busy(*leg, false);
}

void ReplicaCore::Impl::on_release(wire::ReplicaTarget from, const wire::Release& m) {
    if (faults.lose_release) return;
    Leg* leg = offered(from, m.offer);
    if (!leg) return;
    const bool committed = leg->handout->committed;
    close_offer(*leg);
    if (committed)
        end(*leg, "released");
    else  // D gave up before it had all: as if it had been busy
        target_busy(*leg, false);
}

}  // namespace baton::pd
