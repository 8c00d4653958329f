#pragma once

#include <string_view>

#include "baton/base/error.hpp"
#include "text/jinja_ast.hpp"

namespace baton::text::jinja {

/// Parses a template. Nesting is counted and bounded, as is the height of operator and filter
/// chains; include, import and extends are refused, and so are unknown filters and tests outside
/// conditions.
[[nodiscard]] Expected<Program> parse(std::string_view source);

}  // namespace baton::text::jinja
