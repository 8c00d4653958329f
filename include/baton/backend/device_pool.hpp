#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/base/ids.hpp"
#include "baton/kv/layout.hpp"

namespace baton::backend {

/// Pages of `layers` layers from `first_layer` on, K and V, of the i-th source block to the i-th target block.
struct PageCopy {
    uint32_t first_layer = 0;
    uint32_t layers = 0;
    std::span<const uint32_t> from;
    std::span<const uint32_t> to;
};

/// The KV pool of a DeviceBackend as Xavier's movers use it: copies run on a stream of their own, of low priority, beside
/// the steps. The transfer thread alone calls it, after the backend was made and before it ends. Blocks are checked
/// against both layouts by the caller. A ticket names queued work; tickets complete in order.
class DevicePool {
  public:
    virtual ~DevicePool() = default;
    [[nodiscard]] virtual const kv::PoolLayout& layout() const = 0;
    /// UUID of the GPU, e.g. "GPU-1c1b7b2e-…", the same in every process.
    [[nodiscard]] virtual std::string gpu() const = 0;
    /// UUIDs of the GPUs whose pools map() can map, the own one among them.
    [[nodiscard]] virtual std::vector<std::string> mappable_gpus() const = 0;

    /// What a process on this host needs to map the pool (an IPC handle, the GPU's UUID, sizes); opaque, versioned bytes.
    [[nodiscard]] virtual Expected<std::vector<std::byte>> export_handle() const = 0;
    /// Maps a peer's pool. kCorrupt for bytes that make no sense or contradict `layout`, kUnsupported with the reason where
    /// the GPUs cannot map each other, kIo where the driver refuses. Returns a number for pull() and unmap().
    virtual Expected<uint32_t> map(std::span<const std::byte> handle, const kv::PoolLayout& layout) = 0;
    /// Waits for queued pulls from it, then unmaps it. Safe when the peer is dead.
    virtual void unmap(uint32_t peer) = 0;
    /// Queues one gather kernel from the mapped pool; the orders of the two pools may differ.
    virtual Expected<uint64_t> pull(uint32_t peer, const PageCopy& copy) = 0;

    /// Queues copies between the pool and host memory; host bytes are pages in (block, layer, k|v) order, only `from`
    /// (to_host) or `to` (from_host) is read. `host` stays valid until the ticket is done and should be pinned (pin()).
    virtual Expected<uint64_t> to_host(const PageCopy& copy, std::span<std::byte> host) = 0;
    virtual Expected<uint64_t> from_host(const PageCopy& copy, std::span<const std::byte> host) = 0;
    /// Registers host memory so that copies run at the bus's full speed; false where the driver refuses (copies still work).
    virtual bool pin(std::span<std::byte> memory) = 0;
    virtual void unpin(std::span<std::byte> memory) = 0;

    /// Whether all work up to the ticket is done. An error means the device is lost to this process.
    [[nodiscard]] virtual Expected<bool> done(uint64_t ticket) = 0;
    /// CTAs a copy kernel may take (default 64).
    virtual void set_copy_ctas(uint32_t ctas) = 0;
};

}  // namespace baton::backend
