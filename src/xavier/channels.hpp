#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baton/backend/device_pool.hpp"
#include "baton/base/clock.hpp"
#include "baton/net/connection.hpp"
#include "baton/wire/messages.hpp"
#include "xavier/own_pool.hpp"
#include "xavier/progress.hpp"
#include "xavier/puller.hpp"

namespace baton::xavier {

/// The channels of the mover `nccl`, one a linked pair: pairing, the receiver's word for each extent before either side
/// launches it, deadlines, and pairing again after a failure. Transfer thread only.
class Channels {
  public:
    /// How long a proven extent waits for the receiver's word.
    static constexpr int64_t kAgreeMs = 5'000;
    static constexpr int64_t kRetryMs = 1'000, kRetryMsMax = 30'000;
    static constexpr int64_t kNoPoll = INT64_MAX;

    /// Both must outlive it; `puller` takes what is received.
    Channels(OwnPool& own, Puller& puller);
    ~Channels();
    Channels(const Channels&) = delete;
    Channels& operator=(const Channels&) = delete;

    /// A link whose mover is nccl is up; the sender begins to pair. A channel with the same peer is replaced.
    void add(const wire::ReplicaTarget& peer, std::shared_ptr<net::Connection> link, bool sender, TimeMs now);
    /// The link is gone: gives the channel up.
    void remove(const wire::ReplicaTarget& peer);
    void on_message(const wire::ReplicaTarget& peer, const wire::Message& message, TimeMs now);
    /// Extents of that peer are awaited: for a moment poll_us() says not to sleep.
    void expect(const wire::ReplicaTarget& peer);
    /// True when something was done.
    bool step(TimeMs now);
    [[nodiscard]] int64_t poll_us() const;
    [[nodiscard]] TimeMs next_look(TimeMs now) const;

    // Sender: PullServer.
    /// Names the pairing that can be used now; 0: none.
    [[nodiscard]] uint64_t usable(const wire::ReplicaTarget& peer) const;
    /// The largest extent to send now: a buffer, but less where nothing is under way or little is left to send, so that
    /// gathering, travel and writing overlap early and late.
    [[nodiscard]] uint64_t extent_bytes_max(const wire::ReplicaTarget& peer, uint64_t left) const;
    /// A buffer nobody uses; none when all are in use.
    [[nodiscard]] std::optional<uint32_t> take(const wire::ReplicaTarget& peer);
    /// Copies pages into a taken buffer; a ticket of the pool's.
    Expected<uint64_t> gather(const wire::ReplicaTarget& peer, uint32_t buffer, const backend::PageCopy& copy);
    /// Sends what was gathered, once the receiver has a buffer for it; the buffer is the channel's again. `gathering` is the ticket
    /// of a gather that is not known to be done: the send follows it on the device, and prove() must be called.
    void send(const wire::ReplicaTarget& peer, uint32_t buffer, uint64_t pull, const Extent& extent, uint64_t bytes, uint64_t gathering,
              TimeMs now);
    /// That gather is done, and what is wrong with its bytes has been told on the link: now the receiver may hear that they were sent.
    void prove(const wire::ReplicaTarget& peer, uint32_t buffer);
    /// Gives a taken buffer back unused; it is taken again once the ticket's work is done.
    void give(const wire::ReplicaTarget& peer, uint32_t buffer, uint64_t ticket);

  private:
    struct Buffer {
        enum class State : uint8_t {
            kFree,       ///< once `ticket` is settled
            kTaken,      ///< sender: being gathered
            kAnnounced,  ///< sender: waits for the receiver's word
            kMoving,     ///< NCCL has it
            kMoved,      ///< over on this side; receiver: waits for the sender's word, sender: for prove()
        };
        State state = State::kFree;
        uint64_t number = 0;
        uint64_t bytes = 0;
        uint64_t pull = 0;
        Extent extent;
        bool proven = false;  ///< sender: prove() was called, or was not needed; receiver: the sender's word came
        uint64_t ticket = 0;  ///< of the copy from or to the pool
        TimeMs deadline = kNever;
    };
    struct Channel {
        wire::ReplicaTarget peer;
        std::shared_ptr<net::Connection> link;
        bool sender = false;
        uint64_t attempt = 0;
        std::unique_ptr<backend::DeviceLink> device;
        bool told_ready = false, peer_ready = false;
        uint64_t numbers = 0;  ///< used so far
        uint64_t granted = 0;  ///< the receiver has buffers for extents up to this number
        std::vector<Buffer> buffers{};
        uint32_t lanes = 1;            ///< a number is of lane `number % lanes`, as a buffer is by its index
        uint32_t last_lane = 0;        ///< sender: of the buffer that was taken last
        std::deque<uint32_t> announced{};  ///< sender: buffers to send, in order
        uint64_t moving_bytes = 0;      ///< launched and not over
        int64_t active_us = 0;          ///< the last launch, or when one was awaited
        TimeMs next_try{};
        int64_t retry_ms = kRetryMs;
        [[nodiscard]] bool usable() const { return device != nullptr && told_ready && peer_ready; }
    };

    [[nodiscard]] Channel* find(const wire::ReplicaTarget& peer);
    [[nodiscard]] const Channel* find(const wire::ReplicaTarget& peer) const;
    void begin(Channel& c, TimeMs now);
    void fail(Channel& c, std::string_view reason, bool tell, TimeMs now);
    bool step_one(Channel& c, TimeMs now);
    bool step_buffer(Channel& c, uint32_t index, TimeMs now);
    /// Receiver: tells of buffers that became free. True when there were some.
    bool grant(Channel& c);
    /// Sender: launches what has a buffer on the other side. True when there was some.
    bool launch(Channel& c, TimeMs now);
    static void stay_awake(Channel& c);
    void moving(Channel& c, Buffer& b, TimeMs now);
    void on(Channel& c, const wire::ChannelPair& m, TimeMs now);
    void on(Channel& c, const wire::ChannelExtent& m, TimeMs now);
    void on(Channel& c, const wire::ChannelGo& m, TimeMs now);
    void on(Channel& c, const wire::ChannelSent& m, TimeMs now);
    /// Receiver: where the extent of that number goes; the sender uses any buffer of the number's lane.
    [[nodiscard]] static Buffer& buffer_of(Channel& c, uint64_t number) { return c.buffers[number % c.buffers.size()]; }
    [[nodiscard]] bool is_free(const Buffer& b) { return b.state == Buffer::State::kFree && own_.settled(b.ticket); }
    [[nodiscard]] static Buffer* find_buffer(Channel& c, Buffer::State state, uint64_t number);

    OwnPool& own_;
    Puller& puller_;
    std::map<PeerKey, Channel> channels_;
};

}  // namespace baton::xavier
