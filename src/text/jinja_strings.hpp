#pragma once

#include <vector>

#include "text/case_mapping.hpp"
#include "text/jinja_vm.hpp"

namespace baton::text::jinja {

// Python's str methods on marked strings; each keeps which characters came from a user.

/// str.isspace for one code point.
[[nodiscard]] bool is_python_space(uint32_t code);
/// Bytes left after stripping white space (`chars` null) or any of the characters of `chars`.
struct StripSpan {
    size_t begin = 0;
    size_t end = 0;
};
[[nodiscard]] StripSpan strip_span(Vm& vm, const StrObject& text, const StrObject* chars, bool left,
                                   bool right);
[[nodiscard]] Value part_of(Vm& vm, const StrObject& text, size_t begin, size_t end);
[[nodiscard]] Value strip(Vm& vm, const StrObject& text, const StrObject* chars, bool left,
                          bool right);
[[nodiscard]] Value map_case(Vm& vm, const StrObject& text, Case wanted);
[[nodiscard]] Value capitalize(Vm& vm, const StrObject& text);
[[nodiscard]] Value swap_case(Vm& vm, const StrObject& text);
/// str.replace; `count` < 0 replaces all.
[[nodiscard]] Value replace(Vm& vm, const StrObject& text, const StrObject& from,
                            const StrObject& to, int64_t count);
[[nodiscard]] Value join(Vm& vm, const StrObject& separator, const std::vector<Value>& items);
/// str.split (`from_right` false) or rsplit; `separator` null splits at white space.
[[nodiscard]] Value split(Vm& vm, const StrObject& text, const StrObject* separator, int64_t count,
                          bool from_right);
[[nodiscard]] std::vector<Value> split_lines(Vm& vm, const StrObject& text, bool keep_ends);
/// First (or last) byte offset of `wanted` in [begin, end), or npos.
[[nodiscard]] size_t find_in(std::string_view text, std::string_view wanted, size_t begin,
                             size_t end, bool last);
/// html.escape as markupsafe does it.
[[nodiscard]] Value escape_html(Vm& vm, const StrObject& text);
/// str.center, ljust, rjust: `align` is '^', '<' or '>'.
[[nodiscard]] Value pad(Vm& vm, const StrObject& text, int64_t width, std::string_view fill,
                        char align);

}  // namespace baton::text::jinja
