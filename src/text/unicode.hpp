#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "baton/base/utf8.hpp"

namespace baton::text {

/// `text` with each maximal invalid subpart replaced by U+FFFD.
[[nodiscard]] std::string replace_invalid_utf8(std::string_view text);

// Unicode classes, from utf8proc's tables, completed to Unicode 16.
inline constexpr uint8_t kLetter = 1;        ///< \p{L}
inline constexpr uint8_t kNumber = 2;        ///< \p{N}
inline constexpr uint8_t kMark = 4;          ///< \p{M}
inline constexpr uint8_t kSpace = 8;         ///< White_Space
inline constexpr uint8_t kConnector = 16;    ///< \p{Pc}
inline constexpr uint8_t kPunctuation = 32;  ///< \p{P}
/// The class bits of a code point.
[[nodiscard]] uint8_t char_class(uint32_t code);
/// Those of ASCII, as char_class() has them.
[[nodiscard]] constexpr std::array<uint8_t, 128> ascii_classes() {
    std::array<uint8_t, 128> table{};
    for (uint8_t c = 0; c < 128; ++c) {
        if ((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z')) table[c] = kLetter;
        if (c >= '0' && c <= '9') table[c] = kNumber;
        if (c == ' ' || (c >= 9 && c <= 13)) table[c] = kSpace;
        for (const char p : std::string_view("!\"#%&'()*,-./:;?@[\\]{}"))
            if (static_cast<char>(c) == p) table[c] = kPunctuation;
    }
    table['_'] = kConnector | kPunctuation;
    return table;
}
inline constexpr std::array<uint8_t, 128> kAsciiClasses = ascii_classes();
/// \w of Rust's regex: alphabetic characters, marks, decimal numbers, connectors and the joiners.
[[nodiscard]] bool is_regex_word(uint32_t code);
/// Python's str.isprintable for one code point.
[[nodiscard]] bool is_printable(uint32_t code);

/// Unicode normalisation forms; linear but for a sort of each run of combining marks.
enum class NormalForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };
[[nodiscard]] std::string normalize(std::string_view valid_utf8, NormalForm form);
/// True only where valid UTF-8 is in form C: all its characters are of the ranges (most of what is
/// written) of which none is changed by composing, combines with the one before, or moves past it.
/// Some text in form C gives false.
[[nodiscard]] bool is_surely_nfc(std::string_view valid_utf8);

}  // namespace baton::text
