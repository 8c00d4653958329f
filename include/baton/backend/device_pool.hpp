#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
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

/// How pulls copy. 0: the default.
struct CopyOptions {
    uint32_t ctas = 0;             ///< of a copy kernel
    size_t engine_run_bytes = 0;   ///< from another GPU runs of at least that many bytes, and single ones, are left to the copy
                                   ///< engine, which takes no multiprocessor from the steps; SIZE_MAX: none are
};

/// What a channel takes of each side's device.
struct LinkOptions {
    uint32_t buffers = 0;     ///< staging buffers, at most DeviceLink::kBuffersMax; 0: the default
    size_t buffer_bytes = 0;  ///< of each, and so the largest extent; the receiver's must not be smaller; 0: the default
    uint32_t ctas = 0;        ///< that its sends and receives may take; 0: the default
    uint32_t copy_ctas = 0;   ///< of the copies between pages and buffers; 0: the default
    uint32_t lanes = 0;       ///< see DeviceLink::lanes(); the sender's counts; 0: the default
};

/// A channel between the pools of two processes that cannot map each other's: one side sends, the other receives, through
/// staging buffers on each (NCCL, two ranks). Pairing and giving up run on threads of their own and may take half a
/// second. Transfer thread only. What was asked of it last is all that may be under way for a buffer; sends and receives of
/// different buffers may be queued behind each other.
class DeviceLink {
  public:
    enum class State : uint8_t { kPairing, kReady, kFailed };
    static constexpr uint32_t kBuffersMax = 16;
    virtual ~DeviceLink() = default;  ///< gives up, without waiting
    [[nodiscard]] virtual State state() = 0;
    /// Why it failed; constant words first, e.g. "timeout".
    [[nodiscard]] virtual std::string reason() = 0;
    [[nodiscard]] virtual uint32_t buffers() const = 0;
    [[nodiscard]] virtual size_t buffer_bytes() const = 0;
    /// What moves one behind the other: buffer i is of lane i % lanes() on both sides, which have the same number of them, and
    /// buffers() is a multiple of it. Once it is ready.
    [[nodiscard]] virtual uint32_t lanes() const { return 1; }

    /// Sender: copies pages into the buffer, packed in (block, layer, k|v) order. A ticket of the pool's.
    virtual Expected<uint64_t> gather(uint32_t buffer, const PageCopy& copy) = 0;
    /// Sends the buffer's first bytes, or receives as many. Both sides have agreed on it, in the same order within a lane. `after` is the ticket of
    /// work that the send must follow on the device, 0: none.
    virtual Expected<void> send(uint32_t buffer, size_t bytes, uint64_t after) = 0;
    virtual Expected<void> receive(uint32_t buffer, size_t bytes) = 0;
    /// Whether the send or receive is done on this side. Never true after give_up() or an error.
    [[nodiscard]] virtual Expected<bool> done(uint32_t buffer) = 0;
    /// Receiver: copies pages out of the buffer. A ticket of the pool's.
    virtual Expected<uint64_t> scatter(uint32_t buffer, const PageCopy& copy) = 0;
    /// Fails the link: what is under way is aborted in the background. Idempotent.
    virtual void give_up(std::string_view reason) = 0;
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
    /// Before the transfer thread starts.
    virtual void set_copy_options(const CopyOptions& options) = 0;

    /// Whether open_link() can work in this process; kUnavailable with the reason where not. Any thread.
    [[nodiscard]] virtual Expected<void> linkable() { return fail(ErrorCode::kUnavailable, "this pool has no channels"); }
    /// Draws what names a new channel; the sender makes it and passes it on.
    virtual Expected<std::vector<uint8_t>> make_link_id() { return fail(ErrorCode::kUnavailable, "this pool has no channels"); }
    /// Begins to pair; the other side does the same with `sender` the other way. The pool outlives the link.
    virtual Expected<std::unique_ptr<DeviceLink>> open_link(std::span<const uint8_t> id, bool sender) {
        (void)id, (void)sender;
        return fail(ErrorCode::kUnavailable, "this pool has no channels");
    }
    /// For channels opened from now on; before the transfer thread starts.
    virtual void set_link_options(const LinkOptions& options) { (void)options; }
};

}  // namespace baton::backend
