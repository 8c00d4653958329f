#include "baton/config/auth_file.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <optional>
#include <set>

#include "baton/base/digest.hpp"
#include "baton/base/encoding.hpp"
#include "config/arguments.hpp"
#include "config/json_text.hpp"

namespace baton::config {
namespace {

constexpr std::string_view kHashed = "pbkdf2_sha256$";
constexpr uint32_t kIterationsMax = 10'000'000;
constexpr size_t kSecretBytesMin = 16;
constexpr size_t kUsersMax = 10'000;
constexpr int64_t kExpireMinutesMax = 60 * 24 * 366;

tl::unexpected<Error> wrong(const std::string& where, const std::string& why) {
    return fail(ErrorCode::kInvalidArgument, where + " " + why, where);
}

Expected<std::string> text_at(const Json& object, const char* key, const std::string& where) {
    const auto it = object.find(key);
    if (it == object.end()) return wrong(where + "/" + key, "is missing");
    if (!it->is_string() || it->get_ref<const std::string&>().empty())
        return wrong(where + "/" + key, "must be a string that is not empty");
    return it->get<std::string>();
}

Expected<uint8_t> permission_bits(const std::string& name, const std::string& where) {
    using P = Permission;
    const auto bits = [](std::initializer_list<P> list) {
        uint8_t out = 0;
        for (const P p : list) out = static_cast<uint8_t>(out | static_cast<uint8_t>(p));
        return out;
    };
    if (name == "models:list") return bits({P::kList});
    if (name == "models:read") return bits({P::kRead});
    if (name == "models:start") return bits({P::kStart});
    if (name == "models:stop") return bits({P::kStop});
    if (name == "models:write") return bits({P::kStart, P::kStop});
    if (name == "models:register") return bits({P::kRegister, P::kUnregister});
    if (name == "models:unregister") return bits({P::kUnregister});
    if (name == "admin") return bits({P::kAdmin});
    return wrong(where, "is not a permission: " + in_quotes(name));
}

/// iterations, salt and hash of a hashed password.
struct Hashed {
    uint32_t iterations = 0;
    std::string salt;
    std::string_view hash;
};

std::optional<Hashed> parse_hashed(std::string_view stored) {
    if (!stored.starts_with(kHashed)) return std::nullopt;
    stored.remove_prefix(kHashed.size());
    const size_t first = stored.find('$');
    const size_t second = first == std::string_view::npos ? first : stored.find('$', first + 1);
    Hashed out;
    if (second == std::string_view::npos || !parse_number(stored.substr(0, first), out.iterations) || out.iterations == 0 ||
        out.iterations > kIterationsMax)
        return std::nullopt;
    out.salt = std::string(stored.substr(first + 1, second - first - 1));
    out.hash = stored.substr(second + 1);
    if (out.hash.size() != 44) return std::nullopt;  // base64 of 32 bytes
    return out;
}

/// "2027-01-31T12:00:00", with a space for the T, with a fraction, with Z or +00:00 behind it.
std::optional<int64_t> parse_time(const std::string& text) {
    std::tm t{};
    int used = 0;
    char between = 0;
    if (text.size() > 40 || std::sscanf(text.c_str(), "%4d-%2d-%2d%c%2d:%2d:%2d%n", &t.tm_year, &t.tm_mon, &t.tm_mday, &between, &t.tm_hour, &t.tm_min, &t.tm_sec, &used) != 7)
        return std::nullopt;
    std::string_view rest = std::string_view(text).substr(static_cast<size_t>(used));
    if (rest.starts_with('.')) rest.remove_prefix(std::min(rest.find_first_not_of("0123456789", 1), rest.size()));
    const bool in_range = t.tm_year >= 1970 && t.tm_mon >= 1 && t.tm_mon <= 12 && t.tm_mday >= 1 && t.tm_mday <= 31 && t.tm_hour >= 0 && t.tm_hour < 24 &&
                          t.tm_min >= 0 && t.tm_min < 60 && t.tm_sec >= 0 && t.tm_sec <= 60;
    if (!in_range || (between != 'T' && between != ' ') || !(rest.empty() || rest == "Z" || rest == "+00:00")) return std::nullopt;
    t.tm_year -= 1900;
    t.tm_mon -= 1;
    return static_cast<int64_t>(::timegm(&t));
}

Expected<AuthKey> parse_key(const Json& value, const std::string& where) {
    AuthKey out;
    const Json* text = &value;
    std::string at = where;
    if (value.is_object()) {
        for (const auto& [name, member] : value.items())
            if (name != "key" && name != "name" && name != "enabled" && name != "expires_at") return wrong(where + "/" + name, "is not known");
        const auto key = value.find("key");
        if (key == value.end()) return wrong(where + "/key", "is missing");
        text = &*key;
        at += "/key";
        if (const auto it = value.find("enabled"); it != value.end()) {
            if (!it->is_boolean()) return wrong(where + "/enabled", "must be true or false, got " + kind_of(*it));
            out.enabled = it->get<bool>();
        }
        if (const auto it = value.find("expires_at"); it != value.end() && !it->is_null()) {
            const auto time = it->is_string() ? parse_time(it->get<std::string>()) : is_integer(*it) ? std::optional(it->get<int64_t>()) : std::nullopt;
            if (!time || *time < 1) return wrong(where + "/expires_at", "must be a time such as 2027-01-31T12:00:00Z, or seconds since 1970");
            out.expires_unix = *time;
        }
    }
    if (text->is_string()) out.text = text->get<std::string>();
    if (out.text.empty() || std::any_of(out.text.begin(), out.text.end(), [](char c) { return c <= 0x20 || c == 0x7f; }))
        return wrong(at, "must be a string without spaces that is not empty");
    return out;
}

Expected<AuthUser> parse_user(const Json& value, const std::string& where) {
    if (!value.is_object()) return wrong(where, "must be an object, got " + kind_of(value));
    AuthUser user;
    BATON_TRY_ASSIGN(user.name, text_at(value, "username", where));
    BATON_TRY_ASSIGN(user.password, text_at(value, "password", where));
    if (user.password.starts_with(kHashed) && !parse_hashed(user.password))
        return wrong(where + "/password", "must be pbkdf2_sha256$ITERATIONS$SALT$HASH with a base64 hash of 32 bytes");
    const auto permissions = value.find("permissions");
    if (permissions != value.end() && !permissions->is_null()) {
        if (!permissions->is_array()) return wrong(where + "/permissions", "must be a list, got " + kind_of(*permissions));
        for (size_t i = 0; i < permissions->size(); ++i) {
            const Json& name = (*permissions)[i];
            const std::string at = where + "/permissions/" + std::to_string(i);
            if (!name.is_string()) return wrong(at, "must be a string, got " + kind_of(name));
            BATON_TRY_ASSIGN(const uint8_t bits, permission_bits(name.get<std::string>(), at));
            user.permissions = static_cast<uint8_t>(user.permissions | bits);
        }
    }
    const auto keys = value.find("api_keys");
    if (keys == value.end() || keys->is_null()) return user;
    if (!keys->is_array()) return wrong(where + "/api_keys", "must be a list, got " + kind_of(*keys));
    for (size_t i = 0; i < keys->size(); ++i) {
        BATON_TRY_ASSIGN(AuthKey key, parse_key((*keys)[i], where + "/api_keys/" + std::to_string(i)));
        user.api_keys.push_back(std::move(key));
    }
    return user;
}

}  // namespace

Expected<AuthFile> parse_auth_file(std::string_view json_text) {
    BATON_TRY_ASSIGN(const Json json, parse_json_file(json_text));
    if (!json.is_object()) return wrong("/", "must be an object, got " + kind_of(json));
    const auto config = json.find("auth_config");
    if (config == json.end() || !config->is_object()) return wrong("/auth_config", "must be an object");
    AuthFile out;
    if (const auto it = config->find("algorithm"); it != config->end() && *it != "HS256")
        return wrong("/auth_config/algorithm", "must be HS256");
    BATON_TRY_ASSIGN(out.secret_key, text_at(*config, "secret_key", "/auth_config"));
    if (out.secret_key.size() < kSecretBytesMin)
        return wrong("/auth_config/secret_key", "must have at least " + std::to_string(kSecretBytesMin) + " characters");
    if (const auto it = config->find("token_expire_in_minutes"); it != config->end()) {
        if (!is_integer(*it) || it->get<int64_t>() < 1 || it->get<int64_t>() > kExpireMinutesMax)
            return wrong("/auth_config/token_expire_in_minutes", "must be an integer of 1 to " + std::to_string(kExpireMinutesMax));
        out.token_expire_minutes = it->get<int64_t>();
    }
    const auto users = json.find("user_config");
    if (users == json.end() || !users->is_array() || users->empty() || users->size() > kUsersMax)
        return wrong("/user_config", "must be a list of 1 to " + std::to_string(kUsersMax) + " users");
    std::set<std::string> names, keys;
    for (size_t i = 0; i < users->size(); ++i) {
        const std::string where = "/user_config/" + std::to_string(i);
        BATON_TRY_ASSIGN(AuthUser user, parse_user((*users)[i], where));
        if (!names.insert(user.name).second) return wrong(where + "/username", "stands there twice: " + in_quotes(user.name));
        for (const AuthKey& key : user.api_keys)
            if (!keys.insert(key.text).second) return wrong(where + "/api_keys", "has a key that stands there twice");
        out.users.push_back(std::move(user));
    }
    return out;
}

bool password_matches(const std::string& stored, std::string_view given) {
    const auto hashed = parse_hashed(stored);
    if (!hashed) return equal_constant_time(stored, given);
    const Digest digest = pbkdf2_sha256(given, hashed->salt, hashed->iterations);
    return equal_constant_time(hashed->hash, to_base64(digest));
}

}  // namespace baton::config
