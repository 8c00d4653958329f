#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "baton/backend/device_pool.hpp"

namespace baton::xavier {

/// Pins a large piece of host memory slab by slab, as a device reads it, on a thread of its own: pinning takes tens of
/// milliseconds a gibibyte, and ten times that where pages are touched for the first time.
class SlabPinner {
  public:
    /// Slabs are about this big.
    static constexpr size_t kSlabBytes = 32u << 20;
    /// `memory` begins at a page and is used in pieces of `unit` bytes, none of which lies in two slabs. `changed` is
    /// called on the own thread after each slab. All must outlive it.
    SlabPinner(backend::DevicePool& device, std::span<std::byte> memory, size_t unit, std::function<void()> changed);
    /// Joins and unpins; no copy may be under way.
    ~SlabPinner();
    SlabPinner(const SlabPinner&) = delete;
    SlabPinner& operator=(const SlabPinner&) = delete;

    /// Whether the slab of that offset was pinned, or could not be (copies work without, slower). Else asks for it.
    [[nodiscard]] bool ready(size_t offset);

  private:
    enum class State : uint8_t { kIdle, kAsked, kPinned, kRefused };
    void run();
    [[nodiscard]] std::span<std::byte> slab(size_t index) const;

    backend::DevicePool& device_;
    const std::span<std::byte> memory_;
    size_t slab_bytes_ = 0;
    const std::function<void()> changed_;
    std::mutex mutex_;  ///< guards the rest
    std::condition_variable wake_;
    std::vector<State> states_;
    std::deque<size_t> asked_;
    bool stopping_ = false;
    std::thread thread_;
};

}  // namespace baton::xavier
