#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "baton/base/fd.hpp"
#include "xavier/own_pool.hpp"

namespace baton::xavier {

/// A few equal pieces of pinned host memory through which extents pass between a device pool and the network. Made at the
/// first use. Transfer thread only.
class HostBuffers {
  public:
    static constexpr size_t kBuffers = 4;
    /// `own` must outlive it; buffers of at least `bytes`.
    HostBuffers(OwnPool& own, size_t bytes) : own_(own), bytes_(bytes) {}
    ~HostBuffers();
    HostBuffers(const HostBuffers&) = delete;
    HostBuffers& operator=(const HostBuffers&) = delete;

    /// A buffer nobody uses; none when all are in use (or memory is short).
    [[nodiscard]] std::optional<size_t> take();
    [[nodiscard]] std::span<std::byte> at(size_t buffer) { return memory_.mutable_bytes().subspan(buffer * bytes_, bytes_); }
    /// Gives a buffer back; it is taken again once the ticket's work is done.
    void give(size_t buffer, uint64_t ticket);

  private:
    bool make();

    OwnPool& own_;
    size_t bytes_;
    Mapping memory_;
    bool pinned_ = false;
    struct Buffer {
        bool taken = false;
        uint64_t ticket = 0;
    };
    std::vector<Buffer> buffers_;
};

}  // namespace baton::xavier
