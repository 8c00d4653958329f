#include "baton/http/server.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <exception>
#include <optional>
#include <thread>

#include "baton/base/fd.hpp"
#include "baton/base/log.hpp"
#include "http/connection.hpp"

namespace baton::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr int64_t kWarnEveryMs = 1'000;
constexpr size_t kLeavingMax = 16;
constexpr int64_t kHandshakeGraceMs = 1'000;  ///< which a handshake has before it makes room for another
constexpr auto kAcceptPause = std::chrono::milliseconds(5);

/// No more connections than three quarters of the descriptors this process may have.
size_t connection_bound(size_t wanted) {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
    return std::min<size_t>(wanted, std::max<size_t>(8, limit.rlim_cur / 4 * 3));
}

struct IoThread {
    asio::io_context io{1};
    FlushList<Connection> flushes{io};
    asio::executor_work_guard<asio::io_context::executor_type> work = asio::make_work_guard(io);
    std::thread thread;
};

class ServerOnAsio final : public Server {
  public:
    ServerOnAsio(ServerOptions options, Handler handler)
        : state_(std::make_shared<ServerState>(std::move(options), std::move(handler))),
          connections_max_(connection_bound(state_->options.connections_max)) {
        const size_t threads = std::max<size_t>(1, state_->options.threads);
        for (size_t i = 0; i < threads; ++i) threads_.push_back(std::make_unique<IoThread>());
        acceptor_.emplace(threads_.front()->io);
        pause_.emplace(threads_.front()->io);
    }
    ~ServerOnAsio() override { close(); }

    void set_keys(const std::vector<std::string>& admin_keys,
                  const std::vector<std::string>& inference_keys) override {
        state_->set_keys(std::make_shared<const KeyRing>(state_->options, admin_keys, inference_keys));
    }

    Expected<CertificateFacts> load_certificate(const std::string& certificate_file, const std::string& key_file) override;
    [[nodiscard]] std::optional<CertificateFacts> certificate() const override;

    Expected<void> open();
    [[nodiscard]] uint16_t port() const override { return endpoint_.port(); }
    [[nodiscard]] std::string address() const override;
    void stop_accepting() override;
    bool drain(int64_t timeout_ms) override;
    void close() override;
    [[nodiscard]] Stats stats() const override;

  private:
    void accept();
    void on_accept(const boost::system::error_code& ec, tcp::socket socket, IoThread& home);
    void admit(tcp::socket socket, IoThread& home);
    bool make_room(const std::string& ip);
    bool drop_oldest_idle();
    void drop_slow_handshake();
    [[nodiscard]] std::vector<std::shared_ptr<Connection>> connections() const;
    void turn_away();
    void pause_accepting();
    static void run(asio::io_context& io);

    const std::shared_ptr<ServerState> state_;
    const size_t connections_max_;
    const bool tls_ = !state_->options.tls_certificate.empty() || !state_->options.tls_key.empty();
    std::vector<std::unique_ptr<IoThread>> threads_;
    std::optional<tcp::acceptor> acceptor_;
    std::optional<asio::steady_timer> pause_;
    tcp::endpoint endpoint_;
    UniqueFd spare_;  ///< given up for a moment when descriptors run out, so that a client can be
                      ///< turned away
    size_t next_home_ = 0;
    int64_t last_warned_ms_ = INT64_MIN / 2;
    bool closed_ = false;
};

Expected<CertificateFacts> ServerOnAsio::load_certificate(const std::string& certificate_file, const std::string& key_file) {
    if (!tls_) return fail(ErrorCode::kUnsupported, "the server was started without TLS", "tls_certificate");
    BATON_TRY_ASSIGN(ServerTls tls, load_server_tls(certificate_file, key_file));
    CertificateFacts facts = tls.certificate;
    state_->set_tls(std::move(tls));
    return facts;
}

std::optional<CertificateFacts> ServerOnAsio::certificate() const {
    if (!tls_) return std::nullopt;
    return state_->certificate();
}

Expected<void> ServerOnAsio::open() {
    if (tls_) BATON_TRY(load_certificate(state_->options.tls_certificate, state_->options.tls_key));
    boost::system::error_code ec;
    asio::ip::address address = asio::ip::make_address(state_->options.host, ec);
    if (ec) {
        tcp::resolver resolver(threads_.front()->io);
        const auto found = resolver.resolve(state_->options.host, "", tcp::resolver::passive, ec);
        if (ec || found.empty())
            return fail(ErrorCode::kIo, "cannot resolve the host to listen on", "host");
        address = found.begin()->endpoint().address();
    }
    const tcp::endpoint wanted(address, state_->options.port);
    acceptor_->open(wanted.protocol(), ec);
    if (!ec) acceptor_->set_option(tcp::acceptor::reuse_address(true), ec);
    if (!ec) acceptor_->bind(wanted, ec);
    if (!ec) acceptor_->listen(asio::socket_base::max_listen_connections, ec);
    if (!ec) acceptor_->non_blocking(true, ec);
    if (!ec) endpoint_ = acceptor_->local_endpoint(ec);
    if (ec) {
        return fail(ErrorCode::kIo,
                    "cannot listen on " + state_->options.host + ":" +
                        std::to_string(state_->options.port) + ": " + ec.message(),
                    "port");
    }
    spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    accept();
    for (const auto& home : threads_) {
        home->thread = std::thread([&io = home->io] { run(io); });
    }
    return {};
}

/// Nothing that one connection throws may end the thread that serves the others.
void ServerOnAsio::run(asio::io_context& io) {
    ::prctl(PR_SET_NAME, "baton-http");
    for (;;) {
        try {
            io.run();
            return;
        } catch (const std::exception& e) {
            log::error("http.io_failed", {{"error", e.what()}});
        }
    }
}

std::string ServerOnAsio::address() const {
    const std::string ip = endpoint_.address().to_string();
    return (endpoint_.address().is_v6() ? "[" + ip + "]" : ip) + ":" +
           std::to_string(endpoint_.port());
}

void ServerOnAsio::accept() {
    if (!acceptor_->is_open()) return;
    {
        // Connections told to make room leave on their own threads, a little later: new ones wait
        // in the kernel.
        const std::lock_guard lock(state_->mutex);
        if (state_->connections.size() >= connections_max_ + kLeavingMax) return pause_accepting();
    }
    if (tls_ && state_->handshakes >= state_->options.tls_handshakes_max) {
        drop_slow_handshake();
        return pause_accepting();
    }
    IoThread& home = *threads_[next_home_++ % threads_.size()];
    acceptor_->async_accept(home.io,
                            [this, &home](const boost::system::error_code& ec, tcp::socket socket) {
                                on_accept(ec, std::move(socket), home);
                            });
}

void ServerOnAsio::on_accept(const boost::system::error_code& ec, tcp::socket socket,
                             IoThread& home) {
    if (ec == asio::error::operation_aborted || state_->stopping) return;
    if (ec == asio::error::no_descriptors ||
        ec == boost::system::errc::too_many_files_open_in_system) {
        turn_away();
        return pause_accepting();
    }
    if (ec) return pause_accepting();
    admit(std::move(socket), home);
    accept();
}

void ServerOnAsio::admit(tcp::socket socket, IoThread& home) {
    boost::system::error_code ec;
    const tcp::endpoint remote = socket.remote_endpoint(ec);
    if (ec) return;
    const std::string ip = remote.address().to_string();
    if (!make_room(ip)) {
        ++state_->refused;
        if (tls_) return;  // nobody would understand the answer
        constexpr std::string_view kFull =
            "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: "
            "150\r\n"
            "Retry-After: 1\r\nConnection: close\r\n\r\n"
            R"({"error":{"message":"too many connections","type":"server_error","param":null,"code":"unavailable"},)"
            R"("detail":"too many connections"}                  )";
        socket.non_blocking(true, ec);
        socket.write_some(asio::buffer(kFull), ec);
        return;
    }
    auto connection =
        std::make_shared<Connection>(home.io, home.flushes, std::move(socket), ip, state_, tls_ ? state_->tls() : nullptr);
    {
        const std::lock_guard lock(state_->mutex);
        state_->connections.emplace(connection.get(), connection);
        ++state_->per_ip[ip];
    }
    asio::post(home.io, [connection] { connection->start(); });
}

/// The connections of this moment. Their last references must not go away under the lock (the
/// destructor takes it).
std::vector<std::shared_ptr<Connection>> ServerOnAsio::connections() const {
    std::vector<std::shared_ptr<Connection>> out;
    const std::lock_guard lock(state_->mutex);
    out.reserve(state_->connections.size());
    for (const auto& [raw, weak] : state_->connections) {
        if (auto connection = weak.lock()) out.push_back(std::move(connection));
    }
    return out;
}

/// False when this client must be turned away.
bool ServerOnAsio::make_room(const std::string& ip) {
    {
        const std::lock_guard lock(state_->mutex);
        const size_t per_ip_max = state_->options.connections_per_ip_max;
        const auto it = state_->per_ip.find(ip);
        if (per_ip_max != 0 && it != state_->per_ip.end() && it->second >= per_ip_max) return false;
        if (state_->connections.size() < connections_max_) return true;
    }
    return drop_oldest_idle();
}

/// The connection that has rested longest makes room: a crowd of idle or crawling clients cannot
/// keep others out.
bool ServerOnAsio::drop_oldest_idle() {
    std::shared_ptr<Connection> oldest;
    int64_t since = INT64_MAX;
    for (const auto& connection : connections()) {
        const int64_t idle_since = connection->idle_since_ms();
        if (idle_since >= since) continue;
        since = idle_since;
        oldest = connection;
    }
    if (oldest == nullptr) return false;
    oldest->evict();
    return true;
}

/// The handshake that is under way longest makes room once it has had its time: clients that begin one and say no more cannot keep others
/// out.
void ServerOnAsio::drop_slow_handshake() {
    std::shared_ptr<Connection> slowest;
    int64_t since = steady_now().ms - kHandshakeGraceMs;
    for (const auto& connection : connections()) {
        if (connection->handshake_since_ms() >= since) continue;
        since = connection->handshake_since_ms();
        slowest = connection;
    }
    if (slowest != nullptr) slowest->evict();
}

void ServerOnAsio::turn_away() {
    ++state_->refused;
    spare_.reset();
    const UniqueFd client(
        ::accept4(acceptor_->native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    (void)drop_oldest_idle();
    const int64_t now = steady_now().ms;
    if (now - last_warned_ms_ < kWarnEveryMs) return;
    last_warned_ms_ = now;
    log::warn("http.out_of_descriptors", {{"connections_refused", state_->refused.load()}});
}

void ServerOnAsio::pause_accepting() {
    pause_->expires_after(kAcceptPause);
    pause_->async_wait([this](const boost::system::error_code& ec) {
        if (!ec) accept();
    });
}

void ServerOnAsio::stop_accepting() {
    state_->stopping = true;
    asio::post(threads_.front()->io, [this] {
        boost::system::error_code ec;
        acceptor_->close(ec);
        pause_->cancel();
    });
    for (const auto& connection : connections()) connection->drop_if_idle(false);
}

bool ServerOnAsio::drain(int64_t timeout_ms) {
    std::unique_lock lock(state_->mutex);
    return state_->idle.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                 [&] { return state_->exchanges == 0; });
}

void ServerOnAsio::close() {
    if (std::exchange(closed_, true)) return;
    stop_accepting();
    for (const auto& connection : connections()) connection->drop();
    for (const auto& home : threads_) home->work.reset();
    for (const auto& home : threads_) {
        if (home->thread.joinable()) home->thread.join();
    }
}

Server::Stats ServerOnAsio::stats() const {
    Stats out;
    {
        const std::lock_guard lock(state_->mutex);
        out.connections = state_->connections.size();
        out.exchanges = state_->exchanges;
    }
    out.requests = state_->requests;
    out.protocol_errors = state_->protocol_errors;
    out.unauthorized = state_->unauthorized;
    out.disconnects = state_->disconnects;
    out.connections_refused = state_->refused;
    out.tls_handshakes = state_->handshakes;
    out.tls_handshakes_failed = state_->handshakes_failed;
    return out;
}

}  // namespace

Expected<std::unique_ptr<Server>> Server::start(ServerOptions options, Handler handler) {
    auto server = std::make_unique<ServerOnAsio>(std::move(options), std::move(handler));
    BATON_TRY(server->open());
    return std::unique_ptr<Server>(std::move(server));
}

}  // namespace baton::http
