#pragma once

#include <string_view>

#include "baton/base/error.hpp"
#include "grammar/expr.hpp"

namespace baton::grammar {

/// JSON texts that are valid under a schema: a subset of them, chosen so that each can be told to be valid from its schema
/// alone (docs/API.md, constrained decoding). Errors name the place in the schema.
[[nodiscard]] Expected<ExprId> read_json_schema(ExprPool& pool, std::string_view schema, const Limits& limits);
/// Any JSON object.
[[nodiscard]] ExprId any_json_object(ExprPool& pool);

}  // namespace baton::grammar
