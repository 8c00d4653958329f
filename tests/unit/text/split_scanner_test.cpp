#include "text/split_scanner.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "text/unicode.hpp"

namespace baton::text {
namespace {

std::vector<std::string> cut(const SplitScanner& scanner, std::string_view text) {
    std::vector<Span> spans;
    scanner.find_all(text, spans);
    std::vector<std::string> pieces;
    for (const Span& span : spans)
        pieces.emplace_back(text.substr(span.begin, span.end - span.begin));
    return pieces;
}

std::string random_text(std::mt19937& random) {
    static const std::vector<std::string> parts{"a",
                                                "S",
                                                "'s",
                                                "'S",
                                                "'ll",
                                                "'RE",
                                                "'",
                                                " ",
                                                "  ",
                                                "\n",
                                                "\r\n",
                                                "\t",
                                                "1",
                                                "23",
                                                "٣",
                                                "Ⅷ",
                                                ".",
                                                "!=",
                                                "é",
                                                "e\xCC\x81",
                                                "\xCC\x81",
                                                "漢",
                                                "😀",
                                                "\xC2\xA0",
                                                "\xE3\x80\x80",
                                                "\xE2\x80\xA8",
                                                "\xE2\x80\x8B",
                                                "_",
                                                "ſ",
                                                "'ſ",
                                                "'t"};
    std::string text;
    for (size_t n = random() % 14; n > 0; --n) text += parts[random() % parts.size()];
    return text;
}

void compare_with_pcre(const std::string& pattern) {
    const auto own = regex_scanner(pattern);
    const auto oracle = pcre_scanner(pattern);
    ASSERT_TRUE(own);
    ASSERT_TRUE(oracle);
    std::mt19937 random(5);
    for (int round = 0; round < 20000; ++round) {
        const std::string text = random_text(random);
        ASSERT_EQ(cut(**own, text), cut(**oracle, text)) << text;
    }
}

TEST(SplitScanner, Gpt2EqualsItsRegex) {
    compare_with_pcre(
        R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
}
TEST(SplitScanner, Qwen2EqualsItsRegex) {
    compare_with_pcre(
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
}
TEST(SplitScanner, Llama3EqualsItsRegex) {
    compare_with_pcre(
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
}
TEST(SplitScanner, Qwen35EqualsItsRegex) {
    compare_with_pcre(
        R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
}

TEST(SplitScanner, ContractionsComeFirst) {
    const auto modern = modern_scanner({1, false});
    EXPECT_EQ(cut(*modern, "'real"), (std::vector<std::string>{"'re", "al"}));
    EXPECT_EQ(cut(*modern, "they'LL"), (std::vector<std::string>{"they", "'LL"}));
    EXPECT_EQ(cut(*modern, "a  b"), (std::vector<std::string>{"a", " ", " b"}));
}

TEST(SplitScanner, BadRegexIsRefusedWithItsText) {
    const auto bad = regex_scanner("(unclosed");
    ASSERT_FALSE(bad);
    EXPECT_EQ(bad.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(bad.error().message.find("(unclosed"), std::string::npos);
}

TEST(SplitScanner, CatastrophicRegexIsBounded) {
    const auto slow = regex_scanner("(a+)+$");
    ASSERT_TRUE(slow);
    const std::string text(200000, 'a');
    (void)cut(**slow, text + "b");  // answers at all
}

TEST(Normalize, MatchesUnicodeNfc) {
    EXPECT_EQ(normalize("cafe\xCC\x81", NormalForm::kNfc), "caf\xC3\xA9");
    EXPECT_EQ(normalize("\xE2\x84\xAB", NormalForm::kNfc), "\xC3\x85");
    EXPECT_EQ(normalize("\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB", NormalForm::kNfc), "\xED\x95\x9C");
    // Marks are ordered: dot below before acute.
    EXPECT_EQ(normalize("q\xCC\x81\xCC\xA3", NormalForm::kNfc), "q\xCC\xA3\xCC\x81");
    EXPECT_EQ(normalize("\xEF\xAC\x81", NormalForm::kNfkc), "fi");
}

TEST(Normalize, ManyMarksStayFast) {
    std::string text = "a";
    for (int i = 0; i < 200000; ++i) text += i % 2 == 0 ? "\xCC\x81" : "\xCC\xA3";
    EXPECT_EQ(normalize(text, NormalForm::kNfd).size(), text.size());
}

}  // namespace
}  // namespace baton::text
