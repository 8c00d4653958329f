#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

/// UTF-8, a character at a time (RFC 3629: no overlong forms, no surrogates, nothing past U+10FFFF).
namespace baton {

/// Length of the valid character at `pos` (1–4), or 0 where there is none.
[[nodiscard]] size_t valid_utf8_length(std::string_view text, size_t pos);
/// True when all of `text` is valid.
[[nodiscard]] bool is_valid_utf8(std::string_view text);
/// Characters of valid UTF-8.
[[nodiscard]] size_t count_utf8(std::string_view text);
/// Appends one code point.
void append_utf8(std::string& out, uint32_t code);

/// One decoded character.
struct CodePoint {
    uint32_t code = 0;
    uint32_t length = 0;  ///< bytes
};
/// The character at `pos` of valid UTF-8; `pos` must be on a character.
[[nodiscard]] CodePoint decode_utf8(std::string_view text, size_t pos);
/// Start of the character that ends before `pos` (`pos` > 0) in valid UTF-8.
[[nodiscard]] size_t previous_utf8(std::string_view text, size_t pos);

}  // namespace baton
