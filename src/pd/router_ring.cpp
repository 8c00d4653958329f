#include "router_ring.hpp"

#include <algorithm>
#include <numeric>

#include "baton/base/check.hpp"
#include "baton/base/limits.hpp"

namespace baton::pd {
namespace {

bool contains(std::span<const ReplicaId> list, ReplicaId id) {
    return std::find(list.begin(), list.end(), id) != list.end();
}

}  // namespace

void ReplicaRing::add(ReplicaId id, Role role) {
    BATON_CHECK(id && !places_.contains(id));
    BATON_CHECK(places_.size() < limits::kReplicasMax);
    places_[id] = {role, ring(role).size()};
    ring(role).push_back({id, Epoch{}});
}

ReplicaRing::Slot* ReplicaRing::find(ReplicaId id) {
    const auto at = places_.find(id);
    return at == places_.end() ? nullptr : &ring(at->second.first)[at->second.second];
}

const ReplicaRing::Slot* ReplicaRing::find(ReplicaId id) const {
    const auto at = places_.find(id);
    return at == places_.end() ? nullptr : &ring(at->second.first)[at->second.second];
}

void ReplicaRing::up(wire::ReplicaTarget target) {
    Slot* slot = find(target.replica);
    if (slot == nullptr) return;
    slot->epoch = target.epoch;
    slot->draining = false;
}

bool ReplicaRing::down(wire::ReplicaTarget target) {
    Slot* slot = find(target.replica);
    if (slot == nullptr || !slot->epoch || slot->epoch != target.epoch) return false;
    slot->epoch = Epoch{};
    slot->draining = false;
    std::erase_if(views_, [&](const auto& view) {
        return view.first.first == target.replica || view.first.second == target.replica;
    });
    return true;
}

void ReplicaRing::draining(wire::ReplicaTarget target, bool on) {
    if (is_live(target)) find(target.replica)->draining = on;
}

void ReplicaRing::expect(ReplicaId id, bool on) {
    if (Slot* slot = find(id)) slot->expected = on;
}

bool ReplicaRing::expects(Role role) const {
    return std::any_of(ring(role).begin(), ring(role).end(), [](const Slot& s) { return !s.epoch && s.expected; });
}

void ReplicaRing::link(wire::ReplicaTarget from, wire::ReplicaTarget to, bool up) {
    if (!is_live(from) || !is_live(to)) return;
    views_[{from.replica, to.replica}] = up;
}

std::optional<wire::ReplicaTarget> ReplicaRing::live(ReplicaId id) const {
    const Slot* slot = find(id);
    if (slot == nullptr || !slot->epoch) return std::nullopt;
    return wire::ReplicaTarget{id, slot->epoch};
}

bool ReplicaRing::is_live(wire::ReplicaTarget target) const {
    const Slot* slot = find(target.replica);
    return slot != nullptr && slot->epoch && slot->epoch == target.epoch;
}

bool ReplicaRing::any(Role role) const {
    return std::any_of(ring(role).begin(), ring(role).end(), [](const Slot& s) { return s.usable(); });
}

bool ReplicaRing::linked(wire::ReplicaTarget prefill, wire::ReplicaTarget decode) const {
    const auto one = views_.find({prefill.replica, decode.replica});
    const auto other = views_.find({decode.replica, prefill.replica});
    const bool said_up = (one != views_.end() && one->second) || (other != views_.end() && other->second);
    const bool said_down = (one != views_.end() && !one->second) || (other != views_.end() && !other->second);
    return said_up && !said_down;
}

std::optional<size_t> ReplicaRing::decode_from(size_t start, wire::ReplicaTarget prefill,
                                               std::span<const ReplicaId> leave_out) const {
    const Ring& decodes = ring(Role::kDecode);
    for (size_t i = 0; i < decodes.size(); ++i) {
        const size_t at = (start + i) % decodes.size();
        const Slot& slot = decodes[at];
        if (!slot.usable() || contains(leave_out, slot.id)) continue;
        if (linked(prefill, {slot.id, slot.epoch})) return at;
    }
    return std::nullopt;
}

/// Moves both rings on past the pair taken.
void ReplicaRing::turn(size_t prefill_at, size_t decode_at) {
    const auto count = [&](Role role) {
        const Ring& r = ring(role);
        return static_cast<size_t>(std::count_if(r.begin(), r.end(), [](const Slot& s) { return s.usable(); }));
    };
    const Ring& decodes = ring(Role::kDecode);
    cursor_[static_cast<size_t>(Role::kPrefill)] = (prefill_at + 1) % ring(Role::kPrefill).size();
    size_t next_at = (decode_at + 1) % decodes.size();
    if (++lap_ >= std::lcm(count(Role::kPrefill), count(Role::kDecode))) {
        lap_ = 0;
        for (size_t i = 0; i < decodes.size() && !decodes[next_at].usable(); ++i) next_at = (next_at + 1) % decodes.size();
        next_at = (next_at + 1) % decodes.size();
    }
    cursor_[static_cast<size_t>(Role::kDecode)] = next_at;
}

std::optional<ReplicaRing::Pair> ReplicaRing::next_pair(std::span<const ReplicaId> refused, ReplicaId preferred) {
    const Ring& prefills = ring(Role::kPrefill);
    const Ring& decodes = ring(Role::kDecode);
    size_t start = cursor_[static_cast<size_t>(Role::kPrefill)];
    const auto place = places_.find(preferred);
    const bool asked = place != places_.end() && place->second.first == Role::kPrefill;
    if (asked) start = place->second.second;
    for (size_t i = 0; i < prefills.size(); ++i) {
        const size_t at = (start + i) % prefills.size();
        const Slot& p = prefills[at];
        if (!p.usable() || contains(refused, p.id)) continue;
        const wire::ReplicaTarget prefill{p.id, p.epoch};
        const auto d = decode_from(cursor_[static_cast<size_t>(Role::kDecode)], prefill, {});
        if (!d) continue;
        if (!asked) turn(at, *d);
        else cursor_[static_cast<size_t>(Role::kDecode)] = (*d + 1) % decodes.size();
        return Pair{prefill, {decodes[*d].id, decodes[*d].epoch}};
    }
    return std::nullopt;
}

std::optional<wire::ReplicaTarget> ReplicaRing::next(Role role, std::span<const ReplicaId> refused) {
    const Ring& slots = ring(role);
    size_t& cursor = cursor_[static_cast<size_t>(role)];
    for (size_t i = 0; i < slots.size(); ++i) {
        const size_t at = (cursor + i) % slots.size();
        if (!slots[at].usable() || contains(refused, slots[at].id)) continue;
        cursor = (at + 1) % slots.size();
        return wire::ReplicaTarget{slots[at].id, slots[at].epoch};
    }
    return std::nullopt;
}

std::optional<wire::ReplicaTarget> ReplicaRing::next_decode(wire::ReplicaTarget prefill, ReplicaId after,
                                                            std::span<const ReplicaId> tried) const {
    const auto place = places_.find(after);
    const size_t start = place != places_.end() && place->second.first == Role::kDecode ? place->second.second + 1
                                                                                        : cursor_[static_cast<size_t>(Role::kDecode)];
    const auto at = decode_from(start, prefill, tried);
    if (!at) return std::nullopt;
    const Slot& slot = ring(Role::kDecode)[*at];
    return wire::ReplicaTarget{slot.id, slot.epoch};
}

}  // namespace baton::pd
