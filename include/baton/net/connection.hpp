#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/base/fd.hpp"
#include "baton/base/limits.hpp"
#include "baton/wire/messages.hpp"

namespace baton::net {

/// Where a process listens: a unix socket on its host, a TCP address (ip:port) for other hosts, or both.
struct Endpoint {
    std::string unix_path;
    std::string tcp_address;
};

/// Who is calling, and the secret both sides must know. The handshake is mutual: each sends a random challenge and
/// proves with HMAC-SHA-256 that it knows the secret; a wrong proof closes the connection and is counted.
struct Identity {
    std::string kind;    ///< "worker", "replica", "peer"
    std::string name;
    std::string secret;  ///< never logged, never on a command line
};

/// A framed, authenticated message link. Created by connect() or a Listener; silent until start().
/// Sends a Heartbeat every second and closes when the other side is silent for limits::kSilenceMs.
/// Handlers run on the io_context the link was made with, one at a time; start(), send() and close() may be called from
/// any thread and never run a handler before they return. The io_context must outlive the link.
class Connection {
  public:
    struct Received {
        wire::Message message;
        std::vector<std::byte> payload;  ///< the raw bytes after an ExtentHeader, else empty
        std::vector<UniqueFd> fds;       ///< descriptors passed with this message (unix sockets only)
    };
    struct Handlers {
        std::function<void(Received)> on_message;        ///< Heartbeats are not passed on
        std::function<void(const Error&)> on_close;      ///< exactly once; no on_message after it
    };
    virtual ~Connection() = default;
    virtual void start(Handlers handlers) = 0;
    /// Queues a message. Past `Options::queue_bytes_max` of unsent bytes the connection closes (a peer that does not
    /// read). `fds` are duplicated; a TCP link that is given some closes. `payload` is what the message, an ExtentHeader,
    /// says in `bytes`.
    virtual void send(const wire::Message& message, std::vector<std::byte> payload = {}, std::vector<int> fds = {}) = 0;
    /// Messages are about to come that are waited for: until then (steady_now_us()) the io_context's thread looks for them without
    /// sleeping, its other work in between. A sleeping thread takes tens of microseconds to notice one.
    virtual void watch(int64_t until_us) { (void)until_us; }
    /// A message is about to be sent by a thread that should not spend a system call on it: until then (steady_now_us()), or until it
    /// was sent, the io_context's thread looks for it without sleeping, its other work in between. From when that thread is awake send()
    /// leaves the writing to it. Order, limits and errors are those of send(). Any thread; costs what waking a thread does.
    virtual void expect_send(int64_t until_us) { (void)until_us; }
    /// Sends what is queued for at most a second, then closes: on_close comes with kCancelled. From now on on_message
    /// is not called. Also needed to let go of a started link: it keeps itself (and its handlers) until it is closed.
    virtual void close() = 0;
    /// The other side's Hello.
    [[nodiscard]] virtual const wire::Hello& peer() const = 0;
    /// Address of the other side for logs ("unix" or ip:port), and our own ip as the other side sees us (TCP).
    [[nodiscard]] virtual std::string remote() const = 0;
    [[nodiscard]] virtual std::string local_ip() const = 0;
    [[nodiscard]] virtual size_t queued_bytes() const = 0;
};

struct Options {
    size_t queue_bytes_max = 256u * 1024 * 1024;
    int64_t silence_ms = limits::kSilenceMs;
    int64_t handshake_ms = limits::kHandshakeTimeoutMs;  ///< for a stranger at a Listener
};

using ConnectDone = std::function<void(Expected<std::shared_ptr<Connection>>)>;
/// Connects (unix path if given, else TCP) and shakes hands within `timeout_ms`. `done` runs once on `io`.
void connect(boost::asio::io_context& io, const Endpoint& to, Identity self, int64_t timeout_ms, ConnectDone done,
             Options options = {});

/// Accepts links on a unix socket (0600) and/or a TCP address until destroyed. Unauthenticated peers get
/// limits::kHandshakeTimeoutMs and at most 64 of them wait at once (the one that waits longest makes room). Destroy it on
/// the io_context's thread, or when that does not run: on_link is not called afterwards.
class Listener {
  public:
    using OnLink = std::function<void(std::shared_ptr<Connection>)>;
    /// kInvalidArgument for a bad address, a socket path over 107 bytes, or a TCP address beyond loopback without a secret;
    /// kUnavailable when another process listens on the path. A stale socket file is replaced.
    /// Port 0 picks one; endpoint() tells. `self.kind/name` answer the Hello.
    static Expected<std::unique_ptr<Listener>> listen(boost::asio::io_context& io, const Endpoint& at, Identity self,
                                                      OnLink on_link, Options options = {});
    virtual ~Listener() = default;
    [[nodiscard]] virtual Endpoint endpoint() const = 0;
    [[nodiscard]] virtual uint64_t refused() const = 0;  ///< failed handshakes
};

/// This host's identity: boot id and network namespace.
[[nodiscard]] std::string default_host_id();
/// The address of the default route's interface, or 127.0.0.1.
[[nodiscard]] std::string default_route_ip();

}  // namespace baton::net
