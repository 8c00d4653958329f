#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>

#include "baton/base/error.hpp"
#include "baton/base/fd.hpp"

namespace baton::hub {

/// A stop request that threads can wait for beside sockets. Any thread.
class CancelSignal {
  public:
    explicit CancelSignal(std::stop_token token);
    [[nodiscard]] bool requested() const { return token_.stop_requested(); }
    /// Readable once the stop is requested.
    [[nodiscard]] int fd() const { return fd_.get(); }
    /// Waits that long, or less: true when the stop is requested.
    [[nodiscard]] bool wait(int64_t ms) const;

  private:
    struct Wake {
        int fd;
        void operator()() const;
    };
    UniqueFd fd_;
    std::stop_token token_;
    std::optional<std::stop_callback<Wake>> callback_;
};

/// `kCancelled "the download was cancelled"`.
[[nodiscard]] tl::unexpected<Error> cancelled();

/// The trusted roots of TLS connections; peers are always verified. Any thread.
class TlsRoots {
  public:
    /// Roots of `ca_file`, or the system's. kInvalidArgument (param "hub_ca_file") when the file holds none.
    [[nodiscard]] static Expected<std::shared_ptr<const TlsRoots>> load(const std::string& ca_file);
    explicit TlsRoots(SSL_CTX* context) : context_(context, &SSL_CTX_free) {}
    [[nodiscard]] SSL_CTX* context() const { return context_.get(); }

  private:
    std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_;
};

/// A TCP connection, with TLS over it where asked. Every wait ends with its deadline or a stop request. One thread.
class Stream {
  public:
    /// Connects to the first of the host's addresses that answers. kUnavailable, kTimeout, kCancelled.
    [[nodiscard]] static Expected<std::unique_ptr<Stream>> connect(const std::string& host, uint16_t port, const CancelSignal& cancel,
                                                                   int64_t timeout_ms);
    /// TLS with the peer's certificate verified for `host`. kUnavailable with the reason of a refusal.
    [[nodiscard]] Expected<void> start_tls(const TlsRoots& roots, const std::string& host, int64_t timeout_ms);
    /// At least one byte, or 0 at the end. kPeerLost, kTimeout, kCancelled.
    [[nodiscard]] Expected<size_t> read(std::span<char> into, int64_t timeout_ms);
    [[nodiscard]] Expected<void> write(std::string_view bytes, int64_t timeout_ms);
    /// False when the peer closed meanwhile, or sent what nobody asked for.
    [[nodiscard]] bool idle_and_open() const;

    Stream(UniqueFd fd, const CancelSignal& cancel);

  private:
    [[nodiscard]] Expected<void> wait(short events, int64_t deadline_ms) const;
    /// Runs an operation of OpenSSL until it is through; its result.
    template <class F>
    Expected<int> patiently(F operation, int64_t timeout_ms);

    UniqueFd fd_;
    const CancelSignal& cancel_;
    std::unique_ptr<SSL, decltype(&SSL_free)> tls_{nullptr, &SSL_free};
};

}  // namespace baton::hub
