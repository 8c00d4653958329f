#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "baton/backend/device_pool.hpp"
#include "baton/base/error.hpp"
#include "baton/base/fd.hpp"
#include "baton/base/ids.hpp"
#include "baton/kv/layout.hpp"
#include "baton/net/connection.hpp"
#include "baton/pd/replica_core.hpp"
#include "baton/wire/messages.hpp"

/// Xavier: KV movement between replicas (docs/XAVIER.md).
namespace baton::xavier {

/// What a replica shares of its KV pool with peers on the host: one memfd that holds a header, progress slots, generation
/// words and, for a CPU replica, the pool. Peers map it read-only and copy from it. Progress words and generations are
/// atomics in shared memory.
class SharedPool {
  public:
    static Expected<std::unique_ptr<SharedPool>> create(const kv::PoolLayout& layout, uint32_t progress_slots);
    /// The same file without pool bytes, for a pool that lies on a device. `layout` describes that pool.
    static Expected<std::unique_ptr<SharedPool>> create_words(const kv::PoolLayout& layout, uint32_t progress_slots);
    virtual ~SharedPool() = default;
    /// 64-byte aligned, layout().pool_bytes(); empty where the pool lies on a device.
    [[nodiscard]] virtual std::span<std::byte> pool() = 0;
    /// The memory that holds all progress words, whole pages: for backend::DeviceBackend::share_words.
    [[nodiscard]] virtual std::span<std::byte> words() = 0;
    /// The progress word of a slot, 8-byte aligned, within words(): for backend::Slice::progress. The device stores there
    /// what set_progress() would, so the slot must not be given to another offer while a step that names it is unfinished.
    [[nodiscard]] virtual uint64_t* progress_word(uint32_t slot) = 0;
    [[nodiscard]] virtual const kv::PoolLayout& layout() const = 0;
    [[nodiscard]] virtual int fd() const = 0;

    // Engine thread (the only writer).
    /// close_progress() may wait a millisecond for an extent being sent; afterwards this process reads the offer's blocks
    /// no more, and a reader elsewhere discards what it copied.
    virtual void open_progress(const pd::OpenProgress& open) = 0;
    virtual void close_progress(const pd::CloseProgress& close) = 0;
    /// All layers below `layers` of the chunk [chunk_begin, chunk_end) of that slot's sequence are in the pool; chunks
    /// before it are complete. Wakes waiting readers in this and in other processes when a lump worth copying, or the
    /// chunk, is done.
    virtual void set_progress(uint32_t slot, uint32_t chunk_begin, uint32_t chunk_end, uint32_t layers) = 0;
    /// Mirrors a block's generation for readers.
    virtual void set_generation(BlockId block, Generation generation) = 0;

    // Any thread.
    /// These blocks are about to be written, or are in use: a pool in host memory gets huge pages a little ahead of that.
    virtual void will_use(std::span<const BlockId> blocks) = 0;
};

/// The progress word of a chunk [chunk_begin, chunk_end) none of whose layers is done, for backend::Slice::progress_base:
/// each layer adds 1 << 48.
[[nodiscard]] uint64_t progress_base(uint32_t chunk_begin, uint32_t chunk_end);

/// Checksum of a block's bytes over its pages in (layer, k|v) order.
[[nodiscard]] uint64_t block_checksum(std::span<const std::byte> pool, const kv::PoolLayout& layout, BlockId block);

/// Which mover a pair uses, the same answer on both sides: `cuda_ipc` where both pools lie on GPUs of one host and D's
/// process can map P's, `nccl` where both are on GPUs and can use it, `shm` where both are in host memory of one host, else
/// `tcp`. `forced` names the one to use. kUnsupported with the reason where pages do not match, a layout is not described,
/// or the forced mover cannot serve the pair.
[[nodiscard]] Expected<std::string> choose_mover(const wire::LinkHello& decode, const wire::LinkHello& prefill, std::string_view forced);

[[nodiscard]] wire::Layout to_wire(const kv::PoolLayout& layout);
/// kUnsupported for an undescribed order, kCorrupt for sizes that overflow or contradict.
[[nodiscard]] Expected<kv::PoolLayout> from_wire(const wire::Layout& layout);

/// Owns the transfer thread of a replica: D's pulls (shm copies, tcp requests) and P's answers to tcp pulls. The only
/// code that moves KV bytes.
class TransferThread {
  public:
    struct Callbacks {
        // All on the transfer thread; they must not wait for it.
        std::function<void(pd::PullResult)> pull_done;
        std::function<void(uint64_t pull, bool equal)> pull_verified;
        std::function<void(uint64_t copy, bool ok)> store_copied;
        /// A pull over shared memory is about to end: the prefill replica is in its last layers. May be null.
        std::function<void()> pull_near{};
    };
    static std::unique_ptr<TransferThread> start(SharedPool& own, Callbacks callbacks);
    /// For a pool on a device: `words` was made by create_words(). Both outlive the thread.
    static std::unique_ptr<TransferThread> start(SharedPool& words, backend::DevicePool& device, Callbacks callbacks);
    virtual ~TransferThread() = default;  ///< joins, after copies under way

    /// D: a linked prefill peer. shm: `map` is its pool's descriptor; tcp: pulls go over `link`.
    /// kUnsupported when its pages do not match, kCorrupt when the file is not what the layout says. `progress_slots` 0
    /// takes the file's word for it. A source of the same peer is replaced.
    virtual Expected<void> add_source(wire::ReplicaTarget peer, const kv::PoolLayout& layout, uint32_t progress_slots,
                                      std::optional<UniqueFd> map, std::shared_ptr<net::Connection> link) = 0;
    /// D, both pools on devices of one host (`cuda_ipc`): `words` is the descriptor of the peer's words, `handle` what its
    /// DevicePool exported. Errors as above and those of backend::DevicePool::map.
    virtual Expected<void> add_device_source(wire::ReplicaTarget peer, const kv::PoolLayout& layout, uint32_t progress_slots,
                                             UniqueFd words, std::span<const std::byte> handle) = 0;
    /// Its pulls end with "peer_lost".
    virtual void remove_source(wire::ReplicaTarget peer) = 0;
    /// Ends with exactly one pull_done. Reasons beside those of pd::PullResult: "invalid" (the offer or an extent makes no
    /// sense), "internal" (out of memory), "planted".
    virtual void start_pull(const pd::StartPull& pull) = 0;
    virtual void cancel_pull(uint64_t pull) = 0;
    virtual void verify_pull(const pd::VerifyPull& verify) = 0;
    /// D: an ExtentHeader with its bytes arrived on a source's link.
    virtual void on_extent(wire::ReplicaTarget peer, wire::ExtentHeader header, std::vector<std::byte> bytes) = 0;
    /// Mover nccl, both sides: the link with that peer is up, and the two pair a channel for pulls over it; `sender`: this is
    /// P. D adds its source by add_source, without `map`. Until they have paired, and after a failure, extents go over the
    /// link as with tcp. Ends with remove_source or drop_requester.
    virtual void add_channel(wire::ReplicaTarget peer, std::shared_ptr<net::Connection> link, bool sender) = 0;
    /// A Channel… message of that peer.
    virtual void on_channel_message(wire::ReplicaTarget peer, wire::Message message) = 0;
    /// P: a decode peer asks for blocks of an offer this replica holds open; answered over `link` as progress allows.
    virtual void on_pull_request(wire::ReplicaTarget peer, wire::PullRequest request, std::shared_ptr<net::Connection> link) = 0;
    /// P: the peer's link is gone; stop answering it.
    virtual void drop_requester(wire::ReplicaTarget peer) = 0;
    /// The host's snapshot memory (one slot = one block's pages in (layer, k|v) order).
    virtual Expected<void> set_store(UniqueFd fd, uint32_t slots, uint64_t slot_bytes) = 0;
    virtual void store_copy(const pd::StoreCopy& copy) = 0;

    /// Checksums of blocks of the own pool, each block_checksum(), wherever the pool lies. Waits for the transfer thread and
    /// for the copies: verify mode alone. Any thread but the transfer thread.
    [[nodiscard]] virtual Expected<std::vector<uint64_t>> checksums(std::span<const BlockId> blocks) = 0;

    /// Fault hooks; docs/XAVIER.md names them.
    struct Faults {
        bool corrupt_one_byte = false;
        int64_t delay_ms = 0;
        bool fail_pulls = false;
        int64_t pace_us = 0;   ///< pause after each copy of a pull, or extent sent; those are small then
        bool stall = false;    ///< a pull copies once, then no more
        std::string kill_at{}; ///< the process kills itself at this step
        std::string drop{};    ///< the first message of this name that a peer link would send is lost
        bool nccl_one_gpu = false;  ///< each replica is a host of its own to NCCL, so that two on one GPU can pair
    };
    virtual void plant(Faults faults) = 0;  ///< fault hooks, for tests and behind a flag
};

/// "corrupt", "fail_pulls", "pull_delay_ms=N", "pace_us=N", "stall", "kill_at=STEP", "drop=MESSAGE", "nccl_one_gpu", or
/// several with commas between; empty: none. kInvalidArgument names the one that is unknown.
[[nodiscard]] Expected<TransferThread::Faults> parse_faults(std::string_view text);

}  // namespace baton::xavier
