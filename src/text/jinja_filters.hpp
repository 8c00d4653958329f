#pragma once

#include "text/jinja_vm.hpp"

namespace baton::text::jinja {

struct FilterEntry {
    std::string_view name;
    Builtin call;
};

/// Filters over strings and single values.
[[nodiscard]] Builtin find_text_filter(std::string_view name);
/// Filters over sequences and mappings.
[[nodiscard]] Builtin find_sequence_filter(std::string_view name);

}  // namespace baton::text::jinja
