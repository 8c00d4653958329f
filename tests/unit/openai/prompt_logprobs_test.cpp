#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "baton/openai/response.hpp"
#include "unit/openai/fake_tokenizer.hpp"

namespace baton::openai {
namespace {

using Json = nlohmann::ordered_json;
const auto kTokenizer = std::make_shared<const test::FakeTokenizer>();

ResponseOptions echoing(bool stream) {
    ResponseOptions o;
    o.chat = false;
    o.id = "cmpl-1";
    o.model = "m";
    o.echo = true;
    o.generation.stream = stream;
    o.generation.top_logprobs = 1;
    o.generation.n = 2;
    o.prompts.push_back({3, "aé!", {'a', kTokenizer->find("é"), '!'}});
    return o;
}

std::vector<wire::Token> scores() {
    const TokenId e = kTokenizer->find("é");
    return {{e, -1.5f, {{'x', -0.5f}}}, {'!', -0.25f, {{'!', -0.25f}}}};
}

std::vector<wire::Token> answer() {
    return {{'o', -2.0f, {{'o', -2.0f}}}, {'k', -3.0f, {{'k', -3.0f}}}};
}

TEST(PromptLogprobs, StandBeforeThoseOfTheAnswer) {
    ResponseBuilder builder(echoing(false), kTokenizer);
    builder.set_prompt_logprobs(0, scores());
    for (const uint32_t c : {0u, 1u}) (void)builder.push(c, answer(), wire::Finish::kLength);
    const Json body = Json::parse(builder.body());
    for (const Json& choice : body["choices"]) {
        EXPECT_EQ(choice["text"], "aé!ok");
        const Json& lp = choice["logprobs"];
        EXPECT_EQ(lp["tokens"], Json({"a", "é", "!", "o", "k"}));
        EXPECT_EQ(lp["token_logprobs"], Json({nullptr, -1.5, -0.25, -2.0, -3.0}));
        EXPECT_EQ(lp["text_offset"], Json({0, 1, 2, 3, 4}));
        EXPECT_EQ(lp["top_logprobs"],
                  Json::parse(R"([null,{"x":-0.5},{"!":-0.25},{"o":-2.0},{"k":-3.0}])"));
    }
}

TEST(PromptLogprobs, AStreamHasTheSame) {
    ResponseBuilder builder(echoing(true), kTokenizer);
    builder.set_prompt_logprobs(0, scores());
    std::string frames;
    for (const uint32_t c : {0u, 1u}) {
        for (const wire::Token& t : answer())
            frames += builder.push(c, std::span(&t, 1), wire::Finish::kNone).frames;
        frames += builder.push(c, {}, wire::Finish::kLength).frames;
    }
    std::vector<Json> logprobs(2, Json::array());
    std::vector<std::string> texts(2);
    for (size_t at = 0; (at = frames.find("data: {", at)) != std::string::npos;) {
        const size_t end = frames.find("\r\n\r\n", at);
        const Json choice = Json::parse(frames.substr(at + 6, end - at - 6))["choices"][0];
        const size_t index = choice["index"];
        texts[index] += choice["text"].get<std::string>();
        if (!choice["logprobs"].is_null())
            for (const Json& x : choice["logprobs"]["token_logprobs"]) logprobs[index].push_back(x);
        at = end;
    }
    for (const size_t i : {0u, 1u}) {
        EXPECT_EQ(texts[i], "aé!ok");
        EXPECT_EQ(logprobs[i], Json({nullptr, -1.5, -0.25, -2.0, -3.0}));
    }
}

TEST(PromptLogprobs, OfAChatByIdWithRanks) {
    ResponseOptions o = echoing(false);
    o.chat = true;
    o.echo = false;
    o.generation.n = 1;
    o.generation.top_logprobs = -1;
    o.generation.prompt_logprobs = 1;
    EXPECT_EQ(o.prompt_top(), 1);
    ResponseBuilder builder(std::move(o), kTokenizer);
    builder.set_prompt_logprobs(0, scores());
    (void)builder.push(0, answer(), wire::Finish::kLength);
    const Json rows = Json::parse(builder.body())["prompt_logprobs"];
    const std::string e = std::to_string(kTokenizer->find("é"));
    ASSERT_EQ(rows.size(), 3u);
    EXPECT_TRUE(rows[0].is_null());
    EXPECT_EQ(rows[1][e], Json::parse(R"({"logprob":-1.5,"rank":null,"decoded_token":"é"})"));
    EXPECT_EQ(rows[1]["120"], Json::parse(R"({"logprob":-0.5,"rank":1,"decoded_token":"x"})"));
    EXPECT_EQ(rows[2], Json::parse(R"({"33":{"logprob":-0.25,"rank":1,"decoded_token":"!"}})"));
}

ResponseOptions calling(bool stream) {
    ResponseOptions o;
    o.id = "chatcmpl-1";
    o.model = "m";
    o.generation.stream = stream;
    o.prompts.push_back({3});
    o.tool_format = ToolFormat::kHermes;
    o.tool_use.tools = {{"f", ""}};
    o.tool_use.choice = ToolChoice::kAuto;
    return o;
}

std::vector<wire::Token> spelled(std::string_view text) {
    std::vector<wire::Token> out;
    for (const TokenId id : kTokenizer->encode(text, false, false)) out.push_back({id, 0, {}});
    return out;
}

TEST(ToolCalls, AreInTheMessage) {
    ResponseBuilder builder(calling(false), kTokenizer);
    (void)builder.push(
        0, spelled("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"\\\"\"}}</tool_call>"),
        wire::Finish::kStop);
    const Json choice = Json::parse(builder.body())["choices"][0];
    EXPECT_TRUE(choice["message"]["content"].is_null());
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    EXPECT_EQ(choice["message"]["tool_calls"][0]["function"],
              Json::parse(R"({"name":"f","arguments":"{\"a\":\"\\\"\"}"})"));
}

TEST(ToolCalls, AreDeltasOfAStream) {
    ResponseBuilder builder(calling(true), kTokenizer);
    std::string frames;
    for (const wire::Token& t :
         spelled("Hm. <tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>"))
        frames += builder.push(0, std::span(&t, 1), wire::Finish::kNone).frames;
    frames += builder.push(0, {}, wire::Finish::kLength).frames;
    std::string content, arguments;
    size_t begins = 0;
    for (size_t at = 0; (at = frames.find("data: {", at)) != std::string::npos;) {
        const size_t end = frames.find("\r\n\r\n", at);
        const Json choice = Json::parse(frames.substr(at + 6, end - at - 6))["choices"][0];
        content += choice["delta"].value("content", "");
        for (const Json& call : choice["delta"].value("tool_calls", Json::array())) {
            EXPECT_EQ(call["index"], 0);
            if (call.contains("id")) ++begins;
            arguments += call["function"]["arguments"].get<std::string>();
        }
        at = end;
    }
    EXPECT_EQ(content, "Hm.");
    EXPECT_EQ(begins, 1u);
    EXPECT_EQ(arguments, "{\"a\":1}");
    EXPECT_NE(frames.find("\"finish_reason\":\"length\""), std::string::npos);
}

}  // namespace
}  // namespace baton::openai
