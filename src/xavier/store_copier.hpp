#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "baton/base/fd.hpp"
#include "baton/pd/replica_core.hpp"
#include "baton/xavier/mover.hpp"

namespace baton::xavier {

/// The host's snapshot memory, mapped: slot i lies at i × slot_bytes and holds one block's pages in (layer, k|v) order.
struct StoreMap {
    Mapping map;
    uint32_t slots = 0;
    uint64_t slot_bytes = 0;
    /// kCorrupt when the file is smaller than said, kUnsupported when a block does not fit a slot.
    static Expected<StoreMap> open(UniqueFd fd, uint32_t slots, uint64_t slot_bytes, const kv::PoolLayout& layout);
};

/// Copies blocks into the snapshot store and back, a slice at a time, behind the pulls. Transfer thread only.
class StoreCopier {
  public:
    static constexpr size_t kCopiesMax = 4096;
    /// Both must outlive it.
    StoreCopier(SharedPool& own, const TransferThread::Callbacks& callbacks);
    void set_store(StoreMap store);
    void start(pd::StoreCopy copy);
    /// Copies about a slice; true when it did something. Copies into the store wait for a moment and then take a quarter of
    /// the time at most: nobody waits for them, while the first tokens of the sequence they come from are being decoded.
    /// Copies back are waited for and go at once.
    bool step(int64_t now_us);
    /// How long step() would do nothing; kNever where there is nothing to copy.
    [[nodiscard]] int64_t idle_us(int64_t now_us) const;
    static constexpr int64_t kNothing = INT64_MAX;
    void fail_all();

  private:
    struct Job {
        pd::StoreCopy copy;
        size_t next = 0;
        int64_t not_before_us = 0;
    };
    [[nodiscard]] bool valid(const pd::StoreCopy& copy) const;
    void report(uint64_t copy, bool ok);

    SharedPool& own_;
    const TransferThread::Callbacks& callbacks_;
    std::optional<StoreMap> store_;
    std::deque<Job> jobs_;
};

}  // namespace baton::xavier
