#include "grammar_harness.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <iostream>

namespace baton::grammar {
namespace {

TEST(Regex, MatchesWholeTexts) {
    const auto c = regex("(ab|c[d-f]+){2,3}x?");
    for (const char* yes : {"abab", "cdab", "cdefab", "abababx", "cdcecfx"}) EXPECT_TRUE(matches(c, yes)) << yes;
    for (const char* no : {"", "ab", "abc", "ababababx", "ababxx", "cgab"}) EXPECT_FALSE(matches(c, no)) << no;
}

TEST(Regex, CountsLargeRepetitions) {
    const auto c = regex("(ab?){300,1000}");
    std::string text;
    for (int i = 0; i < 299; ++i) text += i % 3 == 0 ? "ab" : "a";
    EXPECT_FALSE(matches(c, text));
    EXPECT_TRUE(matches(c, text + "a"));
    EXPECT_TRUE(matches(c, text + std::string(701, 'a')));
    EXPECT_FALSE(matches(c, text + std::string(702, 'a')));
}

TEST(Regex, RepetitionsOfWhatMayBeEmptyEnd) {
    EXPECT_TRUE(matches(regex("((a{0,100}){0,100}){0,100}b"), std::string(300, 'a') + "b"));
    EXPECT_TRUE(matches(regex("(a*)*(b?)+c{0}"), "aaab"));
    EXPECT_TRUE(matches(regex("(a?){5}"), ""));
    EXPECT_FALSE(matches(regex("(a?){5}"), "aaaaaa"));
}

TEST(Regex, ClassesAreOfCharacters) {
    const auto c = regex("[^a-zß]\\d\\W.[\\]x-]");
    EXPECT_TRUE(matches(c, "A5-ö]"));
    EXPECT_TRUE(matches(c, "日0 \xF0\x9F\x98\x80-"));
    EXPECT_FALSE(matches(c, "ß5-ö]"));
    EXPECT_FALSE(matches(c, "A5-\n]"));
    EXPECT_FALSE(matches(regex("..."), "\xC3\xA4\xC3")) << "half a character is none";
}

TEST(Regex, RefusesByName) {
    EXPECT_NE(refused(regex("a(?=b)")).find("look-around"), std::string::npos);
    EXPECT_NE(refused(regex("(a)\\1")).find("back reference"), std::string::npos);
    EXPECT_NE(refused(regex("\\bx")).find("\\b"), std::string::npos);
    for (const char* bad : {"(", ")", "[a", "a{3,2}", "*a", "a**", "\\", "a{1,200000}", "[z-a]", "\\xZZ", "(?<n"})
        EXPECT_NE(refused(regex(bad)), "") << bad;
}

TEST(Grammar, FollowsRules) {
    const auto c = ebnf(R"g(# sums
root ::= term ("+" term)*   # one or more
term ::= number | "(" root ")"
number ::= [0-9]+ | /0x[0-9a-f]{2}/)g");
    EXPECT_TRUE(matches(c, "1+(22+0xfa)+3"));
    EXPECT_FALSE(matches(c, "1+(22"));
    EXPECT_FALSE(matches(c, "1+"));
    EXPECT_FALSE(matches(c, "0xf"));
}

TEST(Grammar, RightRecursionTakesNoStack) {
    std::string text(5'000, 'a');
    EXPECT_TRUE(matches(ebnf("root ::= \"a\" root | \"b\""), text + "b"));
}

TEST(Grammar, NestingIsBoundedAndNeverADeadEnd) {
    const auto c = ebnf("root ::= \"(\" root \")\" | \"x\"");
    auto program = compile(c);
    ASSERT_TRUE(program);
    Runner runner(std::move(*program), byte_vocabulary());
    Matcher matcher(runner);
    // Opening as long as it is allowed, then closing.
    size_t depth = 0;
    for (; depth < 10'000 && allowed(*matcher.mask(), '('); ++depth) ASSERT_TRUE(matcher.accept('('));
    EXPECT_GT(depth, 50u);
    EXPECT_LT(depth, 1'000u);
    ASSERT_TRUE(allowed(*matcher.mask(), 'x'));
    ASSERT_TRUE(matcher.accept('x'));
    for (; depth > 0; --depth) {
        ASSERT_TRUE(allowed(*matcher.mask(), ')'));
        ASSERT_TRUE(matcher.accept(')'));
    }
    EXPECT_TRUE(matcher.must_end());
}

TEST(Grammar, EmbedsSchemas) {
    const auto c = ebnf(R"g(root ::= "<call>" %json {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]} "</call>")g");
    EXPECT_TRUE(matches(c, "<call>{\"a\":-12}</call>"));
    EXPECT_FALSE(matches(c, "<call>{}</call>"));
}

TEST(Grammar, NamesControlTokens) {
    auto program = compile(ebnf("root ::= @\"<|call|>\" \"x\""));
    ASSERT_TRUE(program);
    Runner runner(std::move(*program), byte_vocabulary({}, {"<|call|>", "<|end|>"}));
    Matcher matcher(runner);
    const auto mask = *matcher.mask();
    for (TokenId id = 0; id < 258; ++id) EXPECT_EQ(allowed(mask, id), id == 256) << id;
    ASSERT_TRUE(matcher.accept(256));
    EXPECT_TRUE(allowed(*matcher.mask(), 'x'));
    EXPECT_FALSE(allowed(*matcher.mask(), 257));
}

TEST(Grammar, RefusesByLine) {
    EXPECT_NE(refused(ebnf("root ::= root \"a\" | \"b\"")).find("root begins with itself"), std::string::npos);
    EXPECT_NE(refused(ebnf("root ::= x\nx ::= \"\" y\ny ::= x \"a\" | \"c\"")).find("begins with itself"), std::string::npos);
    EXPECT_NE(refused(ebnf("root ::= a")).find("rule a is used"), std::string::npos);
    EXPECT_NE(refused(ebnf("root ::= \"a\"\nroot ::= \"b\"")).find("line 2"), std::string::npos);
    EXPECT_NE(refused(ebnf("root ::= \"a\" root")).find("no text"), std::string::npos) << "it never ends";
    for (const char* bad : {"", "root", "root ::= (", "root ::= \"a", "root ::= [a", "root ::= %json", "root ::= %json {", "root ::= %json \"\\", "root ::= @x",
                            "root ::= /a", "root ::= \"\\q\"", "root ::= x{2,1}\nx ::= \"a\"", "root ::= )"})
        EXPECT_NE(refused(ebnf(bad)), "") << bad;
}

TEST(Choice, IsOneOfThem) {
    const auto c = constraint(wire::ConstraintKind::kChoice, R"(["yes", "no", "not now"])");
    for (const char* yes : {"yes", "no", "not now"}) EXPECT_TRUE(matches(c, yes));
    for (const char* no : {"", "y", "not", "now"}) EXPECT_FALSE(matches(c, no));
    for (const char* bad : {"", "[]", "[1]", "{}", "[\"\"]"}) EXPECT_NE(refused(constraint(wire::ConstraintKind::kChoice, bad)), "") << bad;
}

TEST(Matcher, IsFreeUpToTheMark) {
    auto c = regex("x+");
    c.after = "</think>";
    EXPECT_TRUE(matches(c, "a </thi <</think>\n\nxx"));
    EXPECT_TRUE(matches(c, "</think>x"));
    EXPECT_FALSE(matches(c, "</think>y</think>x")) << "it ends at the first";
    EXPECT_FALSE(matches(c, "xx"));
    c.after = "aabaaa";
    EXPECT_TRUE(matches(c, "aabaabaaax")) << "the mark overlaps itself";
    c.opening = "<t>";
    EXPECT_TRUE(matches(c, "xx"));
    EXPECT_TRUE(matches(c, "<t>b aabaaax"));
    EXPECT_FALSE(matches(c, "b aabaaax"));
}

TEST(Matcher, AForbiddenTokenLeavesOnlyTheEnd) {
    auto program = compile(regex("ab"));
    Runner runner(std::move(*program), byte_vocabulary());
    Matcher matcher(runner);
    ASSERT_TRUE(matcher.accept('q'));
    EXPECT_TRUE(matcher.must_end());
    const auto mask = *matcher.mask();
    for (const uint32_t word : mask) EXPECT_EQ(word, 0u);
}

/// Masks found by the tree and the slices are those of trying each token by itself.
TEST(Matcher, MasksAreThoseOfEachTokenAlone) {
    std::mt19937 random(7);
    const std::string_view alphabet = "ab \"\\\n{}:,1\xC3\xA4\xE6\x97\xA5\xF0\x9F\x98\x80";
    std::vector<std::string> more;
    for (int i = 0; i < 4'000; ++i) {
        std::string t;
        const size_t n = 1 + random() % 9;
        for (size_t k = 0; k < n; ++k) t += alphabet[random() % (random() % 3 == 0 ? alphabet.size() : 3)];
        more.push_back(t);
    }
    const auto vocabulary = byte_vocabulary(more);
    const std::vector<wire::Constraint> all{
        schema(R"({"type":"string"})"), schema(R"({"type":"string","minLength":3,"maxLength":6})"), schema(R"({"type":"string","maxLength":4000})"),
        constraint(wire::ConstraintKind::kJsonObject, ""), regex("[^b]*\\n?"), regex("a{3,7}(b| ){2}.*"), schema(R"({"type":"object","properties":{"a":{"type":"string"}}})"),
        regex("(a|b){0,5}[\\x{0}-\\x{7f}]"), ebnf("root ::= [^\\n]{2,9} \"\\n\" root | \"\"")};
    for (const auto& c : all) {
        auto program = compile(c);
        if (!program) continue;
        Runner runner(*program, vocabulary), other(*program, vocabulary);
        for (int walk = 0; walk < 4; ++walk) {
            Matcher matcher(runner);
            std::vector<TokenId> taken;
            for (int step = 0; step < 14; ++step) {
                const auto found = *matcher.mask();
                const std::vector<uint32_t> mask(found.begin(), found.end());
                std::vector<TokenId> can;
                for (TokenId id = 0; id < static_cast<TokenId>(vocabulary->size()); ++id) {
                    Matcher alone(other);
                    for (const TokenId t : taken) ASSERT_TRUE(alone.accept(t));
                    ASSERT_TRUE(alone.accept(id));
                    const auto after = *alone.mask();
                    const bool live = alone.may_end() ? !vocabulary->bytes_of(id).empty() : std::ranges::any_of(after, [](uint32_t w) { return w != 0; });
                    // A dead matcher may end as well; tell them apart by what it may do.
                    const bool dead = alone.must_end() && std::ranges::all_of(after, [](uint32_t w) { return w == 0; });
                    if (!dead) ASSERT_TRUE(allowed(mask, id)) << c.text << " token " << id << " step " << step;
                    else if (allowed(mask, id)) {
                        ASSERT_TRUE(live) << c.text << " token " << id;
                    }
                    if (allowed(mask, id)) can.push_back(id);
                    if (id > 300 && random() % 8 != 0) id += 5;  // a sample of them
                }
                if (can.empty()) break;
                taken.push_back(can[random() % can.size()]);
                ASSERT_TRUE(matcher.accept(taken.back()));
            }
        }
    }
}

/// A replica that gets the ids of another stands at the same place.
TEST(Matcher, StateFollowsFromTheIds) {
    const auto c = constraint(wire::ConstraintKind::kJsonObject, "");
    const auto vocabulary = byte_vocabulary();
    Runner one(*compile(c), vocabulary), two(*compile(c), vocabulary);
    Matcher first(one);
    const std::string text = "{\"a\": [1, {\"b\": \"\\u00e4\"}], \"c\": nul";
    for (size_t i = 0; i < text.size(); ++i) {
        ASSERT_TRUE(first.accept(static_cast<uint8_t>(text[i])));
        Matcher second(two);
        for (size_t k = 0; k <= i; ++k) ASSERT_TRUE(second.accept(static_cast<uint8_t>(text[k])));
        const auto a = *first.mask(), b = *second.mask();
        ASSERT_TRUE(std::ranges::equal(a, b)) << i;
    }
}

/// Hostile texts are refused or compiled, and soon.
TEST(Hostile, CompilesInBounds) {
    const auto times = [](std::string_view s, size_t n) {
        std::string out;
        for (size_t i = 0; i < n; ++i) out += s;
        return out;
    };
    std::vector<wire::Constraint> all{
        regex(times("(", 50'000) + "a" + times(")", 50'000)), regex("(a?){2000}a{2000}"), regex(times("(a{0,1000}){0,1000}", 1'000)),
        regex(times("[^a]", 40'000)), regex("((((((((a{100}){100}){100}){100}){100}){100}){100}){100})"), regex(times("a|", 100'000) + "b"),
        schema(times("{\"type\":\"array\",\"items\":", 20'000) + "{}" + times("}", 20'000)), schema("{\"$ref\":\"#\"}"),
        schema("{\"allOf\":[{\"$ref\":\"#\"}]}"), schema("{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}"),
        schema("{\"$defs\":{\"a\":{\"allOf\":[{\"$ref\":\"#/$defs/b\"},{\"$ref\":\"#/$defs/b\"}]},\"b\":{\"allOf\":[{\"$ref\":\"#/$defs/a\"},{\"$ref\":\"#/$defs/a\"}]}},\"$ref\":\"#/$defs/a\"}"),
        schema("{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":3000},\"maxItems\":3000}"), ebnf(times("(", 100'000)),
        ebnf("root ::= " + times("\"a\" | ", 30'000) + "\"b\""), ebnf("root ::= " + times("x", 1'000) + "\n" + times("x", 1'000) + " ::= \"\""),
        constraint(wire::ConstraintKind::kChoice, "[" + times("\"a\",", 60'000) + "\"b\"]"), regex(std::string(300'000, 'a'))};
    std::string groups = "{\"allOf\":[";
    for (int i = 0; i < 30; ++i) groups += std::string(i > 0 ? "," : "") + "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"number\"},{\"minLength\":1}]}";
    all.push_back(schema(groups + "]}"));
    std::string properties;
    for (int i = 0; i < 3'000; ++i) properties += (i > 0 ? ",\"p" : "\"p") + std::to_string(i) + "\":{\"anyOf\":[{\"type\":\"string\",\"maxLength\":99},{\"type\":\"null\"}]}";
    all.push_back(schema("{\"type\":\"object\",\"properties\":{" + properties + "}}"));
    for (const auto& c : all) {
        const auto begin = std::chrono::steady_clock::now();
        const auto program = compile(c);
        const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count();
        EXPECT_LT(ms, 20'000) << c.text.substr(0, 60);
        std::cout << ms << " ms " << (program ? "compiled, " + std::to_string(program->bytes()) + " bytes" : program.error().message.substr(0, 80)) << ": " << c.text.substr(0, 50) << "\n";
        if (!program) continue;
        // And its first masks are found, or it is given up.
        Runner runner(std::move(*program), byte_vocabulary({"aaaa", "aaaaaaaaaaaaaaaa", "\"p1\":"}));
        Matcher matcher(runner);
        for (int i = 0; i < 3; ++i) {
            const auto mask = matcher.mask();
            if (!mask) break;
            const auto word = std::ranges::find_if(*mask, [](uint32_t w) { return w != 0; });
            if (word == mask->end()) break;
            const auto id = static_cast<TokenId>((word - mask->begin()) * 32 + std::countr_zero(*word));
            if (!matcher.accept(id)) break;
        }
    }
}

}  // namespace
}  // namespace baton::grammar
