#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace baton::openai {

/// Appends a number as JSON: the shortest text that reads back equal; -9999.0 for infinities and
/// NaN.
void append_json_float(std::string& out, float value);
/// Length of the valid UTF-8 character at `pos`, or 0.
[[nodiscard]] size_t utf8_length(std::string_view text, size_t pos);
/// Characters (code points) of valid UTF-8.
[[nodiscard]] size_t count_characters(std::string_view text);
/// The end of the longest prefix of at most `bytes_max` bytes that cuts no character (at least one
/// character).
[[nodiscard]] size_t character_boundary(std::string_view text, size_t bytes_max);

}  // namespace baton::openai
