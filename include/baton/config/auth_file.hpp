#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baton/base/error.hpp"

namespace baton::config {

/// What a user may do, by the names of Xinference's auth file; values or-ed.
enum class Permission : uint8_t {
    kList = 1,         ///< models:list
    kRead = 2,         ///< models:read
    kStart = 4,        ///< models:start, models:write
    kStop = 8,         ///< models:stop, models:write
    kRegister = 16,    ///< models:register
    kUnregister = 32,  ///< models:unregister, models:register
    kAdmin = 64,       ///< admin
};

/// A key of a user. In the file a string, or {"key", "enabled", "expires_at"}: ISO 8601 in UTC, or seconds since 1970.
struct AuthKey {
    std::string text;
    bool enabled = true;
    int64_t expires_unix = 0;  ///< 0: never
    [[nodiscard]] bool expired(int64_t now_unix) const { return expires_unix != 0 && expires_unix <= now_unix; }
};

struct AuthUser {
    std::string name;
    std::string password;     ///< as written: the word itself, or "pbkdf2_sha256$ITERATIONS$SALT$HASH" (base64)
    uint8_t permissions = 0;  ///< values of Permission
    std::vector<AuthKey> api_keys;
};

/// An auth file in Xinference's format: {"auth_config": {"algorithm", "secret_key", "token_expire_in_minutes"},
/// "user_config": [{"username", "password", "permissions", "api_keys"}]}.
struct AuthFile {
    std::string secret_key;
    int64_t token_expire_minutes = 30;
    std::vector<AuthUser> users;
};

/// kInvalidArgument with the JSON path of what is wrong. Never repeats a secret, a password or a key.
[[nodiscard]] Expected<AuthFile> parse_auth_file(std::string_view json_text);

/// True when `given` is the password that a file's entry stands for; takes a while for a hashed one, on purpose.
[[nodiscard]] bool password_matches(const std::string& stored, std::string_view given);

}  // namespace baton::config
