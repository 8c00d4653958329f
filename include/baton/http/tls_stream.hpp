#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "baton/base/error.hpp"
#include "baton/http/tls.hpp"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX
struct ssl_st;      // and SSL

namespace baton::http {

/// What connections of one kind share: certificate or trusted roots, and which protocols and ciphers are good enough. Any thread.
using TlsContext = std::shared_ptr<ssl_ctx_st>;

/// A server's side: TLS 1.2 and 1.3 with forward secrecy and authenticated encryption, ALPN http/1.1, no renegotiation, no resumption.
struct ServerTls {
    TlsContext context;
    CertificateFacts certificate;
};
/// Errors as inspect_certificate().
[[nodiscard]] Expected<ServerTls> load_server_tls(const std::string& certificate_file, const std::string& key_file);
/// A client's side: servers are always verified, with the certificates of `ca_file`, or the system's. kInvalidArgument (param "ca_file")
/// when the file holds none.
[[nodiscard]] Expected<TlsContext> load_client_tls(const std::string& ca_file);

/// TLS over a socket that does not block and outlives it. No call waits: what cannot go on says what to wait for before the same call is
/// made again. One thread.
class TlsStream {
  public:
    enum class Outcome : uint8_t {
        kDone,
        kWantRead,   ///< again when the socket is readable
        kWantWrite,  ///< again when it is writable
        kEnd,        ///< the peer will send no more
        kBroken,     ///< see reason()
    };
    struct Moved {
        Outcome outcome = Outcome::kBroken;
        size_t bytes = 0;  ///< of kDone: at least one
    };

    /// The server's end. Null when there is no memory.
    [[nodiscard]] static std::unique_ptr<TlsStream> accept(const TlsContext& context, int fd);
    /// The client's end, which verifies the server's certificate for `host`, a name or an address. Null when there is no memory.
    [[nodiscard]] static std::unique_ptr<TlsStream> connect(const TlsContext& context, int fd, const std::string& host);

    [[nodiscard]] Outcome handshake();
    [[nodiscard]] Moved read(void* into, size_t bytes);
    [[nodiscard]] Moved write(const void* from, size_t bytes);
    /// Tells the peer that nothing more comes, if the socket takes it now.
    void say_end();
    /// Why the last call said kBroken, for people.
    [[nodiscard]] std::string reason() const;

  private:
    struct Free {
        void operator()(ssl_st* tls) const;
    };
    explicit TlsStream(ssl_st* tls) : tls_(tls) {}
    [[nodiscard]] static std::unique_ptr<TlsStream> over(const TlsContext& context, int fd);
    [[nodiscard]] Outcome judge(int result);

    std::unique_ptr<ssl_st, Free> tls_;
    unsigned long error_ = 0;  ///< OpenSSL's code of the fault; 0: the socket broke or closed
};

}  // namespace baton::http
