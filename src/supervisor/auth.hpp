#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baton/base/digest.hpp"
#include "baton/base/error.hpp"
#include "baton/config/auth_file.hpp"
#include "baton/http/server.hpp"
#include "bans.hpp"
#include "request_metrics.hpp"

namespace baton::supervisor {

/// The users of an auth file: what their keys and tokens allow, and logging in. Any thread.
///
/// A token is a JWT (RFC 7519) signed with HS256 by the file's secret key. It names its user, whose permissions count as
/// they are in the file now: whoever is taken out of it, or whose password changes, has no valid token any more. Keys list
/// and use models, whatever their user may do, until they expire. Addresses that try keys and tokens that nobody has, and
/// keys that are used at an address although they are no longer good, are banned for a while.
class Auth {
  public:
    struct Tokens {
        std::string access, refresh;
    };

    /// Reads the file. kIo when it cannot be read, kInvalidArgument where it is wrong. `rule` is that of bans.
    static Expected<std::unique_ptr<Auth>> load(std::string path, Bans::Rule rule = {});
    /// Reads it again; an error leaves everything as it is.
    [[nodiscard]] Expected<void> reload();

    /// What a key or token of a request from `remote` allows, or how it is refused: 401 for what is none, or no longer
    /// good, 429 while the address, or the key at that address, is banned.
    [[nodiscard]] http::KeyAnswer check(std::string_view key, const std::string& remote);

    /// kUnauthorized `Incorrect username or password`; kOverloaded after limits of failures from one address. May take
    /// a tenth of a second.
    [[nodiscard]] Expected<Tokens> log_in(const std::string& user, std::string_view password, const std::string& remote);
    /// Seconds until that address may try again; 0: now.
    [[nodiscard]] int64_t login_locked_s(const std::string& remote) const;
    /// New tokens for a refresh token.
    [[nodiscard]] Expected<Tokens> refresh(std::string_view token) const;

    /// What /metrics tells.
    struct Counts {
        size_t keys_active = 0, keys_expired = 0;
        size_t banned_addresses = 0, banned_keys = 0;
        uint64_t key_requests = 0;
        Histogram key_seconds{kKeyDurationBounds};  ///< of requests that came with a key of the file
    };
    [[nodiscard]] Counts counts() const;
    void observe_key_request(int64_t ms);

  private:
    struct Key {
        size_t user = 0;
        const config::AuthKey* key = nullptr;  ///< in the state's file
    };
    struct State {
        config::AuthFile file;
        std::map<Digest, Key> keys;  ///< by digest
        std::map<std::string, size_t> users;
    };

    Auth(std::string path, Bans::Rule rule);
    [[nodiscard]] std::shared_ptr<const State> state() const;
    [[nodiscard]] static Tokens issue(const State& state, const config::AuthUser& user);
    [[nodiscard]] static const config::AuthUser* user_of(const State& state, std::string_view token, std::string_view type);
    [[nodiscard]] http::KeyAnswer check_key(const State& state, const Key& key, const Digest& digest, const std::string& remote);

    const std::string path_;
    mutable std::mutex mutex_;
    std::shared_ptr<const State> state_;
    Bans logins_, addresses_, keys_at_addresses_;
    Histogram key_seconds_{kKeyDurationBounds};
    std::atomic<uint64_t> key_requests_ = 0;
};

}  // namespace baton::supervisor
