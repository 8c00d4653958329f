#include "net/link.hpp"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/post.hpp>
#include <cstring>
#include <exception>
#include <span>

#include "baton/base/check.hpp"
#include "baton/base/digest.hpp"
#include "baton/base/limits.hpp"
#include "baton/base/relax.hpp"
#include "net/socket.hpp"

namespace baton::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr int64_t kCloseMs = 1'000;
/// Bytes read or written before other links of the thread get their turn.
constexpr size_t kTurnBytes = 8u * 1024 * 1024;
constexpr size_t kBuffersPerCall = 128;
constexpr size_t kChallengeRandomBytes = 32;

Error peer_gone(int error) {
    if (error == 0) return {ErrorCode::kPeerLost, "closed by the other side", {}};
    if (error == EMSGSIZE) return {ErrorCode::kCorrupt, "more descriptors in a frame than allowed", {}};
    return {ErrorCode::kPeerLost, std::string("link lost: ") + std::strerror(error), {}};
}

}  // namespace

Link::Link(asio::io_context& io, UniqueFd fd, Side side, Identity self, Options options)
    : strand_(asio::make_strand(io)),
      socket_(strand_),
      tick_(strand_),
      deadline_(strand_),
      options_(options),
      fd_(fd.get()),
      unix_(local_address(fd.get()).storage.ss_family == AF_UNIX),
      remote_(to_text(remote_address(fd.get()))),
      local_ip_(unix_ ? "" : to_text(local_address(fd.get()), false)),
      handshake_(side, std::move(self), random_hex(kChallengeRandomBytes)),
      reader_(kHelloBytesMax, 0),
      heartbeat_ms_(std::clamp<int64_t>(options.silence_ms / 4, 1, limits::kHeartbeatMs)) {
    if (!unix_) set_no_delay(fd.get());
    error_code ec;
    const int raw = fd.release();
    socket_.assign(raw, ec);
    if (ec) ::close(raw);
}

Link::~Link() = default;

/// Nothing a handler or the standard library throws may reach the io_context: it costs this link, not the process.
template <class F>
void Link::guarded(F&& body) {
    try {
        body();
    } catch (const std::exception& e) {
        fail_with({ErrorCode::kInternal, std::string("link handler failed: ") + e.what(), {}});
    } catch (...) {
        fail_with({ErrorCode::kInternal, "link handler failed", {}});
    }
}

template <class F>
void Link::on_strand(F body) {
    asio::post(strand_, [self = shared_from_this(), body = std::move(body)]() mutable { self->guarded(body); });
}

// ---- life --------------------------------------------------------------------------------------------------------

void Link::shake_hands(int64_t timeout_ms, ReadyDone done) {
    on_strand([this, timeout_ms, done = std::move(done)]() mutable {
        ready_done_ = std::move(done);
        if (!socket_.is_open()) return fail_with({ErrorCode::kIo, "cannot watch the socket", {}});
        deadline_.expires_after(std::chrono::milliseconds(timeout_ms));
        deadline_.async_wait([self = shared_from_this()](error_code ec) {
            if (ec || self->phase_ != Phase::kShaking) return;
            self->fail_with({ErrorCode::kTimeout, "no handshake in time", {}});
        });
        if (auto first = handshake_.first()) send(*first, {}, {});
        read_some();
    });
}

void Link::start(Handlers handlers) {
    on_strand([this, handlers = std::move(handlers)]() mutable {
        if (phase_ == Phase::kClosed) {  // lost before anybody listened
            if (handlers.on_close) handlers.on_close({ErrorCode::kPeerLost, "closed before it was started", {}});
            return;
        }
        BATON_CHECK(phase_ == Phase::kReady || phase_ == Phase::kClosing);
        handlers_ = std::move(handlers);
        if (phase_ == Phase::kClosing) return;
        phase_ = Phase::kRunning;
        direct_ = true;
        last_heard_ = last_tick_ = steady_now();
        arm_tick();
        if (take_frames()) read_some();
    });
}

void Link::close() {
    on_strand([this] {
        if (phase_ == Phase::kClosing || phase_ == Phase::kClosed) return;
        if (phase_ == Phase::kShaking) return fail_with({ErrorCode::kCancelled, "link closed", {}});
        phase_ = Phase::kClosing;
        direct_ = false;
        tick_.cancel();
        deadline_.expires_after(std::chrono::milliseconds(kCloseMs));
        deadline_.async_wait([self = shared_from_this()](error_code ec) {
            if (!ec) self->fail_with({ErrorCode::kCancelled, "link closed", {}});
        });
        flush();
        if (phase_ == Phase::kClosing) read_some();  // to the end: closing with unread bytes would destroy sent ones
    });
}

void Link::abort(Error error) {
    on_strand([this, error = std::move(error)]() mutable { fail_with(std::move(error)); });
}

void Link::fail_with(Error error) {
    if (phase_ == Phase::kClosed) return;
    phase_ = Phase::kClosed;
    refuse_sends_ = true;
    direct_ = false;
    tick_.cancel();
    deadline_.cancel();
    {
        const std::scoped_lock lock(write_mutex_, mutex_);
        error_code ignored;
        socket_.close(ignored);
        outgoing_.clear();
        pending_.clear();
        sent_ = false;
        queued_bytes_ = 0;
    }
    // Out of the members first: they may own what owns this link, and none may run twice.
    auto ready = std::exchange(ready_done_, nullptr);
    auto handlers = std::exchange(handlers_, {});
    try {
        if (ready) ready(fail(error));
        if (handlers.on_close) handlers.on_close(error);
    } catch (...) {  // the link is closed already: nothing left to end
    }
}

// ---- reading -----------------------------------------------------------------------------------------------------

void Link::wait_readable() {
    if (reading_ || phase_ == Phase::kClosed) return;
    reading_ = true;
    socket_.async_wait(asio::posix::stream_descriptor::wait_read, [self = shared_from_this()](error_code ec) {
        self->reading_ = false;
        if (ec || self->phase_ == Phase::kClosed) return;
        self->guarded([&] { self->read_some(); });
    });
}

void Link::read_some() {
    size_t budget = kTurnBytes;
    while (phase_ != Phase::kClosed && phase_ != Phase::kReady && budget > 0)
        if (!read_once(budget)) break;
    // Out of budget: readiness is still there, so the wait ends at once, after the others had their turn.
    if (phase_ != Phase::kClosed && phase_ != Phase::kReady) wait_readable();
}

void Link::watch(int64_t until_us) {
    watch_until_us_ = until_us;
    if (!watching_.exchange(true)) on_strand([this] { look(); });
}

void Link::look() {
    watching_ = false;  // from now on watch() asks for another look; one too many harms nobody
    if (phase_ != Phase::kRunning) return;
    size_t budget = kTurnBytes;
    while (phase_ == Phase::kRunning && budget > 0 && read_once(budget)) {}
    if (phase_ == Phase::kRunning && steady_now_us() < watch_until_us_ && !watching_.exchange(true)) on_strand([this] { look(); });
}

/// Reads once and handles what came; false when there is nothing more to read now.
bool Link::read_once(size_t& budget) {
    std::vector<UniqueFd> fds;
    if (phase_ == Phase::kClosing) {
        std::array<std::byte, 4096> scrap;
        const IoResult r = receive(fd_, scrap, unix_, fds);
        if (r.end || r.error != 0) {
            if (half_closed_) fail_with({ErrorCode::kCancelled, "link closed", {}});
            else fail_with(peer_gone(r.error));
        }
        budget -= std::min(budget, scrap.size());
        return !r.would_block && phase_ == Phase::kClosing;
    }
    const std::span<std::byte> space = reader_.read_space();
    const IoResult r = receive(fd_, space, unix_, fds);
    if (r.would_block) return false;
    if (r.end || r.error != 0) {
        fail_with(peer_gone(r.error));
        return false;
    }
    last_heard_ = steady_now();
    reader_.on_read(r.bytes, std::move(fds));
    budget -= std::min(budget, r.bytes);
    if (!take_frames()) return false;
    return r.bytes == space.size() || unix_;  // a short read from TCP emptied the socket
}

/// Handles every whole frame; false when reading must stop.
bool Link::take_frames() {
    while (phase_ == Phase::kShaking || phase_ == Phase::kRunning) {
        auto received = reader_.next();
        if (!received) {
            fail_with(std::move(received).error());
            return false;
        }
        if (!*received) return true;
        if (!on_frame(std::move(**received))) return false;
    }
    return phase_ == Phase::kClosing;
}

bool Link::on_frame(Received received) {
    if (phase_ == Phase::kShaking) return on_handshake(received.message);
    if (!std::holds_alternative<wire::Heartbeat>(received.message) && handlers_.on_message)
        handlers_.on_message(std::move(received));
    return phase_ != Phase::kClosed;
}

bool Link::on_handshake(const wire::Message& message) {
    auto step = handshake_.on_message(message);
    if (!step) {
        // The reason goes out if the socket takes it at once; a stranger is not waited for.
        if (step.error().code != ErrorCode::kCorrupt && !std::holds_alternative<wire::Refused>(message)) {
            send(wire::Refused{static_cast<uint8_t>(step.error().code), step.error().message}, {}, {});
            flush();
        }
        fail_with(std::move(step).error());
        return false;
    }
    if (step->reply) send(*step->reply, {}, {});
    if (!step->done) return true;
    deadline_.cancel();
    phase_ = Phase::kReady;
    reader_.set_limits(limits::kFrameBytesMax, limits::kFrameBytesMax);
    flush();
    if (phase_ != Phase::kReady) return false;
    auto ready = std::exchange(ready_done_, nullptr);
    if (ready) ready(shared_from_this());
    return false;
}

// ---- writing -----------------------------------------------------------------------------------------------------

void Link::send(const wire::Message& message, std::vector<std::byte> payload, std::vector<int> fds) {
    const auto* extent = std::get_if<wire::ExtentHeader>(&message);
    BATON_CHECK(payload.size() == (extent != nullptr ? extent->bytes : 0));
    BATON_CHECK(fds.size() <= kFdsPerFrameMax);
    // Not a check: it is the other side that chose how it connects.
    if (!fds.empty() && !unix_) return abort({ErrorCode::kUnsupported, "descriptors can only be passed on a unix socket", {}});
    if (refuse_sends_.load(std::memory_order_relaxed)) return;
    Frame frame;
    frame.head = wire::encode(message);
    frame.payload = std::move(payload);
    if (frame.head.size() - wire::kFrameHeaderBytes > limits::kFrameBytesMax ||
        frame.payload.size() > limits::kFrameBytesMax)
        return abort({ErrorCode::kInternal, "message over the frame limit", {}});
    for (const int fd : fds) {
        UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
        if (!copy) return abort({ErrorCode::kIo, std::string("cannot pass a descriptor: ") + std::strerror(errno), {}});
        frame.fds.push_back(std::move(copy));
    }
    const size_t queued = queued_bytes_.fetch_add(frame.bytes()) + frame.bytes();
    if (queued > options_.queue_bytes_max) {
        refuse_sends_ = true;
        return abort({ErrorCode::kOverloaded, "the other side does not read: " + std::to_string(queued) + " bytes queued", {}});
    }
    if (!lingering_.load(std::memory_order_relaxed) && send_now(frame)) return;
    bool post = false;
    {
        const std::lock_guard lock(mutex_);
        pending_.push_back(std::move(frame));
        sent_ = true;
        post = !lingering_ && !std::exchange(flush_posted_, true);
    }
    if (post) on_strand([this] { flush(); });
}

void Link::expect_send(int64_t until_us) {
    linger_until_us_ = until_us;
    if (!linger_posted_.exchange(true)) on_strand([this] { linger(); });
}

/// Looks a while for a frame of send(), then gives others of the thread their turn. Ends with the first one.
void Link::linger() {
    constexpr int kLooks = 64;
    if (phase_ == Phase::kRunning && steady_now_us() < linger_until_us_) {
        lingering_ = true;  // only now: until the thread is awake, who sends writes by itself
        for (int i = 0; i < kLooks && !sent_.load(std::memory_order_relaxed); ++i) relax();
        if (!sent_) {
            ::sched_yield();  // who is to send may wait for this core
            return on_strand([this] { linger(); });
        }
    }
    linger_posted_ = false;
    {
        const std::lock_guard lock(mutex_);
        lingering_ = false;
        if (pending_.empty()) return;
    }
    flush();
}

/// Writes from the caller's thread where nothing waits ahead of the frame: it saves a way through the strand's thread. What the
/// socket does not take is left to the strand. False where the frame must queue.
bool Link::send_now(Frame& frame) {
    if (!direct_.load(std::memory_order_relaxed)) return false;
    int error = 0;
    {
        const std::unique_lock writing(write_mutex_, std::try_to_lock);
        if (!writing || !direct_ || !outgoing_.empty()) return false;
        {
            const std::lock_guard lock(mutex_);
            if (!pending_.empty()) return false;
        }
        outgoing_.push_back(std::move(frame));
        error = write_out();
        if (error == 0 && outgoing_.empty()) return true;
    }
    if (error != 0) abort(peer_gone(error));
    else on_strand([this] { flush(); });
    return true;
}

void Link::flush() {
    int error = 0;
    bool more = false;
    {
        const std::lock_guard writing(write_mutex_);
        {
            const std::lock_guard lock(mutex_);
            flush_posted_ = false;
            std::move(pending_.begin(), pending_.end(), std::back_inserter(outgoing_));
            pending_.clear();
            sent_ = false;
        }
        if (phase_ == Phase::kClosed) {
            outgoing_.clear();
            queued_bytes_ = 0;
            return;
        }
        if (writing_) return;
        error = write_out();
        more = !outgoing_.empty();
    }
    if (error != 0) return fail_with(peer_gone(error));
    if (!more) return finish_if_closing();
    writing_ = true;
    socket_.async_wait(asio::posix::stream_descriptor::wait_write, [self = shared_from_this()](error_code ec) {
        self->writing_ = false;
        if (ec || self->phase_ == Phase::kClosed) return;
        self->guarded([&] { self->flush(); });
    });
}

/// Writes until all is out, the socket is full or a turn is over; an error number where the link is lost. write_mutex_ is held.
int Link::write_out() {
    for (size_t turn = 0; !outgoing_.empty() && turn < kTurnBytes;) {
        const IoResult r = write_once();
        if (r.error != 0) return r.error;
        if (r.would_block) break;
        turn += r.bytes;
    }
    return 0;
}

/// One gathering write.
IoResult Link::write_once() {
    std::array<std::span<const std::byte>, kBuffersPerCall> parts;
    size_t count = 0;
    std::span<const UniqueFd> fds;
    for (size_t i = 0; i < outgoing_.size() && count + 2 <= parts.size(); ++i) {
        const Frame& f = outgoing_[i];
        if (!f.fds.empty() && i > 0) break;  // descriptors need a call of their own that begins with their frame
        const size_t head_sent = std::min(f.sent, f.head.size());
        const size_t payload_sent = f.sent - head_sent;
        parts[count++] = std::span(f.head).subspan(head_sent);
        if (!f.payload.empty()) parts[count++] = std::span(f.payload).subspan(payload_sent);
        if (!f.fds.empty()) {
            fds = f.fds;
            break;
        }
    }
    const IoResult r = send_buffers(fd_, std::span(parts).first(count), fds);
    if (r.error != 0 || r.would_block) return r;
    if (!fds.empty()) outgoing_.front().fds.clear();
    drop_sent(r.bytes);
    return r;
}

void Link::drop_sent(size_t bytes) {
    queued_bytes_.fetch_sub(bytes);
    while (bytes > 0) {
        Frame& f = outgoing_.front();
        const size_t n = std::min(bytes, f.bytes() - f.sent);
        f.sent += n;
        bytes -= n;
        if (f.sent == f.bytes()) outgoing_.pop_front();
    }
}

void Link::finish_if_closing() {
    if (phase_ != Phase::kClosing || half_closed_) return;
    half_closed_ = true;
    refuse_sends_ = true;
    ::shutdown(fd_, SHUT_WR);
}

// ---- liveness ----------------------------------------------------------------------------------------------------

void Link::arm_tick() {
    tick_.expires_after(std::chrono::milliseconds(heartbeat_ms_));
    tick_.async_wait([self = shared_from_this()](error_code ec) {
        if (!ec) self->guarded([&] { self->on_tick(); });
    });
}

void Link::on_tick() {
    if (phase_ != Phase::kRunning) return;
    const TimeMs now = steady_now();
    // When this process itself was stopped, what the peer sent meanwhile lies unread: listen for a beat first.
    const bool was_stopped = now - last_tick_ > 2 * heartbeat_ms_;
    last_tick_ = now;
    if (!was_stopped && now - last_heard_ > options_.silence_ms)
        return fail_with({ErrorCode::kPeerLost, "silent for " + std::to_string(now - last_heard_) + " ms", {}});
    if (queued_bytes() == 0) send(wire::Heartbeat{++heartbeats_}, {}, {});
    arm_tick();
}

}  // namespace baton::net
