#pragma once

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "baton/http/server.hpp"
#include "http/channel.hpp"
#include "http/flush_list.hpp"
#include "http/head_check.hpp"
#include "http/request_parser.hpp"
#include "http/transport.hpp"

namespace baton::http {

class Connection;

/// What all connections of a server share. Any thread.
struct ServerState {
    ServerState(ServerOptions o, Handler h)
        : options(std::move(o)), handler(std::move(h)), keys_(std::make_shared<const KeyRing>(options)) {}

    const ServerOptions options;
    const Handler handler;
    std::atomic<bool> stopping = false;
    std::atomic<size_t> body_bytes = 0;  ///< of all bodies being read or not yet answered
    std::atomic<uint64_t> requests = 0, protocol_errors = 0, unauthorized = 0, disconnects = 0,
                          refused = 0, handshakes_failed = 0;
    std::atomic<size_t> handshakes = 0;  ///< under way
    std::atomic<int64_t> handshake_logged_ms = INT64_MIN / 2;

    std::mutex mutex;
    std::condition_variable idle;
    size_t exchanges = 0;
    std::unordered_map<Connection*, std::weak_ptr<Connection>> connections;
    std::unordered_map<std::string, size_t> per_ip;

    void exchange_started();
    void exchange_finished();

    /// The keys that are good now.
    [[nodiscard]] std::shared_ptr<const KeyRing> keys() const {
        const std::lock_guard lock(keys_mutex_);
        return keys_;
    }
    void set_keys(std::shared_ptr<const KeyRing> keys) {
        const std::lock_guard lock(keys_mutex_);
        keys_.swap(keys);
    }

    /// What new connections are to use; null where the server speaks no TLS.
    [[nodiscard]] TlsContext tls() const {
        const std::lock_guard lock(keys_mutex_);
        return tls_.context;
    }
    [[nodiscard]] CertificateFacts certificate() const {
        const std::lock_guard lock(keys_mutex_);
        return tls_.certificate;
    }
    void set_tls(ServerTls tls) {
        const std::lock_guard lock(keys_mutex_);
        std::swap(tls_, tls);
    }

  private:
    mutable std::mutex keys_mutex_;
    ServerTls tls_;
    std::shared_ptr<const KeyRing> keys_;
};

/// Counts body bytes against ServerOptions::bodies_bytes_max and gives them back at its end.
class BodyBudget {
  public:
    explicit BodyBudget(std::shared_ptr<ServerState> state) : state_(std::move(state)) {}
    BodyBudget(BodyBudget&& other) noexcept
        : state_(std::move(other.state_)), held_(std::exchange(other.held_, 0)) {}
    BodyBudget& operator=(BodyBudget&& other) noexcept;
    ~BodyBudget() { release(); }
    /// Counts up to `bytes` in all; false when the server's bound is reached.
    [[nodiscard]] bool grow_to(size_t bytes);
    void release();

  private:
    std::shared_ptr<ServerState> state_;
    size_t held_ = 0;
};

/// One client connection: reads requests one after another, hands each to the handler, writes its
/// answer, and notices at any time when the client goes away. Lives on one I/O thread; only drop()
/// and idle_since() are for others.
class Connection : public std::enable_shared_from_this<Connection> {
  public:
    /// `flushes` is the list of the I/O thread that runs `io`; `tls` may be null.
    Connection(boost::asio::io_context& io, FlushList<Connection>& flushes,
               boost::asio::ip::tcp::socket socket, std::string remote,
               std::shared_ptr<ServerState> state, TlsContext tls);
    ~Connection();

    void start();
    /// Writes what the channel has; whatever is thrown costs this connection alone. I/O thread.
    void flush_guarded();
    /// Closes at once. Any thread.
    void drop();
    /// Closes unless a request is being served; one that is still arriving counts as idle where
    /// `reading_too`. Any thread.
    void drop_if_idle(bool reading_too);
    /// As drop_if_idle(true), and idle_since_ms() is INT64_MAX from now on, so that the next victim
    /// is another one.
    void evict();
    /// Since when no request is being served (INT64_MAX while one is). Any thread.
    [[nodiscard]] int64_t idle_since_ms() const {
        return idle_since_.load(std::memory_order_relaxed);
    }
    /// Since when its TLS handshake is under way (INT64_MAX while none is). Any thread.
    [[nodiscard]] int64_t handshake_since_ms() const {
        return handshake_since_.load(std::memory_order_relaxed);
    }

  private:
    enum class Phase : uint8_t {
        kHandshake,  ///< of TLS; where that is spoken a connection begins here
        kIdle,     ///< waiting for the first byte of a request
        kReading,  ///< head or body is coming
        kServing,  ///< the handler has it
        kLinger,   ///< answered and shut down; what still arrives is thrown away
        kClosed,
    };

    // TLS
    void on_handshake();
    void handshake_failed(std::string_view reason);
    void end_handshake();
    void refuse_plain_http();

    // reading
    void wait_readable();
    void on_readable();
    void on_bytes(std::string_view bytes);
    void on_eof();
    void read_ahead(std::string_view bytes);
    bool on_head();
    void on_request();
    void refuse(int status, std::string_view message, Headers headers = {});
    void open_channel();
    void next_request();

    // writing
    void flush();
    bool write_some();
    void on_settled();
    void settle();
    void finish_exchange(const Channel::Taken& taken);
    void end_exchange();
    void count_disconnect(bool incomplete);

    // ending
    void linger();
    void close();

    // time
    void set_deadline(int64_t& slot, int64_t at_ms);
    void on_timer();
    void on_read_deadline();
    void arm();

    boost::asio::io_context& io_;
    FlushList<Connection>& flushes_;
    Transport transport_;
    TlsContext tls_;  ///< until the handshake is through
    boost::asio::steady_timer timer_;
    const std::string remote_;
    const std::shared_ptr<ServerState> state_;
    RequestParser parser_;
    BodyBudget budget_;
    std::shared_ptr<Channel> channel_;
    std::shared_ptr<Connection>
        serving_self_;   ///< keeps this alive while the answer is all that is awaited
    std::string ahead_;  ///< bytes of further requests, read while one is served
    std::string out_;    ///< being written
    size_t out_sent_ = 0;
    Channel::Taken taken_;
    Phase phase_ = Phase::kIdle;
    bool reading_ = false;  ///< a wait for readability is out
    bool writing_ = false;  ///< a wait for writability is out
    bool peer_eof_ = false;
    bool close_after_ = false;
    std::atomic<bool> counted_ = false;  ///< the exchange is in ServerState::exchanges
    Permissions permissions_;    ///< of the exchange
    bool gone_counted_ = false;  ///< its disconnect is in ServerState::disconnects
    int64_t read_deadline_ = INT64_MAX;
    int64_t write_deadline_ = INT64_MAX;
    int64_t ping_at_ = INT64_MAX;
    int64_t look_at_ = INT64_MAX;  ///< while serving: when to see whether the answer has settled
    int64_t armed_at_ = INT64_MAX;
    int64_t body_started_ = 0;
    int64_t request_started_ = 0;
    size_t lingered_ = 0;
    std::atomic<int64_t> idle_since_;
    std::atomic<int64_t> handshake_since_ = INT64_MAX;
};

}  // namespace baton::http
