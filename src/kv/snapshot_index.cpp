#include "baton/kv/snapshot_index.hpp"

#include <list>
#include <map>
#include <set>
#include <unordered_map>

#include "baton/base/check.hpp"

namespace baton::kv {

/// A slot is free, being filled by one owner, or complete. A complete one without leases is in `lru` and may be evicted.
/// Filling has no deadline: only its writer, or the end of the writer's process, says that no byte is written any more.
struct SnapshotIndex::Impl {
    enum class State : uint8_t { kFree, kFilling, kComplete };
    struct Slot {
        State state = State::kFree;
        Digest key{};
        uint64_t writer = 0;                           ///< while filling
        uint32_t leases = 0;                           ///< of all owners
        std::list<uint32_t>::iterator idle;            ///< place in `lru` while complete and not leased
    };
    struct Lease {
        uint32_t count = 0;
        TimeMs until;
    };

    Impl(uint32_t n, int64_t ms) : slots(n), lease_ms(ms) {
        free.reserve(n);
        for (uint32_t i = n; i > 0; --i) free.push_back(i - 1);
    }

    [[nodiscard]] uint32_t take_slot();
    void make_free(uint32_t slot);
    void drop_leases(uint64_t owner, uint32_t slot, uint32_t count);
    void expire(TimeMs now);

    std::vector<Slot> slots;
    int64_t lease_ms;
    std::vector<uint32_t> free;
    std::list<uint32_t> lru;  ///< complete, not leased; least recently used first
    std::unordered_map<Digest, uint32_t> by_key;
    std::map<std::pair<uint64_t, uint32_t>, Lease> leases;        ///< by owner and slot
    std::set<std::pair<TimeMs, std::pair<uint64_t, uint32_t>>> ends;  ///< of `leases`
    /// Leases that ended by time and whose holder has not said so yet: its late word must not end a newer lease.
    std::map<std::pair<uint64_t, uint32_t>, uint32_t> late;
    std::set<std::pair<uint64_t, uint32_t>> filling;              ///< by owner and slot
};

SnapshotIndex::SnapshotIndex(uint32_t slots, int64_t lease_ms) : impl_(std::make_unique<Impl>(slots, lease_ms)) {}
SnapshotIndex::~SnapshotIndex() = default;

std::vector<uint32_t> SnapshotIndex::allot(TimeMs now, uint64_t owner, std::span<const Digest> keys) {
    Impl& index = *impl_;
    index.expire(now);
    std::vector<uint32_t> given;
    given.reserve(keys.size());
    for (const Digest& key : keys) {
        const uint32_t slot = index.by_key.contains(key) ? UINT32_MAX : index.take_slot();
        given.push_back(slot);
        if (slot == UINT32_MAX) continue;
        Impl::Slot& s = index.slots[slot];
        s.state = Impl::State::kFilling;
        s.key = key;
        s.writer = owner;
        index.by_key.emplace(key, slot);
        index.filling.emplace(owner, slot);
    }
    return given;
}

void SnapshotIndex::publish(TimeMs now, uint64_t owner, std::span<const uint32_t> slots, bool ok) {
    Impl& index = *impl_;
    index.expire(now);
    for (const uint32_t slot : slots) {
        if (index.filling.erase({owner, slot}) == 0) continue;  // not its own (any more)
        Impl::Slot& s = index.slots[slot];
        s.writer = 0;
        if (ok) {
            s.state = Impl::State::kComplete;
            s.idle = index.lru.insert(index.lru.end(), slot);
        } else {
            index.make_free(slot);
        }
    }
}

std::vector<uint32_t> SnapshotIndex::lease(TimeMs now, uint64_t owner, std::span<const Digest> keys) {
    Impl& index = *impl_;
    index.expire(now);
    std::vector<uint32_t> run;
    for (const Digest& key : keys) {
        const auto at = index.by_key.find(key);
        if (at == index.by_key.end() || index.slots[at->second].state != Impl::State::kComplete) break;
        const uint32_t slot = at->second;
        Impl::Slot& s = index.slots[slot];
        if (s.leases++ == 0) index.lru.erase(s.idle);
        const std::pair<uint64_t, uint32_t> name{owner, slot};
        Impl::Lease& held = index.leases[name];
        if (held.count++ > 0) index.ends.erase({held.until, name});
        held.until = now + index.lease_ms;
        index.ends.emplace(held.until, name);
        run.push_back(slot);
    }
    return run;
}

void SnapshotIndex::unlease(TimeMs now, uint64_t owner, std::span<const uint32_t> slots) {
    impl_->expire(now);
    // Last first, so that of a chain the end is the first to be evicted.
    for (auto slot = slots.rbegin(); slot != slots.rend(); ++slot) {
        const auto late = impl_->late.find({owner, *slot});
        if (late == impl_->late.end()) {
            impl_->drop_leases(owner, *slot, 1);
        } else if (--late->second == 0) {
            impl_->late.erase(late);
        }
    }
}

void SnapshotIndex::owner_gone(TimeMs now, uint64_t owner) {
    Impl& index = *impl_;
    index.expire(now);
    while (true) {
        const auto at = index.filling.lower_bound({owner, 0});
        if (at == index.filling.end() || at->first != owner) break;
        const uint32_t slot = at->second;
        index.filling.erase(at);
        index.make_free(slot);
    }
    while (true) {
        const auto at = index.leases.lower_bound({owner, 0});
        if (at == index.leases.end() || at->first.first != owner) break;
        index.drop_leases(owner, at->first.second, at->second.count);
    }
    index.late.erase(index.late.lower_bound({owner, 0}), index.late.upper_bound({owner, UINT32_MAX}));
}

void SnapshotIndex::on_tick(TimeMs now) { impl_->expire(now); }

SnapshotIndex::Counts SnapshotIndex::counts() const {
    const Impl& index = *impl_;
    Counts counts;
    counts.free = static_cast<uint32_t>(index.free.size());
    counts.filling = static_cast<uint32_t>(index.filling.size());
    counts.complete = static_cast<uint32_t>(index.slots.size()) - counts.free - counts.filling;
    counts.leased = counts.complete - static_cast<uint32_t>(index.lru.size());
    return counts;
}

/// A free slot, or the least recently used complete one that nobody leases, or UINT32_MAX.
uint32_t SnapshotIndex::Impl::take_slot() {
    if (free.empty()) {
        if (lru.empty()) return UINT32_MAX;
        const uint32_t victim = lru.front();
        lru.pop_front();
        make_free(victim);
    }
    const uint32_t slot = free.back();
    free.pop_back();
    return slot;
}

/// The slot must be in no list any more.
void SnapshotIndex::Impl::make_free(uint32_t slot) {
    Slot& s = slots[slot];
    by_key.erase(s.key);
    s.state = State::kFree;
    s.writer = 0;
    free.push_back(slot);
}

void SnapshotIndex::Impl::drop_leases(uint64_t owner, uint32_t slot, uint32_t count) {
    const auto at = leases.find({owner, slot});
    if (at == leases.end()) return;  // over already
    BATON_CHECK(count <= at->second.count);
    at->second.count -= count;
    if (at->second.count == 0) {
        ends.erase({at->second.until, at->first});
        leases.erase(at);
    }
    Slot& s = slots[slot];
    s.leases -= count;
    if (s.leases == 0) s.idle = lru.insert(lru.end(), slot);
}

void SnapshotIndex::Impl::expire(TimeMs now) {
    while (!ends.empty() && ends.begin()->first <= now) {
        const auto [owner, slot] = ends.begin()->second;
        const uint32_t count = leases.at({owner, slot}).count;
        late[{owner, slot}] += count;
        drop_leases(owner, slot, count);
    }
}

std::optional<std::string> SnapshotIndex::check_invariants() const {
    const Impl& index = *impl_;
    std::vector<uint32_t> leased(index.slots.size());
    for (const auto& [name, lease] : index.leases) {
        if (name.second >= index.slots.size() || lease.count == 0) return "an empty lease is kept";
        if (!index.ends.contains({lease.until, name})) return "a lease never ends";
        leased[name.second] += lease.count;
    }
    if (index.ends.size() != index.leases.size()) return "ends of leases that are gone";
    uint32_t counts[3]{};
    uint32_t idle = 0;
    for (uint32_t i = 0; i < index.slots.size(); ++i) {
        const Impl::Slot& s = index.slots[i];
        ++counts[static_cast<size_t>(s.state)];
        if (s.leases != leased[i]) return "lease counts of a slot do not add up";
        if (s.leases > 0 && s.state != Impl::State::kComplete) return "a slot that is not complete is leased";
        if (s.state == Impl::State::kFree) continue;
        const auto at = index.by_key.find(s.key);
        if (at == index.by_key.end() || at->second != i) return "a slot is not found by its key";
        if (s.state == Impl::State::kFilling && !index.filling.contains({s.writer, i})) return "a slot that nobody fills";
        if (s.state == Impl::State::kComplete && s.leases == 0) ++idle;
    }
    if (counts[0] != index.free.size()) return "free slots do not add up";
    if (counts[1] != index.filling.size()) return "filling slots do not add up";
    if (idle != index.lru.size()) return "evictable slots do not add up";
    if (index.by_key.size() != counts[1] + counts[2]) return "keys of slots that are free";
    return std::nullopt;
}

}  // namespace baton::kv
