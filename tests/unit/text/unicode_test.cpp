#include "text/unicode.hpp"

#include <gtest/gtest.h>
#include <utf8proc.h>

#include <array>
#include <random>
#include <set>

namespace baton::text {
namespace {

constexpr uint32_t kCodesEnd = 0x110000;

bool is_surrogate(uint32_t code) {
    return code >= 0xD800 && code <= 0xDFFF;
}

std::string utf8_of(uint32_t code) {
    std::string out;
    append_utf8(out, code);
    return out;
}

bool is_safe(uint32_t code) {
    return !is_surrogate(code) && is_surely_nfc(utf8_of(code));
}

/// Unicode's own definition, by the tables of utf8proc.
std::vector<utf8proc_int32_t> decomposed(uint32_t code) {
    std::array<utf8proc_int32_t, 32> parts{};
    int boundary = 0;
    const auto count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(code), parts.data(), parts.size(),
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &boundary);
    return {parts.begin(), parts.begin() + std::max<utf8proc_ssize_t>(count, 0)};
}

TEST(Unicode, AsciiClassesAreThoseOfTheTables) {
    for (uint32_t c = 0; c < 128; ++c) {
        const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
        const bool letter = category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL;
        const bool punctuation =
            category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
        EXPECT_EQ((char_class(c) & kLetter) != 0, letter) << c;
        EXPECT_EQ((char_class(c) & kNumber) != 0, category == UTF8PROC_CATEGORY_ND) << c;
        EXPECT_EQ((char_class(c) & kConnector) != 0, category == UTF8PROC_CATEGORY_PC) << c;
        EXPECT_EQ((char_class(c) & kPunctuation) != 0, punctuation) << c;
        EXPECT_EQ((char_class(c) & kSpace) != 0, c == ' ' || (c >= 9 && c <= 13)) << c;
        EXPECT_EQ(char_class(c) & kMark, 0) << c;
    }
}

TEST(Unicode, WhatIsSurelyInFormCNeitherChangesNorCombines) {
    std::set<uint32_t> seconds;  // what composes with a character before it
    for (uint32_t c = 0; c < kCodesEnd; ++c) {
        const auto parts = decomposed(c);
        for (size_t i = 1; i < parts.size(); ++i) seconds.insert(static_cast<uint32_t>(parts[i]));
    }
    size_t safe = 0;
    for (uint32_t c = 0; c < kCodesEnd; ++c) {
        if (!is_safe(c)) continue;
        ++safe;
        EXPECT_EQ(utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class, 0)
            << std::hex << c;
        EXPECT_FALSE(seconds.contains(c)) << std::hex << c;
        std::array<utf8proc_int32_t, 32> codes{};
        const auto parts = decomposed(c);
        std::copy(parts.begin(), parts.end(), codes.begin());
        const auto length = utf8proc_normalize_utf32(
            codes.data(), static_cast<utf8proc_ssize_t>(parts.size()),
            static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
        EXPECT_TRUE(length == 1 && static_cast<uint32_t>(codes[0]) == c) << std::hex << c;
    }
    EXPECT_GT(safe, 40'000u);
    EXPECT_FALSE(is_surely_nfc("e\xCC\x81"));
}

TEST(Unicode, ValidityDoesNotDependOnWhereBadBytesLie) {
    std::mt19937 random(1);
    for (int round = 0; round < 20'000; ++round) {
        std::string text;
        while (text.size() < random() % 40)
            text += random() % 3 == 0 ? utf8_of(static_cast<uint32_t>(0x80 + random() % 0x700))
                                      : std::string(1, static_cast<char>('a' + random() % 26));
        EXPECT_TRUE(is_valid_utf8(text));
        if (text.empty()) continue;
        const size_t at = random() % text.size();
        const auto old = static_cast<uint8_t>(text[at]);
        text[at] = static_cast<char>(0xFF);
        EXPECT_FALSE(is_valid_utf8(text)) << at << " instead of " << int{old};
    }
}

}  // namespace
}  // namespace baton::text
