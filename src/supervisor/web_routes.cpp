#include "web_routes.hpp"

#include "baton/web/assets.hpp"

namespace baton::supervisor {
namespace {

void serve(http::Exchange& exchange, const web::Asset& asset) {
    http::Headers headers{{"ETag", std::string(asset.etag)},
                          {"Cache-Control", "no-cache"},
                          {"Content-Security-Policy", std::string(web::kContentSecurityPolicy)},
                          {"Referrer-Policy", "no-referrer"}};
    if (exchange.request().header("if-none-match") == asset.etag) return exchange.respond(304, "", std::move(headers), asset.content_type);
    exchange.respond(200, std::string(asset.bytes), std::move(headers), asset.content_type);
}

}  // namespace

void add_web_routes(http::Router& router) {
    for (const web::Asset& asset : web::assets())
        router.add("GET", asset.path, {http::Access::kOpen, false}, [&asset](const std::shared_ptr<http::Exchange>& e, const http::Params&) { serve(*e, asset); });
}

std::vector<std::string> web_paths() {
    std::vector<std::string> paths;
    for (const web::Asset& asset : web::assets()) paths.emplace_back(asset.path);
    return paths;
}

}  // namespace baton::supervisor
