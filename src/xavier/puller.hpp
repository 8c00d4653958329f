#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baton/base/clock.hpp"
#include "baton/kv/layout.hpp"
#include "baton/net/connection.hpp"
#include "baton/pd/replica_core.hpp"
#include "baton/xavier/mover.hpp"
#include "xavier/doorbell.hpp"
#include "xavier/host_buffers.hpp"
#include "xavier/own_pool.hpp"
#include "xavier/pool_file.hpp"
#include "xavier/progress.hpp"

namespace baton::xavier {

/// Bytes copied for one pull before the others get their turn and cancels are looked at.
inline constexpr uint64_t kCopySliceBytes = 1024 * 1024;
/// Bytes of pages in one tcp extent.
inline constexpr uint64_t kExtentBytesMax = 4u * 1024 * 1024;

/// Pages one kernel of a device mover copies at most: what a cancel may have to wait for.
inline constexpr uint64_t kDevicePullBytes = 64u * 1024 * 1024;
/// Less than this is not worth a kernel, unless the chunk is done.
inline constexpr uint64_t kDeviceCoalesceBytes = 1024 * 1024;

using PeerKey = std::pair<uint64_t, uint64_t>;  ///< replica, epoch
[[nodiscard]] inline PeerKey key_of(const wire::ReplicaTarget& t) { return {t.replica.value, t.epoch.value}; }

/// A linked prefill peer: its pool mapped (shm), its words and its pool on a device mapped (cuda_ipc), or a link to ask
/// over (tcp).
struct Source {
    wire::ReplicaTarget peer;
    kv::PoolLayout layout;
    std::optional<PoolView> view{};
    uint32_t device_peer = 0;  ///< see backend::DevicePool::map; 0: none
    std::shared_ptr<net::Connection> link{};
    uint32_t pulls = 0;  ///< that have not ended
    [[nodiscard]] const char* mover() const { return device_peer != 0 ? "cuda_ipc" : view ? "shm" : "tcp"; }
};

/// The decode side: pulls from linked peers into the own pool. Transfer thread only. Each started pull ends with exactly
/// one pull_done, after which none of its target blocks is written. A pull that is over but has copies queued on a device
/// ends when those are done.
class Puller {
  public:
    /// `own`, `callbacks` and `faults` must outlive it.
    Puller(OwnPool& own, const TransferThread::Callbacks& callbacks, const TransferThread::Faults& faults);
    ~Puller();
    Puller(const Puller&) = delete;
    Puller& operator=(const Puller&) = delete;

    void add_source(Source source);
    void remove_source(const wire::ReplicaTarget& peer);
    void start(pd::StartPull ask, TimeMs now);
    void cancel(uint64_t pull);
    void on_extent(const wire::ReplicaTarget& peer, const wire::ExtentHeader& header, std::vector<std::byte> bytes, TimeMs now);
    // For Channels: extents of the mover nccl.
    /// Whether the extent fits what the pull has; counts it as on its way then.
    [[nodiscard]] bool accept_channel(const wire::ReplicaTarget& peer, const wire::ChannelExtent& extent, TimeMs now);
    /// An accepted extent lies, as it seems, in a buffer of the channel: copies it to its pages. The copy's ticket; 0 when the pull
    /// is over.
    uint64_t load_channel(uint64_t pull, const Extent& extent, backend::DeviceLink& channel, uint32_t buffer);
    /// The sender says that it sent that extent.
    void prove_channel(uint64_t pull, const Extent& extent);
    /// The channel failed with an accepted extent of the pull.
    void lose_channel(uint64_t pull);
    /// Gives each pull one slice; true when something was copied or ended.
    bool step(TimeMs now);
    /// Appends the doorbells that tell of progress.
    void add_doorbells(std::vector<WaitWord>& words) const;
    /// When to look again at the latest, whatever the doorbells say.
    [[nodiscard]] TimeMs next_look(TimeMs now) const;
    /// A device rings no doorbell: how long to sleep at most while one works for a pull (0: look again at once), kNoPoll
    /// where none does.
    [[nodiscard]] int64_t poll_us();
    static constexpr int64_t kNoPoll = INT64_MAX;
    /// Ends all pulls and waits until they have.
    void fail_all(std::string_view reason);
    /// Bytes of arrived extents that wait for a buffer. Any thread.
    [[nodiscard]] size_t held_bytes() const { return held_bytes_.load(std::memory_order_relaxed); }

  private:
    struct End {
        bool ok = false;
        std::string reason;
    };
    struct Arrival {
        Extent extent;
        std::vector<std::byte> bytes;
    };
    struct Pull {
        pd::StartPull ask;
        Source* source = nullptr;
        ExtentCursor cursor;
        std::span<const uint32_t> from_blocks;  ///< of `ask`, the ones to pull
        std::span<const uint32_t> to_blocks;
        std::span<const Generation> generations;
        TimeMs not_before;
        TimeMs last_progress;
        int64_t started_us = 0;
        int64_t complete_us = 0;        ///< when P's last layer was seen; 0: not yet
        bool offer_complete = false;
        bool near_told = false;
        uint64_t bytes = 0;
        uint64_t ticket = 0;            ///< the newest queued copy between devices
        uint64_t host_ticket = 0;       ///< and from the host
        int64_t queued_us = 0;
        uint32_t on_channel = 0;        ///< accepted extents that the sender has not said to be sent
        uint64_t on_channel_bytes = 0;  ///< of those
        bool by_channel = false;        ///< some came that way
        int64_t paced_until_us = 0;     ///< fault hook
        std::deque<Arrival> arrivals{}; ///< accepted, waiting for a host buffer
        std::optional<End> end{};       ///< decided; told when nothing is under way
    };
    enum class Step : uint8_t { kIdle, kCopied, kEnded };

    [[nodiscard]] const char* why_invalid(const pd::StartPull& ask, const Source& source) const;
    Step step_one(Pull& pull, TimeMs now);
    /// What of the offer can be copied, counted in blocks to pull; none when too little (or the pull was ended).
    std::optional<Extent> look(Pull& pull, TimeMs now, uint64_t coalesce_bytes, uint64_t bytes_max);
    /// All of it but an eighth is computed, or on its way.
    void tell_near(Pull& pull);
    Step copy_some(Pull& pull, TimeMs now);
    Step queue_some(Pull& pull, TimeMs now);
    Step load_some(Pull& pull);
    void took(Pull& pull, const Extent& extent, TimeMs now);
    [[nodiscard]] uint64_t bytes_of(const Pull& pull) const;  ///< to pull in all
    [[nodiscard]] static const char* mover_of(const Pull& pull) { return pull.by_channel ? "nccl" : pull.source->mover(); }
    /// Decides how a pull ends, and ends it unless copies are under way.
    void finish(Pull& pull, bool ok, std::string_view reason);
    /// No queued copy can touch the pull's blocks any more.
    [[nodiscard]] bool settled(const Pull& pull) { return own_.settled(pull.ticket) && own_.settled(pull.host_ticket); }
    /// Ends a decided pull when nothing of it is under way; true when it did, `pull` is gone then.
    bool conclude(Pull& pull);
    void let_go_of_sources();
    void report(pd::PullResult result);

    OwnPool& own_;
    const TransferThread::Callbacks& callbacks_;
    const TransferThread::Faults& faults_;
    HostBuffers buffers_;
    std::map<PeerKey, std::unique_ptr<Source>> sources_;
    std::vector<std::unique_ptr<Source>> gone_;  ///< removed, but pulls from them have copies under way
    std::map<uint64_t, std::unique_ptr<Pull>> pulls_;
    std::atomic<size_t> held_bytes_{0};
};

}  // namespace baton::xavier
