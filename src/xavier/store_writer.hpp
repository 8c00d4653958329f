#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "baton/backend/device_pool.hpp"
#include "baton/base/fd.hpp"

namespace baton::xavier {

/// Writes snapshots that a device copied into a small pinned buffer on into the host's store, on a thread of its own: the
/// store is large and mostly touched for the first time, and pinning it as it fills would hold up the driver, and with it
/// the steps. The transfer thread alone calls it.
class StoreWriter {
  public:
    /// A buffer of at least `bytes`. `changed` is called on the own thread when the buffer is there and after each write.
    /// Both must outlive it.
    StoreWriter(backend::DevicePool& device, size_t bytes, std::function<void()> changed);
    /// Joins, after the write under way; no copy into the buffer may be under way.
    ~StoreWriter();
    StoreWriter(const StoreWriter&) = delete;
    StoreWriter& operator=(const StoreWriter&) = delete;

    /// The buffer while nobody uses it: empty before it was made and while it is being written from.
    [[nodiscard]] std::span<std::byte> buffer();
    /// There is no memory for a buffer: nothing can be written.
    [[nodiscard]] bool refused();
    /// Writes the buffer's first bytes to these pieces of the store, one behind the other.
    void write(std::vector<std::span<std::byte>> pieces);

  private:
    enum class State : uint8_t { kMaking, kFree, kWriting, kRefused };
    void run();
    bool make();

    backend::DevicePool& device_;
    size_t bytes_;
    const std::function<void()> changed_;
    Mapping memory_;
    bool pinned_ = false;
    std::mutex mutex_;  ///< guards the rest
    std::condition_variable wake_;
    State state_ = State::kMaking;
    std::vector<std::span<std::byte>> pieces_;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace baton::xavier
