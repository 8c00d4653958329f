#pragma once

#include <string>
#include <vector>

#include "baton/http/router.hpp"

namespace baton::supervisor {

/// GET `/` and the files of the web page (docs/WEB.md). They need no key: what the page asks for does.
void add_web_routes(http::Router& router);

/// The paths of those routes.
[[nodiscard]] std::vector<std::string> web_paths();

}  // namespace baton::supervisor
