#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "baton/base/clock.hpp"
#include "baton/net/connection.hpp"
#include "baton/wire/messages.hpp"
#include "baton/xavier/mover.hpp"
#include "xavier/channels.hpp"
#include "xavier/doorbell.hpp"
#include "xavier/host_buffers.hpp"
#include "xavier/own_pool.hpp"
#include "xavier/progress.hpp"

namespace baton::xavier {

/// The prefill side of the movers tcp and nccl: answers pull requests for open offers with extents as progress allows. Transfer
/// thread only.
class PullServer {
  public:
    static constexpr size_t kRequestsMax = 1024;
    /// Unsent bytes on a link from which on no more is gathered for it.
    static constexpr size_t kQueuedBytesHigh = 16u * 1024 * 1024;

    /// All must outlive it.
    PullServer(OwnPool& own, Channels& channels, const TransferThread::Faults& faults);

    /// An unknown offer or a malformed list is answered with a failed extent.
    void request(const wire::ReplicaTarget& peer, wire::PullRequest request, std::shared_ptr<net::Connection> link, TimeMs now);
    void drop(const wire::ReplicaTarget& peer);
    /// Sends at most one extent for each request; true when something was sent or ended.
    bool step(TimeMs now);
    void add_doorbells(std::vector<WaitWord>& words) const;
    [[nodiscard]] TimeMs next_look(TimeMs now) const;
    /// As Puller::poll_us().
    [[nodiscard]] int64_t poll_us() const;
    static constexpr int64_t kNoPoll = INT64_MAX;

  private:
    /// An extent on its way from the device into a host buffer, or a channel's.
    struct Gathering {
        Extent extent;
        bool channel = false;  ///< `buffer` is the channel's
        bool sent = false;     ///< and its send follows the gather
        size_t buffer = 0;
        uint64_t ticket = 0;
        bool last = false;
    };
    struct Serving {
        wire::ReplicaTarget peer;
        wire::PullRequest request;
        std::shared_ptr<net::Connection> link;
        pd::OpenProgress offer;
        std::vector<uint32_t> blocks;         ///< of the requested indices
        std::vector<Generation> generations;  ///< likewise
        ExtentCursor cursor;
        TimeMs not_before;
        TimeMs last_progress;
        bool blocked = false;  ///< the link's queue is full
        bool near = false;     ///< little is left to compute, or nothing
        uint64_t left_bytes = 0;     ///< of extents that were sent
        int64_t paced_until_us = 0;  ///< fault hook
        uint64_t attempt = 0;  ///< of the channel, once an extent went that way
        std::deque<Gathering> gathering{};
        int64_t gathered_us = 0;     ///< the newest of them began
    };
    /// Extents of one request that are copied to host buffers at once; a channel bounds its own.
    static constexpr size_t kGatheringMax = 2;
    enum class Step : uint8_t { kIdle, kSent, kEnded };

    Step step_one(Serving& s, TimeMs now);
    Step send_extent(Serving& s, const Extent& extent, TimeMs now);
    Step start_gathering(Serving& s, const Extent& extent, TimeMs now);
    /// `all`: everything is computed.
    Step start_channel(Serving& s, const Extent& extent, bool all, TimeMs now);
    Step send_gathered(Serving& s, TimeMs now);
    void send(Serving& s, const Extent& extent, std::vector<std::byte> bytes, bool last) const;
    void left(bool last) const;  ///< an extent did: fault hook
    Step end_failed(Serving& s);
    void let_go(Serving& s);
    static void send_failed(net::Connection& link, uint64_t pull);

    OwnPool& own_;
    Channels& channels_;
    const TransferThread::Faults& faults_;
    HostBuffers buffers_;
    std::list<Serving> serving_;
};

}  // namespace baton::xavier
