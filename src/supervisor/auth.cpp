#include "auth.hpp"

#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "baton/base/encoding.hpp"
#include "baton/base/log.hpp"

namespace baton::supervisor {
namespace {

using Json = nlohmann::json;

constexpr size_t kTokenBytesMax = 4096;
constexpr int kFailuresMax = 10;             ///< from one address within the window
constexpr int64_t kFailureWindowMs = 60'000;
constexpr size_t kRemotesMax = 4096;
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

/// The claims of a token whose signature is right and whose time has not come; null otherwise.
Json claims_of(const std::string& secret, std::string_view token) {
    const size_t second = token.rfind('.');
    const size_t first = token.find('.');
    if (token.size() > kTokenBytesMax || first == std::string_view::npos || second == first) return nullptr;
    // The signature first: nothing unsigned is ever parsed.
    if (!equal_constant_time(sign(secret, token.substr(0, second)), token.substr(second + 1))) return nullptr;
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

Expected<std::unique_ptr<Auth>> Auth::load(std::string path) {
    std::unique_ptr<Auth> auth(new Auth(std::move(path)));
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
        for (const std::string& key : next->file.users[i].api_keys) next->keys[sha256(key)] = i;
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

size_t Auth::keys() const { return state()->keys.size(); }

std::optional<http::Permissions> Auth::permissions_of(std::string_view key) const {
    const auto now = state();
    // Looked up by digest: how long that takes says nothing of any key's characters.
    if (const auto it = now->keys.find(sha256(key)); it != now->keys.end()) {
        key_requests_.fetch_add(1, std::memory_order_relaxed);
        http::Permissions out;
        out.bits = now->file.users[it->second].permissions;
        const bool admin = out.allow(http::Access::kAdmin);
        const http::Permissions most{http::Access::kList, http::Access::kInference};
        out.bits = admin ? most.bits : static_cast<uint8_t>(out.bits & most.bits);
        out.limited_key = true;
        return out;
    }
    const config::AuthUser* user = user_of(*now, key, "access");
    if (user == nullptr) return std::nullopt;
    http::Permissions out;
    out.bits = user->permissions;
    return out;
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
    if (!may_try(remote)) return fail(ErrorCode::kOverloaded, "Too many failed logins from this address; try again in a minute");
    const auto now = state();
    const auto it = now->users.find(name);
    // An unknown user costs what a known one does.
    const config::AuthUser& user = now->file.users[it == now->users.end() ? 0 : it->second];
    const bool matches = config::password_matches(user.password, password);
    if (!matches || it == now->users.end()) {
        count_failure(remote);
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

bool Auth::may_try(const std::string& remote) {
    const std::lock_guard lock(mutex_);
    const auto it = failures_.find(remote);
    if (it == failures_.end()) return true;
    if (steady_now() - it->second.since > kFailureWindowMs) {
        failures_.erase(it);
        return true;
    }
    return it->second.count < kFailuresMax;
}

void Auth::count_failure(const std::string& remote) {
    const std::lock_guard lock(mutex_);
    const TimeMs now = steady_now();
    if (failures_.size() >= kRemotesMax) std::erase_if(failures_, [&](const auto& f) { return now - f.second.since > kFailureWindowMs; });
    if (failures_.size() >= kRemotesMax && !failures_.contains(remote)) return;
    Failures& f = failures_[remote];
    if (f.count == 0) f.since = now;
    ++f.count;
}

}  // namespace baton::supervisor
