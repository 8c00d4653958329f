#include "baton/base/encoding.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

namespace baton {
namespace {

std::vector<uint8_t> bytes_of(std::string_view text) { return {text.begin(), text.end()}; }

TEST(Encoding, Base64AsInRfc4648) {
    const std::pair<const char*, const char*> kCases[] = {{"", ""},         {"f", "Zg=="},     {"fo", "Zm8="},       {"foo", "Zm9v"},
                                                          {"foob", "Zm9vYg=="}, {"fooba", "Zm9vYmE="}, {"foobar", "Zm9vYmFy"}};
    for (const auto& [text, encoded] : kCases) EXPECT_EQ(to_base64(bytes_of(text)), encoded);
}

TEST(Encoding, Base64UrlComesBackAndHasOneTextForEachValue) {
    std::string all;
    for (int i = 0; i < 256; ++i) {
        all.push_back(static_cast<char>(i));
        const std::string text = to_base64url(all);
        EXPECT_EQ(text.find_first_of("+/="), std::string::npos);
        EXPECT_EQ(from_base64url(text), all);
    }
    EXPECT_EQ(from_base64url(""), "");
    for (const char* wrong : {"A", "AAAAA", "Zg==", "Zm+v", "Zm/v", "Z g", "Zh", "Zm9", "Zg\n"})
        EXPECT_FALSE(from_base64url(wrong)) << wrong;
}

TEST(Encoding, Pbkdf2AsInRfc7914) {
    // RFC 7914, section 11: PBKDF2-HMAC-SHA-256, P="passwd", S="salt", c=1, and "Password", "NaCl", 80000; first 32 bytes.
    EXPECT_EQ(to_hex(pbkdf2_sha256("passwd", "salt", 1)), "55ac046e56e3089fec1691c22544b605f94185216dde0465e68b9d57c20dacbc");
    EXPECT_EQ(to_hex(pbkdf2_sha256("Password", "NaCl", 80000)), "4ddcd8f60b98be21830cee5ef22701f9641a4418d04c0414aeff08876b34ab56");
}

}  // namespace
TEST(Encoding, HexDigitsHaveTheirValuesAndNothingElseHas) {
    for (int c = 0; c < 256; ++c) {
        const char text[2] = {static_cast<char>(c), 0};
        const bool digit = c != 0 && std::string_view("0123456789abcdefABCDEF").find(text[0]) != std::string_view::npos;
        EXPECT_EQ(hex_digit(static_cast<char>(c)), digit ? static_cast<int>(std::strtol(text, nullptr, 16)) : -1) << c;
    }
}

TEST(Encoding, DepthOfJsonCountsBracketsOutsideStringsAlone) {
    EXPECT_EQ(json_depth(""), 0u);
    EXPECT_EQ(json_depth("1"), 0u);
    EXPECT_EQ(json_depth(R"({"a": [1, {"b": []}], "c": {}})"), 4u);
    EXPECT_EQ(json_depth(R"(["[[[", "\"[[["])"), 1u);
    EXPECT_EQ(json_depth("]]]}[["), 2u);  // what closes nothing opens nothing
    EXPECT_EQ(json_depth(std::string(1'000'000, '[')), 1'000'000u);
}

}  // namespace baton
