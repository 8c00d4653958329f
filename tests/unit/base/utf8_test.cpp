#include "baton/base/utf8.hpp"

#include <gtest/gtest.h>

namespace baton {
namespace {

bool is_scalar(uint32_t code) { return code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF); }

TEST(Utf8, EveryCharacterIsReadAsItWasWritten) {
    std::string all;
    size_t characters = 0;
    for (uint32_t code = 0; code <= 0x10FFFF; ++code) {
        if (!is_scalar(code)) continue;
        std::string one;
        append_utf8(one, code);
        ASSERT_EQ(valid_utf8_length(one, 0), one.size()) << code;
        const CodePoint back = decode_utf8(one, 0);
        ASSERT_EQ(back.code, code);
        ASSERT_EQ(back.length, one.size());
        ASSERT_EQ(previous_utf8(one, one.size()), 0u);
        for (size_t cut = 1; cut < one.size(); ++cut) {
            ASSERT_EQ(valid_utf8_length(one.substr(0, cut), 0), 0u) << "cut " << code;
            ASSERT_EQ(valid_utf8_length(one, cut), 0u) << "from inside " << code;
        }
        if (code % 97 == 0) {
            all += one;
            ++characters;
        }
    }
    EXPECT_TRUE(is_valid_utf8(all));
    EXPECT_EQ(count_utf8(all), characters);
}

/// Whatever the bytes are: what is valid decodes to a character whose only form they are.
TEST(Utf8, NothingElseIsValid) {
    std::string four(4, '\0');
    for (uint32_t first = 0; first < 256; ++first)
        for (uint32_t second = 0; second < 256; ++second)
            for (const uint32_t third : {0x00u, 0x7Fu, 0x80u, 0xBFu, 0xC0u, 0xFFu})
                for (const uint32_t fourth : {0x00u, 0x80u, 0xBFu, 0xC0u}) {
                    const uint32_t bytes[] = {first, second, third, fourth};
                    for (size_t i = 0; i < 4; ++i) four[i] = static_cast<char>(bytes[i]);
                    const size_t length = valid_utf8_length(four, 0);
                    if (length == 0) continue;
                    const CodePoint c = decode_utf8(four, 0);
                    ASSERT_TRUE(is_scalar(c.code));
                    std::string again;
                    append_utf8(again, c.code);
                    ASSERT_EQ(again, four.substr(0, length));
                }
    for (const char* bad : {"\xC0\x80", "\xE0\x80\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "\x80"}) {
        EXPECT_EQ(valid_utf8_length(bad, 0), 0u);
        EXPECT_FALSE(is_valid_utf8(std::string("plain text in front of it ") + bad));
    }
    EXPECT_EQ(valid_utf8_length("", 0), 0u);
    EXPECT_TRUE(is_valid_utf8(""));
}

}  // namespace
}  // namespace baton
