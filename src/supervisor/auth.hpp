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

#include "baton/base/clock.hpp"
#include "baton/base/digest.hpp"
#include "baton/base/error.hpp"
#include "baton/config/auth_file.hpp"
#include "baton/http/message.hpp"

namespace baton::supervisor {

/// The users of an auth file: what their keys and tokens allow, and logging in. Any thread.
///
/// A token is a JWT (RFC 7519) signed with HS256 by the file's secret key. It names its user, whose permissions count as
/// they are in the file now: whoever is taken out of it, or whose password changes, has no valid token any more. Keys list
/// and use models, whatever their user may do.
class Auth {
  public:
    struct Tokens {
        std::string access, refresh;
    };

    /// Reads the file. kIo when it cannot be read, kInvalidArgument where it is wrong.
    static Expected<std::unique_ptr<Auth>> load(std::string path);
    /// Reads it again; an error leaves everything as it is.
    [[nodiscard]] Expected<void> reload();

    /// What a key or token of a request allows; nothing when it is none.
    [[nodiscard]] std::optional<http::Permissions> permissions_of(std::string_view key) const;

    /// kUnauthorized `Incorrect username or password`; kOverloaded after limits of failures from one address. May take
    /// a tenth of a second.
    [[nodiscard]] Expected<Tokens> log_in(const std::string& user, std::string_view password, const std::string& remote);
    /// New tokens for a refresh token.
    [[nodiscard]] Expected<Tokens> refresh(std::string_view token) const;

    [[nodiscard]] size_t keys() const;
    [[nodiscard]] uint64_t key_requests() const { return key_requests_.load(std::memory_order_relaxed); }

  private:
    struct State {
        config::AuthFile file;
        std::map<Digest, size_t> keys;            ///< digest of a key → user
        std::map<std::string, size_t> users;
    };
    struct Failures {
        TimeMs since{};
        int count = 0;
    };

    explicit Auth(std::string path) : path_(std::move(path)) {}
    [[nodiscard]] std::shared_ptr<const State> state() const;
    [[nodiscard]] static Tokens issue(const State& state, const config::AuthUser& user);
    [[nodiscard]] static const config::AuthUser* user_of(const State& state, std::string_view token, std::string_view type);
    [[nodiscard]] bool may_try(const std::string& remote);
    void count_failure(const std::string& remote);

    const std::string path_;
    mutable std::mutex mutex_;
    std::shared_ptr<const State> state_;
    std::map<std::string, Failures> failures_;  ///< by remote address
    mutable std::atomic<uint64_t> key_requests_ = 0;
};

}  // namespace baton::supervisor
