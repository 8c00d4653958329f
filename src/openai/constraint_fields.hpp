#pragma once

#include "baton/wire/messages.hpp"
#include "openai/json.hpp"

namespace baton::openai {

/// What response_format, guided_json, guided_regex, guided_choice, guided_grammar, guided_json_object or structured_outputs ask of
/// the answer; kNone for none of them. Compiles it once to know that it can be kept. kInvalidArgument for a malformed field or
/// more than one of them, kUnsupported for a feature that is not built; param is the field.
[[nodiscard]] Expected<wire::Constraint> read_constraint(const Json& body);

}  // namespace baton::openai
