#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace baton::openai {

/// Appends the escape of a byte that a JSON string may not hold as it is: a quote, a backslash, a
/// control character.
void append_json_escape(std::string& out, uint8_t byte);
/// Appends a number as JSON: the shortest text that reads back equal; -9999.0 for infinities and
/// NaN.
void append_json_float(std::string& out, float value);
/// The end of the longest prefix of at most `bytes_max` bytes that cuts no character (at least one
/// character).
[[nodiscard]] size_t character_boundary(std::string_view text, size_t bytes_max);

}  // namespace baton::openai
