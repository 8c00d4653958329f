#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace baton::text {

enum class Case : uint8_t { kLower, kUpper, kTitle };

/// Appends the full case mapping of one code point (ß upper is SS), as Python's str methods map it
/// without context.
void append_case(std::string& out, uint32_t code, Case wanted);
/// str.lower() of one code point inside a word: a capital sigma at a word's end becomes ς.
[[nodiscard]] bool is_final_sigma(std::string_view text, size_t pos);
[[nodiscard]] bool is_upper(uint32_t code);
[[nodiscard]] bool is_lower(uint32_t code);
[[nodiscard]] bool is_title(uint32_t code);
/// True where a character has case (Python: Lu, Ll, Lt and the Other_ properties).
[[nodiscard]] bool is_cased(uint32_t code);

}  // namespace baton::text
