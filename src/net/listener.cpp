#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <list>
#include <map>

#include "baton/base/growing_pause.hpp"
#include "baton/base/host_of.hpp"
#include "baton/base/log.hpp"
#include "net/link.hpp"
#include "net/socket.hpp"

namespace baton::net {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr size_t kWaitingMax = 64;
constexpr int kAcceptsPerTurn = 32;
constexpr int64_t kNoDescriptorPauseMs = 100;
constexpr size_t kRefusedHostsMax = 64;
constexpr int64_t kRefusedToldMs = 10'000;  ///< until a host that goes on being refused is told of again; then ever longer
constexpr int64_t kRefusedToldMsMax = 3'600'000;

/// What a failed handshake of somebody who speaks our protocol means; "" for strangers and interrupted ones.
std::string meaning_of(const Error& error, const Link& link) {
    if (link.peer().kind.empty()) return {};
    if (error.code == ErrorCode::kUnsupported) return "another version of baton";
    // The one that connects checks our proof first, and goes.
    const bool went = error.code == ErrorCode::kPeerLost && link.remote() != "unix";
    if (error.code == ErrorCode::kUnauthorized || went) return "another link secret (BATON_LINK_SECRET must be the same on all hosts)";
    return {};
}

/// One listening socket.
struct Door {
    explicit Door(const asio::strand<asio::io_context::executor_type>& strand) : socket(strand), pause(strand) {}
    asio::posix::stream_descriptor socket;
    asio::steady_timer pause;
};

/// Accepts and shakes hands on the strand; lives as long as its handlers.
class Accepting : public std::enable_shared_from_this<Accepting> {
  public:
    Accepting(asio::io_context& io, Identity self, Listener::OnLink on_link, Options options)
        : io_(io), strand_(asio::make_strand(io)), self_(std::move(self)), on_link_(std::move(on_link)), options_(options) {}

    Expected<void> add(UniqueFd fd) {
        auto door = std::make_unique<Door>(strand_);
        error_code ec;
        door->socket.assign(fd.get(), ec);
        if (ec) return fail(ErrorCode::kIo, "cannot watch a listening socket: " + ec.message());
        static_cast<void>(fd.release());
        doors_.push_back(std::move(door));
        return {};
    }

    void run() {
        asio::post(strand_, [self = shared_from_this()] {
            for (auto& door : self->doors_) self->wait(*door);
        });
    }

    /// Any thread: no link is handed out that was not on its way already.
    void stop() {
        stopped_ = true;
        for (auto& door : doors_) ::shutdown(door->socket.native_handle(), SHUT_RDWR);
        asio::post(strand_, [self = shared_from_this()] {
            error_code ignored;
            for (auto& door : self->doors_) {
                door->pause.cancel();
                door->socket.close(ignored);
            }
            for (auto& link : std::exchange(self->waiting_, {})) link->abort({ErrorCode::kCancelled, "no longer listening", {}});
            self->on_link_ = nullptr;
        });
    }

    [[nodiscard]] uint64_t refused() const { return refused_; }

  private:
    void wait(Door& door) {
        if (stopped_) return;
        door.socket.async_wait(asio::posix::stream_descriptor::wait_read, [self = shared_from_this(), &door](error_code ec) {
            if (ec || self->stopped_) return;
            try {
                self->accept_some(door);
            } catch (...) {  // out of memory for one link: the next may fit
                self->rest(door);
            }
        });
    }

    void accept_some(Door& door) {
        for (int i = 0; i < kAcceptsPerTurn; ++i) {
            UniqueFd fd(::accept4(door.socket.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
            if (fd) {
                admit(std::move(fd));
                continue;
            }
            if (errno == EAGAIN || errno == EWOULDBLOCK) break;
            if (errno == EINTR || errno == ECONNABORTED || errno == EPROTO) continue;
            log::warn("net.accept_failed", {{"errno", errno}});
            return rest(door);
        }
        wait(door);
    }

    /// Out of descriptors: accepting again at once would spin.
    void rest(Door& door) {
        door.pause.expires_after(std::chrono::milliseconds(kNoDescriptorPauseMs));
        door.pause.async_wait([self = shared_from_this(), &door](error_code ec) {
            if (!ec) self->wait(door);
        });
    }

    void admit(UniqueFd fd) {
        // The one that has waited longest makes room: a real peer needs milliseconds.
        if (waiting_.size() >= kWaitingMax) {
            waiting_.front()->abort({ErrorCode::kOverloaded, "too many handshakes at once", {}});
            waiting_.pop_front();
        }
        auto link = std::make_shared<Link>(io_, std::move(fd), Side::kAccepting, self_, options_);
        waiting_.push_back(link);
        std::weak_ptr<Link> weak = link;
        link->shake_hands(options_.handshake_ms,
                          [weak_self = weak_from_this(), weak](Expected<std::shared_ptr<Link>> result) {
                              auto self = weak_self.lock();
                              if (!self) {  // the listener is gone
                                  if (result) (*result)->abort({ErrorCode::kCancelled, "no longer listening", {}});
                                  return;
                              }
                              asio::post(self->strand_, [self, weak, result = std::move(result)]() mutable {
                                  self->on_shaken(weak.lock(), std::move(result));
                              });
                          });
    }

    void on_shaken(const std::shared_ptr<Link>& link, Expected<std::shared_ptr<Link>> result) {
        std::erase(waiting_, link);
        std::erase(waiting_, nullptr);
        if (stopped_) {
            if (result) (*result)->abort({ErrorCode::kCancelled, "no longer listening", {}});
            return;
        }
        if (!result) {
            ++refused_;
            log::debug("net.handshake_failed", {{"code", to_string(result.error().code)}, {"reason", result.error().message}});
            if (link) tell_refused(*link, result.error());
            return;
        }
        try {
            if (on_link_) on_link_(std::move(*result));
        } catch (const std::exception& e) {
            log::error("net.link_handler_failed", {{"what", e.what()}});
        } catch (...) {
            log::error("net.link_handler_failed");
        }
    }

    /// Somebody who retries is told of now and then; crowds of strangers cannot fill the log.
    void tell_refused(const Link& link, const Error& error) {
        const std::string meaning = meaning_of(error, link);
        if (meaning.empty()) return;
        const std::string remote = link.remote();
        const std::string host(host_of(remote));
        if (refused_hosts_.size() >= kRefusedHostsMax && !refused_hosts_.contains(host)) return;
        if (!refused_hosts_.try_emplace(host, kRefusedToldMs, kRefusedToldMsMax).first->second.due(steady_now())) return;
        log::warn("net.link_refused", {{"remote", remote}, {"reason", error.message}, {"probably", meaning}});
    }

    asio::io_context& io_;
    asio::strand<asio::io_context::executor_type> strand_;
    const Identity self_;
    Listener::OnLink on_link_;
    const Options options_;
    std::vector<std::unique_ptr<Door>> doors_;
    std::list<std::shared_ptr<Link>> waiting_;
    std::map<std::string, GrowingPause> refused_hosts_;
    std::atomic<uint64_t> refused_{0};
    std::atomic<bool> stopped_{false};
};

class SocketListener final : public Listener {
  public:
    SocketListener(std::shared_ptr<Accepting> accepting, Endpoint endpoint)
        : accepting_(std::move(accepting)), endpoint_(std::move(endpoint)) {
        struct stat st {};
        if (!endpoint_.unix_path.empty() && ::lstat(endpoint_.unix_path.c_str(), &st) == 0) {
            device_ = st.st_dev;
            inode_ = st.st_ino;
        }
    }
    ~SocketListener() override {
        struct stat st {};
        if (!endpoint_.unix_path.empty() && ::lstat(endpoint_.unix_path.c_str(), &st) == 0 && st.st_dev == device_ &&
            st.st_ino == inode_)
            ::unlink(endpoint_.unix_path.c_str());  // ours still, not a successor's
        accepting_->stop();
    }
    [[nodiscard]] Endpoint endpoint() const override { return endpoint_; }
    [[nodiscard]] uint64_t refused() const override { return accepting_->refused(); }

  private:
    std::shared_ptr<Accepting> accepting_;
    Endpoint endpoint_;
    dev_t device_ = 0;
    ino_t inode_ = 0;
};

}  // namespace

Expected<std::unique_ptr<Listener>> Listener::listen(asio::io_context& io, const Endpoint& at, Identity self,
                                                     OnLink on_link, Options options) {
    if (at.unix_path.empty() && at.tcp_address.empty())
        return fail(ErrorCode::kInvalidArgument, "nothing to listen on: neither a socket path nor an address");
    const bool secret = !self.secret.empty();
    auto accepting = std::make_shared<Accepting>(io, std::move(self), std::move(on_link), options);
    Endpoint bound = at;
    if (!at.tcp_address.empty()) {
        BATON_TRY_ASSIGN(const HostPort host_port, parse_host_port(at.tcp_address));
        BATON_TRY_ASSIGN(UniqueFd fd, listen_tcp(host_port));
        if (!secret && !is_loopback(local_address(fd.get())))
            return fail(ErrorCode::kInvalidArgument, "links on " + at.tcp_address + " need a shared secret");
        bound.tcp_address = to_text(local_address(fd.get()));
        BATON_TRY(accepting->add(std::move(fd)));
    }
    if (!at.unix_path.empty()) {
        BATON_TRY_ASSIGN(UniqueFd fd, listen_unix(at.unix_path));
        BATON_TRY(accepting->add(std::move(fd)));
    }
    auto listener = std::make_unique<SocketListener>(accepting, std::move(bound));
    accepting->run();
    return listener;
}

}  // namespace baton::net
