#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/base/limits.hpp"
#include "baton/http/message.hpp"
#include "baton/http/tls.hpp"

namespace baton::http {

/// How a stream begins. The defaults are those of server-sent events.
struct StreamStart {
    int status = 200;
    std::string content_type = "text/event-stream; charset=utf-8";
    Headers headers = {};                  ///< further ones
    int64_t ping_ms = limits::kSsePingMs;  ///< a ": ping" comment after that much silence; 0: none
};

/// One request and the way to answer it. Every method may be called from any thread. Exactly one
/// answer is sent: respond(), or begin_stream() … end(). An exchange that is destroyed unanswered
/// answers 500 (an unfinished stream closes its connection), so that no client waits for ever.
class Exchange {
  public:
    virtual ~Exchange() = default;

    [[nodiscard]] virtual const Request& request() const = 0;
    /// Takes the body out of the request (it may be megabytes). Once, before other threads see the
    /// exchange.
    [[nodiscard]] virtual std::string take_body() = 0;

    /// Sends the whole answer. A second answer is ignored. 204 and 304 carry no body; HEAD gets the
    /// headers only.
    virtual void respond(int status, std::string body, Headers headers = {},
                         std::string_view content_type = "application/json") = 0;

    /// Sends status and headers now (chunked for HTTP/1.1). False when an answer was begun before
    /// or the client is gone.
    virtual bool begin_stream(StreamStart start = {}) = 0;
    /// Sends bytes as one chunk, flushed at once. False when the client is gone. Past
    /// limits::kStreamBufferBytesMax of unsent bytes the connection is dropped (a client that does
    /// not read): on_disconnect fires, false is returned.
    virtual bool write(std::string bytes) = 0;
    /// Ends the stream properly; the connection may serve further requests.
    virtual void end() = 0;
    /// Sends what is queued, then closes the connection without the end mark: the client sees a
    /// broken stream.
    virtual void fail() = 0;

    /// Calls `callback` once if the client goes away before respond() or end() is called, in any
    /// phase; at once (on this thread) if it has gone already. Otherwise it runs on an I/O thread
    /// and must not block. One callback; a second call replaces the first. It is released when the
    /// answer is complete.
    virtual void on_disconnect(std::function<void()> callback) = 0;
    [[nodiscard]] virtual bool client_gone() const = 0;
    /// True after respond() or begin_stream().
    [[nodiscard]] virtual bool answered() const = 0;
    /// Bytes accepted by write() that the socket has not taken yet.
    [[nodiscard]] virtual size_t unsent_bytes() const = 0;
    /// Keeps `token` until the last byte of the answer is with the kernel, or the connection is
    /// gone. It is then released on an I/O thread. One token; a second call replaces the first.
    virtual void hold(std::shared_ptr<void> token) = 0;
};

/// Whether a key or token lets its sender in, and how it is told where it does not.
struct KeyAnswer {
    std::optional<Permissions> permissions = {};  ///< nothing: refused with what follows
    int status = 401;                             ///< 401, or 429 for senders that are banned
    std::string message = "Could not validate credentials";
    int64_t retry_after_s = 0;  ///< 0: no such header
};

/// Runs on an I/O thread and must not block. What it throws becomes a 500.
using Handler = std::function<void(std::shared_ptr<Exchange>)>;

struct ServerOptions {
    std::string host = "127.0.0.1";
    uint16_t port = 0;  ///< 0: any free one
    size_t threads = 2;

    /// PEM files of the server's certificate chain and its private key: the port speaks HTTPS alone. Both empty: HTTP alone.
    std::string tls_certificate = {}, tls_key = {};

    /// Keys; both lists empty and no `authenticate`: no key is asked for. Sent as `Authorization: Bearer KEY` or
    /// `X-Api-Key: KEY`.
    std::vector<std::string> admin_keys = {};
    std::vector<std::string> inference_keys = {};
    /// What a key or token that is in neither list may do; `remote` is its sender's ip. Null: there
    /// are no others. Called on I/O threads; must not block.
    std::function<KeyAnswer(std::string_view key, const std::string& remote)> authenticate = {};
    /// Called when an exchange is over (answered, or its client gone), with the rights it had and
    /// the milliseconds since its request's first byte. Null: nobody asks. I/O threads; must not
    /// block.
    std::function<void(const Permissions& permissions, int64_t ms)> on_exchange_end = {};
    /// Exact paths that need no key.
    std::vector<std::string> open_paths = {"/health", "/ready"};

    std::vector<std::string> cors_origins = {};  ///< empty: no CORS headers at all
    std::vector<std::string> allowed_hosts =
        {};  ///< names (without port) a Host header may carry; empty: any

    size_t body_bytes_max = limits::kBodyBytesMax;
    size_t bodies_bytes_max = 512u * 1024 * 1024;  ///< of all connections together
    size_t connections_max = limits::kConnectionsMax;
    size_t connections_per_ip_max = 0;  ///< 0: no such bound
    /// TLS handshakes under way at once; further clients wait in the kernel, and slow ones make room for them.
    size_t tls_handshakes_max = limits::kTlsHandshakesMax;
    int64_t tls_handshake_timeout_ms = limits::kTlsHandshakeTimeoutMs;
    int64_t header_timeout_ms = limits::kHeaderTimeoutMs;
    int64_t body_timeout_ms = limits::kBodyTimeoutMs;
    int64_t body_bytes_per_second_min = 1000;
    int64_t idle_timeout_ms = limits::kIdleTimeoutMs;
    int64_t write_stall_ms = limits::kWriteStallMs;
};

/// An HTTP/1.1 server without knowledge of models. It owns its I/O threads (one io_context each; a
/// connection stays on one). Requests of one connection are served strictly in order.
class Server {
  public:
    /// Binds, listens and starts the threads. kIo when the address cannot be bound, kInvalidArgument when certificate or key are no good
    /// (inspect_certificate()).
    static Expected<std::unique_ptr<Server>> start(ServerOptions options, Handler handler);
    /// close().
    virtual ~Server() = default;

    [[nodiscard]] virtual uint16_t port() const = 0;
    /// "ip:port" as bound.
    [[nodiscard]] virtual std::string address() const = 0;
    /// Closes the listener and idle connections; running exchanges go on and their connections
    /// close after them.
    virtual void stop_accepting() = 0;
    /// Other keys than those of the options, from the next request on. Any thread.
    virtual void set_keys(const std::vector<std::string>& admin_keys,
                          const std::vector<std::string>& inference_keys) = 0;
    /// The certificate and key of connections that come from now on. On errors, those of inspect_certificate() and kUnsupported where the
    /// server speaks no TLS, all stays as it was. Reads files; any thread.
    [[nodiscard]] virtual Expected<CertificateFacts> load_certificate(const std::string& certificate_file, const std::string& key_file) = 0;
    /// What the certificate in use says of itself; nothing where the server speaks no TLS.
    [[nodiscard]] virtual std::optional<CertificateFacts> certificate() const = 0;
    /// Waits until no exchange is running, at most `timeout_ms`. True when none is. Not from an I/O
    /// thread.
    virtual bool drain(int64_t timeout_ms) = 0;
    /// Drops all connections (on_disconnect fires for running exchanges) and joins the threads.
    /// Idempotent. Not from an I/O thread. Exchanges may outlive it; they do nothing any more.
    virtual void close() = 0;

    struct Stats {
        size_t connections = 0;        ///< open now
        size_t exchanges = 0;          ///< running now
        uint64_t requests = 0;         ///< handed to the handler so far
        uint64_t protocol_errors = 0;  ///< requests refused before the handler
        uint64_t unauthorized = 0;
        uint64_t disconnects = 0;  ///< clients gone before their answer was complete
        uint64_t connections_refused = 0;
        size_t tls_handshakes = 0;           ///< under way now
        uint64_t tls_handshakes_failed = 0;  ///< and clients that speak plain HTTP to a TLS port
    };
    [[nodiscard]] virtual Stats stats() const = 0;
};

}  // namespace baton::http
