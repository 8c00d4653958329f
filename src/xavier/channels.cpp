#include "xavier/channels.hpp"

#include <algorithm>

#include "baton/base/check.hpp"
#include "baton/base/log.hpp"
#include "xavier/page_copy.hpp"

namespace baton::xavier {
namespace {

/// Rate below which a channel is taken for stuck, and what is added to twice the time that gives.
constexpr uint64_t kSlowBytesPerMs = 500'000;
constexpr int64_t kGraceMs = 1'000;
constexpr int64_t kPollUs = 15;
constexpr int64_t kPairPollUs = 1'000;
/// The first extent of many, and the last ones.
constexpr uint64_t kExtentBytesLow = 16u << 20;
/// Nobody sleeps for that long after a launch or a request: the largest extent takes about this, and waking up a third.
constexpr int64_t kSpinUs = 300;

}  // namespace

Channels::Channels(OwnPool& own, Puller& puller) : own_(own), puller_(puller) {}
Channels::~Channels() = default;

Channels::Channel* Channels::find(const wire::ReplicaTarget& peer) {
    const auto it = channels_.find(key_of(peer));
    return it == channels_.end() ? nullptr : &it->second;
}
const Channels::Channel* Channels::find(const wire::ReplicaTarget& peer) const {
    const auto it = channels_.find(key_of(peer));
    return it == channels_.end() ? nullptr : &it->second;
}

void Channels::add(const wire::ReplicaTarget& peer, std::shared_ptr<net::Connection> link, bool sender, TimeMs now) {
    remove(peer);
    Channel& c = channels_[key_of(peer)];
    c.peer = peer;
    c.link = std::move(link);
    c.sender = sender;
    c.next_try = now;
}

void Channels::remove(const wire::ReplicaTarget& peer) {
    Channel* c = find(peer);
    if (c == nullptr) return;
    fail(*c, "peer_lost", false, TimeMs{});
    channels_.erase(key_of(peer));
}

// ---- pairing -------------------------------------------------------------------------------------------------------

void Channels::begin(Channel& c, TimeMs now) {
    ++c.attempt;
    auto id = own_.device()->make_link_id();
    if (!id) return fail(c, id.error().message, false, now);
    auto link = own_.device()->open_link(*id, true);
    if (!link) return fail(c, link.error().message, false, now);
    c.device = std::move(*link);
    c.link->send(wire::ChannelPair{c.attempt, wire::PairStep::kOpen, std::move(*id), ""});
}

/// What was under way is lost; the sender tries again later.
void Channels::fail(Channel& c, std::string_view reason, bool tell, TimeMs now) {
    if (c.device != nullptr) c.device->give_up(reason);
    if (reason != "peer_lost") log::warn("xavier.channel_failed", {{"peer", c.peer.replica.value - 1}, {"reason", reason}});
    if (tell && c.device != nullptr) c.link->send(wire::ChannelPair{c.attempt, wire::PairStep::kFailed, {}, std::string(reason)});
    c.device.reset();
    c.told_ready = c.peer_ready = false;
    for (const Buffer& b : c.buffers)
        if (!c.sender && (b.state == Buffer::State::kMoving || b.state == Buffer::State::kMoved)) puller_.lose_channel(b.pull);
    c.buffers.clear();
    c.announced.clear();
    c.numbers = c.granted = c.moving_bytes = 0;
    c.next_try = now + c.retry_ms;
    c.retry_ms = std::min(c.retry_ms * 2, kRetryMsMax);
}

void Channels::on_message(const wire::ReplicaTarget& peer, const wire::Message& message, TimeMs now) {
    Channel* c = find(peer);
    if (c == nullptr) return;
    if (const auto* pair = std::get_if<wire::ChannelPair>(&message)) return on(*c, *pair, now);
    if (c->device == nullptr) return;
    if (const auto* extent = std::get_if<wire::ChannelExtent>(&message)) return on(*c, *extent, now);
    if (const auto* go = std::get_if<wire::ChannelGo>(&message)) return on(*c, *go, now);
    if (const auto* sent = std::get_if<wire::ChannelSent>(&message)) return on(*c, *sent, now);
}

void Channels::on(Channel& c, const wire::ChannelPair& m, TimeMs now) {
    if (m.step == wire::PairStep::kOpen) {
        if (c.sender || m.attempt <= c.attempt) return;
        if (c.device != nullptr) fail(c, "paired again", false, now);
        c.attempt = m.attempt;
        auto link = own_.device()->open_link(m.id, false);
        if (link) {
            c.device = std::move(*link);
        } else {
            log::warn("xavier.channel_failed", {{"peer", c.peer.replica.value - 1}, {"reason", link.error().message}});
            c.link->send(wire::ChannelPair{c.attempt, wire::PairStep::kFailed, {}, link.error().message});
        }
        return;
    }
    if (m.attempt != c.attempt || c.device == nullptr) return;
    if (m.step == wire::PairStep::kReady) c.peer_ready = true;
    else fail(c, "the peer's side: " + m.reason, false, now);
}

// ---- extents -------------------------------------------------------------------------------------------------------

Channels::Buffer* Channels::find_buffer(Channel& c, Buffer::State state, uint64_t number) {
    for (Buffer& b : c.buffers)
        if (b.state == state && b.number == number) return &b;
    return nullptr;
}

/// Neither this thread nor the link's sleeps for a moment.
void Channels::stay_awake(Channel& c) {
    c.active_us = steady_now_us();
    c.link->watch(c.active_us + kSpinUs);
}

/// Both ends give what was launched a time to be over, behind what was launched before.
void Channels::moving(Channel& c, Buffer& b, TimeMs now) {
    b.state = Buffer::State::kMoving;
    c.moving_bytes += b.bytes;
    stay_awake(c);
    b.deadline = now + 2 * static_cast<int64_t>(c.moving_bytes / kSlowBytesPerMs) + kGraceMs;
}

/// Receiver. The sender launches, so the receive is launched too, even where the pull is over: then nobody reads the buffer.
void Channels::on(Channel& c, const wire::ChannelExtent& m, TimeMs now) {
    if (c.sender || m.attempt != c.attempt) return;
    if (!c.usable() || m.number <= c.numbers || m.number > c.granted || m.bytes == 0 || m.bytes > c.device->buffer_bytes())
        return fail(c, "protocol", true, now);
    c.numbers = m.number;
    Buffer& b = buffer_of(c, m.number);
    BATON_CHECK(is_free(b));  // granted
    const bool wanted = puller_.accept_channel(c.peer, m, now);
    b = {};
    b.number = m.number;
    b.bytes = m.bytes;
    b.pull = wanted ? m.pull : 0;
    b.extent = {m.first_layer, m.layers, m.first_index, m.indices};
    moving(c, b, now);
    const auto received = c.device->receive(static_cast<uint32_t>(m.number % c.buffers.size()), m.bytes);
    if (!received) fail(c, received.error().message, true, now);
}

bool Channels::grant(Channel& c) {
    uint64_t number = c.numbers;
    while (number < c.numbers + c.buffers.size() && is_free(buffer_of(c, number + 1))) ++number;
    if (number <= c.granted) return false;
    c.granted = number;
    c.link->send(wire::ChannelGo{c.attempt, number});
    return true;
}

/// Sender.
void Channels::on(Channel& c, const wire::ChannelGo& m, TimeMs now) {
    if (!c.sender || m.attempt != c.attempt) return;
    if (m.number <= c.granted || m.number > c.numbers + backend::DeviceLink::kBuffersMax) return fail(c, "protocol", true, now);
    c.granted = m.number;
    launch(c, now);
}

/// The announcement leaves with the launch: the receiver has agreed before, and waits for nothing that is not on its way.
bool Channels::launch(Channel& c, TimeMs now) {
    bool launched = false;
    while (c.usable() && !c.announced.empty()) {
        const uint32_t index = c.announced.front();
        const uint64_t number = c.numbers + 1 + (index + c.lanes - (c.numbers + 1) % c.lanes) % c.lanes;  // the next of the buffer's lane
        if (number > c.granted) break;
        c.announced.pop_front();
        Buffer& b = c.buffers[index];
        b.number = c.numbers = number;
        moving(c, b, now);
        c.link->send(wire::ChannelExtent{c.attempt, b.number, b.pull, b.extent.first_layer, b.extent.layers, b.extent.first_index,
                                             b.extent.indices, b.bytes});
        launched = true;
        if (const auto sent = c.device->send(index, b.bytes, b.ticket); !sent) fail(c, sent.error().message, true, now);
    }
    return launched;
}

/// Receiver.
void Channels::on(Channel& c, const wire::ChannelSent& m, TimeMs now) {
    if (c.sender || m.attempt != c.attempt) return;
    Buffer* b = find_buffer(c, Buffer::State::kMoving, m.number);
    if (b == nullptr) b = find_buffer(c, Buffer::State::kMoved, m.number);
    if (b == nullptr) return fail(c, "protocol", true, now);
    b->proven = true;
}

void Channels::expect(const wire::ReplicaTarget& peer) {
    if (Channel* c = find(peer); c != nullptr && c->usable()) stay_awake(*c);
}

bool Channels::step(TimeMs now) {
    bool worked = false;
    for (auto& [key, c] : channels_) worked = step_one(c, now) || worked;
    return worked;
}

bool Channels::step_one(Channel& c, TimeMs now) {
    using State = backend::DeviceLink::State;
    if (c.device == nullptr) {
        if (!c.sender || now < c.next_try) return false;
        begin(c, now);
        return true;
    }
    const State state = c.device->state();
    if (state == State::kFailed) {
        fail(c, c.device->reason(), true, now);
        return true;
    }
    if (state == State::kPairing) return false;
    if (!c.told_ready) {
        c.told_ready = true;
        c.buffers.assign(std::min(c.device->buffers(), backend::DeviceLink::kBuffersMax), {});
        c.lanes = c.device->lanes();
        BATON_CHECK(c.lanes > 0 && c.buffers.size() % c.lanes == 0);
        c.retry_ms = kRetryMs;
        c.link->send(wire::ChannelPair{c.attempt, wire::PairStep::kReady, {}, ""});
        log::info("xavier.channel_ready", {{"peer", c.peer.replica.value - 1}, {"attempt", c.attempt}});
        return true;
    }
    bool worked = false;
    for (uint32_t i = 0; i < c.buffers.size(); ++i) worked = step_buffer(c, i, now) || worked;
    if (c.device == nullptr) return worked;
    return (c.sender ? launch(c, now) : grant(c)) || worked;
}

bool Channels::step_buffer(Channel& c, uint32_t index, TimeMs now) {
    Buffer& b = c.buffers[index];
    if (now >= b.deadline) {
        fail(c, "timeout", true, now);
        return true;
    }
    if (b.state == Buffer::State::kMoving) {
        const auto done = c.device->done(index);
        if (!done) {
            fail(c, done.error().message, true, now);
            return true;
        }
        if (!*done) return false;
        c.moving_bytes -= b.bytes;
        b.state = Buffer::State::kMoved;
        // The own stream alone does not prove that the bytes came: it also says so after an abort. So this copy counts, and the
        // pull can end, only when the sender says that it sent.
        if (!c.sender) b.ticket = puller_.load_channel(b.pull, b.extent, *c.device, index);
        if (!b.proven) return true;
    }
    if (b.state != Buffer::State::kMoved || !b.proven) return false;
    if (c.sender) {
        c.link->send(wire::ChannelSent{c.attempt, b.number});
        b = {};
    } else {
        puller_.prove_channel(b.pull, b.extent);
        const uint64_t ticket = b.ticket;
        b = {};
        b.ticket = ticket;
    }
    return true;
}

int64_t Channels::poll_us() const {
    int64_t us = kNoPoll;
    const int64_t now_us = channels_.empty() ? 0 : steady_now_us();
    for (const auto& [key, c] : channels_) {
        if (c.device == nullptr) continue;
        if (!c.told_ready) us = std::min(us, kPairPollUs);
        else if (now_us - c.active_us < kSpinUs) return 0;
        else if (c.moving_bytes > 0) us = std::min(us, kPollUs);
        // A receiver's buffer becomes free when its pages are written.
        else if (!c.sender && c.granted < c.numbers + c.buffers.size()) us = std::min(us, kPollUs);
    }
    return us;
}

TimeMs Channels::next_look(TimeMs now) const {
    TimeMs next = kNever;
    for (const auto& [key, c] : channels_) {
        if (c.device == nullptr && c.sender) next = std::min(next, std::max(c.next_try, now));
        for (const Buffer& b : c.buffers) next = std::min(next, b.deadline);
    }
    return next;
}

// ---- sender ----------------------------------------------------------------------------------------------------------

uint64_t Channels::usable(const wire::ReplicaTarget& peer) const {
    const Channel* c = find(peer);
    return c != nullptr && c->sender && c->usable() ? c->attempt : 0;
}

uint64_t Channels::extent_bytes_max(const wire::ReplicaTarget& peer, uint64_t left) const {
    const Channel* c = find(peer);
    if (c == nullptr || c->device == nullptr) return 0;
    const auto busy = std::count_if(c->buffers.begin(), c->buffers.end(), [](const Buffer& b) { return b.state != Buffer::State::kFree; });
    return std::min<uint64_t>(c->device->buffer_bytes(), std::max<uint64_t>(kExtentBytesLow, busy == 0 ? 0 : left / 2));
}

std::optional<uint32_t> Channels::take(const wire::ReplicaTarget& peer) {
    Channel* c = find(peer);
    if (c == nullptr || !c->usable()) return std::nullopt;
    for (uint32_t turn = 1; turn <= c->lanes; ++turn) {
        const uint32_t lane = (c->last_lane + turn) % c->lanes;
        for (uint32_t i = lane; i < c->buffers.size(); i += c->lanes) {
            if (!is_free(c->buffers[i])) continue;
            c->buffers[i] = {};
            c->buffers[i].state = Buffer::State::kTaken;
            c->last_lane = lane;
            return i;
        }
    }
    return std::nullopt;
}

Expected<uint64_t> Channels::gather(const wire::ReplicaTarget& peer, uint32_t buffer, const backend::PageCopy& copy) {
    Channel* c = find(peer);
    if (c == nullptr || !c->usable()) return baton::fail(ErrorCode::kPeerLost, "the channel is gone");
    return c->device->gather(buffer, copy);
}

void Channels::send(const wire::ReplicaTarget& peer, uint32_t buffer, uint64_t pull, const Extent& extent, uint64_t bytes, uint64_t gathering,
                    TimeMs now) {
    Channel* c = find(peer);
    if (c == nullptr || !c->usable()) return;
    Buffer& b = c->buffers[buffer];
    b = {};
    b.state = Buffer::State::kAnnounced;
    b.proven = gathering == 0;
    b.ticket = gathering;
    b.bytes = bytes;
    b.pull = pull;
    b.extent = extent;
    b.deadline = now + kAgreeMs;
    c->announced.push_back(buffer);
    launch(*c, now);
}

void Channels::prove(const wire::ReplicaTarget& peer, uint32_t buffer) {
    Channel* c = find(peer);
    if (c == nullptr || buffer >= c->buffers.size()) return;
    Buffer& b = c->buffers[buffer];
    if (b.state == Buffer::State::kAnnounced || b.state == Buffer::State::kMoving || b.state == Buffer::State::kMoved) b.proven = true;
}

void Channels::give(const wire::ReplicaTarget& peer, uint32_t buffer, uint64_t ticket) {
    Channel* c = find(peer);
    if (c == nullptr || buffer >= c->buffers.size() || c->buffers[buffer].state != Buffer::State::kTaken) return;
    c->buffers[buffer] = {};
    c->buffers[buffer].ticket = ticket;
}

}  // namespace baton::xavier
