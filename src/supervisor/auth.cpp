#include "auth.hpp"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "baton/base/clock.hpp"
#include "baton/base/encoding.hpp"
#include "baton/base/log.hpp"

namespace baton::supervisor {
namespace {

using Json = nlohmann::json;

constexpr size_t kTokenBytesMax = 4096;
constexpr Bans::Rule kLoginRule{10, 60'000, 60'000};
constexpr size_t kKeyFailuresMax = 5;        ///< at most: of one key that is no longer good, at one address
constexpr int64_t kRefreshFactor = 48;       ///< a refresh token lives that many times as long as an access token

std::string_view as_text(const Digest& d) { return {reinterpret_cast<const char*>(d.data()), d.size()}; }

std::string sign(const std::string& secret, std::string_view text) {
    return to_base64url(as_text(hmac_sha256(secret, std::as_bytes(std::span(text.data(), text.size())))));
}

/// What changes when the password does, without telling anything of it.
std::string password_mark(const std::string& secret, const config::AuthUser& user) {
    const std::string text = "password-mark\n" + user.name + "\n" + user.password;
    return sign(secret, text).substr(0, 16);
}

std::string make_token(const std::string& secret, const config::AuthUser& user, const char* type, int64_t lifetime_s) {
    const int64_t now = std::time(nullptr);
    const Json claims = {{"sub", user.name}, {"typ", type}, {"iat", now}, {"exp", now + lifetime_s}, {"mark", password_mark(secret, user)}};
    std::string out = to_base64url(R"({"alg":"HS256","typ":"JWT"})");
    out += "." + to_base64url(claims.dump(-1, ' ', false, Json::error_handler_t::replace));
    return out + "." + sign(secret, out);
}

bool is_signed(const std::string& secret, std::string_view token) {
    const size_t second = token.rfind('.');
    const size_t first = token.find('.');
    if (token.size() > kTokenBytesMax || first == std::string_view::npos || second == first) return false;
    return equal_constant_time(sign(secret, token.substr(0, second)), token.substr(second + 1));
}

/// The claims of a token whose signature is right and whose time has not come; null otherwise.
Json claims_of(const std::string& secret, std::string_view token) {
    // The signature first: nothing unsigned is ever parsed.
    if (!is_signed(secret, token)) return nullptr;
    const size_t second = token.rfind('.');
    const size_t first = token.find('.');
    const auto header = from_base64url(token.substr(0, first));
    const auto payload = from_base64url(token.substr(first + 1, second - first - 1));
    if (!header || !payload) return nullptr;
    const Json head = Json::parse(*header, nullptr, false);
    Json claims = Json::parse(*payload, nullptr, false);
    if (!head.is_object() || head.value("alg", Json()) != "HS256" || !claims.is_object()) return nullptr;
    const auto expires = claims.find("exp");
    if (expires == claims.end() || !expires->is_number_integer() || expires->get<int64_t>() <= std::time(nullptr)) return nullptr;
    return claims;
}

}  // namespace

Auth::Auth(std::string path, Bans::Rule rule)
    : path_(std::move(path)), logins_(kLoginRule), addresses_(rule), keys_at_addresses_({std::min(rule.failures_max, kKeyFailuresMax), rule.window_ms, rule.ban_ms}) {}

Expected<std::unique_ptr<Auth>> Auth::load(std::string path, Bans::Rule rule) {
    std::unique_ptr<Auth> auth(new Auth(std::move(path), rule));
    BATON_TRY(auth->reload());
    return auth;
}

Expected<void> Auth::reload() {
    std::ifstream in(path_, std::ios::binary);
    std::stringstream text;
    text << in.rdbuf();
    if (!in) return fail(ErrorCode::kIo, "cannot read the auth file " + path_, "auth_file");
    auto next = std::make_shared<State>();
    auto parsed = config::parse_auth_file(text.str());
    if (!parsed) return fail(parsed.error().code, "the auth file " + path_ + ": " + parsed.error().message, "auth_file");
    next->file = std::move(*parsed);
    for (size_t i = 0; i < next->file.users.size(); ++i) {
        next->users[next->file.users[i].name] = i;
        for (const config::AuthKey& key : next->file.users[i].api_keys) next->keys[sha256(key.text)] = {i, &key};
    }
    log::info("auth.loaded", {{"users", next->users.size()}, {"keys", next->keys.size()}});
    const std::lock_guard lock(mutex_);
    state_ = std::move(next);
    return {};
}

std::shared_ptr<const Auth::State> Auth::state() const {
    const std::lock_guard lock(mutex_);
    return state_;
}

http::KeyAnswer Auth::check(std::string_view key, const std::string& remote) {
    const auto now = state();
    {
        const std::lock_guard lock(mutex_);
        if (const int64_t left_ms = addresses_.left_ms(remote, steady_now()); left_ms > 0)
            return {std::nullopt, 429, "Too many failed attempts. IP temporarily banned.", retry_after_s(left_ms)};
    }
    // Looked up by digest: how long that takes says nothing of any key's characters.
    const Digest digest = sha256(key);
    if (const auto it = now->keys.find(digest); it != now->keys.end()) return check_key(*now, it->second, digest, remote);
    if (const config::AuthUser* user = user_of(*now, key, "access"); user != nullptr) {
        http::KeyAnswer out;
        out.permissions.emplace().bits = user->permissions;
        return out;
    }
    // A token of ours that is no longer good is no guess: its owner logs in again.
    if (is_signed(now->file.secret_key, key)) return {};
    const std::lock_guard lock(mutex_);
    if (addresses_.failed(remote, steady_now())) log::warn("auth.address_banned", {{"remote", remote}});
    return {};
}

/// A key that the file has.
http::KeyAnswer Auth::check_key(const State& state, const Key& key, const Digest& digest, const std::string& remote) {
    key_requests_.fetch_add(1, std::memory_order_relaxed);
    const std::string at = remote + "\n" + to_hex(digest);
    const std::lock_guard lock(mutex_);
    const TimeMs now = steady_now();
    if (const int64_t left_ms = keys_at_addresses_.left_ms(at, now); left_ms > 0)
        return {std::nullopt, 429, "Too many failed attempts for this key.", retry_after_s(left_ms)};
    if (!key.key->enabled || key.key->expired(std::time(nullptr))) {
        if (keys_at_addresses_.failed(at, now)) log::warn("auth.key_banned", {{"remote", remote}, {"user", state.file.users[key.user].name}});
        return {std::nullopt, 401, key.key->enabled ? "API key has expired" : "API key is disabled", 0};
    }
    http::KeyAnswer out;
    http::Permissions& rights = out.permissions.emplace();
    rights.bits = state.file.users[key.user].permissions;
    const http::Permissions most{http::Access::kList, http::Access::kInference};
    rights.bits = rights.allow(http::Access::kAdmin) ? most.bits : static_cast<uint8_t>(rights.bits & most.bits);
    rights.limited_key = true;
    return out;
}

Auth::Counts Auth::counts() const {
    Counts out;
    const auto now = state();
    const int64_t unix_s = std::time(nullptr);
    for (const auto& [digest, key] : now->keys) {
        if (key.key->enabled) ++(key.key->expired(unix_s) ? out.keys_expired : out.keys_active);
    }
    out.key_requests = key_requests_.load(std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    out.banned_addresses = addresses_.count(steady_now());
    out.banned_keys = keys_at_addresses_.count(steady_now());
    out.key_seconds = key_seconds_;
    return out;
}

void Auth::observe_key_request(int64_t ms) {
    const std::lock_guard lock(mutex_);
    key_seconds_.observe(static_cast<double>(ms) / 1000);
}

const config::AuthUser* Auth::user_of(const State& state, std::string_view token, std::string_view type) {
    const Json claims = claims_of(state.file.secret_key, token);
    if (!claims.is_object() || claims.value("typ", Json()) != type) return nullptr;
    const Json subject = claims.value("sub", Json());
    if (!subject.is_string()) return nullptr;
    const auto it = state.users.find(subject.get<std::string>());
    if (it == state.users.end()) return nullptr;
    const config::AuthUser& user = state.file.users[it->second];
    return claims.value("mark", Json()) == password_mark(state.file.secret_key, user) ? &user : nullptr;
}

Auth::Tokens Auth::issue(const State& state, const config::AuthUser& user) {
    const int64_t lifetime_s = state.file.token_expire_minutes * 60;
    return {make_token(state.file.secret_key, user, "access", lifetime_s),
            make_token(state.file.secret_key, user, "refresh", lifetime_s * kRefreshFactor)};
}

Expected<Auth::Tokens> Auth::log_in(const std::string& name, std::string_view password, const std::string& remote) {
    if (const int64_t left_s = login_locked_s(remote); left_s > 0)
        return fail(ErrorCode::kOverloaded, "Too many failed logins from this address; try again in " + std::to_string(left_s) + " s");
    const auto now = state();
    const auto it = now->users.find(name);
    // An unknown user costs what a known one does.
    const config::AuthUser& user = now->file.users[it == now->users.end() ? 0 : it->second];
    const bool matches = config::password_matches(user.password, password);
    if (!matches || it == now->users.end()) {
        {
            const std::lock_guard lock(mutex_);
            logins_.failed(remote, steady_now());
        }
        log::warn("auth.login_failed", {{"remote", remote}});
        return fail(ErrorCode::kUnauthorized, "Incorrect username or password");
    }
    return issue(*now, user);
}

Expected<Auth::Tokens> Auth::refresh(std::string_view token) const {
    const auto now = state();
    const config::AuthUser* user = user_of(*now, token, "refresh");
    if (user == nullptr) return fail(ErrorCode::kUnauthorized, "Could not validate credentials");
    return issue(*now, *user);
}

int64_t Auth::login_locked_s(const std::string& remote) const {
    const std::lock_guard lock(mutex_);
    return retry_after_s(logins_.left_ms(remote, steady_now()));
}

}  // namespace baton::supervisor
