#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <thread>

#include "baton/base/ids.hpp"
#include "baton/kv/layout.hpp"

namespace baton::xavier {

/// Puts a pool's memory on huge pages a little ahead of its use, on a thread that gives way to all others. Most systems give a memory
/// file no huge pages of their own accord, and gathering them takes too long for an engine step. Blocks come into use in rising order,
/// so memory is taken as the load takes it.
class PoolGatherer {
  public:
    /// Kept ready beyond the last block that was used.
    static constexpr size_t kAheadBytes = size_t{32} << 20;

    /// `pool` outlives it. One smaller than a huge page, not aligned to one, or in which a block is not one run of bytes is left alone.
    PoolGatherer(std::span<std::byte> pool, const kv::PoolLayout& layout);
    ~PoolGatherer();
    PoolGatherer(const PoolGatherer&) = delete;
    PoolGatherer& operator=(const PoolGatherer&) = delete;

    /// These blocks are about to be written, or are in use. Any thread.
    void will_use(std::span<const BlockId> blocks);
    /// Waits until what is to be done now is done or given up. For tests.
    void settle();
    /// Bytes from the pool's beginning that are on huge pages.
    [[nodiscard]] size_t gathered_bytes() const { return gathered_; }

  private:
    void run();

    const std::span<std::byte> pool_;
    const size_t block_bytes_;
    std::atomic<size_t> wanted_{0};    ///< bytes from the beginning; written under mutex_
    std::atomic<size_t> gathered_{0};
    std::mutex mutex_;
    std::condition_variable wake_, settled_;
    bool given_up_ = false, stop_ = false;  ///< guarded by mutex_
    std::thread thread_;
};

}  // namespace baton::xavier
