#include "cli/conversation.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

namespace baton::cli {
namespace {

using Action = Conversation::Reply::Action;
using Mode = Conversation::Mode;
using Json = nlohmann::ordered_json;

TEST(Conversation, CollectsMessagesAndSettings) {
    Conversation c(Mode::kChat, "m");
    c.set_system("be brief");
    EXPECT_EQ(c.enter("hello").action, Action::kSend);
    c.add_answer("hi", {});
    EXPECT_EQ(c.enter("/set temperature 0.5").action, Action::kNone);
    EXPECT_EQ(c.enter("/set stop END \"a \\n b\"").action, Action::kNone);
    EXPECT_EQ(c.enter("more").action, Action::kSend);
    EXPECT_EQ(c.body(), Json::parse(R"({"model": "m", "messages": [{"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}, {"role": "user", "content": "more"}],
        "temperature": 0.5, "stop": ["END", "a \n b"]})"));
    EXPECT_EQ(c.enter("/set temperature").action, Action::kNone);
    EXPECT_FALSE(c.body().contains("temperature"));
}

TEST(Conversation, CommandsChangeIt) {
    Conversation c(Mode::kChat, "m");
    EXPECT_EQ(c.enter("/retry").action, Action::kNone);
    (void)c.enter("q1");
    c.add_answer("a1", {});
    (void)c.enter("q2");
    c.add_answer("a2", {});
    EXPECT_EQ(c.enter("/retry").action, Action::kSend);
    EXPECT_EQ(c.messages().size(), 3u);
    c.add_answer("a2 again", {});
    (void)c.enter("/undo");
    EXPECT_EQ(c.messages().size(), 2u);
    EXPECT_NE(c.enter("/show").text.find("assistant: a1"), std::string::npos);
    (void)c.enter("/system you are a cat");
    EXPECT_EQ(c.body()["messages"][0]["content"], "you are a cat");
    (void)c.enter("/system \"\"");
    (void)c.enter("/reset");
    EXPECT_TRUE(c.body()["messages"].empty());
    for (const char* leave : {"/exit", "/quit", "/bye", "  /exit "}) EXPECT_EQ(c.enter(leave).action, Action::kExit);
    EXPECT_EQ(c.enter("/clear").action, Action::kClearScreen);
    EXPECT_NE(c.enter("/nothing").text.find("no command /nothing"), std::string::npos);
    EXPECT_NE(c.enter("/help").text.find("/reset"), std::string::npos);
    EXPECT_EQ(c.enter("  ").action, Action::kNone);
}

TEST(Conversation, APathIsNoCommandAndAPromptMayLookLikeOne) {
    Conversation c(Mode::kChat, "m");
    EXPECT_EQ(c.enter("/usr/bin is a folder").action, Action::kSend);
    c.add_question("/exit");
    EXPECT_EQ(c.body()["messages"][1]["content"], "/exit");
}

// A question whose answer failed is not asked again with the next one.
TEST(Conversation, AQuestionWithoutAnswerIsTakenBack) {
    Conversation c(Mode::kChat, "m");
    (void)c.enter("q");
    c.add_answer("", {});
    EXPECT_TRUE(c.messages().empty());
    (void)c.enter("q");
    c.add_answer("half an ans", {});
    EXPECT_EQ(c.messages().size(), 2u);
}

TEST(Conversation, GenerateSendsThePromptAlone) {
    Conversation c(Mode::kGenerate, "m");
    (void)c.enter("Once upon");
    c.add_answer(" a time", {});
    (void)c.enter("The end");
    EXPECT_EQ(c.body(), Json::parse(R"({"model": "m", "prompt": "The end"})"));
    EXPECT_NE(c.enter("/system x").text.find("no command"), std::string::npos);
    EXPECT_EQ(c.enter("/help").text.find("/system"), std::string::npos);
}

TEST(Conversation, IsSavedAndLoaded) {
    const std::string path = testing::TempDir() + "/conversation-" + std::to_string(::getpid()) + ".json";
    Conversation c(Mode::kChat, "m");
    c.set_system("s");
    (void)c.enter("q");
    c.add_answer("a\nb", {});
    EXPECT_EQ(c.enter("/save " + path).text, "written to " + path);
    Conversation other(Mode::kChat, "m");
    EXPECT_EQ(other.enter("/load " + path).text, "2 messages");
    EXPECT_EQ(other.body(), c.body());
    EXPECT_NE(other.enter("/load /nonexistent/x").text.find("cannot read"), std::string::npos);
    EXPECT_EQ(other.body(), c.body());
    std::filesystem::remove(path);
    // A folder that is not there is a typing mistake, not an order to make one.
    const std::string folder = path + ".folder";
    EXPECT_NE(c.enter("/save " + folder + "/x.json").text.find("cannot write " + folder + "/x.json: No such file or directory"), std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(SamplingSettings, RefusesWhatTheServerWould) {
    SamplingSettings s;
    for (const auto& [name, value] : std::initializer_list<std::pair<const char*, const char*>>{
             {"temperature", "3"}, {"temperature", "warm"}, {"temperature", "nan"}, {"top_k", "1.5"}, {"max_tokens", "0"},
             {"thinking", "perhaps"}, {"stop", ""}, {"stop", "\"open"}, {"seed", "1x"}, {"nonsense", "1"}})
        EXPECT_FALSE(s.set(name, value)) << name << " " << value;
    Json body = Json::object();
    s.add_to(body);
    EXPECT_TRUE(body.empty());
    EXPECT_TRUE(s.set("top-k", "-1"));
    EXPECT_TRUE(s.set("thinking", "off"));
    s.add_to(body);
    EXPECT_EQ(body, Json::parse(R"({"top_k": -1, "enable_thinking": false})"));
    EXPECT_EQ(s.shown(), (std::vector<std::string>{"top_k -1", "thinking false"}));
}

TEST(AnswerStats, SayTokensAndSpeed) {
    AnswerStats s;
    s.prompt_tokens = 12;
    s.cached_tokens = 8;
    s.completion_tokens = 41;
    s.ttft_ms = 35.4;
    s.decode_ms = 1000;
    EXPECT_EQ(format_stats(s), "12 prompt tokens (8 cached), 41 tokens, first after 35 ms, 40.0 tokens/s");
    s.completion_tokens = 1;
    s.finish_reason = "length";
    EXPECT_EQ(format_stats(s), "12 prompt tokens (8 cached), 1 token, first after 35 ms, cut off at max_tokens");
}

}  // namespace
}  // namespace baton::cli
