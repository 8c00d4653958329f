#include "text/unicode.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <vector>

namespace baton::text {
namespace {

struct LaterRange {
    uint32_t first;
    uint32_t last;
    uint8_t bits;
};
/// Characters that got their class in Unicode 15 or 16: the tokenizers' regex engine knows them,
/// utf8proc may not.
constexpr std::array<LaterRange, 77> kLater{{
    {0x897, 0x897, kMark},
    {0xCF3, 0xCF3, kMark},
    {0xECE, 0xECE, kMark},
    {0x1B4E, 0x1B4F, kPunctuation},
    {0x1B7F, 0x1B7F, kPunctuation},
    {0x1C89, 0x1C8A, kLetter},
    {0xA7CB, 0xA7CD, kLetter},
    {0xA7DA, 0xA7DC, kLetter},
    {0x105C0, 0x105F3, kLetter},
    {0x10D40, 0x10D49, kNumber},
    {0x10D4A, 0x10D65, kLetter},
    {0x10D69, 0x10D6D, kMark},
    {0x10D6E, 0x10D6E, kPunctuation},
    {0x10D6F, 0x10D85, kLetter},
    {0x10EC2, 0x10EC4, kLetter},
    {0x10EFC, 0x10EFF, kMark},
    {0x1123F, 0x11240, kLetter},
    {0x11241, 0x11241, kMark},
    {0x11380, 0x11389, kLetter},
    {0x1138B, 0x1138B, kLetter},
    {0x1138E, 0x1138E, kLetter},
    {0x11390, 0x113B5, kLetter},
    {0x113B7, 0x113B7, kLetter},
    {0x113B8, 0x113C0, kMark},
    {0x113C2, 0x113C2, kMark},
    {0x113C5, 0x113C5, kMark},
    {0x113C7, 0x113CA, kMark},
    {0x113CC, 0x113D0, kMark},
    {0x113D1, 0x113D1, kLetter},
    {0x113D2, 0x113D2, kMark},
    {0x113D3, 0x113D3, kLetter},
    {0x113D4, 0x113D5, kPunctuation},
    {0x113D7, 0x113D8, kPunctuation},
    {0x113E1, 0x113E2, kMark},
    {0x116D0, 0x116E3, kNumber},
    {0x11BC0, 0x11BE0, kLetter},
    {0x11BE1, 0x11BE1, kPunctuation},
    {0x11BF0, 0x11BF9, kNumber},
    {0x11F00, 0x11F01, kMark},
    {0x11F02, 0x11F02, kLetter},
    {0x11F03, 0x11F03, kMark},
    {0x11F04, 0x11F10, kLetter},
    {0x11F12, 0x11F33, kLetter},
    {0x11F34, 0x11F3A, kMark},
    {0x11F3E, 0x11F42, kMark},
    {0x11F50, 0x11F59, kNumber},
    {0x11F5A, 0x11F5A, kMark},
    {0x1342F, 0x1342F, kLetter},
    {0x13440, 0x13440, kMark},
    {0x13441, 0x13446, kLetter},
    {0x13447, 0x13455, kMark},
    {0x13460, 0x143FA, kLetter},
    {0x16100, 0x1611D, kLetter},
    {0x1611E, 0x1612F, kMark},
    {0x16130, 0x16139, kNumber},
    {0x16D40, 0x16D6C, kLetter},
    {0x16D6D, 0x16D6F, kPunctuation},
    {0x16D70, 0x16D79, kNumber},
    {0x18CFF, 0x18CFF, kLetter},
    {0x1B132, 0x1B132, kLetter},
    {0x1B155, 0x1B155, kLetter},
    {0x1CCF0, 0x1CCF9, kNumber},
    {0x1D2C0, 0x1D2D3, kNumber},
    {0x1DF25, 0x1DF2A, kLetter},
    {0x1E030, 0x1E06D, kLetter},
    {0x1E08F, 0x1E08F, kMark},
    {0x1E4D0, 0x1E4EB, kLetter},
    {0x1E4EC, 0x1E4EF, kMark},
    {0x1E4F0, 0x1E4F9, kNumber},
    {0x1E5D0, 0x1E5ED, kLetter},
    {0x1E5EE, 0x1E5EF, kMark},
    {0x1E5F0, 0x1E5F0, kLetter},
    {0x1E5F1, 0x1E5FA, kNumber},
    {0x1E5FF, 0x1E5FF, kPunctuation},
    {0x2B739, 0x2B739, kLetter},
    {0x2EBF0, 0x2EE5D, kLetter},
    {0x31350, 0x323AF, kLetter},
}};

struct Range {
    uint32_t first;
    uint32_t last;
};
template <size_t kCount>
bool in_ranges(const std::array<Range, kCount>& ranges, uint32_t code) {
    const auto* it = std::lower_bound(ranges.begin(), ranges.end(), code,
                                      [](const Range& r, uint32_t c) { return r.last < c; });
    return it != ranges.end() && it->first <= code;
}

/// Characters that combine, compose or decompose only since after Unicode 9. The tokenizers'
/// normalisers have the tables of that version, and to them these are letters like others.
constexpr std::array<Range, 51> kInert{{
    {0x7FD, 0x7FD},     {0x897, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},
    {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},     {0x1715, 0x1715},
    {0x1ABF, 0x1AEB},   {0x1DF6, 0x1DFA},   {0x32FF, 0x32FF},   {0xA7F2, 0xA7F4},
    {0xA82C, 0xA82C},   {0xAB69, 0xAB69},   {0x105C0, 0x105F3}, {0x10781, 0x107BA},
    {0x10D24, 0x10D27}, {0x10D69, 0x10D6D}, {0x10EAB, 0x10EAC}, {0x10EFA, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B},
    {0x11380, 0x113E2}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0},
    {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16100, 0x16139},
    {0x16D40, 0x16D79}, {0x16FF0, 0x16FF1}, {0x1E030, 0x1E06D}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
    {0x1E5EE, 0x1E5EF}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
}};

/// The order among combining marks; 0 for what is none.
int combining_class(utf8proc_int32_t code) {
    if (code < 0x300 || in_ranges(kInert, static_cast<uint32_t>(code))) return 0;
    return utf8proc_get_property(code)->combining_class;
}

uint8_t class_of_unassigned(uint32_t code) {
    const auto* it =
        std::lower_bound(kLater.begin(), kLater.end(), code,
                         [](const LaterRange& range, uint32_t c) { return range.last < c; });
    return it != kLater.end() && it->first <= code ? it->bits : 0;
}

uint8_t class_from_tables(uint32_t code) {
    uint8_t bits = 0;
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
        case UTF8PROC_CATEGORY_LU:
        case UTF8PROC_CATEGORY_LL:
        case UTF8PROC_CATEGORY_LT:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_LO:
            bits = kLetter;
            break;
        case UTF8PROC_CATEGORY_ND:
        case UTF8PROC_CATEGORY_NL:
        case UTF8PROC_CATEGORY_NO:
            bits = kNumber;
            break;
        case UTF8PROC_CATEGORY_MN:
        case UTF8PROC_CATEGORY_MC:
        case UTF8PROC_CATEGORY_ME:
            bits = kMark;
            break;
        case UTF8PROC_CATEGORY_PC:
            bits = kConnector | kPunctuation;
            break;
        case UTF8PROC_CATEGORY_PD:
        case UTF8PROC_CATEGORY_PS:
        case UTF8PROC_CATEGORY_PE:
        case UTF8PROC_CATEGORY_PI:
        case UTF8PROC_CATEGORY_PF:
        case UTF8PROC_CATEGORY_PO:
            bits = kPunctuation;
            break;
        case UTF8PROC_CATEGORY_ZS:
        case UTF8PROC_CATEGORY_ZL:
        case UTF8PROC_CATEGORY_ZP:
            bits = kSpace;
            break;
        case UTF8PROC_CATEGORY_CN:
            bits = class_of_unassigned(code);
            break;
        default:
            break;
    }
    if ((code >= 9 && code <= 13) || code == 0x85) bits |= kSpace;
    return bits;
}

}  // namespace

uint8_t char_class(uint32_t code) {
    return code < kAsciiClasses.size() ? kAsciiClasses[code] : class_from_tables(code);
}

bool is_regex_word(uint32_t code) {
    if (code == 0x200C || code == 0x200D) return true;
    // Letters in circles and squares are symbols, but alphabetic.
    if ((code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
        (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189))
        return true;
    const uint8_t bits = char_class(code);
    if ((bits & kNumber) == 0) return (bits & (kLetter | kMark | kConnector)) != 0;
    return utf8proc_category(static_cast<utf8proc_int32_t>(code)) != UTF8PROC_CATEGORY_NO;
}

bool is_printable(uint32_t code) {
    if (code == ' ') return true;
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
        case UTF8PROC_CATEGORY_CN:
        case UTF8PROC_CATEGORY_CC:
        case UTF8PROC_CATEGORY_CF:
        case UTF8PROC_CATEGORY_CS:
        case UTF8PROC_CATEGORY_CO:
        case UTF8PROC_CATEGORY_ZS:
        case UTF8PROC_CATEGORY_ZL:
        case UTF8PROC_CATEGORY_ZP:
            return false;
        default:
            return true;
    }
}

bool is_surely_nfc(std::string_view valid_utf8) {
    // Unicode's quick check gives "yes" and class 0 for all of these (tests/unit/text compares with
    // utf8proc).
    static constexpr std::array<Range, 14> kSafe{{
        {0x0, 0x2FF},
        {0x388, 0x482},
        {0x48A, 0x590},
        {0x2002, 0x20CF},
        {0x2190, 0x2328},
        {0x2400, 0x2ADB},
        {0x3001, 0x3029},
        {0x3030, 0x3098},
        {0x309B, 0x30FF},
        {0x3400, 0x9FFF},
        {0xAC00, 0xD7A3},
        {0xFE00, 0xFE0F},
        {0xFF00, 0xFFEF},
        {0x1F000, 0x1FAFF},
    }};
    for (size_t pos = 0; pos < valid_utf8.size();) {
        if (static_cast<uint8_t>(valid_utf8[pos]) < 0x80) {
            ++pos;
            continue;
        }
        const CodePoint cp = decode_utf8(valid_utf8, pos);
        pos += cp.length;
        if (!in_ranges(kSafe, cp.code)) return false;
    }
    return true;
}

namespace {

/// True for what composes with nothing, though utf8proc thinks so: those above, and U+11A7, which
/// is the last Hangul vowel and no trailing consonant, but is swallowed by syllables.
bool composes_never(utf8proc_int32_t code) {
    return code == 0x11A7 || in_ranges(kInert, static_cast<uint32_t>(code));
}

/// Composes what is decomposed and in order.
void compose_in_place(std::vector<utf8proc_int32_t>& codes) {
    const auto flags = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    auto out = codes.begin();
    for (auto begin = codes.begin(); begin != codes.end();) {
        const auto end = std::find_if(begin, codes.end(), composes_never);
        const auto count = static_cast<utf8proc_ssize_t>(end - begin);
        const auto composed =
            utf8proc_normalize_utf32(codes.data() + (begin - codes.begin()), count, flags);
        out = std::copy_n(begin, composed >= 0 ? composed : count, out);
        if (end == codes.end()) break;
        *out++ = *end;
        begin = end + 1;
    }
    codes.erase(out, codes.end());
}

}  // namespace

// utf8proc_map would do, but it sorts combining marks in quadratic time; a prompt of marks must not
// stall us.
std::string normalize(std::string_view valid_utf8, NormalForm form) {
    if (std::all_of(valid_utf8.begin(), valid_utf8.end(),
                    [](char c) { return static_cast<uint8_t>(c) < 0x80; })) {
        return std::string(valid_utf8);
    }
    if (form == NormalForm::kNfc && is_surely_nfc(valid_utf8)) return std::string(valid_utf8);
    const bool compat = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
    const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
    const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                        (compat ? UTF8PROC_COMPAT : 0));
    std::vector<utf8proc_int32_t> codes;
    codes.reserve(valid_utf8.size() + 32);
    std::array<utf8proc_int32_t, 32> parts{};
    for (size_t pos = 0; pos < valid_utf8.size();) {
        const CodePoint cp = decode_utf8(valid_utf8, pos);
        pos += cp.length;
        int boundary = 0;
        const auto count = utf8proc_decompose_char(
            static_cast<utf8proc_int32_t>(cp.code), parts.data(),
            static_cast<utf8proc_ssize_t>(parts.size()), options, &boundary);
        if (count <= 0 || static_cast<size_t>(count) > parts.size() || in_ranges(kInert, cp.code)) {
            codes.push_back(static_cast<utf8proc_int32_t>(cp.code));
        } else {
            codes.insert(codes.end(), parts.begin(), parts.begin() + count);
        }
    }
    for (size_t i = 0; i < codes.size();) {
        if (combining_class(codes[i]) == 0) {
            ++i;
            continue;
        }
        size_t end = i;
        while (end < codes.size() && combining_class(codes[end]) != 0) ++end;
        std::stable_sort(codes.begin() + static_cast<ptrdiff_t>(i),
                         codes.begin() + static_cast<ptrdiff_t>(end),
                         [](auto a, auto b) { return combining_class(a) < combining_class(b); });
        i = end;
    }
    if (compose) compose_in_place(codes);
    std::string out;
    out.reserve(valid_utf8.size());
    for (const utf8proc_int32_t code : codes) append_utf8(out, static_cast<uint32_t>(code));
    return out;
}

}  // namespace baton::text
