#pragma once

#include <string_view>

#include "baton/base/error.hpp"
#include "grammar/expr.hpp"

namespace baton::grammar {

/// Rules of a grammar text (docs/API.md, constrained decoding); gives the rule `root`, or the first one where none has that
/// name. Errors name the line.
[[nodiscard]] Expected<RuleId> read_ebnf(ExprPool& pool, std::string_view text, const Limits& limits);

}  // namespace baton::grammar
