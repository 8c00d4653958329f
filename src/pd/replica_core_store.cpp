/// Client of the host's snapshot store. Writing: complete blocks are allotted slots, copied,
/// published; the blocks are retained meanwhile. Reading: a recovering sequence leases the run its
/// own cache lacks. Whatever goes wrong is a miss.
#include <algorithm>

#include "pd/replica_core_impl.hpp"

namespace baton::pd {
namespace {

bool is_lease(uint64_t ask) {
    return ask % 2 == 1;
}

std::vector<uint32_t> given(const std::vector<uint32_t>& slots) {
    std::vector<uint32_t> out;
    std::ranges::copy_if(slots, std::back_inserter(out),
                         [](uint32_t s) { return s != UINT32_MAX; });
    return out;
}

}  // namespace

bool ReplicaCore::Impl::wants_lookup(const Leg& leg) const {
    return store_up && !leg.store_tried &&
           (leg.sequence.recovering || leg.preempted || config.snapshot_read_always);
}

/// Asks once for the blocks [published, cacheable) of an admitted leg; it waits for the answer
/// outside the steps.
void ReplicaCore::Impl::look_up(TimeMs now, Leg& leg, uint32_t cacheable) {
    leg.store_tried = true;
    leg.stage = Stage::kLookup;
    leg.lease_ask = next_ask;
    next_ask += 2;
    asks[leg.lease_ask] = {leg.handle, {}, now + kStoreAskTimeoutMs};
    wire::StoreLease m{leg.lease_ask, {}};
    m.keys.assign(leg.keys.begin() + static_cast<std::ptrdiff_t>(leg.published),
                  leg.keys.begin() + static_cast<std::ptrdiff_t>(cacheable));
    to_store(std::move(m));
}

/// Notes the leg's blocks that got complete since last time, for one question after the step.
void ReplicaCore::Impl::add_snapshots(Leg& leg) {
    if (!store_up || asks.size() + transfers.size() >= kStoreTransfersMax) return;
    const uint32_t complete = leg.computed / config.block_tokens;
    if (leg.snapped >= complete) return;
    // A device computes faster than host memory takes copies: what is held for them must not add up.
    size_t held = snapshots_held();
    ensure_keys(leg, complete);
    for (; leg.snapped < complete && held < config.snapshot_blocks_max; ++leg.snapped, ++held) {
        pool.retain(leg.blocks[leg.snapped]);
        snapshot_blocks.push_back(leg.blocks[leg.snapped]);
        snapshot_keys.push_back(leg.keys[leg.snapped]);
    }
}

/// Blocks retained for the store alone.
size_t ReplicaCore::Impl::snapshots_held() const {
    size_t held = snapshot_blocks.size();
    for (const auto& [id, ask] : asks) held += ask.blocks.size();
    for (const auto& [id, transfer] : transfers) held += transfer.blocks.size();
    return held;
}

void ReplicaCore::Impl::flush_snapshots(TimeMs now) {
    if (snapshot_blocks.empty()) return;
    const uint64_t ask = next_ask + 1;
    next_ask += 2;
    asks[ask] = {0, std::exchange(snapshot_blocks, {}), now + kStoreAskTimeoutMs};
    to_store(wire::StoreAllot{ask, std::exchange(snapshot_keys, {})});
}

void ReplicaCore::Impl::on_slots(TimeMs, const wire::StoreSlots& m) {
    const auto it = asks.find(m.ask);
    if (it == asks.end()) {  // given up meanwhile: so is what the store gave
        std::vector<uint32_t> slots = given(m.slots);
        if (slots.empty()) return;
        if (is_lease(m.ask))
            to_store(wire::StoreUnlease{std::move(slots)});
        else
            to_store(wire::StorePublish{std::move(slots), false});
        return;
    }
    StoreAsk ask = std::move(it->second);
    asks.erase(it);
    if (!is_lease(m.ask)) return on_allotted(std::move(ask), m);
    if (Leg* leg = legs.find(ask.handle)) on_leased(*leg, m, ask.deadline + -kStoreAskTimeoutMs);
}

void ReplicaCore::Impl::on_leased(Leg& leg, const wire::StoreSlots& m, TimeMs asked) {
    leg.lease_ask = 0;
    leg.stage = Stage::kComputing;
    const uint32_t cacheable = (leg.size() - 1) / config.block_tokens;
    std::vector<uint32_t> slots = given(m.slots);
    if (slots.empty()) return;
    if (slots.size() != m.slots.size() || slots.size() > cacheable - leg.published) {
        to_store(wire::StoreUnlease{std::move(slots)});  // not an answer to what was asked
        return;
    }
    leg.copy = next_copy++;
    leg.stage = Stage::kLoading;
    StoreCopy copy{leg.copy, false, {}, slots};
    const auto first = leg.blocks.begin() + static_cast<std::ptrdiff_t>(leg.published);
    copy.blocks.assign(first, first + static_cast<std::ptrdiff_t>(slots.size()));
    transfers[leg.copy] = {false, leg.handle,       store_epoch,
                           {},    std::move(slots), asked + config.lease_ms};
    actions.push_back(std::move(copy));
}

void ReplicaCore::Impl::on_allotted(StoreAsk ask, const wire::StoreSlots& m) {
    StoreCopy copy{next_copy, true, {}, {}};
    for (size_t i = 0; i < ask.blocks.size(); ++i) {
        if (i < m.slots.size() && m.slots[i] != UINT32_MAX) {
            copy.blocks.push_back(ask.blocks[i]);
            copy.slots.push_back(m.slots[i]);
        } else {
            pool.release(ask.blocks[i]);
        }
    }
    if (copy.blocks.empty()) return;
    ++next_copy;
    transfers[copy.copy] = {true, 0, store_epoch, copy.blocks, copy.slots, kNever};
    actions.push_back(std::move(copy));
}

void ReplicaCore::Impl::copied(TimeMs now, uint64_t copy, bool ok) {
    const auto it = transfers.find(copy);
    if (it == transfers.end()) return;
    const StoreTransfer transfer = std::move(it->second);
    transfers.erase(it);
    if (!transfer.to_store) return loaded_from_store(transfer, ok && now < transfer.lease_end);
    if (transfer.store_epoch == store_epoch) to_store(wire::StorePublish{transfer.slots, ok});
    pool.release_all(transfer.blocks);
}

void ReplicaCore::Impl::loaded_from_store(const StoreTransfer& transfer, bool ok) {
    const bool same_store = transfer.store_epoch == store_epoch;
    if (same_store) to_store(wire::StoreUnlease{transfer.slots});
    Leg* leg = legs.find(transfer.handle);
    if (!leg) return;
    leg->copy = 0;
    if (leg->dying) return reap(*leg);
    leg->stage = Stage::kComputing;
    if (!ok || !same_store) return;
    const auto loaded = static_cast<uint32_t>(transfer.slots.size());
    leg->computed += loaded * config.block_tokens;
    found_tokens += uint64_t{loaded} * config.block_tokens;
    leg->snapped = leg->computed / config.block_tokens;  // the store has these
    leg->cached_tokens =
        std::min(leg->computed, static_cast<uint32_t>(leg->sequence.prompt.size()));
    publish_complete(*leg);
}

/// The store is gone, and with it all it gave.
void ReplicaCore::Impl::store_lost() {
    store_up = false;
    ++store_epoch;
    for (auto& [id, ask] : std::exchange(asks, {})) {
        pool.release_all(ask.blocks);
        Leg* leg = legs.find(ask.handle);
        if (!leg) continue;
        leg->lease_ask = 0;
        leg->stage = Stage::kComputing;
    }
}

void ReplicaCore::Impl::expire_asks(TimeMs now) {
    for (auto it = asks.begin(); it != asks.end();) {
        if (now < it->second.deadline) {
            ++it;
            continue;
        }
        pool.release_all(it->second.blocks);
        if (Leg* leg = legs.find(it->second.handle)) {
            leg->lease_ask = 0;
            leg->stage = Stage::kComputing;
        }
        it = asks.erase(it);
    }
}

/// The leg ends: a late answer to its question gives its lease back. A copy under way keeps the leg
/// until it is done.
void ReplicaCore::Impl::drop_store(Leg& leg) {
    if (leg.lease_ask != 0) asks.erase(leg.lease_ask);
    leg.lease_ask = 0;
}

}  // namespace baton::pd
