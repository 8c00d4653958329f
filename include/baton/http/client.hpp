#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "baton/base/error.hpp"
#include "baton/http/message.hpp"

namespace baton::http {

struct ClientOptions {
    std::string base_url = "http://127.0.0.1:9997";  ///< http or https; a path prefix is kept
    std::string ca_file = {};  ///< https: PEM file of the certificates that the server's is checked with; "": the system's
    std::string api_key = {};  ///< sent as a bearer key when not empty
    int64_t connect_timeout_ms = 5'000;  ///< TLS's handshake included
    int64_t silence_timeout_ms = 600'000;  ///< without a single byte from the server
    size_t body_bytes_max = 256u * 1024 * 1024;
    /// Asked while an event stream is waited for; true ends it with kAborted and closes the connection (a signal handler's
    /// flag: a signal wakes the wait, else it is asked five times a second). Other requests are not cut short by it.
    std::function<bool()> interrupted = {};
};

struct ClientResponse {
    int status = 0;
    Headers headers;  ///< names in lower case
    std::string body;
    [[nodiscard]] std::string_view header(std::string_view lower_case_name) const;
};

/// A small blocking HTTP/1.1 client for the command line, the bench and tests. One thread at a
/// time. Keeps its connection between requests.
class Client {
  public:
    /// kInvalidArgument when the URL is not http[s]://host[:port][/prefix].
    static Expected<std::unique_ptr<Client>> create(ClientOptions options);
    virtual ~Client() = default;

    /// Sends one request and reads the whole answer. `body` empty: none is sent (POST announces an
    /// empty one). kUnavailable when nothing listens, kTimeout, kIo when the connection breaks or
    /// there is no TLS with that server (its certificate is not trusted, for one), kInvalidArgument when
    /// the CA file holds no certificates. Any HTTP status is a success.
    [[nodiscard]] virtual Expected<ClientResponse> request(std::string_view method,
                                                           std::string_view target,
                                                           std::string_view json_body = {}) = 0;
    [[nodiscard]] Expected<ClientResponse> get(std::string_view target) {
        return request("GET", target);
    }
    [[nodiscard]] Expected<ClientResponse> post(std::string_view target,
                                                std::string_view json_body) {
        return request("POST", target, json_body);
    }
    [[nodiscard]] Expected<ClientResponse> del(std::string_view target) {
        return request("DELETE", target);
    }

    /// Called with the payload of each `data:` line as it comes ("[DONE]" included). False ends the
    /// stream and closes the connection.
    using OnData = std::function<bool(std::string_view data)>;
    /// Posts and reads a stream of server-sent events. An answer that is no event stream comes back
    /// as a body. kIo when the stream breaks before its end.
    [[nodiscard]] virtual Expected<ClientResponse> stream(std::string_view target,
                                                          std::string_view json_body,
                                                          const OnData& on_data) = 0;
};

}  // namespace baton::http
