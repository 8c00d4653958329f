#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>

#include "net/link.hpp"
#include "net/socket.hpp"

namespace baton::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr int64_t kBacklogRetryMs = 10;
constexpr size_t kAddressesMax = 8;

/// One attempt to connect: resolve where needed, connect, shake hands, within one deadline.
class Connecting : public std::enable_shared_from_this<Connecting> {
  public:
    Connecting(asio::io_context& io, Endpoint to, Identity self, int64_t timeout_ms, ConnectDone done, Options options)
        : io_(io),
          strand_(asio::make_strand(io)),
          deadline_(strand_),
          retry_(strand_),
          socket_(strand_),
          resolver_(strand_),
          to_(std::move(to)),
          self_(std::move(self)),
          end_(steady_now() + timeout_ms),
          done_(std::move(done)),
          options_(options) {}

    void run() {
        asio::post(strand_, [self = shared_from_this()] { self->guarded([&] { self->begin(); }); });
    }

  private:
    template <class F>
    void guarded(F&& body) {
        try {
            body();
        } catch (const std::exception& e) {
            finish(fail(ErrorCode::kInternal, std::string("cannot connect: ") + e.what()));
        }
    }

    void begin() {
        deadline_.expires_after(std::chrono::milliseconds(std::max<int64_t>(end_ - steady_now(), 0)));
        deadline_.async_wait([self = shared_from_this()](error_code ec) {
            if (!ec) self->finish(fail(ErrorCode::kTimeout, "cannot connect to " + self->target() + " in time"));
        });
        if (!to_.unix_path.empty()) return try_unix();
        auto parsed = parse_host_port(to_.tcp_address);
        if (!parsed) return finish(fail(std::move(parsed).error()));
        if (auto address = numeric_address(parsed->host, parsed->port)) {
            addresses_.push_back(*address);
            return try_next_address();
        }
        resolver_.async_resolve(
            parsed->host, std::to_string(parsed->port),
            [self = shared_from_this()](error_code ec, const asio::ip::tcp::resolver::results_type& found) {
                self->guarded([&] { self->on_resolved(ec, found); });
            });
    }

    void on_resolved(error_code ec, const asio::ip::tcp::resolver::results_type& found) {
        if (!done_) return;
        if (ec || found.empty())
            return finish(fail(ErrorCode::kUnavailable, "cannot resolve " + to_.tcp_address + ": " + ec.message()));
        for (const auto& entry : found) {
            if (addresses_.size() == kAddressesMax) break;
            const auto endpoint = entry.endpoint();
            auto address = numeric_address(endpoint.address().to_string(), endpoint.port());
            if (address) addresses_.push_back(*address);
        }
        try_next_address();
    }

    void try_unix() {
        if (!done_) return;
        auto started = connect_unix(to_.unix_path);
        if (!started) return finish(fail(std::move(started).error()));
        if (started->state == ConnectState::kConnected) return shake(std::move(started->fd));
        retry_.expires_after(std::chrono::milliseconds(kBacklogRetryMs));
        retry_.async_wait([self = shared_from_this()](error_code ec) {
            if (!ec) self->guarded([&] { self->try_unix(); });
        });
    }

    /// Tries the addresses of the name in turn; the last one's error is the answer.
    void try_next_address() {
        Error last{ErrorCode::kUnavailable, "no usable address", {}};
        while (next_address_ < addresses_.size()) {
            auto started = connect_tcp(addresses_[next_address_++]);
            if (!started) {
                last = std::move(started).error();
                continue;
            }
            if (started->state == ConnectState::kConnected) return shake(std::move(started->fd));
            error_code ec;
            socket_.assign(started->fd.get(), ec);
            if (ec) return finish(fail(ErrorCode::kIo, "cannot watch a socket: " + ec.message()));
            static_cast<void>(started->fd.release());
            socket_.async_wait(asio::posix::stream_descriptor::wait_write, [self = shared_from_this()](error_code failed) {
                if (!failed) self->guarded([&] { self->on_connected(); });
            });
            return;
        }
        finish(fail(std::move(last)));
    }

    void on_connected() {
        if (!done_) return;
        UniqueFd fd(socket_.release());
        auto result = connect_result(fd.get());
        if (result) return shake(std::move(fd));
        if (next_address_ < addresses_.size()) return try_next_address();
        finish(fail(result.error().code, result.error().message + " (" + target() + ")"));
    }

    void shake(UniqueFd fd) {
        auto link = std::make_shared<Link>(io_, std::move(fd), Side::kConnecting, self_, options_);
        link_ = link;
        const int64_t left = std::max<int64_t>(end_ - steady_now(), 1);
        link->shake_hands(left, [self = shared_from_this()](Expected<std::shared_ptr<Link>> result) {
            asio::post(self->strand_, [self, result = std::move(result)]() mutable { self->on_shaken(std::move(result)); });
        });
    }

    void on_shaken(Expected<std::shared_ptr<Link>> result) {
        if (!result) return finish(fail(result.error().code, target() + ": " + result.error().message));
        finish(std::shared_ptr<Connection>(std::move(*result)));
    }

    /// The only way out: the first result counts.
    void finish(Expected<std::shared_ptr<Connection>> result) {
        auto done = std::exchange(done_, nullptr);
        if (!done) return;
        deadline_.cancel();
        retry_.cancel();
        resolver_.cancel();
        error_code ignored;
        socket_.close(ignored);
        if (!result)
            if (auto link = link_.lock()) link->abort(result.error());
        try {
            done(std::move(result));
        } catch (...) {  // the caller's handler failed: the link it dropped closes itself
        }
    }

    [[nodiscard]] std::string target() const { return to_.unix_path.empty() ? to_.tcp_address : to_.unix_path; }

    asio::io_context& io_;
    asio::strand<asio::io_context::executor_type> strand_;
    asio::steady_timer deadline_;
    asio::steady_timer retry_;
    asio::posix::stream_descriptor socket_;
    asio::ip::tcp::resolver resolver_;
    const Endpoint to_;
    const Identity self_;
    const TimeMs end_;
    ConnectDone done_;
    const Options options_;
    std::vector<SocketAddress> addresses_;
    size_t next_address_ = 0;
    std::weak_ptr<Link> link_;  ///< lives by its own handlers, which hold this
};

}  // namespace

void connect(asio::io_context& io, const Endpoint& to, Identity self, int64_t timeout_ms, ConnectDone done, Options options) {
    std::make_shared<Connecting>(io, to, std::move(self), timeout_ms, std::move(done), options)->run();
}

}  // namespace baton::net
