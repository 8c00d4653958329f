#include "http/channel.hpp"

#include <sys/socket.h>

#include <utility>

#include "baton/base/clock.hpp"

namespace baton::http {
namespace {

constexpr size_t kKeptBytesMax = 64 * 1024;  ///< of a buffer that is used again

}  // namespace

Channel::Channel(AnswerForm form, std::function<void()> wake, std::function<bool()> stopping,
                 int socket, std::function<void()> settled)
    : form_(std::move(form)),
      wake_(std::move(wake)),
      stopping_(std::move(stopping)),
      socket_(socket),
      on_settled_(std::move(settled)) {}

void Channel::wake_locked() {
    if (woken_ || detached_ || !wake_) return;
    woken_ = true;
    wake_();
}

void Channel::append(std::string_view bytes) {
    outbox_.append(bytes);
    unsent_.fetch_add(bytes.size(), std::memory_order_relaxed);
}

/// Appends a piece of a stream, in the coding its head announced.
void Channel::append_piece(std::string_view bytes) {
    if (form_.head_only || bytes.empty()) return;
    if (!chunked_) return append(bytes);
    const size_t before = outbox_.size();
    append_chunk(outbox_, bytes);
    unsent_.fetch_add(outbox_.size() - before, std::memory_order_relaxed);
}

/// Where the answering thread can send the rest, and the connection goes on with whatever its client
/// sends next, its I/O thread need not be woken.
void Channel::finish(bool close, std::shared_ptr<void>& held) {
    state_ = State::kFinished;
    close_ = close_ || close;
    ping_ms_.store(0, std::memory_order_relaxed);
    if (!here_ || must_wake_ || close_ || woken_ || client_gone() || !send_locked()) return wake_locked();
    held.swap(held_);
    if (on_settled_) on_settled_();
    settled_.store(true, std::memory_order_release);
}

void Channel::respond(int status, std::string_view body, const Headers& headers,
                      std::string_view content_type) {
    std::function<void()> released;  // destroyed outside the lock: they may own anything
    std::shared_ptr<void> held;
    const std::lock_guard lock(mutex_);
    if (state_ != State::kOpen || detached_) return;
    const bool keep_alive = form_.keep_alive && !stopping_() && !client_gone();
    append(format_head(form_, status, content_type, static_cast<int64_t>(body.size()), headers,
                       keep_alive));
    if (!form_.head_only && status != 204 && status != 304) append(body);
    released = std::move(on_disconnect_);
    on_disconnect_ = nullptr;
    finish(!keep_alive, held);
}

bool Channel::begin_stream(const StreamStart& start) {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kOpen || detached_ || client_gone()) return false;
    chunked_ = !form_.http_1_0;
    const bool keep_alive = form_.keep_alive && chunked_ && !stopping_();
    close_ = !keep_alive;
    Headers headers = start.headers;
    if (start.content_type.starts_with("text/event-stream")) {
        headers.emplace_back("Cache-Control", "no-cache");
        headers.emplace_back("X-Accel-Buffering", "no");
    }
    append(format_head(form_, start.status, start.content_type, -1, headers, keep_alive));
    state_ = State::kStream;
    ping_ms_.store(form_.head_only ? 0 : start.ping_ms, std::memory_order_relaxed);
    wake_locked();
    return true;
}

bool Channel::write(std::string_view bytes) {
    return add(bytes, true);
}

bool Channel::queue(std::string_view bytes) {
    return add(bytes, false);
}

void Channel::flush(bool here) {
    const std::lock_guard lock(mutex_);
    if (outbox_.empty() || woken_ || detached_) return;
    if (!here || !send_locked()) wake_locked();
}

/// Writes the outbox to the socket, where nothing else is on its way there. False where bytes are
/// left, which the I/O thread sends; it also sees to errors.
bool Channel::send_locked() {
    if (socket_ < 0 || unsent_.load(std::memory_order_acquire) != outbox_.size()) return false;
    const ssize_t size =
        ::send(socket_, outbox_.data(), outbox_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (size <= 0) return false;
    unsent_.fetch_sub(static_cast<size_t>(size), std::memory_order_relaxed);
    written_ms_.store(steady_now().ms, std::memory_order_relaxed);
    const bool all = static_cast<size_t>(size) == outbox_.size();
    outbox_.erase(0, static_cast<size_t>(size));
    return all;
}

void Channel::answer_here() {
    const std::lock_guard lock(mutex_);
    here_ = true;
}

bool Channel::add(std::string_view bytes, bool wake) {
    std::function<void()> callback;
    {
        const std::lock_guard lock(mutex_);
        if (state_ != State::kStream || detached_ || client_gone()) return false;
        if (unsent_bytes() + bytes.size() <= limits::kStreamBufferBytesMax) {
            append_piece(bytes);
            if (wake) wake_locked();
            return true;
        }
        overflow_ = true;
        outbox_.clear();
        wake_locked();
        callback = go_locked();
    }
    if (callback) callback();
    return false;
}

void Channel::end() {
    std::function<void()> released;
    std::shared_ptr<void> held;
    const std::lock_guard lock(mutex_);
    if (state_ != State::kStream || detached_) return;
    if (chunked_ && !form_.head_only) {
        const size_t before = outbox_.size();
        append_last_chunk(outbox_);
        unsent_.fetch_add(outbox_.size() - before, std::memory_order_relaxed);
    }
    released = std::move(on_disconnect_);
    on_disconnect_ = nullptr;
    finish(false, held);
}

void Channel::fail() {
    std::function<void()> released;
    std::shared_ptr<void> held;
    const std::lock_guard lock(mutex_);
    if (state_ == State::kFinished || detached_) return;
    broken_ = true;
    released = std::move(on_disconnect_);
    on_disconnect_ = nullptr;
    finish(true, held);
}

void Channel::abandon() {
    bool open = false;
    std::function<void()> released;
    {
        const std::lock_guard lock(mutex_);
        if (state_ == State::kFinished || detached_) return;
        open = state_ == State::kOpen && !client_gone();
        released.swap(on_disconnect_);
    }
    if (open)
        return respond(500, protocol_error_body(500, "the request ended without an answer"), {},
                       "application/json");
    fail();
}

void Channel::on_disconnect(std::function<void()> callback) {
    {
        const std::lock_guard lock(mutex_);
        if (state_ == State::kFinished) return;
        if (!client_gone()) {
            on_disconnect_.swap(callback);
            return;
        }
    }
    if (callback) callback();
}

bool Channel::answered() const {
    const std::lock_guard lock(mutex_);
    return state_ != State::kOpen;
}

void Channel::hold(std::shared_ptr<void> token) {
    const std::lock_guard lock(mutex_);
    if (!detached_) held_.swap(token);
}

Channel::Taken Channel::take(std::string& bytes) {
    if (bytes.capacity() > kKeptBytesMax) bytes = {};
    const std::lock_guard lock(mutex_);
    woken_ = false;
    Taken taken;
    bytes.swap(outbox_);
    taken.finished = state_ == State::kFinished;
    taken.close = close_;
    taken.broken = broken_;
    taken.overflow = overflow_;
    return taken;
}

/// Marks the client as gone and hands out the callback to run outside the lock.
std::function<void()> Channel::go_locked() {
    if (gone_.exchange(true, std::memory_order_acq_rel) || state_ == State::kFinished) return {};
    std::function<void()> callback = std::move(on_disconnect_);
    on_disconnect_ = nullptr;
    return callback;
}

Channel::PeerClosed Channel::peer_closed() {
    std::function<void()> callback;
    PeerClosed result;
    {
        const std::lock_guard lock(mutex_);
        callback = go_locked();
        result.incomplete = state_ != State::kFinished;
        result.nothing_left = state_ == State::kStream || settled();
        close_ = true;
    }
    if (callback) callback();
    return result;
}

bool Channel::detach() {
    std::function<void()> callback;
    std::function<void()> wake;
    std::shared_ptr<void> held;
    bool incomplete = false;
    {
        const std::lock_guard lock(mutex_);
        incomplete = state_ != State::kFinished;
        detached_ = true;
        wake = std::move(wake_);
        wake_ = nullptr;
        socket_ = -1;
        outbox_.clear();
        held.swap(held_);
        callback = go_locked();
    }
    if (callback) callback();
    return incomplete;
}

void Channel::keep_socket() {
    const std::lock_guard lock(mutex_);
    socket_ = -1;
}

bool Channel::wake_at_end() {
    const std::lock_guard lock(mutex_);
    must_wake_ = true;
    return settled();
}

void Channel::ping() {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kStream || detached_ || client_gone()) return;
    append_piece(": ping\r\n\r\n");
    wake_locked();
}

}  // namespace baton::http
