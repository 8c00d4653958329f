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
    const auto info = inspect_template("", "<s>", "</s>");
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
            template_context(*request, inspect_template(source, "", "")));
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
        template_context(*request, inspect_template("{{ messages }}", "", ""));
    EXPECT_EQ(plain.find("\"content\":null"), std::string::npos);
    EXPECT_NE(plain.find("\\\"content\\\":null"), std::string::npos) << plain;
    const std::string asks =
        template_context(*request, inspect_template("{% if message['content'] is none %}", "", ""));
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
