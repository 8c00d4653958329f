#include "http/head_check.hpp"

#include <algorithm>
#include <cstring>

#include "http/request_parser.hpp"

namespace baton::http {
namespace {

std::string_view presented_key(const Request& request) {
    const std::string_view authorization = request.header("authorization");
    constexpr std::string_view kScheme = "bearer ";
    if (to_lower(authorization.substr(0, kScheme.size())) == kScheme)
        return trim(authorization.substr(kScheme.size()));
    return request.header("x-api-key");
}

std::string_view as_text(const Digest& digest) {
    return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

bool origin_allowed(const ServerOptions& options, std::string_view origin) {
    return !origin.empty() && std::find(options.cors_origins.begin(), options.cors_origins.end(),
                                        origin) != options.cors_origins.end();
}

std::string host_name(std::string_view host) {
    if (host.starts_with('[')) return to_lower(host.substr(0, host.find(']') + 1));
    return to_lower(host.substr(0, host.find(':')));
}

bool is_json_type(std::string_view type) {
    return to_lower(trim(type.substr(0, type.find(';')))) == "application/json";
}

}  // namespace

KeyRing::KeyRing(const ServerOptions& options)
    : KeyRing(options, options.admin_keys, options.inference_keys) {}

KeyRing::KeyRing(const ServerOptions& options, const std::vector<std::string>& admin_keys,
                 const std::vector<std::string>& inference_keys)
    : authenticate_(options.authenticate), open_paths_(options.open_paths) {
    for (const std::string& key : admin_keys) keys_.push_back({sha256(key), Permissions::all()});
    for (const std::string& key : inference_keys)
        keys_.push_back({sha256(key), {Access::kList, Access::kInference}});
}

KeyAnswer KeyRing::permissions_of(const Request& request) const {
    KeyAnswer answer;
    std::optional<Permissions>& found = answer.permissions;
    if (keys_.empty() && !authenticate_) {
        found = Permissions::all();
        return answer;
    }
    const std::string_view key = presented_key(request);
    if (!key.empty()) {
        const Digest digest = sha256(key);
        for (const Key& known : keys_) {
            if (!equal_constant_time(as_text(known.digest), as_text(digest))) continue;
            if (!found) found.emplace();
            found->bits |= known.permissions.bits;
        }
        if (!found && authenticate_) answer = authenticate_(key, request.remote_address);
    }
    if (!found &&
        std::find(open_paths_.begin(), open_paths_.end(), request.path) != open_paths_.end()) {
        found.emplace();
    }
    return answer;
}

std::optional<Refusal> check_head(const ServerOptions& options, const KeyRing& keys,
                                  Request& request, bool has_body) {
    if (!options.allowed_hosts.empty()) {
        const std::string host = host_name(request.header("host"));
        if (std::find(options.allowed_hosts.begin(), options.allowed_hosts.end(), host) ==
            options.allowed_hosts.end()) {
            return Refusal{421, "this host name is not served here", {}};
        }
    }
    KeyAnswer answer = keys.permissions_of(request);
    if (!answer.permissions) {
        Refusal refusal{answer.status, std::move(answer.message), {}};
        if (answer.status == 401) refusal.headers.emplace_back("WWW-Authenticate", "Bearer");
        if (answer.retry_after_s > 0)
            refusal.headers.emplace_back("Retry-After", std::to_string(answer.retry_after_s));
        return refusal;
    }
    request.permissions = *answer.permissions;
    const std::string_view encoding = request.header("content-encoding");
    if (!encoding.empty() && to_lower(encoding) != "identity") {
        return Refusal{415, "compressed request bodies are not supported", {}};
    }
    // A form or plain text body needs no preflight, so any web page could send it: refusing it
    // keeps foreign pages out.
    const std::string_view type = request.header("content-type");
    if (has_body && !type.empty() && !is_json_type(type)) {
        return Refusal{415, "the request body must be application/json", {}};
    }
    return std::nullopt;
}

Headers cors_headers(const ServerOptions& options, const Request& request) {
    if (options.cors_origins.empty()) return {};
    const std::string_view origin = request.header("origin");
    if (!origin_allowed(options, origin)) return {{"Vary", "Origin"}};
    return {{"Access-Control-Allow-Origin", std::string(origin)}, {"Vary", "Origin"}};
}

bool is_preflight(const ServerOptions& options, const Request& request) {
    return request.method == "OPTIONS" &&
           !request.header("access-control-request-method").empty() &&
           origin_allowed(options, request.header("origin"));
}

Headers preflight_headers() {
    return {
        {"Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, DELETE, OPTIONS"},
        {"Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key, X-Request-Id"},
        {"Access-Control-Max-Age", "600"}};
}

}  // namespace baton::http
