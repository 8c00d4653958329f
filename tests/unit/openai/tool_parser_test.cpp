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
            const ToolUse& use = weather_and_clock()) {
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
    parser.finish(out);
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
