#pragma once

#include <string_view>

namespace baton::registry {

/// src/registry/families.json, compiled in.
[[nodiscard]] std::string_view families_text();

}  // namespace baton::registry
