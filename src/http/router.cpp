#include "baton/http/router.hpp"

#include <algorithm>

#include "baton/base/check.hpp"

namespace baton::http {
namespace {

bool is_name(std::string_view segment) {
    return segment.size() > 2 && segment.front() == '{' && segment.back() == '}';
}

/// A {name...}, which takes the slashes of its value.
bool is_long_name(std::string_view segment) {
    return is_name(segment) && segment.ends_with("...}");
}

bool fits(std::string_view pattern, std::string_view segment) {
    if (is_name(pattern)) return !segment.empty() && segment != "." && segment != "..";
    return pattern == segment;
}

using Segments = std::vector<std::string>;

/// How many segments the pattern's {name...} takes of a path of `size`; 1 for every other name.
size_t long_size(const Segments& pattern, size_t size) {
    return size < pattern.size() ? 1 : size - pattern.size() + 1;
}

bool fits(const Segments& pattern, const Segments& segments) {
    const size_t taken = long_size(pattern, segments.size());
    size_t at = 0;
    for (const std::string& part : pattern) {
        for (size_t i = is_long_name(part) ? taken : 1; i > 0; --i, ++at)
            if (at == segments.size() || !fits(part, segments[at])) return false;
    }
    return at == segments.size();
}

/// Two patterns that differ in the names of their {names} only are one path.
bool same_shape(const Segments& a, const Segments& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const std::string& x, const std::string& y) {
                          return x == y || (is_name(x) && is_name(y));
                      });
}

size_t literals(const Segments& pattern) {
    return static_cast<size_t>(
        std::count_if(pattern.begin(), pattern.end(), [](const auto& s) { return !is_name(s); }));
}

Params values_of(const Segments& pattern, const Segments& segments) {
    Params params;
    const size_t taken = long_size(pattern, segments.size());
    size_t at = 0;
    for (const std::string& part : pattern) {
        const size_t size = is_long_name(part) ? taken : 1;
        if (is_name(part)) {
            std::string value = segments[at];
            for (size_t i = 1; i < size; ++i) value.append("/").append(segments[at + i]);
            params.push_back(std::move(value));
        }
        at += size;
    }
    return params;
}

std::string join(const std::vector<std::string>& items) {
    std::string out;
    for (const std::string& item : items) out.append(out.empty() ? "" : ", ").append(item);
    return out;
}

void refuse(Exchange& exchange, int status, std::string_view message, Headers headers = {}) {
    exchange.respond(status, protocol_error_body(status, message), std::move(headers));
}

}  // namespace

struct Router::Match {
    const Route* route = nullptr;
    std::vector<std::string> methods;  ///< that the path has
};

void Router::add(std::string_view method, std::string_view pattern, Rule rule,
                 RouteHandler handler) {
    BATON_CHECK(pattern.starts_with('/'));
    Route route{std::string(method), {}, std::string(pattern), rule, std::move(handler)};
    std::string_view rest = pattern.substr(1);
    for (;;) {
        const size_t slash = rest.find('/');
        route.pattern.emplace_back(rest.substr(0, slash));
        if (slash == std::string_view::npos) break;
        rest.remove_prefix(slash + 1);
    }
    // Sorted so that the first fit is the most literal one; of two such, the one whose literal
    // segments come first.
    const auto less = [](const Route& a, const Route& b) {
        const size_t in_a = literals(a.pattern), in_b = literals(b.pattern);
        if (in_a != in_b) return in_a > in_b;
        return std::lexicographical_compare(
            a.pattern.begin(), a.pattern.end(), b.pattern.begin(), b.pattern.end(),
            [](const std::string& x, const std::string& y) { return !is_name(x) && is_name(y); });
    };
    routes_.insert(std::upper_bound(routes_.begin(), routes_.end(), route, less), std::move(route));
}

Router::Match Router::match(std::string_view method,
                            const std::vector<std::string>& segments) const {
    Match match;
    const std::vector<std::string>* pattern = nullptr;
    for (const Route& route : routes_) {
        if (pattern != nullptr && !same_shape(route.pattern, *pattern)) continue;
        if (!fits(route.pattern, segments)) continue;
        pattern = &route.pattern;
        match.methods.push_back(route.method);
        if (route.method == "GET") match.methods.emplace_back("HEAD");
        if (route.method == method || (method == "HEAD" && route.method == "GET"))
            match.route = &route;
    }
    if (!match.methods.empty()) match.methods.emplace_back("OPTIONS");
    return match;
}

bool Router::knows(const std::vector<std::string>& segments) const {
    return !match("", segments).methods.empty();
}

std::vector<std::string> Router::routes() const {
    std::vector<std::string> out;
    for (const Route& route : routes_) out.push_back(route.method + " " + route.text);
    return out;
}

void Router::operator()(std::shared_ptr<Exchange> exchange) const {
    const Request& request = exchange->request();
    if (request.path == "*") {
        return exchange->respond(204, "", {{"Allow", "GET, HEAD, POST, PUT, DELETE, OPTIONS"}});
    }
    const Match found = match(request.method, request.segments);
    if (found.methods.empty()) return refuse(*exchange, 404, "Not Found");
    if (found.route == nullptr) {
        if (request.method == "OPTIONS")
            return exchange->respond(204, "", {{"Allow", join(found.methods)}});
        return refuse(*exchange, 405, "Method Not Allowed", {{"Allow", join(found.methods)}});
    }
    const Route& route = *found.route;
    if (!request.permissions.allow(route.rule.access)) {
        return refuse(*exchange, 403,
                      request.permissions.limited_key && route.rule.access != Access::kList && route.rule.access != Access::kInference
                          ? "API keys can only access model query and inference endpoints"
                          : "Not enough permissions");
    }
    if (route.rule.needs_body && !request.body_framed) {
        return refuse(*exchange, 411, "a request body with its length is needed");
    }
    const Params params = values_of(route.pattern, request.segments);
    route.handler(std::move(exchange), params);
}

}  // namespace baton::http
