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
    /// `socket`: where the threads that answer may write plain bytes themselves; -1: nowhere.
    /// `settled` is called, under the lock, when one of them wrote an answer's last byte and `wake`
    /// is not called for it.
    Channel(AnswerForm form, std::function<void()> wake, std::function<bool()> stopping,
            int socket = -1, std::function<void()> settled = {});

    // ---- exchange side, any thread
    void respond(int status, std::string_view body, const Headers& headers,
                 std::string_view content_type);
    bool begin_stream(const StreamStart& start);
    bool write(std::string_view bytes);
    bool queue(std::string_view bytes);
    void flush(bool here);
    void answer_here();
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
    void sent(size_t bytes) { unsent_.fetch_sub(bytes, std::memory_order_release); }
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
    /// When another thread last wrote to the socket, on steady_now()'s clock.
    [[nodiscard]] int64_t written_ms() const { return written_ms_.load(std::memory_order_relaxed); }
    /// No other thread writes to the socket any more: it may be closed.
    void keep_socket();
    /// The answer is over and with the kernel, and nobody was woken for it.
    [[nodiscard]] bool settled() const { return settled_.load(std::memory_order_acquire); }
    /// The connection has more to do after this answer: its end shall wake it. True where it has
    /// settled already.
    [[nodiscard]] bool wake_at_end();

  private:
    enum class State : uint8_t { kOpen, kStream, kFinished };
    void append(std::string_view bytes);
    void append_piece(std::string_view bytes);
    void finish(bool close, std::shared_ptr<void>& held);
    bool add(std::string_view bytes, bool wake);
    bool send_locked();
    void wake_locked();
    std::function<void()> go_locked();

    const AnswerForm form_;
    mutable std::mutex mutex_;
    std::function<void()> wake_;  // empty once detached
    std::function<bool()> stopping_;
    std::function<void()> on_disconnect_;
    std::shared_ptr<void> held_;
    std::string outbox_;
    int socket_;         // -1 once detached
    bool here_ = false;  // answer_here()
    bool must_wake_ = false;  // wake_at_end()
    std::function<void()> on_settled_;
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
    std::atomic<int64_t> written_ms_ = 0;
    std::atomic<bool> settled_ = false;
};

}  // namespace baton::http
