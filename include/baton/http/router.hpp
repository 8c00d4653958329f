#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "baton/http/server.hpp"

namespace baton::http {

/// The values of a route's {names}, in order.
using Params = std::vector<std::string>;
using RouteHandler = std::function<void(std::shared_ptr<Exchange>, const Params&)>;

/// A table of routes that is itself a Handler. It answers 404 `Not Found` for unknown paths, 405
/// `Method Not Allowed` with Allow, OPTIONS with 204 and Allow, HEAD through the GET route, 403
/// when the caller lacks the right, and 411 where a body is needed and none is announced. Build it
/// before the server starts; afterwards any thread may call it.
class Router {
  public:
    struct Rule {
        Access access = Access::kInference;  ///< the right that a caller needs
        bool needs_body = false;
    };
    /// `pattern` like "/v1/models/{uid...}/replicas/{id}". Of several patterns that fit, the one
    /// with the most literal segments wins, whatever the order of adding. A {name} matches one
    /// non-empty segment other than "." and ".."; a {name...}, of which a pattern has one at most,
    /// one or more of them, and its value keeps the slashes between them.
    void add(std::string_view method, std::string_view pattern, Rule rule, RouteHandler handler);

    void operator()(std::shared_ptr<Exchange> exchange) const;

    /// Every route as "METHOD /pattern", for tests that must visit all of them.
    [[nodiscard]] std::vector<std::string> routes() const;
    /// True when some route would match this path (any method).
    [[nodiscard]] bool knows(const std::vector<std::string>& segments) const;

  private:
    struct Route {
        std::string method;
        std::vector<std::string> pattern;
        std::string text;
        Rule rule;
        RouteHandler handler;
    };
    struct Match;
    [[nodiscard]] Match match(std::string_view method,
                              const std::vector<std::string>& segments) const;

    std::vector<Route> routes_;
};

}  // namespace baton::http
