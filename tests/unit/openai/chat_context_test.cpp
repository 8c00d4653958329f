#include "baton/openai/chat_context.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace baton::openai {
namespace {

TEST(TemplateContext, HoldsWhatTemplatesExpect) {
    const auto request = parse_chat_request(
        R"({"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}}],)"
        R"("enable_thinking":false})",
        {});
    ASSERT_TRUE(request.has_value());
    const auto info = inspect_template("{{ tools }}", "<s>", "</s>");
    EXPECT_EQ(
        template_context(*request, info),
        R"({"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}}],)"
        R"("add_generation_prompt":true,"bos_token":"<s>","eos_token":"</s>","enable_thinking":false,"thinking":false})");
}

TEST(TemplateContext, LeavesOutAbsentTools) {
    const auto request =
        parse_chat_request(R"({"model":"m","messages":[{"role":"user","content":"hi"}]})", {});
    EXPECT_EQ(
        template_context(*request, inspect_template("", "", "")),
        R"({"messages":[{"role":"user","content":"hi"}],"add_generation_prompt":true,"bos_token":"","eos_token":""})");
}

TEST(TemplateContext, ArgumentsFollowTheTemplate) {
    const auto request = parse_chat_request(
        R"({"model":"m","messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[)"
        R"({"id":"1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":[2.0]}"}},)"
        R"({"id":"2","type":"function","function":{"name":"g","arguments":"{broken"}}]}]})",
        {});
    ASSERT_TRUE(request.has_value());
    const auto arguments = [&](std::string_view source, size_t call) {
        const auto json = nlohmann::ordered_json::parse(
            template_context(*request, inspect_template("{% if message.tool_calls %}" + std::string(source), "", "")));
        return json["messages"][1]["tool_calls"][call]["function"]["arguments"];
    };
    for (const char* objects :
         {"{{ tool_call.arguments | tojson }}", "{% for k, v in tool_call.arguments|items %}",
          "{% for k in call['arguments'].items() %}",
          "{{ call.function[\"arguments\"] |tojson }}"}) {
        EXPECT_EQ(arguments(objects, 0).dump(), R"({"b":1,"a":[2.0]})") << objects;
        EXPECT_EQ(arguments(objects, 1), "{broken") << objects;
    }
    for (const char* strings :
         {"{{ tool_call.arguments }}", "{{ '{' + tool['function']['arguments'] + '}' }}",
          "{% if tool_call.arguments is string %}{{ tool_call.arguments }}{% else %}{{ "
          "tool_call.arguments | tojson }}{% endif %}"}) {
        EXPECT_TRUE(arguments(strings, 0).is_string()) << strings;
    }
}

constexpr std::string_view kWithHistory =
    R"({"model":"m","messages":[{"role":"user","content":"q"},{"role":"assistant","content":"Let me look.","tool_calls":[)"
    R"({"id":"1","type":"function","function":{"name":"f","arguments":"{\"b\": 1}"}},{"id":"2","type":"function","function":{"name":"g"}}]},)"
    R"({"role":"tool","tool_call_id":"1","content":"one"},{"role":"tool","tool_call_id":"2","content":"two"},{"role":"assistant","content":"done"}],)"
    R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object"}}},{"type":"function","function":{"name":"g"}}]})";

nlohmann::ordered_json messages_for(std::string_view body, const TemplateInfo& info,
                                    ToolPlace place = ToolPlace::kSystem) {
    const auto request = parse_chat_request(body, {});
    EXPECT_TRUE(request.has_value());
    return nlohmann::ordered_json::parse(template_context(*request, info, place))["messages"];
}

TEST(ToolPrompt, ATemplateWithoutToolsGetsThemInAMessage) {
    TemplateInfo info = inspect_template("{{ messages }}", "", "");
    EXPECT_FALSE(info.tools);
    const auto hermes = messages_for(kWithHistory, info);
    ASSERT_EQ(hermes.size(), 5u);
    EXPECT_EQ(hermes[0]["role"], "system");
    const std::string told = hermes[0]["content"];
    EXPECT_TRUE(told.starts_with("You can call functions."));
    EXPECT_NE(told.find("{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}\n"), std::string::npos) << told;
    EXPECT_NE(told.find("<tool_call>"), std::string::npos);
    EXPECT_EQ(hermes[2]["content"], "Let me look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>");
    EXPECT_FALSE(hermes[2].contains("tool_calls"));
    EXPECT_EQ(hermes[3]["role"], "user");
    EXPECT_EQ(hermes[3]["content"], "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>");
    EXPECT_EQ(hermes[4]["content"], "done");

    info.tool_format = ToolFormat::kLlama3;
    EXPECT_EQ(messages_for(kWithHistory, info)[2]["content"], "Let me look.\n{\"name\": \"f\", \"parameters\": {\"b\": 1}}; {\"name\": \"g\", \"parameters\": {}}");
    info.tool_format = ToolFormat::kMistral;
    EXPECT_EQ(messages_for(kWithHistory, info)[2]["content"], "Let me look.\n[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"b\": 1}}, {\"name\": \"g\", \"arguments\": {}}]");
    info.tool_format = ToolFormat::kNone;  // nobody would read a call
    EXPECT_EQ(messages_for(kWithHistory, info)[0]["role"], "user");
}

TEST(ToolPrompt, StandsBesideWhatTheClientSays) {
    const TemplateInfo info = inspect_template("{{ messages }}", "", "");
    constexpr std::string_view kBody =
        R"({"model":"m","messages":[{"role":"system","content":"Be kind."},{"role":"user","content":"q"}],"parallel_tool_calls":false,)"
        R"("tools":[{"type":"function","function":{"name":"f"}}]})";
    const auto system = messages_for(kBody, info);
    ASSERT_EQ(system.size(), 2u);
    EXPECT_TRUE(system[0]["content"].get<std::string>().starts_with("Be kind.\n\nYou can call functions."));
    EXPECT_NE(system[0]["content"].get<std::string>().find("one call at most"), std::string::npos);
    EXPECT_EQ(system[1]["content"], "q");
    const auto user = messages_for(kBody, info, ToolPlace::kUser);
    EXPECT_EQ(user[0]["content"], "Be kind.");
    EXPECT_TRUE(user[1]["content"].get<std::string>().starts_with("You can call functions."));
    EXPECT_TRUE(user[1]["content"].get<std::string>().ends_with("\n\nq"));
    const auto request = parse_chat_request(kBody, {});
    EXPECT_TRUE(describes_tools(*request, info));
    EXPECT_FALSE(describes_tools(*request, inspect_template("{% if tools %}", "", "")));
    EXPECT_TRUE(has_tool_description({{"<s>", false}, {"x You can call", true}, {" functions. y", true}}));
    EXPECT_FALSE(has_tool_description({{"You can", true}}));
}

TEST(ToolPrompt, HistoriesAreTextWhereTheTemplateDoesNotKnowCalls) {
    constexpr std::string_view kBody =
        R"({"model":"m","messages":[{"role":"user","content":"q"},{"role":"assistant","content":null,"tool_calls":[)"
        R"({"id":"1","type":"function","function":{"name":"f","arguments":"not json"}}]},{"role":"tool","tool_call_id":"1","content":"one"}]})";
    const auto text = messages_for(kBody, inspect_template("{{ messages }}", "", ""));
    ASSERT_EQ(text.size(), 3u) << "no tools, nothing to tell";
    EXPECT_EQ(text[1]["content"], "<tool_call>\n{\"name\": \"f\", \"arguments\": \"not json\"}\n</tool_call>");
    const auto known = messages_for(kBody, inspect_template("{{ message.tool_calls }}", "", ""));
    EXPECT_TRUE(known[1].contains("tool_calls"));
    EXPECT_EQ(known[2]["role"], "tool");
}

TEST(ToolPrompt, TemplatesAreAskedForTheirVariable) {
    for (const char* yes : {"{{ tools }}", "{%- if tools is defined %}", "{% for t in tools %}", "{% if not tools %}", "{{ '}' }}{{tools|tojson}}"})
        EXPECT_TRUE(inspect_template(yes, "", "").tools) << yes;
    for (const char* no : {"", "tools", "{# tools #}", "Use tools {{ messages }}", "{{ builtin_tools }}", "{{ tools_x }}", "{{ message.tools }}", "{{ message['tools'] }}",
                           "{% if \"tools\" in message %}", "{{ tool }}", "{", "{{", "{%"})
        EXPECT_FALSE(inspect_template(no, "", "").tools) << no;
}

TEST(CutAfterFinalMessage, EndsWithTheContent) {
    std::vector<text::Segment> rendered = {
        {"<u>", false}, {"yes", true}, {"<a>", false}, {"Sure, yes", true}, {"<end>\n", false}};
    ASSERT_TRUE(cut_after_final_message(rendered, "Sure, yes").has_value());
    ASSERT_EQ(rendered.size(), 4u);
    EXPECT_EQ(rendered[3].text, "Sure, yes");
    std::vector<text::Segment> trimmed = {{"<a>", false}, {"Sure", true}, {"<end>", false}};
    ASSERT_TRUE(cut_after_final_message(trimmed, " Sure \n").has_value());
    EXPECT_EQ(trimmed.size(), 2u);
    std::vector<text::Segment> across = {{"<a>Su", false}, {"re!", true}};
    ASSERT_TRUE(cut_after_final_message(across, "Sure").has_value());
    EXPECT_EQ(across[1].text, "re");
    std::vector<text::Segment> hidden = {{"<a>", false}};
    EXPECT_FALSE(cut_after_final_message(hidden, "Sure").has_value());
}

TEST(ReasoningMode, LooksAtTheTemplatesOwnText) {
    const auto think = inspect_template("…<think>…", "", "");
    EXPECT_TRUE(think.has_think);
    EXPECT_EQ(reasoning_mode(think, {{"<a>", false}}), Reasoning::kDetect);
    EXPECT_EQ(reasoning_mode(think, {{"hi", true}, {"<a><think>\n", false}}), Reasoning::kOpen);
    EXPECT_EQ(reasoning_mode(think, {{"<a>", false}, {"<think>", true}}), Reasoning::kDetect);
    EXPECT_EQ(reasoning_mode(think, {{"<think>\n\n</think>\n\n", false}}), Reasoning::kDetect);
    EXPECT_EQ(reasoning_mode(inspect_template("plain", "", ""), {{"<think>", false}}),
              Reasoning::kOff);
}

TEST(TemplateContext, ContentsThatAreNullAreEmptyUnlessTheTemplateAsks) {
    const auto request = parse_chat_request(
        R"({"model":"m","messages":[{"role":"user","content":"\"content\":null"},{"role":"assistant","content":null,"tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}]}]})",
        {});
    ASSERT_TRUE(request.has_value());
    const std::string plain =
        template_context(*request, inspect_template("{{ messages }}{{ message.tool_calls }}", "", ""));
    EXPECT_EQ(plain.find("\"content\":null"), std::string::npos);
    EXPECT_NE(plain.find("\\\"content\\\":null"), std::string::npos) << plain;
    const std::string asks =
        template_context(*request, inspect_template("{% if message['content'] is none %}{{ message.tool_calls }}", "", ""));
    EXPECT_NE(asks.find("\"content\":null"), std::string::npos);
}

TEST(SetParsers, SayMoreThanTheTemplate) {
    TemplateInfo info = inspect_template("<tool_call>", "", "");
    EXPECT_EQ(info.tool_format, ToolFormat::kHermes);
    set_parsers(info, "mistral", "", "[THINK]", "[/THINK]");
    EXPECT_EQ(info.tool_format, ToolFormat::kMistral);
    EXPECT_TRUE(info.has_think);
    EXPECT_EQ(info.tags.end, "[/THINK]");
    set_parsers(info, "nobody's", "none", "", "");
    EXPECT_EQ(info.tool_format, ToolFormat::kMistral);
    EXPECT_FALSE(info.has_think);
}

}  // namespace
}  // namespace baton::openai
