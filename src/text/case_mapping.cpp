#include "text/case_mapping.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>

#include "text/unicode.hpp"

namespace baton::text {
namespace {

struct Special {
    uint32_t code;
    Case wanted;
    std::string_view mapped;
};

/// The mappings of Unicode's SpecialCasing to more than one character, sorted by code point and
/// case.
constexpr std::array<Special, 151> kSpecial{{
    {0x00DF, Case::kUpper, "\x53\x53"},
    {0x00DF, Case::kTitle, "\x53\x73"},
    {0x0130, Case::kLower, "\x69\xCC\x87"},
    {0x0149, Case::kUpper, "\xCA\xBC\x4E"},
    {0x0149, Case::kTitle, "\xCA\xBC\x4E"},
    {0x01F0, Case::kUpper, "\x4A\xCC\x8C"},
    {0x01F0, Case::kTitle, "\x4A\xCC\x8C"},
    {0x0390, Case::kUpper, "\xCE\x99\xCC\x88\xCC\x81"},
    {0x0390, Case::kTitle, "\xCE\x99\xCC\x88\xCC\x81"},
    {0x03B0, Case::kUpper, "\xCE\xA5\xCC\x88\xCC\x81"},
    {0x03B0, Case::kTitle, "\xCE\xA5\xCC\x88\xCC\x81"},
    {0x0587, Case::kUpper, "\xD4\xB5\xD5\x92"},
    {0x0587, Case::kTitle, "\xD4\xB5\xD6\x82"},
    {0x1E96, Case::kUpper, "\x48\xCC\xB1"},
    {0x1E96, Case::kTitle, "\x48\xCC\xB1"},
    {0x1E97, Case::kUpper, "\x54\xCC\x88"},
    {0x1E97, Case::kTitle, "\x54\xCC\x88"},
    {0x1E98, Case::kUpper, "\x57\xCC\x8A"},
    {0x1E98, Case::kTitle, "\x57\xCC\x8A"},
    {0x1E99, Case::kUpper, "\x59\xCC\x8A"},
    {0x1E99, Case::kTitle, "\x59\xCC\x8A"},
    {0x1E9A, Case::kUpper, "\x41\xCA\xBE"},
    {0x1E9A, Case::kTitle, "\x41\xCA\xBE"},
    {0x1F50, Case::kUpper, "\xCE\xA5\xCC\x93"},
    {0x1F50, Case::kTitle, "\xCE\xA5\xCC\x93"},
    {0x1F52, Case::kUpper, "\xCE\xA5\xCC\x93\xCC\x80"},
    {0x1F52, Case::kTitle, "\xCE\xA5\xCC\x93\xCC\x80"},
    {0x1F54, Case::kUpper, "\xCE\xA5\xCC\x93\xCC\x81"},
    {0x1F54, Case::kTitle, "\xCE\xA5\xCC\x93\xCC\x81"},
    {0x1F56, Case::kUpper, "\xCE\xA5\xCC\x93\xCD\x82"},
    {0x1F56, Case::kTitle, "\xCE\xA5\xCC\x93\xCD\x82"},
    {0x1F80, Case::kUpper, "\xE1\xBC\x88\xCE\x99"},
    {0x1F81, Case::kUpper, "\xE1\xBC\x89\xCE\x99"},
    {0x1F82, Case::kUpper, "\xE1\xBC\x8A\xCE\x99"},
    {0x1F83, Case::kUpper, "\xE1\xBC\x8B\xCE\x99"},
    {0x1F84, Case::kUpper, "\xE1\xBC\x8C\xCE\x99"},
    {0x1F85, Case::kUpper, "\xE1\xBC\x8D\xCE\x99"},
    {0x1F86, Case::kUpper, "\xE1\xBC\x8E\xCE\x99"},
    {0x1F87, Case::kUpper, "\xE1\xBC\x8F\xCE\x99"},
    {0x1F88, Case::kUpper, "\xE1\xBC\x88\xCE\x99"},
    {0x1F89, Case::kUpper, "\xE1\xBC\x89\xCE\x99"},
    {0x1F8A, Case::kUpper, "\xE1\xBC\x8A\xCE\x99"},
    {0x1F8B, Case::kUpper, "\xE1\xBC\x8B\xCE\x99"},
    {0x1F8C, Case::kUpper, "\xE1\xBC\x8C\xCE\x99"},
    {0x1F8D, Case::kUpper, "\xE1\xBC\x8D\xCE\x99"},
    {0x1F8E, Case::kUpper, "\xE1\xBC\x8E\xCE\x99"},
    {0x1F8F, Case::kUpper, "\xE1\xBC\x8F\xCE\x99"},
    {0x1F90, Case::kUpper, "\xE1\xBC\xA8\xCE\x99"},
    {0x1F91, Case::kUpper, "\xE1\xBC\xA9\xCE\x99"},
    {0x1F92, Case::kUpper, "\xE1\xBC\xAA\xCE\x99"},
    {0x1F93, Case::kUpper, "\xE1\xBC\xAB\xCE\x99"},
    {0x1F94, Case::kUpper, "\xE1\xBC\xAC\xCE\x99"},
    {0x1F95, Case::kUpper, "\xE1\xBC\xAD\xCE\x99"},
    {0x1F96, Case::kUpper, "\xE1\xBC\xAE\xCE\x99"},
    {0x1F97, Case::kUpper, "\xE1\xBC\xAF\xCE\x99"},
    {0x1F98, Case::kUpper, "\xE1\xBC\xA8\xCE\x99"},
    {0x1F99, Case::kUpper, "\xE1\xBC\xA9\xCE\x99"},
    {0x1F9A, Case::kUpper, "\xE1\xBC\xAA\xCE\x99"},
    {0x1F9B, Case::kUpper, "\xE1\xBC\xAB\xCE\x99"},
    {0x1F9C, Case::kUpper, "\xE1\xBC\xAC\xCE\x99"},
    {0x1F9D, Case::kUpper, "\xE1\xBC\xAD\xCE\x99"},
    {0x1F9E, Case::kUpper, "\xE1\xBC\xAE\xCE\x99"},
    {0x1F9F, Case::kUpper, "\xE1\xBC\xAF\xCE\x99"},
    {0x1FA0, Case::kUpper, "\xE1\xBD\xA8\xCE\x99"},
    {0x1FA1, Case::kUpper, "\xE1\xBD\xA9\xCE\x99"},
    {0x1FA2, Case::kUpper, "\xE1\xBD\xAA\xCE\x99"},
    {0x1FA3, Case::kUpper, "\xE1\xBD\xAB\xCE\x99"},
    {0x1FA4, Case::kUpper, "\xE1\xBD\xAC\xCE\x99"},
    {0x1FA5, Case::kUpper, "\xE1\xBD\xAD\xCE\x99"},
    {0x1FA6, Case::kUpper, "\xE1\xBD\xAE\xCE\x99"},
    {0x1FA7, Case::kUpper, "\xE1\xBD\xAF\xCE\x99"},
    {0x1FA8, Case::kUpper, "\xE1\xBD\xA8\xCE\x99"},
    {0x1FA9, Case::kUpper, "\xE1\xBD\xA9\xCE\x99"},
    {0x1FAA, Case::kUpper, "\xE1\xBD\xAA\xCE\x99"},
    {0x1FAB, Case::kUpper, "\xE1\xBD\xAB\xCE\x99"},
    {0x1FAC, Case::kUpper, "\xE1\xBD\xAC\xCE\x99"},
    {0x1FAD, Case::kUpper, "\xE1\xBD\xAD\xCE\x99"},
    {0x1FAE, Case::kUpper, "\xE1\xBD\xAE\xCE\x99"},
    {0x1FAF, Case::kUpper, "\xE1\xBD\xAF\xCE\x99"},
    {0x1FB2, Case::kUpper, "\xE1\xBE\xBA\xCE\x99"},
    {0x1FB2, Case::kTitle, "\xE1\xBE\xBA\xCD\x85"},
    {0x1FB3, Case::kUpper, "\xCE\x91\xCE\x99"},
    {0x1FB4, Case::kUpper, "\xCE\x86\xCE\x99"},
    {0x1FB4, Case::kTitle, "\xCE\x86\xCD\x85"},
    {0x1FB6, Case::kUpper, "\xCE\x91\xCD\x82"},
    {0x1FB6, Case::kTitle, "\xCE\x91\xCD\x82"},
    {0x1FB7, Case::kUpper, "\xCE\x91\xCD\x82\xCE\x99"},
    {0x1FB7, Case::kTitle, "\xCE\x91\xCD\x82\xCD\x85"},
    {0x1FBC, Case::kUpper, "\xCE\x91\xCE\x99"},
    {0x1FC2, Case::kUpper, "\xE1\xBF\x8A\xCE\x99"},
    {0x1FC2, Case::kTitle, "\xE1\xBF\x8A\xCD\x85"},
    {0x1FC3, Case::kUpper, "\xCE\x97\xCE\x99"},
    {0x1FC4, Case::kUpper, "\xCE\x89\xCE\x99"},
    {0x1FC4, Case::kTitle, "\xCE\x89\xCD\x85"},
    {0x1FC6, Case::kUpper, "\xCE\x97\xCD\x82"},
    {0x1FC6, Case::kTitle, "\xCE\x97\xCD\x82"},
    {0x1FC7, Case::kUpper, "\xCE\x97\xCD\x82\xCE\x99"},
    {0x1FC7, Case::kTitle, "\xCE\x97\xCD\x82\xCD\x85"},
    {0x1FCC, Case::kUpper, "\xCE\x97\xCE\x99"},
    {0x1FD2, Case::kUpper, "\xCE\x99\xCC\x88\xCC\x80"},
    {0x1FD2, Case::kTitle, "\xCE\x99\xCC\x88\xCC\x80"},
    {0x1FD3, Case::kUpper, "\xCE\x99\xCC\x88\xCC\x81"},
    {0x1FD3, Case::kTitle, "\xCE\x99\xCC\x88\xCC\x81"},
    {0x1FD6, Case::kUpper, "\xCE\x99\xCD\x82"},
    {0x1FD6, Case::kTitle, "\xCE\x99\xCD\x82"},
    {0x1FD7, Case::kUpper, "\xCE\x99\xCC\x88\xCD\x82"},
    {0x1FD7, Case::kTitle, "\xCE\x99\xCC\x88\xCD\x82"},
    {0x1FE2, Case::kUpper, "\xCE\xA5\xCC\x88\xCC\x80"},
    {0x1FE2, Case::kTitle, "\xCE\xA5\xCC\x88\xCC\x80"},
    {0x1FE3, Case::kUpper, "\xCE\xA5\xCC\x88\xCC\x81"},
    {0x1FE3, Case::kTitle, "\xCE\xA5\xCC\x88\xCC\x81"},
    {0x1FE4, Case::kUpper, "\xCE\xA1\xCC\x93"},
    {0x1FE4, Case::kTitle, "\xCE\xA1\xCC\x93"},
    {0x1FE6, Case::kUpper, "\xCE\xA5\xCD\x82"},
    {0x1FE6, Case::kTitle, "\xCE\xA5\xCD\x82"},
    {0x1FE7, Case::kUpper, "\xCE\xA5\xCC\x88\xCD\x82"},
    {0x1FE7, Case::kTitle, "\xCE\xA5\xCC\x88\xCD\x82"},
    {0x1FF2, Case::kUpper, "\xE1\xBF\xBA\xCE\x99"},
    {0x1FF2, Case::kTitle, "\xE1\xBF\xBA\xCD\x85"},
    {0x1FF3, Case::kUpper, "\xCE\xA9\xCE\x99"},
    {0x1FF4, Case::kUpper, "\xCE\x8F\xCE\x99"},
    {0x1FF4, Case::kTitle, "\xCE\x8F\xCD\x85"},
    {0x1FF6, Case::kUpper, "\xCE\xA9\xCD\x82"},
    {0x1FF6, Case::kTitle, "\xCE\xA9\xCD\x82"},
    {0x1FF7, Case::kUpper, "\xCE\xA9\xCD\x82\xCE\x99"},
    {0x1FF7, Case::kTitle, "\xCE\xA9\xCD\x82\xCD\x85"},
    {0x1FFC, Case::kUpper, "\xCE\xA9\xCE\x99"},
    {0xFB00, Case::kUpper, "\x46\x46"},
    {0xFB00, Case::kTitle, "\x46\x66"},
    {0xFB01, Case::kUpper, "\x46\x49"},
    {0xFB01, Case::kTitle, "\x46\x69"},
    {0xFB02, Case::kUpper, "\x46\x4C"},
    {0xFB02, Case::kTitle, "\x46\x6C"},
    {0xFB03, Case::kUpper, "\x46\x46\x49"},
    {0xFB03, Case::kTitle, "\x46\x66\x69"},
    {0xFB04, Case::kUpper, "\x46\x46\x4C"},
    {0xFB04, Case::kTitle, "\x46\x66\x6C"},
    {0xFB05, Case::kUpper, "\x53\x54"},
    {0xFB05, Case::kTitle, "\x53\x74"},
    {0xFB06, Case::kUpper, "\x53\x54"},
    {0xFB06, Case::kTitle, "\x53\x74"},
    {0xFB13, Case::kUpper, "\xD5\x84\xD5\x86"},
    {0xFB13, Case::kTitle, "\xD5\x84\xD5\xB6"},
    {0xFB14, Case::kUpper, "\xD5\x84\xD4\xB5"},
    {0xFB14, Case::kTitle, "\xD5\x84\xD5\xA5"},
    {0xFB15, Case::kUpper, "\xD5\x84\xD4\xBB"},
    {0xFB15, Case::kTitle, "\xD5\x84\xD5\xAB"},
    {0xFB16, Case::kUpper, "\xD5\x8E\xD5\x86"},
    {0xFB16, Case::kTitle, "\xD5\x8E\xD5\xB6"},
    {0xFB17, Case::kUpper, "\xD5\x84\xD4\xBD"},
    {0xFB17, Case::kTitle, "\xD5\x84\xD5\xAD"},
}};

const Special* find_special(uint32_t code, Case wanted) {
    const auto* it = std::lower_bound(kSpecial.begin(), kSpecial.end(), code,
                                      [](const Special& s, uint32_t c) { return s.code < c; });
    for (; it != kSpecial.end() && it->code == code; ++it) {
        if (it->wanted == wanted) return it;
    }
    return nullptr;
}

bool is_case_ignorable(uint32_t code) {
    if (code == 0x27 || code == 0x2E || code == 0x3A || code == 0xB7 || code == 0x2019) return true;
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
        case UTF8PROC_CATEGORY_MN:
        case UTF8PROC_CATEGORY_ME:
        case UTF8PROC_CATEGORY_CF:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_SK:
            return true;
        default:
            return false;
    }
}

}  // namespace

void append_case(std::string& out, uint32_t code, Case wanted) {
    if (code < 0x80) {
        if (wanted == Case::kLower && code >= 'A' && code <= 'Z') code += 32;
        if (wanted != Case::kLower && code >= 'a' && code <= 'z') code -= 32;
        out += static_cast<char>(code);
        return;
    }
    if (const Special* special = find_special(code, wanted)) {
        out += special->mapped;
        return;
    }
    const auto simple = static_cast<utf8proc_int32_t>(code);
    const utf8proc_int32_t mapped = wanted == Case::kLower   ? utf8proc_tolower(simple)
                                    : wanted == Case::kUpper ? utf8proc_toupper(simple)
                                                             : utf8proc_totitle(simple);
    append_utf8(out, static_cast<uint32_t>(mapped));
}

bool is_final_sigma(std::string_view text, size_t pos) {
    bool before = false;
    for (size_t i = pos; i > 0;) {
        i = previous_utf8(text, i);
        const uint32_t code = decode_utf8(text, i).code;
        if (is_case_ignorable(code)) continue;
        before = is_cased(code);
        break;
    }
    if (!before) return false;
    for (size_t i = pos + decode_utf8(text, pos).length; i < text.size();) {
        const CodePoint cp = decode_utf8(text, i);
        if (!is_case_ignorable(cp.code)) return !is_cased(cp.code);
        i += cp.length;
    }
    return true;
}

bool is_upper(uint32_t code) {
    return utf8proc_isupper(static_cast<utf8proc_int32_t>(code)) != 0;
}
bool is_lower(uint32_t code) {
    return utf8proc_islower(static_cast<utf8proc_int32_t>(code)) != 0;
}
bool is_title(uint32_t code) {
    return utf8proc_category(static_cast<utf8proc_int32_t>(code)) == UTF8PROC_CATEGORY_LT;
}
bool is_cased(uint32_t code) {
    return is_upper(code) || is_lower(code) || is_title(code);
}

}  // namespace baton::text
