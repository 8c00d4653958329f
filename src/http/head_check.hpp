#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baton/base/digest.hpp"
#include "baton/http/server.hpp"

namespace baton::http {

/// Which keys may do what. Keys are kept as digests and compared in constant time, all of them
/// every time.
class KeyRing {
  public:
    explicit KeyRing(const ServerOptions& options);
    /// The same options with other keys.
    KeyRing(const ServerOptions& options, const std::vector<std::string>& admin_keys,
            const std::vector<std::string>& inference_keys);
    /// What a request's sender may do, or how it is refused.
    [[nodiscard]] KeyAnswer permissions_of(const Request& request) const;

  private:
    struct Key {
        Digest digest{};
        Permissions permissions;
    };
    std::vector<Key> keys_;
    std::function<KeyAnswer(std::string_view key, const std::string& remote)> authenticate_;
    std::vector<std::string> open_paths_;
};

/// An answer given before any handler sees the request.
struct Refusal {
    int status = 0;
    std::string message;
    Headers headers;
};

/// Checks a complete head, before its body is read: Host allow-list, key, Content-Encoding and
/// Content-Type. Sets request.permissions. `has_body`: a non-empty body is announced.
[[nodiscard]] std::optional<Refusal> check_head(const ServerOptions& options, const KeyRing& keys,
                                                Request& request, bool has_body);

/// The CORS headers of a request's answer; none that would let in an origin not configured.
[[nodiscard]] Headers cors_headers(const ServerOptions& options, const Request& request);
/// True when a request is a CORS preflight of a configured origin: it is answered 204 without a
/// key.
[[nodiscard]] bool is_preflight(const ServerOptions& options, const Request& request);
/// Headers of that answer.
[[nodiscard]] Headers preflight_headers();

}  // namespace baton::http
