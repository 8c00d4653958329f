#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "baton/base/clock.hpp"
#include "baton/kv/layout.hpp"
#include "baton/net/connection.hpp"
#include "baton/pd/replica_core.hpp"
#include "baton/xavier/mover.hpp"
#include "xavier/doorbell.hpp"
#include "xavier/pool_file.hpp"
#include "xavier/progress.hpp"

namespace baton::xavier {

/// Bytes copied for one pull before the others get their turn and cancels are looked at.
inline constexpr uint64_t kCopySliceBytes = 1024 * 1024;
/// Bytes of pages in one tcp extent.
inline constexpr uint64_t kExtentBytesMax = 4u * 1024 * 1024;

using PeerKey = std::pair<uint64_t, uint64_t>;  ///< replica, epoch
[[nodiscard]] inline PeerKey key_of(const wire::ReplicaTarget& t) { return {t.replica.value, t.epoch.value}; }

/// A linked prefill peer: its pool mapped (shm), or a link to ask over (tcp).
struct Source {
    wire::ReplicaTarget peer;
    kv::PoolLayout layout;
    std::optional<PoolView> view;
    std::shared_ptr<net::Connection> link;
};

/// The decode side: pulls from linked peers into the own pool. Transfer thread only. Each started pull ends with exactly
/// one pull_done, after which none of its target blocks is written.
class Puller {
  public:
    /// `own`, `callbacks` and `faults` must outlive it.
    Puller(SharedPool& own, const TransferThread::Callbacks& callbacks, const TransferThread::Faults& faults);

    void add_source(Source source);
    void remove_source(const wire::ReplicaTarget& peer);
    void start(pd::StartPull ask, TimeMs now);
    void cancel(uint64_t pull);
    void on_extent(const wire::ReplicaTarget& peer, const wire::ExtentHeader& header, std::span<const std::byte> bytes,
                   TimeMs now);
    /// Gives each pull one slice; true when something was copied or ended.
    bool step(TimeMs now);
    /// Appends the doorbells that tell of progress.
    void add_doorbells(std::vector<WaitWord>& words) const;
    /// When to look again at the latest, whatever the doorbells say.
    [[nodiscard]] TimeMs next_look(TimeMs now) const;
    void fail_all(std::string_view reason);

  private:
    struct Pull {
        pd::StartPull ask;
        Source* source = nullptr;
        ExtentCursor cursor;
        std::span<const uint32_t> from_blocks;  ///< of `ask`, the ones to pull
        std::span<const uint32_t> to_blocks;
        std::span<const Generation> generations;
        TimeMs not_before;
        TimeMs last_progress;
        bool offer_complete = false;
        bool near_told = false;
        uint64_t bytes = 0;
    };
    enum class Step : uint8_t { kIdle, kCopied, kEnded };

    [[nodiscard]] const char* why_invalid(const pd::StartPull& ask, const Source& source) const;
    Step step_one(Pull& pull, TimeMs now);
    Step copy_some(Pull& pull, TimeMs now);
    void finish(uint64_t pull, bool ok, std::string_view reason);
    void report(uint64_t pull, bool ok, std::string_view reason, uint64_t bytes, const char* mover);

    SharedPool& own_;
    const TransferThread::Callbacks& callbacks_;
    const TransferThread::Faults& faults_;
    std::map<PeerKey, std::unique_ptr<Source>> sources_;
    std::map<uint64_t, std::unique_ptr<Pull>> pulls_;
};

}  // namespace baton::xavier
