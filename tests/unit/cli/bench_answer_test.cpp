#include <gtest/gtest.h>

#include "cli/bench_serve_answer.hpp"

namespace baton::cli {
namespace {

std::string chunk(const std::string& text) {
    char size[32];
    std::snprintf(size, sizeof size, "%zx\r\n", text.size());
    return size + text + "\r\n";
}

std::string event(const std::string& json) { return "data: " + json + "\n\n"; }

const std::string kText = R"({"id":"c","choices":[{"index":0,"text":" word","finish_reason":null}],"usage":null})";
const std::string kEmpty = R"({"id":"c","choices":[{"index":0,"text":"","finish_reason":"length"}],"usage":null})";
const std::string kUsage = R"({"id":"c","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8}})";
const std::string kHead = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n";

/// Three texts, their chunk borders in the middle of events.
std::string chunked_answer() {
    const std::string body = event(kText) + event(kText) + ": a comment\n" + event(kText) + event(kEmpty) + event(kUsage) + event("[DONE]");
    std::string out = "HTTP/1.1 100 Continue\r\n\r\n" + kHead + "Transfer-Encoding: chunked\r\n\r\n";
    for (size_t at = 0; at < body.size(); at += 37) out += chunk(body.substr(at, 37));
    return out + "0\r\nX-Trailer: 1\r\n\r\n";
}

TEST(AnswerReader, IsTheSameHoweverTheBytesAreCut) {
    const std::string answer = chunked_answer();
    for (size_t first = 0; first < answer.size(); ++first) {
        for (const size_t step : {size_t{1}, size_t{7}, answer.size()}) {
            AnswerReader reader;
            uint32_t texts = reader.feed(std::string_view(answer).substr(0, first));
            for (size_t at = first; at < answer.size(); at += step) texts += reader.feed(std::string_view(answer).substr(at, step));
            ASSERT_TRUE(reader.done() && reader.reusable()) << first << " " << step;
            ASSERT_EQ(reader.error(), "");
            ASSERT_EQ(texts, 3u);
            ASSERT_EQ(reader.input_tokens(), 5u);
            ASSERT_EQ(reader.output_tokens(), 3u);
        }
    }
}

TEST(AnswerReader, IsNotDoneBeforeItsLastByte) {
    const std::string answer = chunked_answer();
    AnswerReader reader;
    reader.feed(std::string_view(answer).substr(0, answer.size() - 1));
    EXPECT_FALSE(reader.done());
    reader.close();
    EXPECT_TRUE(reader.done());
    EXPECT_FALSE(reader.reusable());
    EXPECT_NE(reader.error(), "");
}

TEST(AnswerReader, TakesALengthAndAnEndByClosing) {
    const std::string body = event(kText) + event("[DONE]");
    AnswerReader with_length;
    EXPECT_EQ(with_length.feed(kHead + "content-length: " + std::to_string(body.size()) + "\r\n\r\n" + body), 1u);
    EXPECT_TRUE(with_length.reusable());
    EXPECT_EQ(with_length.error(), "");
    AnswerReader until_close;
    EXPECT_EQ(until_close.feed(kHead + "Connection: close\r\n\r\n" + body), 1u);
    EXPECT_FALSE(until_close.done());
    until_close.close();
    EXPECT_TRUE(until_close.done());
    EXPECT_FALSE(until_close.reusable());
    EXPECT_EQ(until_close.error(), "");
}

TEST(AnswerReader, KeepsAConnectionOnlyWhereTheServerDoes) {
    AnswerReader reader;
    reader.feed(kHead + "Connection: close\r\nContent-Length: 14\r\n\r\ndata: [DONE]\n\n");
    EXPECT_TRUE(reader.done());
    EXPECT_EQ(reader.error(), "");
    EXPECT_FALSE(reader.reusable());
}

TEST(AnswerReader, NamesErrors) {
    AnswerReader status;
    status.feed("HTTP/1.1 429 Too Many\r\nContent-Length: 4\r\n\r\nbusy");
    EXPECT_EQ(status.error(), "status 429: busy");
    EXPECT_TRUE(status.reusable());
    AnswerReader in_stream;
    in_stream.feed(kHead + "Transfer-Encoding: chunked\r\n\r\n" + chunk(event(kText) + event(R"({"error":{"message":"replica lost","code":1}})")));
    EXPECT_EQ(in_stream.error(), "replica lost");
    EXPECT_FALSE(in_stream.reusable());
    AnswerReader no_end;
    no_end.feed(kHead + "Transfer-Encoding: chunked\r\n\r\n" + chunk(event(kText)) + "0\r\n\r\n");
    EXPECT_NE(no_end.error(), "");
    for (const char* bad : {"SSH-2.0\r\n", "HTTP/1.1 xx\r\n", "HTTP/1.1 200 OK\r\nno colon\r\n",
                            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"}) {
        AnswerReader reader;
        reader.feed(bad);
        EXPECT_TRUE(reader.done()) << bad;
        EXPECT_NE(reader.error(), "") << bad;
        EXPECT_FALSE(reader.reusable()) << bad;
    }
    AnswerReader endless;
    for (int i = 0; i < 100 && !endless.done(); ++i) endless.feed(std::string(1000, 'x'));
    EXPECT_TRUE(endless.done());
}

TEST(AnswerReader, RefusesBytesBehindTheEnd) {
    AnswerReader reader;
    reader.feed(kHead + "Content-Length: 14\r\n\r\ndata: [DONE]\n\nHTTP/1.1 200 OK");
    EXPECT_NE(reader.error(), "");
    EXPECT_FALSE(reader.reusable());
}

TEST(AnswerReader, SeesTextAndOnlyText) {
    EXPECT_TRUE(has_text(kText));
    EXPECT_FALSE(has_text(kEmpty));
    EXPECT_FALSE(has_text(kUsage));
    EXPECT_TRUE(has_text(R"({"choices": [{"text": "\"", "x": 1}]})"));
    EXPECT_FALSE(has_text(R"({"choices": [{"text": "", "x": "y"}]})"));
    EXPECT_FALSE(has_text(R"({"choices": [{"text": null}]})"));
    EXPECT_FALSE(has_text(R"({"note": "\"text\":\"quoted\"", "choices": []})"));
    EXPECT_FALSE(has_text(R"({"text":)"));
    EXPECT_FALSE(has_text(""));
}

}  // namespace
}  // namespace baton::cli
