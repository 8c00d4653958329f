#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "baton/http/server.hpp"
#include "http/answer_bytes.hpp"

namespace baton::http {

/// The meeting place of one exchange (any thread) and its connection (one I/O thread): bytes to
/// send and the state of the answer. `wake` is called, under the lock, whenever the connection has
/// something to do; it only posts. After detach() the channel never calls it again, so the
/// connection's io_context may go.
class Channel {
  public:
    Channel(AnswerForm form, std::function<void()> wake, std::function<bool()> stopping);

    // ---- exchange side, any thread
    void respond(int status, std::string_view body, const Headers& headers,
                 std::string_view content_type);
    bool begin_stream(const StreamStart& start);
    bool write(std::string_view bytes);
    void end();
    void fail();
    /// The exchange was dropped: answers 500 where nothing was, breaks an unfinished stream.
    void abandon();
    void on_disconnect(std::function<void()> callback);
    [[nodiscard]] bool client_gone() const { return gone_.load(std::memory_order_acquire); }
    [[nodiscard]] bool answered() const;
    [[nodiscard]] size_t unsent_bytes() const { return unsent_.load(std::memory_order_relaxed); }
    void hold(std::shared_ptr<void> token);

    // ---- connection side, its I/O thread
    struct Taken {
        bool finished = false;  ///< nothing more will come
        bool close = false;     ///< after the bytes
        bool broken = false;    ///< close without grace
        bool overflow = false;  ///< the client does not read: drop it now
    };
    /// Swaps the bytes to send into `bytes`, which is empty and whose memory is used again.
    [[nodiscard]] Taken take(std::string& bytes);
    void sent(size_t bytes) { unsent_.fetch_sub(bytes, std::memory_order_relaxed); }
    struct PeerClosed {
        bool incomplete = false;    ///< the answer was not complete
        bool nothing_left = false;  ///< the connection has nothing left to wait for
    };
    /// The client closed its side. A plain answer may still be sent (it may only have shut down its
    /// sending side), a stream may not.
    [[nodiscard]] PeerClosed peer_closed();
    /// The connection is gone. Fires on_disconnect when the answer was not complete; returns
    /// whether that was so.
    bool detach();
    /// Milliseconds of silence after which a stream wants a ping; 0: never.
    [[nodiscard]] int64_t ping_ms() const { return ping_ms_.load(std::memory_order_relaxed); }
    /// Adds a ping comment to an open stream.
    void ping();

  private:
    enum class State : uint8_t { kOpen, kStream, kFinished };
    void append(std::string_view bytes);
    void append_piece(std::string_view bytes);
    void finish(bool close);
    void wake_locked();
    std::function<void()> go_locked();

    const AnswerForm form_;
    mutable std::mutex mutex_;
    std::function<void()> wake_;  // empty once detached
    std::function<bool()> stopping_;
    std::function<void()> on_disconnect_;
    std::shared_ptr<void> held_;
    std::string outbox_;
    State state_ = State::kOpen;
    bool detached_ = false;
    bool woken_ = false;
    bool close_ = false;
    bool broken_ = false;
    bool overflow_ = false;
    bool chunked_ = false;
    std::atomic<bool> gone_ = false;
    std::atomic<size_t> unsent_ = 0;
    std::atomic<int64_t> ping_ms_ = 0;
};

}  // namespace baton::http
