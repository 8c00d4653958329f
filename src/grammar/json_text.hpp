#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "grammar/expr.hpp"

namespace baton::grammar {

/// White space inside JSON: none, a space, or a new line with up to 20 spaces or tabs: bounded, so that an answer goes on.
[[nodiscard]] ExprId json_space(ExprPool& pool);

/// A bound on a number: a decimal as text ("-12.5"), or none.
struct Bound {
    std::string decimal;
    bool exclusive = false;
};
/// Integers within bounds, of at most 18 digits.
[[nodiscard]] ExprId integer_between(ExprPool& pool, const std::optional<Bound>& low, const std::optional<Bound>& high);
/// Numbers within bounds, without exponents; without bounds also with them.
[[nodiscard]] ExprId number_between(ExprPool& pool, const std::optional<Bound>& low, const std::optional<Bound>& high);

/// A number as JSON prints it ("1e+20", "0.5") as a plain decimal, or nothing where that would be longer than 18 digits before
/// or after the point.
[[nodiscard]] std::optional<std::string> plain_decimal(std::string_view printed);

/// The regular expression of a format of JSON schema, or null for one that is not known.
[[nodiscard]] const char* format_regex(std::string_view format);

}  // namespace baton::grammar
