#include "baton/http/router.hpp"

#include <algorithm>

#include "baton/base/check.hpp"

namespace baton::http {
namespace {

bool is_name(std::string_view segment) {
    return segment.size() > 2 && segment.front() == '{' && segment.back() == '}';
}

bool fits(std::string_view pattern, std::string_view segment) {
    if (is_name(pattern)) return !segment.empty() && segment != "." && segment != "..";
    return pattern == segment;
}

/// Two patterns that differ in the names of their {names} only are one path.
bool same_shape(const std::vector<std::string>& a, const std::vector<std::string>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const std::string& x, const std::string& y) {
                          return x == y || (is_name(x) && is_name(y));
                      });
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
    // Sorted so that the first fit is the most literal one: a literal segment comes before a
    // {name}.
    const auto less = [](const Route& a, const Route& b) {
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
        if (!std::equal(route.pattern.begin(), route.pattern.end(), segments.begin(),
                        segments.end(), fits))
            continue;
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
    if (request.access < route.rule.access) return refuse(*exchange, 403, "Not enough permissions");
    if (route.rule.needs_body && !request.body_framed) {
        return refuse(*exchange, 411, "a request body with its length is needed");
    }
    Params params;
    for (size_t i = 0; i < route.pattern.size(); ++i) {
        if (is_name(route.pattern[i])) params.push_back(request.segments[i]);
    }
    route.handler(std::move(exchange), params);
}

}  // namespace baton::http
