#include "baton/openai/response.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "baton/base/limits.hpp"
#include "openai/reasoning_splitter.hpp"
#include "unit/openai/fake_tokenizer.hpp"

namespace baton::openai {
namespace {

using Json = nlohmann::ordered_json;
using test::FakeTokenizer;

const std::shared_ptr<const FakeTokenizer> kTokenizer = std::make_shared<FakeTokenizer>();

ResponseOptions base(bool chat, bool stream) {
    ResponseOptions options;
    options.chat = chat;
    options.id = chat ? "chatcmpl-1" : "cmpl-1";
    options.model = "m\"1";
    options.system_fingerprint = "fp_x";
    options.created_s = 1700000000;
    options.generation.stream = stream;
    options.prompts = {{7, ""}};
    options.stop_ids = {kTokenizer->eos()};
    return options;
}

std::vector<wire::Token> tokens_of(std::string_view text) {
    std::vector<wire::Token> out;
    for (const TokenId id : kTokenizer->encode(text, false, false))
        out.push_back({id, -0.5f, {{id, -0.5f}, {65, -1.25f}}});
    return out;
}
std::vector<wire::Token> tokens_of(std::initializer_list<const char*> pieces) {
    std::vector<wire::Token> out;
    for (const char* piece : pieces) {
        const TokenId id = kTokenizer->find(piece);
        EXPECT_GE(id, 0) << piece;
        out.push_back({id, -0.5f, {{id, -0.5f}, {65, -1.25f}}});
    }
    return out;
}

/// The events of a stream, "[DONE]" as a JSON string. Checks the framing.
std::vector<Json> events_of(std::string_view frames) {
    std::vector<Json> out;
    while (!frames.empty()) {
        const size_t end = frames.find("\r\n\r\n");
        EXPECT_NE(end, std::string_view::npos);
        if (end == std::string_view::npos) break;
        std::string_view frame = frames.substr(0, end);
        frames.remove_prefix(end + 4);
        EXPECT_TRUE(frame.starts_with("data: "));
        EXPECT_EQ(frame.find_first_of("\r\n"), std::string_view::npos);
        EXPECT_LT(frame.size(), limits::kSseFrameBytesMax);
        frame.remove_prefix(6);
        out.push_back(frame == "[DONE]" ? Json("[DONE]") : Json::parse(frame));
    }
    return out;
}

struct Text {
    std::string content, reasoning, finish;
    Json logprobs = Json::array();  ///< chat entries, or [token, logprob, top, offset] rows
    int roles = 0, finishes = 0, empty_chunks = 0;
    friend bool operator==(const Text& a, const Text& b) {
        return a.content == b.content && a.reasoning == b.reasoning && a.finish == b.finish &&
               a.logprobs == b.logprobs;
    }
};

void add_logprobs(Text& text, const Json& logprobs) {
    if (logprobs.is_null()) return;
    if (logprobs.contains("content")) {
        for (const Json& entry : logprobs["content"]) text.logprobs.push_back(entry);
        return;
    }
    const size_t count = logprobs["tokens"].size();
    for (const char* name : {"token_logprobs", "top_logprobs", "text_offset"})
        EXPECT_EQ(logprobs[name].size(), count);
    for (size_t i = 0; i < count; ++i) {
        text.logprobs.push_back({logprobs["tokens"][i], logprobs["token_logprobs"][i],
                                 logprobs["top_logprobs"][i], logprobs["text_offset"][i]});
    }
}

/// What a client makes of a stream; checks the order of its chunks.
std::vector<Text> read_stream(const std::string& frames, bool chat, size_t choices,
                              bool include_usage, Json* usage) {
    std::vector<Text> out(choices);
    const auto events = events_of(frames);
    EXPECT_FALSE(events.empty());
    EXPECT_EQ(events.back(), "[DONE]");
    for (size_t i = 0; i + 1 < events.size(); ++i) {
        const Json& event = events[i];
        EXPECT_EQ(event["id"], chat ? "chatcmpl-1" : "cmpl-1");
        EXPECT_EQ(event["object"], chat ? "chat.completion.chunk" : "text_completion");
        EXPECT_EQ(event["model"], "m\"1");
        EXPECT_EQ(event["created"], 1700000000);
        EXPECT_EQ(event["system_fingerprint"], "fp_x");
        EXPECT_FALSE(event.contains("error"));
        if (event["choices"].empty()) {
            EXPECT_TRUE(include_usage);
            EXPECT_EQ(i + 2, events.size());
            *usage = event["usage"];
            continue;
        }
        const Json& choice = event["choices"][0];
        Text& text = out.at(choice["index"].get<size_t>());
        EXPECT_EQ(text.finishes, 0) << "a chunk after the finish chunk";
        add_logprobs(text, choice["logprobs"]);
        EXPECT_TRUE(choice.contains("finish_reason"));
        std::string content;
        if (chat) {
            const Json& delta = choice["delta"];
            if (delta.contains("role")) {
                EXPECT_EQ(delta, (Json{{"role", "assistant"}, {"content", ""}}));
                EXPECT_TRUE(text.content.empty() && text.reasoning.empty());
                ++text.roles;
            } else if (delta.contains("reasoning_content")) {
                EXPECT_TRUE(text.content.empty()) << "reasoning after content";
                EXPECT_NE(delta["reasoning_content"], "");
                text.reasoning += delta["reasoning_content"].get<std::string>();
            } else {
                content = delta["content"].get<std::string>();
            }
            if (!delta.contains("role") && content.empty() && choice["finish_reason"].is_null() &&
                !delta.contains("reasoning_content") && choice["logprobs"].is_null()) {
                ++text.empty_chunks;
            }
        } else {
            content = choice["text"].get<std::string>();
            if (content.empty() && choice["finish_reason"].is_null() &&
                choice["logprobs"].is_null())
                ++text.empty_chunks;
        }
        text.content += content;
        if (choice["finish_reason"].is_null()) {
            EXPECT_TRUE(event["usage"].is_null());
        } else {
            if (chat) {
                EXPECT_EQ(choice["delta"], (Json{{"content", ""}}));
            }
            EXPECT_EQ(event["usage"].is_null(), include_usage);
            if (!include_usage) *usage = event["usage"];
            text.finish = choice["finish_reason"].get<std::string>();
            ++text.finishes;
        }
    }
    return out;
}

std::vector<Text> read_body(const std::string& body, bool chat, Json* usage) {
    const Json json = Json::parse(body);
    EXPECT_EQ(json["object"], chat ? "chat.completion" : "text_completion");
    std::vector<Text> out;
    for (const Json& choice : json["choices"]) {
        EXPECT_EQ(choice["index"], out.size());
        Text text;
        if (chat) {
            EXPECT_EQ(choice["message"]["role"], "assistant");
            text.content = choice["message"]["content"].get<std::string>();
            text.reasoning = choice["message"].value("reasoning_content", "");
        } else {
            text.content = choice["text"].get<std::string>();
        }
        text.finish = choice["finish_reason"].get<std::string>();
        add_logprobs(text, choice["logprobs"]);
        out.push_back(std::move(text));
    }
    *usage = json["usage"];
    return out;
}

TEST(ResponseBuilder, ChatBody) {
    ResponseBuilder builder(base(true, false), kTokenizer);
    EXPECT_FALSE(builder.push(0, tokens_of("Hi"), wire::Finish::kNone, 4).choice_done);
    const auto eos = tokens_of({"<eos>"});
    const auto update = builder.push(0, eos, wire::Finish::kStop);
    EXPECT_TRUE(update.all_done);
    EXPECT_TRUE(update.frames.empty());
    EXPECT_FALSE(update.stop_found);
    EXPECT_EQ(
        builder.body(),
        R"({"id":"chatcmpl-1","object":"chat.completion","created":1700000000,"model":"m\"1","system_fingerprint":"fp_x",)"
        R"("choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"logprobs":null,"finish_reason":"stop"}],)"
        R"("usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":4}}})");
}

TEST(ResponseBuilder, ChatStreamToTheByte) {
    ResponseBuilder builder(base(true, true), kTokenizer);
    const std::string head =
        R"(data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"m\"1",)"
        R"("system_fingerprint":"fp_x","choices":[)";
    EXPECT_EQ(
        builder.push(0, tokens_of("H"), wire::Finish::kNone).frames,
        head +
            R"({"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null})"
            "\r\n\r\n" +
            head +
            R"({"index":0,"delta":{"content":"H"},"logprobs":null,"finish_reason":null}],"usage":null})"
            "\r\n\r\n");
    EXPECT_EQ(
        builder.push(0, tokens_of("\n"), wire::Finish::kLength).frames,
        head +
            R"({"index":0,"delta":{"content":"\n"},"logprobs":null,"finish_reason":null}],"usage":null})"
            "\r\n\r\n" +
            head +
            R"({"index":0,"delta":{"content":""},"logprobs":null,"finish_reason":"length"}],"usage":)"
            R"({"prompt_tokens":7,"completion_tokens":2,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":0}}})"
            "\r\n\r\ndata: [DONE]\r\n\r\n");
}

TEST(ResponseBuilder, UsageChunkAndContinuousUsage) {
    ResponseOptions options = base(true, true);
    options.generation.include_usage = true;
    options.generation.continuous_usage = true;
    ResponseBuilder builder(options, kTokenizer);
    const auto events =
        events_of(builder.push(0, tokens_of("ab"), wire::Finish::kLength, 3).frames);
    ASSERT_EQ(events.size(), 5u);
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(events[i]["usage"]["completion_tokens"], 2);
    EXPECT_TRUE(events[3]["choices"].empty());
    EXPECT_EQ(events[3]["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
    EXPECT_EQ(events[4], "[DONE]");
}

TEST(ResponseBuilder, StopTokensAndSpecialTokensAreHidden) {
    const auto content = [](const ResponseOptions& options, const std::vector<wire::Token>& tokens,
                            wire::Finish finish) {
        ResponseBuilder builder(options, kTokenizer);
        static_cast<void>(builder.push(0, tokens, finish));
        Json usage;
        const std::string text = read_body(builder.body(), true, &usage)[0].content;
        return text + "|" + usage["completion_tokens"].dump();
    };
    ResponseOptions options = base(true, false);
    options.stop_ids = {kTokenizer->find("stop"), kTokenizer->eos()};
    EXPECT_EQ(content(options, tokens_of({"hello", "<pad>", "stop"}), wire::Finish::kStop),
              "hello|3");
    EXPECT_EQ(content(options, tokens_of({"hello", "stop"}), wire::Finish::kLength), "hellostop|2");
    EXPECT_EQ(content(options, tokens_of({"hello", "<eos>", "the"}), wire::Finish::kLength),
              "hellothe|3");
    options.generation.include_stop_str_in_output = true;
    EXPECT_EQ(content(options, tokens_of({"hello", "stop"}), wire::Finish::kStop), "hellostop|2");
    options.generation.skip_special_tokens = false;
    EXPECT_EQ(content(options, tokens_of({"hello", "<pad>", "<eos>"}), wire::Finish::kStop),
              "hello<pad><eos>|3");
}

TEST(ResponseBuilder, StopStringEndsTheChoiceAndIgnoresWhatFollows) {
    ResponseOptions options = base(true, true);
    options.generation.stop = {"STOP"};
    ResponseBuilder builder(options, kTokenizer);
    std::string frames = builder.push(0, tokens_of({"hello", "ST"}), wire::Finish::kNone).frames;
    const auto update = builder.push(0, tokens_of({"OP", "the", "the"}), wire::Finish::kNone);
    EXPECT_TRUE(update.stop_found);
    EXPECT_TRUE(update.all_done);
    frames += update.frames;
    const auto late = builder.push(0, tokens_of({"the"}), wire::Finish::kLength);
    EXPECT_TRUE(late.frames.empty());
    EXPECT_FALSE(late.stop_found);
    EXPECT_TRUE(late.choice_done);
    Json usage;
    const auto texts = read_stream(frames, true, 1, false, &usage);
    EXPECT_EQ(texts[0].content, "hello");
    EXPECT_EQ(texts[0].finish, "stop");
    EXPECT_EQ(usage["completion_tokens"], 3);
}

TEST(ResponseBuilder, StopStringsWaitForMinTokens) {
    ResponseOptions options = base(true, false);
    options.generation.stop = {"a"};
    options.generation.min_tokens = 3;
    ResponseBuilder builder(options, kTokenizer);
    EXPECT_FALSE(builder.push(0, tokens_of("aab"), wire::Finish::kNone).stop_found);
    EXPECT_TRUE(builder.push(0, tokens_of("ba"), wire::Finish::kNone).stop_found);
    Json usage;
    EXPECT_EQ(read_body(builder.body(), true, &usage)[0].content, "aabb");
    EXPECT_EQ(usage["completion_tokens"], 5);
}

TEST(ResponseBuilder, EchoAloneAndWithText) {
    for (const bool stream : {false, true}) {
        ResponseOptions options = base(false, stream);
        options.prompts = {{2, "p1 "}, {3, std::string(30'000, '\x01')}};
        ResponseBuilder builder(options, kTokenizer);
        std::string frames = builder.push(1, {}, wire::Finish::kLength).frames;
        frames += builder.push(0, tokens_of("x"), wire::Finish::kLength).frames;
        Json usage;
        const auto texts = stream ? read_stream(frames, false, 2, false, &usage)
                                  : read_body(builder.body(), false, &usage);
        EXPECT_EQ(texts[0].content, "p1 x");
        EXPECT_EQ(texts[1].content, std::string(30'000, '\x01'));
        EXPECT_EQ(usage["prompt_tokens"], 5);
        EXPECT_EQ(usage["completion_tokens"], 1);
    }
}

TEST(ResponseBuilder, LeadingSpaceIsDroppedInChatsOnly) {
    const auto tokenizer = std::make_shared<FakeTokenizer>();
    tokenizer->set_strips(true);
    for (const bool chat : {false, true}) {
        ResponseBuilder builder(base(chat, false), tokenizer);
        static_cast<void>(
            builder.push(0, tokens_of({"<pad>", " the", " world"}), wire::Finish::kLength));
        Json usage;
        EXPECT_EQ(read_body(builder.body(), chat, &usage)[0].content,
                  chat ? "the world" : " the world");
    }
}

TEST(ResponseBuilder, LogprobsNeverPrintInfinity) {
    ResponseOptions options = base(true, false);
    options.generation.top_logprobs = 2;
    ResponseBuilder builder(options, kTokenizer);
    std::vector<wire::Token> tokens = tokens_of("a");
    tokens[0].logprob = -INFINITY;
    tokens[0].top = {{97, -0.0f}, {98, NAN}, {99, -3.0f}};
    static_cast<void>(builder.push(0, tokens, wire::Finish::kLength));
    EXPECT_NE(
        builder.body().find(
            R"({"token":"a","logprob":-9999.0,"bytes":[97],"top_logprobs":[{"token":"a","logprob":-0.0,"bytes":[97]},)"
            R"({"token":"b","logprob":-9999.0,"bytes":[98]}]})"),
        std::string::npos)
        << builder.body();
}

TEST(ResponseBuilder, BytesOfLogprobsJoinToTheContent) {
    ResponseOptions options = base(true, false);
    options.generation.top_logprobs = 0;
    ResponseBuilder builder(options, kTokenizer);
    static_cast<void>(
        builder.push(0, tokens_of({"hello", "\xF0\x9F", "\x99\x82", "<pad>", "é", "<eos>"}),
                     wire::Finish::kStop));
    Json usage;
    const Text text = read_body(builder.body(), true, &usage)[0];
    std::string joined;
    for (const Json& entry : text.logprobs) {
        for (const Json& byte : entry["bytes"])
            joined.push_back(static_cast<char>(byte.get<int>()));
        EXPECT_TRUE(entry["top_logprobs"].empty());
    }
    EXPECT_EQ(joined, text.content);
    EXPECT_EQ(text.logprobs.size(), 4u);
}

TEST(ResponseBuilder, CompletionOffsetsFollowTheText) {
    ResponseOptions options = base(false, false);
    options.generation.top_logprobs = 1;
    ResponseBuilder builder(options, kTokenizer);
    static_cast<void>(builder.push(0,
                                   tokens_of({"a\xF0",
                                              "\x9F\x99\x82"
                                              "b",
                                              "é", "\xF0\x9F"}),
                                   wire::Finish::kLength));
    const Json json = Json::parse(builder.body());
    const Json& logprobs = json["choices"][0]["logprobs"];
    EXPECT_EQ(json["choices"][0]["text"], "a🙂bé\xEF\xBF\xBD");
    EXPECT_EQ(logprobs["tokens"], (Json{"a", "🙂b", "é", "\xEF\xBF\xBD"}));
    EXPECT_EQ(logprobs["text_offset"], (Json{0, 1, 3, 4}));
    EXPECT_EQ(logprobs["top_logprobs"][0], (Json{{"a", -0.5}}));
}

TEST(ResponseBuilder, ManyLogprobsAndLongTextsKeepFramesSmall) {
    ResponseOptions options = base(true, true);
    options.generation.top_logprobs = 20;
    ResponseBuilder builder(options, kTokenizer);
    std::vector<wire::Token> tokens = tokens_of(std::string(400, '\x01') + std::string(400, 'z'));
    for (wire::Token& token : tokens) {
        token.top.clear();
        for (TokenId id = 0; id < 20; ++id)
            token.top.emplace_back(id, -1.0f * static_cast<float>(id));
    }
    Json usage;
    const auto texts =
        read_stream(builder.push(0, tokens, wire::Finish::kLength).frames, true, 1, false, &usage);
    EXPECT_EQ(texts[0].content.size(), 800u);
    EXPECT_EQ(texts[0].logprobs.size(), 800u);
    ResponseBuilder plain(base(true, true), kTokenizer);
    const auto long_text = read_stream(
        plain.push(0, tokens_of(std::string(100'000, '\x02')), wire::Finish::kLength).frames, true,
        1, false, &usage);
    EXPECT_EQ(long_text[0].content.size(), 100'000u);
}

// ---- properties ----

/// The text that all visible tokens give, cut at the stop string that ends first.
std::string oracle_text(const ResponseOptions& options, const std::vector<wire::Token>& tokens,
                        wire::Finish finish) {
    std::vector<TokenId> ids;
    for (size_t i = 0; i < tokens.size(); ++i) {
        const bool stop_token =
            i + 1 == tokens.size() && finish == wire::Finish::kStop &&
            std::count(options.stop_ids.begin(), options.stop_ids.end(), tokens[i].id) != 0;
        if (!stop_token || options.generation.include_stop_str_in_output)
            ids.push_back(tokens[i].id);
    }
    std::string text = kTokenizer->decode(ids, options.generation.skip_special_tokens);
    size_t end = std::string::npos;
    size_t begin = std::string::npos;
    for (const std::string& stop : options.generation.stop) {
        const size_t at = text.find(stop);
        if (at == std::string::npos) continue;
        if (end == std::string::npos || at + stop.size() < end ||
            (at + stop.size() == end && at < begin)) {
            end = at + stop.size();
            begin = at;
        }
    }
    if (end != std::string::npos)
        text.resize(options.generation.include_stop_str_in_output ? end : begin);
    return text;
}

std::vector<wire::Token> random_tokens(std::mt19937& random) {
    std::vector<wire::Token> out;
    const size_t count = random() % 40;
    const int kind = static_cast<int>(random() % 3);
    for (size_t i = 0; i < count; ++i) {
        TokenId id = 0;
        if (kind == 0) id = static_cast<TokenId>(random() % kTokenizer->vocab_size());
        if (kind == 1) id = static_cast<TokenId>(256 + random() % (kTokenizer->vocab_size() - 256));
        if (kind == 2) id = static_cast<TokenId>('a' + random() % 3);
        out.push_back({id,
                       -static_cast<float>(random() % 100) / 7,
                       {{id, -0.25f}, {static_cast<TokenId>(random() % 256), -2.0f}}});
    }
    return out;
}

TEST(ResponseBuilder, AStreamSaysWhatTheBodySaysHoweverItIsBatched) {
    std::mt19937 random(11);
    for (int round = 0; round < 4'000; ++round) {
        const bool chat = random() % 2 == 0;
        ResponseOptions options = base(chat, false);
        GenerationOptions& generation = options.generation;
        generation.n = static_cast<uint32_t>(1 + random() % 3);
        generation.top_logprobs = static_cast<int32_t>(random() % 4) - 1;
        generation.include_usage = random() % 2 == 0;
        generation.skip_special_tokens = random() % 4 != 0;
        generation.include_stop_str_in_output = random() % 3 == 0;
        if (chat) options.reasoning = static_cast<Reasoning>(random() % 3);
        std::vector<std::vector<wire::Token>> tokens;
        std::vector<wire::Finish> finishes;
        for (uint32_t i = 0; i < generation.n; ++i) {
            tokens.push_back(random_tokens(random));
            finishes.push_back(random() % 2 == 0 ? wire::Finish::kLength : wire::Finish::kStop);
            if (finishes.back() == wire::Finish::kStop)
                tokens.back().push_back({kTokenizer->eos(), -0.1f, {}});
        }
        const std::string sample = [&] {
            std::vector<TokenId> ids;
            for (const auto& token : tokens[0]) ids.push_back(token.id);
            return kTokenizer->decode(ids, true);
        }();
        for (size_t i = random() % 4; i > 0 && !sample.empty(); --i) {
            // Valid UTF-8, as the request's JSON guarantees.
            const auto inside = [&](size_t at) {
                return at < sample.size() && (static_cast<uint8_t>(sample[at]) & 0xC0) == 0x80;
            };
            size_t begin = random() % sample.size();
            while (inside(begin)) --begin;
            size_t end = std::min(sample.size(), begin + 1 + random() % 8);
            while (inside(end)) ++end;
            generation.stop.push_back(sample.substr(begin, end - begin));
        }
        ResponseBuilder whole(options, kTokenizer);
        for (uint32_t i = 0; i < generation.n; ++i)
            static_cast<void>(whole.push(i, tokens[i], finishes[i]));
        Json body_usage;
        const auto expected = read_body(whole.body(), chat, &body_usage);
        for (uint32_t i = 0; i < generation.n; ++i) {
            if (options.reasoning == Reasoning::kOff) {
                EXPECT_EQ(expected[i].content, oracle_text(options, tokens[i], finishes[i]));
            }
        }

        options.generation.stream = true;
        ResponseBuilder streamed(options, kTokenizer);
        std::vector<size_t> given(generation.n);
        std::vector<bool> over(generation.n);
        std::string frames;
        while (!streamed.all_done()) {
            const auto i = static_cast<uint32_t>(random() % generation.n);
            if (over[i]) continue;
            const size_t count = std::min<size_t>(random() % 5, tokens[i].size() - given[i]);
            const bool last = given[i] + count == tokens[i].size();
            const auto update = streamed.push(i, std::span(tokens[i]).subspan(given[i], count),
                                              last ? finishes[i] : wire::Finish::kNone);
            given[i] += count;
            frames += update.frames;
            over[i] = update.choice_done;
            EXPECT_EQ(update.all_done, streamed.all_done());
        }
        Json stream_usage;
        const auto seen =
            read_stream(frames, chat, generation.n, generation.include_usage, &stream_usage);
        for (uint32_t i = 0; i < generation.n; ++i) {
            EXPECT_EQ(seen[i].content, expected[i].content);
            EXPECT_EQ(seen[i].reasoning, expected[i].reasoning);
            EXPECT_EQ(seen[i].finish, expected[i].finish);
            EXPECT_EQ(seen[i].logprobs, expected[i].logprobs);
            EXPECT_EQ(seen[i].finishes, 1);
            EXPECT_EQ(seen[i].roles, chat ? 1 : 0);
            EXPECT_EQ(seen[i].empty_chunks, 0);
        }
        EXPECT_EQ(stream_usage, body_usage);
        if (HasFailure()) FAIL() << "round " << round;
    }
}

TEST(ResponseBuilder, CompletionTokensJoinToTheTextAndOffsetsAgree) {
    std::mt19937 random(12);
    for (int round = 0; round < 2'000; ++round) {
        ResponseOptions options = base(false, false);
        options.generation.top_logprobs = 2;
        options.generation.skip_special_tokens = round % 2 == 0;
        ResponseBuilder builder(options, kTokenizer);
        static_cast<void>(builder.push(0, random_tokens(random), wire::Finish::kLength));
        Json usage;
        const Text text = read_body(builder.body(), false, &usage)[0];
        std::string joined;
        size_t offset = 0;
        for (const Json& row : text.logprobs) {
            EXPECT_EQ(row[3], offset);
            const auto piece = row[0].get<std::string>();
            joined += piece;
            for (const char c : piece) offset += (static_cast<uint8_t>(c) & 0xC0) != 0x80 ? 1 : 0;
        }
        EXPECT_EQ(joined, text.content);
    }
}

// ---- reasoning ----

TEST(ReasoningSplitter, Rows) {
    struct Row {
        Reasoning mode;
        std::string text, reasoning, content;
    };
    const std::vector<Row> rows = {
        {Reasoning::kDetect, "<think>\nwhy\n</think>\n\nyes", "why", "yes"},
        {Reasoning::kDetect, "\n <think>why</think>yes", "why", "yes"},
        {Reasoning::kDetect, "<think>\n\n</think>\n\nyes", "", "yes"},
        {Reasoning::kDetect, "plain <think>x</think>", "", "plain <think>x</think>"},
        {Reasoning::kDetect, " \n", "", " \n"},
        {Reasoning::kDetect, "<thin", "", "<thin"},
        {Reasoning::kDetect, "<think>never closed\n", "never closed\n", ""},
        {Reasoning::kDetect, "<think>a</thi", "a</thi", ""},
        {Reasoning::kDetect, "<think>a < b </ c </think>d</think>e", "a < b </ c ", "d</think>e"},
        {Reasoning::kOpen, "why\n</think>\n\nyes", "why", "yes"},
        {Reasoning::kOpen, "<think>why</think>yes", "why", "yes"},
        {Reasoning::kOpen, "\n\n</think>\n\nyes", "", "yes"},
        {Reasoning::kOpen, "a\n\nb</think>", "a\n\nb", ""},
        {Reasoning::kOpen, "", "", ""},
        {Reasoning::kOff, "<think>a</think>b", "", "<think>a</think>b"},
    };
    for (const Row& row : rows) {
        for (size_t piece = 1; piece <= row.text.size() + 1; ++piece) {
            ReasoningSplitter splitter(row.mode);
            std::string reasoning;
            std::string content;
            const auto add = [&](const ReasoningSplitter::Parts& parts) {
                reasoning += parts.reasoning;
                content += parts.content;
            };
            for (size_t at = 0; at < row.text.size(); at += piece)
                add(splitter.push(row.text.substr(at, piece)));
            add(splitter.finish());
            EXPECT_EQ(reasoning, row.reasoning) << row.text;
            EXPECT_EQ(content, row.content) << row.text;
        }
    }
}

/// What may stand beside a tag is held back, byte after byte; a square of this size would take minutes.
TEST(ReasoningSplitter, HeldTextIsLookedAtOnce) {
    constexpr size_t kTimes = 500'000;
    const auto split = [&](Reasoning mode, std::string_view before, std::string_view byte, std::string_view end) {
        ReasoningSplitter splitter(mode);
        std::string reasoning, content;
        const auto add = [&](const ReasoningSplitter::Parts& parts) {
            reasoning += parts.reasoning;
            content += parts.content;
        };
        add(splitter.push(before));
        for (size_t i = 0; i < kTimes; ++i) add(splitter.push(byte));
        add(splitter.push(end));
        add(splitter.finish());
        return std::pair(reasoning, content);
    };
    const std::string lines(kTimes, '\n'), blanks(kTimes, ' ');
    EXPECT_EQ(split(Reasoning::kOpen, "a", "\n", "b"), std::pair("a" + lines + "b", std::string()));
    EXPECT_EQ(split(Reasoning::kOpen, "a", "\n", "</think>b"), std::pair(std::string("a"), std::string("b")));
    EXPECT_EQ(split(Reasoning::kDetect, "", " ", "b"), std::pair(std::string(), blanks + "b"));
    EXPECT_EQ(split(Reasoning::kDetect, "", " ", "<think>b"), std::pair(std::string("b"), std::string()));
}

TEST(ResponseBuilder, ReasoningGoesToItsOwnField) {
    ResponseOptions options = base(true, false);
    options.reasoning = Reasoning::kDetect;
    ResponseBuilder builder(options, kTokenizer);
    static_cast<void>(builder.push(0, tokens_of({"<think>", "the", "</think>", "\n\n", "hello"}),
                                   wire::Finish::kLength));
    const Json json = Json::parse(builder.body());
    EXPECT_EQ(json["choices"][0]["message"]["reasoning_content"], "the");
    EXPECT_EQ(json["choices"][0]["message"]["content"], "hello");
    EXPECT_EQ(json["usage"]["completion_tokens_details"]["reasoning_tokens"], 3);
}

// ---- small things ----

TEST(ResponseId, Shapes) {
    EXPECT_EQ(response_id(true, "r"), "chatcmpl-r");
    EXPECT_EQ(response_id(false, "r"), "cmpl-r");
    EXPECT_NE(response_id(true, ""), response_id(true, ""));
    EXPECT_EQ(system_fingerprint("a", "b"), system_fingerprint("a", "b"));
    EXPECT_NE(system_fingerprint("a", "b"), system_fingerprint("ab", ""));
    EXPECT_EQ(system_fingerprint("a", "b").size(), 19u);
    EXPECT_EQ(new_request_id().size(), 32u);
}

}  // namespace
}  // namespace baton::openai
