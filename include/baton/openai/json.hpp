#pragma once

#include <string>
#include <string_view>

#include "baton/base/error.hpp"

namespace baton::openai {

/// Checks a request body against the rules every route shares, without keeping it: one JSON object,
/// valid UTF-8, no byte order mark, no NaN or number out of range, depth at most
/// limits::kJsonDepthMax, no key twice in an object. What passes may be parsed and printed by any
/// JSON library. kInvalidArgument with the reason and byte offset; never the body's text.
[[nodiscard]] Expected<void> check_json_object(std::string_view body);

/// Appends `text` as a JSON string with quotes; invalid UTF-8 becomes U+FFFD, so it never fails.
void append_json_string(std::string& out, std::string_view text);
/// `text` as a JSON string.
[[nodiscard]] std::string json_string(std::string_view text);

/// At most limits::kErrorEchoBytesMax bytes of user input, control characters and invalid bytes
/// escaped, for messages.
[[nodiscard]] std::string echo_input(std::string_view text);

}  // namespace baton::openai
