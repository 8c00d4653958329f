#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "baton/base/clock.hpp"
#include "baton/base/digest.hpp"
#include "baton/base/ids.hpp"

namespace baton::kv {

/// Directory of a host's snapshot store: which slot of the shared memory holds which block. A slot is allotted, filled by
/// its writer, then published; a writer's death publishes nothing. Readers lease complete slots; leased ones are not
/// evicted. Pure: owned by the worker, one thread.
class SnapshotIndex {
  public:
    /// A directory of `slots` free slots whose leases last `lease_ms` from the last time they were asked for. A reader
    /// that finishes later than that must not trust what it copied.
    SnapshotIndex(uint32_t slots, int64_t lease_ms);
    ~SnapshotIndex();
    SnapshotIndex(const SnapshotIndex&) = delete;
    SnapshotIndex& operator=(const SnapshotIndex&) = delete;
    /// A slot per key, UINT32_MAX where the key is already there or being filled, or no slot can be had.
    [[nodiscard]] std::vector<uint32_t> allot(TimeMs now, uint64_t owner, std::span<const Digest> keys);
    /// Ends the filling of slots that `owner` was allotted; others in the list are ignored. Not `ok`: they are free again.
    void publish(TimeMs now, uint64_t owner, std::span<const uint32_t> slots, bool ok);
    /// Leases the longest run of `keys` that is complete.
    [[nodiscard]] std::vector<uint32_t> lease(TimeMs now, uint64_t owner, std::span<const Digest> keys);
    /// Ends one lease of each of these slots.
    void unlease(TimeMs now, uint64_t owner, std::span<const uint32_t> slots);
    /// The owner's process is gone: what it was filling is void, its leases end. Finished snapshots stay.
    void owner_gone(TimeMs now, uint64_t owner);
    /// Ends the leases whose time is over; every other call does so too.
    void on_tick(TimeMs now);
    /// `complete` has the leased ones among it.
    struct Counts { uint32_t free = 0, filling = 0, complete = 0, leased = 0; };
    [[nodiscard]] Counts counts() const;
    /// The reason where its books do not add up. For tests.
    [[nodiscard]] std::optional<std::string> check_invariants() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace baton::kv
