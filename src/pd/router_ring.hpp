#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "baton/base/ids.hpp"
#include "baton/wire/messages.hpp"

namespace baton::pd {

/// The replicas of one deployment and whose turn it is. Each role has a ring of slots; a slot keeps its place when its
/// process is replaced. Prefill and decode rings turn together, and the decode ring turns once more after each full lap,
/// so that every pair of the two gets used equally often.
class ReplicaRing {
  public:
    struct Pair {
        wire::ReplicaTarget prefill, decode;
    };

    void add(ReplicaId id, Role role);
    /// Opens the slot for that process; unknown slots are ignored.
    void up(wire::ReplicaTarget target);
    /// Closes the slot if that very process holds it; false otherwise.
    bool down(wire::ReplicaTarget target);
    void draining(wire::ReplicaTarget target, bool on);
    /// Whether a process is about to come up in the slot, if it has none.
    void expect(ReplicaId id, bool on);
    /// What `from` says of its link with `to`. A pair is usable when one of the two says up and none says down.
    void link(wire::ReplicaTarget from, wire::ReplicaTarget to, bool up);

    /// The process now in the slot, if it is live.
    [[nodiscard]] std::optional<wire::ReplicaTarget> live(ReplicaId id) const;
    [[nodiscard]] bool is_live(wire::ReplicaTarget target) const;
    /// Whether a replica of that role may be given work.
    [[nodiscard]] bool any(Role role) const;
    /// Whether a slot of that role without a process is about to get one.
    [[nodiscard]] bool expects(Role role) const;
    /// Whether the deployment has prefill or decode slots at all.
    [[nodiscard]] bool split() const { return !rings_[1].empty() || !rings_[2].empty(); }
    [[nodiscard]] bool linked(wire::ReplicaTarget prefill, wire::ReplicaTarget decode) const;

    /// The next linked pair, leaving out the prefill replicas in `refused`; `preferred` is taken if it can be.
    [[nodiscard]] std::optional<Pair> next_pair(std::span<const ReplicaId> refused, ReplicaId preferred);
    /// The next replica of a role, leaving out those in `refused`.
    [[nodiscard]] std::optional<wire::ReplicaTarget> next(Role role, std::span<const ReplicaId> refused);
    /// The next decode replica linked with `prefill` after slot `after` in ring order, leaving out those in `tried`.
    [[nodiscard]] std::optional<wire::ReplicaTarget> next_decode(wire::ReplicaTarget prefill, ReplicaId after,
                                                                 std::span<const ReplicaId> tried) const;
    [[nodiscard]] size_t size(Role role) const { return ring(role).size(); }

  private:
    struct Slot {
        ReplicaId id;
        Epoch epoch;  ///< 0: no live process
        bool draining = false;
        bool expected = false;
        [[nodiscard]] bool usable() const { return epoch && !draining; }
    };
    using Ring = std::vector<Slot>;

    [[nodiscard]] const Ring& ring(Role role) const { return rings_[static_cast<size_t>(role)]; }
    [[nodiscard]] Ring& ring(Role role) { return rings_[static_cast<size_t>(role)]; }
    [[nodiscard]] Slot* find(ReplicaId id);
    [[nodiscard]] const Slot* find(ReplicaId id) const;
    [[nodiscard]] std::optional<size_t> decode_from(size_t start, wire::ReplicaTarget prefill,
                                                    std::span<const ReplicaId> leave_out) const;
    void turn(size_t prefill_at, size_t decode_at);

    Ring rings_[3];
    size_t cursor_[3]{};
    size_t lap_ = 0;  ///< pairs picked since the decode ring's last extra turn
    std::unordered_map<ReplicaId, std::pair<Role, size_t>> places_;
    /// Views of links between live processes; those of a process that went are dropped with it.
    std::map<std::pair<ReplicaId, ReplicaId>, bool> views_;
};

}  // namespace baton::pd
