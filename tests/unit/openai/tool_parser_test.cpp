#include "openai/tool_parser.hpp"

#include <gtest/gtest.h>

#include <random>

#include "baton/openai/json.hpp"

namespace baton::openai {
namespace {

struct Call {
    std::string name, arguments;
    friend bool operator==(const Call&, const Call&) = default;
};
struct Found {
    std::string content;
    std::vector<Call> calls;
    friend bool operator==(const Found&, const Found&) = default;
};
std::ostream& operator<<(std::ostream& out, const Found& f) {
    out << '"' << f.content << '"';
    for (const Call& c : f.calls) out << " [" << c.name << " " << c.arguments << "]";
    return out;
}

ToolUse weather_and_clock() {
    return {{{"weather", ""}, {"clock", ""}}, ToolChoice::kAuto, "", true};
}

Found parse(ToolFormat format, const std::vector<std::string>& pieces,
            const ToolUse& use = weather_and_clock(), bool cut = true) {
    ToolParser parser(format, use);
    Found found;
    const auto take = [&](ToolParser::Output out) {
        found.content += out.content;
        for (CallDelta& d : out.calls) {
            if (!d.id.empty()) {
                EXPECT_EQ(d.index, found.calls.size());
                found.calls.push_back({d.name, ""});
            }
            EXPECT_EQ(d.index + 1, found.calls.size());
            if (!found.calls.empty()) found.calls.back().arguments += d.arguments;
        }
    };
    for (const std::string& piece : pieces) {
        ToolParser::Output out;
        parser.push(piece, out);
        take(std::move(out));
    }
    ToolParser::Output out;
    parser.finish(cut, out);
    take(std::move(out));
    EXPECT_EQ(parser.calls(), found.calls.size());
    return found;
}

struct Case {
    const char* name;
    ToolFormat format;
    std::string text;
    Found want;
};

const std::vector<Case>& cases() {
    constexpr auto kHermes = ToolFormat::kHermes;
    constexpr auto kLlama = ToolFormat::kLlama3;
    constexpr auto kMistral = ToolFormat::kMistral;
    static const std::vector<Case> all = {
        {"Plain", kHermes, "just text ", {"just text ", {}}},
        {"One",
         kHermes,
         "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"a\": 1}}\n</tool_call>",
         {"", {{"weather", "{\"a\": 1}"}}}},
        {"TextBefore",
         kHermes,
         "Let me look.\n\n<tool_call>{\"name\":\"clock\",\"arguments\":{}}</tool_call>\n",
         {"Let me look.", {{"clock", "{}"}}}},
        {"Two",
         kHermes,
         "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"a\": "
         "\"x\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"clock\", \"arguments\": "
         "{}}\n</tool_call>",
         {"", {{"weather", "{\"a\": \"x\"}"}, {"clock", "{}"}}}},
        {"TextAfter",
         kHermes,
         "<tool_call>{\"name\":\"clock\",\"arguments\":{}}</tool_call>\nDone. ",
         {"Done. ", {{"clock", "{}"}}}},
        {"Brackets",
         kHermes,
         "<tool_call>{\"name\":\"weather\",\"arguments\":{\"a\":\"}]{\\\"</tool_call>\"}}</"
         "tool_call>",
         {"", {{"weather", "{\"a\":\"}]{\\\"</tool_call>\"}"}}}},
        {"Nested",
         kHermes,
         "<tool_call>{\"name\":\"weather\",\"arguments\":{\"a\":{\"b\":[{}, [1]]}, \"c\": "
         "2}}</tool_call>",
         {"", {{"weather", "{\"a\":{\"b\":[{}, [1]]}, \"c\": 2}"}}}},
        {"ArgumentsFirst",
         kHermes,
         "<tool_call>{\"arguments\":{\"a\":1},\"name\":\"weather\"}</tool_call>",
         {"", {{"weather", "{\"a\":1}"}}}},
        {"ArgumentsAsText",
         kHermes,
         "<tool_call>{\"name\":\"weather\",\"arguments\":\"{\\\"a\\\":1}\"}</tool_call>",
         {"", {{"weather", "{\"a\":1}"}}}},
        {"NoArguments",
         kHermes,
         "<tool_call>{\"name\":\"clock\"}</tool_call>",
         {"", {{"clock", "{}"}}}},
        {"UnknownName",
         kHermes,
         "<tool_call>{\"name\":\"rm\",\"arguments\":{}}</tool_call>",
         {"<tool_call>{\"name\":\"rm\",\"arguments\":{}}</tool_call>", {}}},
        {"NoJson",
         kHermes,
         "a <tool_call>\nnot a call\n</tool_call> b",
         {"a <tool_call>\nnot a call\n</tool_call> b", {}}},
        {"BrokenJson",
         kHermes,
         "<tool_call>{\"name\" \"clock\"}</tool_call>",
         {"<tool_call>{\"name\" \"clock\"}</tool_call>", {}}},
        {"WrongBracket", kHermes, "<tool_call>{]x", {"<tool_call>{]x", {}}},
        {"CutInName",
         kHermes,
         "ok <tool_call>\n{\"name\": \"wea",
         {"ok <tool_call>\n{\"name\": \"wea", {}}},
        {"CutInArguments",
         kHermes,
         "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"a\": \"b",
         {"", {{"weather", "{\"a\": \"b"}}}},
        {"CutInTag", kHermes, "x <tool_ca", {"x <tool_ca", {}}},
        {"NoCloseTag",
         kHermes,
         "<tool_call>{\"name\":\"clock\",\"arguments\":{}}",
         {"", {{"clock", "{}"}}}},
        {"LlamaOne",
         kLlama,
         "{\"name\": \"weather\", \"parameters\": {\"a\": 1}}",
         {"", {{"weather", "{\"a\": 1}"}}}},
        {"LlamaTagged",
         kLlama,
         "<|python_tag|>{\"type\": \"function\", \"name\": \"weather\", \"parameters\": {\"a\": "
         "1}}",
         {"", {{"weather", "{\"a\": 1}"}}}},
        {"LlamaTwo",
         kLlama,
         "{\"name\": \"weather\", \"parameters\": {}}; {\"name\": \"clock\", \"parameters\": {}}",
         {"", {{"weather", "{}"}, {"clock", "{}"}}}},
        {"LlamaText",
         kLlama,
         " A {\"name\": \"weather\", \"parameters\": {}}",
         {" A {\"name\": \"weather\", \"parameters\": {}}", {}}},
        {"LlamaJsonAnswer",
         kLlama,
         "{\"name\": \"Ann\", \"age\": 30}",
         {"{\"name\": \"Ann\", \"age\": 30}", {}}},
        {"MistralOne",
         kMistral,
         "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"a\": 1}}]",
         {"", {{"weather", "{\"a\": 1}"}}}},
        {"MistralTwo",
         kMistral,
         "Hm.[TOOL_CALLS][{\"name\": \"weather\", \"arguments\": {\"a\": [1]}}, "
         "{\"name\":\"clock\",\"arguments\":{}, \"id\": \"x\"}]",
         {"Hm.", {{"weather", "{\"a\": [1]}"}, {"clock", "{}"}}}},
        {"MistralNamed",
         kMistral,
         "[TOOL_CALLS]weather[ARGS]{\"a\": {\"b\": 1}}[TOOL_CALLS]clock[CALL_ID]123[ARGS]{}",
         {"", {{"weather", "{\"a\": {\"b\": 1}}"}, {"clock", "{}"}}}},
        {"MistralUnknown", kMistral, "[TOOL_CALLS]rm[ARGS]{}", {"[TOOL_CALLS]rm[ARGS]{}", {}}},
        {"Off",
         ToolFormat::kNone,
         "<tool_call>{\"name\":\"clock\",\"arguments\":{}}",
         {"<tool_call>{\"name\":\"clock\",\"arguments\":{}}", {}}},
    };
    return all;
}

class ToolParserCases : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, ToolParserCases, ::testing::ValuesIn(cases()),
                         [](const auto& i) { return i.param.name; });

TEST_P(ToolParserCases, TheTextIsTakenApart) {
    EXPECT_EQ(parse(GetParam().format, {GetParam().text}), GetParam().want);
}

TEST_P(ToolParserCases, HoweverItIsCut) {
    const std::string& text = GetParam().text;
    std::vector<std::string> single;
    for (const char c : text) single.emplace_back(1, c);
    EXPECT_EQ(parse(GetParam().format, single), GetParam().want);
    for (size_t at = 0; at <= text.size(); ++at)
        EXPECT_EQ(parse(GetParam().format, {text.substr(0, at), text.substr(at)}), GetParam().want)
            << at;
    std::mt19937 random(7);
    for (int round = 0; round < 50; ++round) {
        std::vector<std::string> pieces;
        for (size_t at = 0; at < text.size();) {
            const size_t size = 1 + random() % 9;
            pieces.push_back(text.substr(at, size));
            at += size;
        }
        EXPECT_EQ(parse(GetParam().format, pieces), GetParam().want);
    }
}

TEST(ToolParser, ArgumentsComeWhileTheyGrow) {
    const ToolUse use = weather_and_clock();
    ToolParser parser(ToolFormat::kHermes, use);
    ToolParser::Output out;
    parser.push("<tool_call>{\"name\": \"weather\", \"arguments\": {\"lo", out);
    ASSERT_EQ(out.calls.size(), 1u);
    EXPECT_EQ(out.calls[0].name, "weather");
    EXPECT_EQ(out.calls[0].arguments, "{\"lo");
    EXPECT_TRUE(out.content.empty());
    ToolParser::Output more;
    parser.push("cation\"", more);
    ASSERT_EQ(more.calls.size(), 1u);
    EXPECT_TRUE(more.calls[0].id.empty());
    EXPECT_EQ(more.calls[0].arguments, "cation\"");
}

TEST(ToolParser, OneCallWhereOneIsAskedFor) {
    ToolUse use = weather_and_clock();
    use.parallel = false;
    EXPECT_EQ(
        parse(ToolFormat::kHermes,
              {"<tool_call>{\"name\":\"clock\",\"arguments\":{}}</"
               "tool_call><tool_call>{\"name\":\"weather\",\"arguments\":{\"a\":1}}</tool_call>"},
              use),
        (Found{"", {{"clock", "{}"}}}));
}

/// A forced call as its grammar writes it, cut after each byte: no part of it is ever content.
TEST(ToolParser, AForcedCallThatIsCutIsNeverContent) {
    const std::string arguments = R"({"a": "}<tool_call>", "b": [1]})";
    const std::pair<ToolFormat, std::string> texts[] = {
        {ToolFormat::kHermes, "<tool_call>\n{\"name\": \"weather\", \"arguments\": " + arguments + "}\n</tool_call>"},
        {ToolFormat::kLlama3, "{\"name\": \"weather\", \"parameters\": " + arguments + "}"},
        {ToolFormat::kMistral, "[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": " + arguments + "}]"},
    };
    ToolUse either = weather_and_clock();
    either.choice = ToolChoice::kRequired;
    ToolUse named = weather_and_clock();
    named.choice = ToolChoice::kNamed;
    named.name = "weather";
    for (const auto& [format, text] : texts) {
        const size_t name_begins = text.find("weather");
        for (const ToolUse* use : {&either, &named})
            for (const bool cut : {true, false})
                for (size_t at = 1; at <= text.size(); ++at) {
                    const Found found = parse(format, {text.substr(0, at)}, *use, cut);
                    EXPECT_EQ(found.content, "") << text.substr(0, at);
                    // The name is out with the arguments' bracket; a cut call's as soon as it can be no other.
                    const bool certain = cut && (use == &named || at > name_begins);
                    const size_t calls = certain || at > text.find(arguments) ? 1 : 0;
                    ASSERT_EQ(found.calls.size(), calls) << text.substr(0, at);
                    if (calls == 0) continue;
                    EXPECT_EQ(found.calls[0].name, "weather");
                    EXPECT_TRUE(arguments.starts_with(found.calls[0].arguments)) << found;
                }
        EXPECT_EQ(parse(format, {text}, either), (Found{"", {{"weather", arguments}}}));
    }
}

TEST(ToolParser, OfTwoNamesThatBeginAlikeNoneIsGuessed) {
    ToolUse use{{{"get", ""}, {"get_all", ""}}, ToolChoice::kRequired, "", true};
    const auto cut = [&](const char* text) { return parse(ToolFormat::kHermes, {text}, use); };
    EXPECT_EQ(cut("<tool_call>\n{\"name\": \"get"), (Found{"", {}}));
    EXPECT_EQ(cut("<tool_call>\n{\"name\": \"get_"), (Found{"", {{"get_all", ""}}}));
    EXPECT_EQ(cut("<tool_call>\n{\"name\": \"get\""), (Found{"", {{"get", ""}}}));
    EXPECT_EQ(cut("<tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n</tool_call>\n<tool"), (Found{"", {{"get", "{}"}}}));
}

TEST(ToolParser, TheBeginningOfWhatEndsACallIsNoContent) {
    const std::string call = "<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}";
    const std::string end = "\n</tool_call>";
    for (size_t at = 0; at <= end.size(); ++at)
        EXPECT_EQ(parse(ToolFormat::kHermes, {call + end.substr(0, at)}), (Found{"", {{"clock", "{}"}}})) << at;
}

TEST(ToolParser, HostileTextIsBounded) {
    std::string deep = "<tool_call>";
    for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
    EXPECT_EQ(parse(ToolFormat::kHermes, {deep}).content, deep);
    std::string tags;
    for (int i = 0; i < 2'000; ++i) tags += "<tool_call>";
    EXPECT_EQ(parse(ToolFormat::kHermes, {tags}).content, tags);
    const std::string name = "[TOOL_CALLS]" + std::string(100'000, 'x');
    EXPECT_EQ(parse(ToolFormat::kMistral, {name}).content, name);
}

std::string repeated(std::string_view text, size_t times) {
    std::string out;
    for (size_t i = 0; i < times; ++i) out += text;
    return out;
}

/// Sizes at which work that grows with the square of the text would take many minutes.
TEST(ToolParser, WorkGrowsWithTheTextAlone) {
    constexpr size_t kTimes = 400'000;
    const std::pair<ToolFormat, std::string> texts[] = {
        {ToolFormat::kHermes, repeated("<tool_call>", kTimes)},
        {ToolFormat::kHermes, repeated("<tool_call>{}</tool_call>\n", kTimes)},
        {ToolFormat::kHermes, repeated("<tool_call>{\"name\": \"rm\", \"arguments\": {}} ", kTimes)},
        {ToolFormat::kMistral, repeated("[TOOL_CALLS] [", kTimes)},
        {ToolFormat::kMistral, repeated("[TOOL_CALLS]rm[ARGS]{", kTimes)},
        {ToolFormat::kLlama3, "{\"name\": " + repeated("<|python_tag|>{", kTimes)},
    };
    for (const auto& [format, text] : texts) EXPECT_EQ(parse(format, {text}).content, text) << text.substr(0, 20);
    const std::string call = "<tool_call>{\"name\":\"clock\",\"arguments\":{}}</tool_call> ";
    EXPECT_EQ(parse(ToolFormat::kHermes, {repeated(call, kTimes / 4)}).calls.size(), kTimes / 4);
}

/// White space that may come before a call is held back, byte after byte.
TEST(ToolParser, WhiteSpaceIsLookedAtOnce) {
    constexpr size_t kBlanks = 1'000'000;
    const std::string call = "{\"name\":\"clock\",\"arguments\":{}}";
    const auto blanks_then = [&](const char* before, const std::string& end) {
        std::vector<std::string> pieces{before};
        pieces.resize(kBlanks + 1, " ");
        pieces.push_back(end);
        return pieces;
    };
    const std::string blanks(kBlanks, ' ');
    EXPECT_EQ(parse(ToolFormat::kHermes, blanks_then("a", "b")).content, "a" + blanks + "b");
    EXPECT_EQ(parse(ToolFormat::kHermes, blanks_then("a", "<tool_call>" + call)), (Found{"a", {{"clock", "{}"}}}));
    EXPECT_EQ(parse(ToolFormat::kHermes, blanks_then("<tool_call>", "x")).content, "<tool_call>" + blanks + "x");
    EXPECT_EQ(parse(ToolFormat::kHermes, blanks_then(("<tool_call>" + call).c_str(), "x")), (Found{"x", {{"clock", "{}"}}}));
    EXPECT_EQ(parse(ToolFormat::kLlama3, blanks_then("", "x")).content, blanks + "x");
    EXPECT_EQ(parse(ToolFormat::kLlama3, blanks_then("", "")).content, blanks);
    EXPECT_EQ(parse(ToolFormat::kLlama3, blanks_then("<|python_tag|>", call)), (Found{"", {{"clock", "{}"}}}));
}

TEST(ToolFormat, NamesOfOtherServersMeanTheSame) {
    for (const char* name : {"hermes", "qwen", "qwen25", "qwen2.5", "qwen3"}) EXPECT_EQ(tool_format_by_name(name), ToolFormat::kHermes) << name;
    for (const char* name : {"llama3_json", "llama4_json", "llama3", "llama3.1", "llama"}) EXPECT_EQ(tool_format_by_name(name), ToolFormat::kLlama3) << name;
    EXPECT_EQ(tool_format_by_name("mistral"), ToolFormat::kMistral);
    for (const char* name : {"pythonic", "qwen3_coder", "qwen3_xml", "deepseek_v3", "", "Hermes"}) EXPECT_FALSE(tool_format_by_name(name)) << name;
    for (const char* name : {"hermes", "llama3_json", "mistral", "none", "qwen3"}) EXPECT_NE(tool_format_names().find(name), std::string::npos);
}

TEST(ToolFormat, IsReadFromTheTemplate) {
    EXPECT_EQ(tool_format_of_template("… <tool_call> …"), ToolFormat::kHermes);
    EXPECT_EQ(tool_format_of_template("{{ '[TOOL_CALLS]' }}"), ToolFormat::kMistral);
    EXPECT_EQ(tool_format_of_template(
                  "Environment: ipython {\"name\": function name, \"parameters\": dictionary}"),
              ToolFormat::kLlama3);
    EXPECT_EQ(tool_format_of_template("{{ messages }}"), ToolFormat::kHermes);
    EXPECT_EQ(tool_format_by_name("llama3_json"), ToolFormat::kLlama3);
    EXPECT_EQ(tool_format_by_name("none"), ToolFormat::kNone);
    EXPECT_FALSE(tool_format_by_name("pythonic"));
}

TEST(ToolGrammar, NamesToolsAndSchemas) {
    ToolUse use{{{"a\"b", R"({"type":"object"})"}, {"clock", ""}}, ToolChoice::kRequired, "", true};
    EXPECT_EQ(tool_grammar(ToolFormat::kHermes, use),
              "root ::= \"<tool_call>\\n\" call \"\\n</tool_call>\" (\"\\n<tool_call>\\n\" call "
              "\"\\n</tool_call>\")*\n"
              "call ::= \"{\\\"name\\\": \\\"a\\\\\\\"b\\\", \\\"arguments\\\": \" %json "
              "{\"type\":\"object\"} \"}\" | "
              "\"{\\\"name\\\": \\\"clock\\\", \\\"arguments\\\": \" %json {\"type\":\"object\"} "
              "\"}\"\n");
    use.choice = ToolChoice::kNamed;
    use.name = "clock";
    const std::string named = tool_grammar(ToolFormat::kLlama3, use);
    EXPECT_EQ(named.find("a\\\\"), std::string::npos);
    EXPECT_NE(named.find("parameters"), std::string::npos);
    EXPECT_TRUE(named.starts_with("root ::= call\n"));
}

}  // namespace
}  // namespace baton::openai
