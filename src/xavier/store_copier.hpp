#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "baton/base/fd.hpp"
#include "baton/pd/replica_core.hpp"
#include "baton/xavier/mover.hpp"
#include "xavier/own_pool.hpp"
#include "xavier/slab_pinner.hpp"
#include "xavier/store_writer.hpp"

namespace baton::xavier {

/// The host's snapshot memory, mapped: slot i lies at i × slot_bytes and holds one block's pages in (layer, k|v) order.
struct StoreMap {
    Mapping map;
    uint32_t slots = 0;
    uint64_t slot_bytes = 0;
    /// kCorrupt when the file is smaller than said, kUnsupported when a block does not fit a slot.
    static Expected<StoreMap> open(UniqueFd fd, uint32_t slots, uint64_t slot_bytes, const kv::PoolLayout& layout);
};

/// Copies blocks into the snapshot store and back, a slice at a time, behind the pulls. With a device a slice goes into a
/// pinned buffer and from there into the store (StoreWriter); back it goes straight, from slabs of the store that are pinned
/// for it, since somebody waits. Transfer thread only.
class StoreCopier {
  public:
    static constexpr size_t kCopiesMax = 4096;
    /// `wake` is called, on another thread, when memory was pinned or written and step() may go on. All must outlive it.
    StoreCopier(OwnPool& own, const TransferThread::Callbacks& callbacks, std::function<void()> wake);
    void set_store(StoreMap store);
    void start(pd::StoreCopy copy);
    /// Copies about a slice; true when it did something. Copies into the store wait for a moment and then take a quarter of
    /// the time at most: nobody waits for them, while the first tokens of the sequence they come from are being decoded.
    /// Copies back are waited for and go at once.
    bool step(int64_t now_us);
    /// How long step() would do nothing, unless woken; kNothing where there is nothing to copy.
    [[nodiscard]] int64_t idle_us(int64_t now_us) const;
    static constexpr int64_t kNothing = INT64_MAX;
    void fail_all();

  private:
    struct Job {
        pd::StoreCopy copy;
        size_t next = 0;
        int64_t not_before_us = 0;
        uint64_t ticket = 0;       ///< of the blocks before `next`
        std::vector<std::span<std::byte>> pieces{};  ///< of the store, for the blocks that are on their way into the buffer
        bool writing = false;      ///< and from there into the store
        int64_t slice_us = 0;      ///< when the slice under way began
        bool failed = false;
    };
    [[nodiscard]] bool valid(const pd::StoreCopy& copy) const;
    [[nodiscard]] int64_t due_us(const Job& job) const;
    /// Copies a slice of the job's blocks, or queues it on the device; false when it has to wait for another thread.
    bool copy_slice(Job& job);
    [[nodiscard]] std::span<std::byte> slot_of(const Job& job);
    bool queue_out(Job& job);
    bool queue_back(Job& job);
    bool end_slice(Job& job, int64_t now_us);
    void report(uint64_t copy, bool ok);

    OwnPool& own_;
    const TransferThread::Callbacks& callbacks_;
    const std::function<void()> wake_;
    std::optional<StoreMap> store_;
    std::unique_ptr<SlabPinner> pinner_;   ///< of the store's memory, for a device
    std::unique_ptr<StoreWriter> writer_;  ///< likewise
    std::deque<Job> jobs_;                 ///< the front one may have copies under way
    int64_t rest_until_us_ = 0;            ///< of copies into the store
    bool waits_ = false;                   ///< for a thread that will wake this one
};

}  // namespace baton::xavier
