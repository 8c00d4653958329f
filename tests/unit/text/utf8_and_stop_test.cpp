#include <gtest/gtest.h>

#include <random>
#include <string>

#include "baton/text/tokenizer.hpp"

namespace baton::text {
namespace {

std::string assemble_all(std::string_view bytes, const std::vector<size_t>& cuts) {
    Utf8Assembler assembler;
    std::string out;
    size_t pos = 0;
    for (const size_t cut : cuts) {
        out += assembler.push(bytes.substr(pos, cut - pos));
        pos = cut;
    }
    out += assembler.push(bytes.substr(pos));
    return out + assembler.finish();
}

TEST(Utf8Assembler, PiecesJoinToTheSameTextHoweverCut) {
    std::mt19937 random(7);
    const std::vector<std::string> parts{
        "a", "é", "😀", "\xff", "\xe2\x82", "\xf0\x9f", "\xc0\xaf", "\xed\xa0\x80", "\x80", "\n"};
    for (int round = 0; round < 3000; ++round) {
        std::string bytes;
        for (size_t n = random() % 8; n > 0; --n) bytes += parts[random() % parts.size()];
        const std::string whole = assemble_all(bytes, {});
        std::vector<size_t> every;
        for (size_t i = 1; i < bytes.size(); ++i) {
            if (random() % 2 == 0) every.push_back(i);
        }
        EXPECT_EQ(assemble_all(bytes, every), whole);
    }
}

TEST(Utf8Assembler, ReplacesMaximalSubparts) {
    const std::string bad = "\xEF\xBF\xBD";
    EXPECT_EQ(assemble_all("\xf0\x9f\x98", {}), bad);
    EXPECT_EQ(assemble_all("\xf0\x9f\x98\x61", {}), bad + "a");
    EXPECT_EQ(assemble_all("\xff\xfe", {}), bad + bad);
    EXPECT_EQ(assemble_all("\xe0\x80", {}), bad + bad);
    EXPECT_EQ(assemble_all("\xed\xa0\x80", {}), bad + bad + bad);
}

TEST(Utf8Assembler, HoldsBackOnlyAnIncompleteTail) {
    Utf8Assembler assembler;
    EXPECT_EQ(assembler.push("a\xf0\x9f"), "a");
    EXPECT_FALSE(assembler.empty());
    EXPECT_EQ(assembler.push("\x98\x80"), "😀");
    EXPECT_TRUE(assembler.empty());
    EXPECT_EQ(assembler.finish(), "");
}

/// The rule stated plainly: the first end of any stop string, the longest of those that end there.
std::string offline(std::string_view text, const std::vector<std::string>& stops, bool include,
                    bool& stopped) {
    for (size_t end = 1; end <= text.size(); ++end) {
        const std::string* best = nullptr;
        for (const std::string& stop : stops) {
            if (text.substr(0, end).ends_with(stop) &&
                (best == nullptr || stop.size() > best->size()))
                best = &stop;
        }
        if (best != nullptr) {
            stopped = true;
            return std::string(text.substr(0, include ? end : end - best->size()));
        }
    }
    stopped = false;
    return std::string(text);
}

TEST(StopMatcher, EqualsTheOfflineResultHoweverCut) {
    std::mt19937 random(11);
    const auto word = [&](size_t most) {
        std::string text;
        for (size_t n = 1 + random() % most; n > 0; --n)
            text += static_cast<char>('a' + random() % 2);
        return text;
    };
    for (int round = 0; round < 5000; ++round) {
        const std::string text = word(24);
        std::vector<std::string> stops;
        for (size_t n = random() % 4; n > 0; --n) stops.push_back(word(6));
        const bool include = random() % 2 == 0;
        bool expected_stop = false;
        const std::string expected = offline(text, stops, include, expected_stop);
        StopMatcher matcher(stops, include);
        std::string out;
        bool stopped = false;
        for (size_t pos = 0; pos < text.size();) {
            const size_t length = std::min<size_t>(1 + random() % 5, text.size() - pos);
            const auto result = matcher.push(std::string_view(text).substr(pos, length));
            out += result.text;
            stopped = result.stopped;
            pos += length;
        }
        if (!stopped) out += matcher.finish();
        EXPECT_EQ(out, expected) << text;
        EXPECT_EQ(stopped, expected_stop) << text;
    }
}

TEST(StopMatcher, HoldsBackOnlyTruePrefixes) {
    StopMatcher matcher({"STOP"}, false);
    EXPECT_EQ(matcher.push("abcS").text, "abc");
    EXPECT_EQ(matcher.push("x").text, "Sx");
    EXPECT_EQ(matcher.push("STO").text, "");
    EXPECT_EQ(matcher.finish(), "STO");
}

TEST(StopMatcher, SaysNothingAfterAStop) {
    StopMatcher matcher({"b", ""}, true);
    const auto first = matcher.push("abc");
    EXPECT_TRUE(first.stopped);
    EXPECT_EQ(first.text, "ab");
    EXPECT_EQ(first.matched, "b");
    const auto second = matcher.push("more");
    EXPECT_TRUE(second.stopped);
    EXPECT_EQ(second.text, "");
    EXPECT_EQ(matcher.finish(), "");
}

}  // namespace
}  // namespace baton::text
