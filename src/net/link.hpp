#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "baton/base/clock.hpp"
#include "baton/net/connection.hpp"
#include "net/frame_reader.hpp"
#include "net/handshake.hpp"
#include "net/socket.hpp"

namespace baton::net {

/// A connected socket that shakes hands and then is a Connection. All members without a mark run on the strand.
/// The io_context must outlive it.
class Link final : public Connection, public std::enable_shared_from_this<Link> {
  public:
    using ReadyDone = std::function<void(Expected<std::shared_ptr<Link>>)>;

    Link(boost::asio::io_context& io, UniqueFd fd, Side side, Identity self, Options options);
    ~Link() override;

    /// Begins the handshake; `done` runs once, on the strand. Any thread.
    void shake_hands(int64_t timeout_ms, ReadyDone done);
    /// Ends it now with this error. Any thread.
    void abort(Error error);

    void start(Handlers handlers) override;
    void send(const wire::Message& message, std::vector<std::byte> payload, std::vector<int> fds) override;
    void watch(int64_t until_us) override;
    void expect_send(int64_t until_us) override;
    void close() override;
    [[nodiscard]] const wire::Hello& peer() const override { return handshake_.peer(); }
    [[nodiscard]] std::string remote() const override { return remote_; }
    [[nodiscard]] std::string local_ip() const override { return local_ip_; }
    [[nodiscard]] size_t queued_bytes() const override { return queued_bytes_.load(std::memory_order_relaxed); }

  private:
    enum class Phase : uint8_t {
        kShaking,
        kReady,    ///< waits for start()
        kRunning,
        kClosing,  ///< sends the rest, reads nothing but the end
        kClosed,
    };
    struct Frame {
        std::vector<std::byte> head;
        std::vector<std::byte> payload;
        std::vector<UniqueFd> fds;
        size_t sent = 0;
        [[nodiscard]] size_t bytes() const { return head.size() + payload.size(); }
    };

    template <class F>
    void guarded(F&& body);
    template <class F>
    void on_strand(F body);

    void wait_readable();
    void read_some();
    void look();
    bool read_once(size_t& budget);
    bool take_frames();
    bool on_frame(Received received);
    bool on_handshake(const wire::Message& message);

    void linger();
    bool send_now(Frame& frame);
    void flush();
    int write_out();
    IoResult write_once();
    void drop_sent(size_t bytes);
    void finish_if_closing();

    void arm_tick();
    void on_tick();
    void fail_with(Error error);

    boost::asio::strand<boost::asio::io_context::executor_type> strand_;
    boost::asio::posix::stream_descriptor socket_;
    boost::asio::steady_timer tick_;
    boost::asio::steady_timer deadline_;
    const Options options_;
    const int fd_;  ///< of socket_; open as long as that is
    const bool unix_;
    std::string remote_;
    std::string local_ip_;

    Phase phase_ = Phase::kShaking;
    Handshake handshake_;
    ReadyDone ready_done_;
    Handlers handlers_;
    FrameReader reader_;
    bool reading_ = false;   ///< a wait for readability is pending
    bool writing_ = false;   ///< a wait for writability is pending
    bool half_closed_ = false;
    uint64_t heartbeats_ = 0;
    int64_t heartbeat_ms_ = 0;
    TimeMs last_heard_;
    TimeMs last_tick_;

    std::mutex write_mutex_;       ///< who holds it may write; guards outgoing_, and the socket against being closed meanwhile
    std::deque<Frame> outgoing_;
    std::atomic<bool> direct_{false};  ///< running: send() may write by itself. Cleared under write_mutex_ or before it is taken
    std::mutex mutex_;             ///< guards pending_ and flush_posted_; taken after write_mutex_
    std::vector<Frame> pending_;   ///< frames of send() not taken by the strand yet
    std::atomic<bool> sent_{false};       ///< pending_ has some; changed under mutex_
    std::atomic<bool> lingering_{false};  ///< linger() takes what is pending; cleared under mutex_
    bool flush_posted_ = false;
    std::atomic<size_t> queued_bytes_{0};
    std::atomic<bool> refuse_sends_{false};
    std::atomic<int64_t> watch_until_us_{0};
    std::atomic<bool> watching_{false};  ///< a look() is posted
    std::atomic<int64_t> linger_until_us_{0};
    std::atomic<bool> linger_posted_{false};
};

}  // namespace baton::net
