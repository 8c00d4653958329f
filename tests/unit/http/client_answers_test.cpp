#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "baton/base/limits.hpp"
#include "baton/http/client.hpp"
#include "unit/http/scripted_server.hpp"

namespace baton::http {
namespace {

using test::ScriptedServer;

Expected<ClientResponse> ask(ScriptedServer::Script script, ClientOptions options = {},
                             std::string_view method = "GET") {
    ScriptedServer server(std::move(script));
    options.base_url = server.url();
    const auto client = *Client::create(options);
    return client->request(method, "/x");
}

struct Streamed {
    Expected<ClientResponse> answer;
    std::vector<std::string> events;
};
Streamed ask_stream(ScriptedServer::Script script) {
    ScriptedServer server(std::move(script));
    const auto client = *Client::create({.base_url = server.url()});
    std::vector<std::string> events;
    auto answer = client->stream("/x", "{}", [&](std::string_view data) {
        events.emplace_back(data);
        return true;
    });
    return {std::move(answer), std::move(events)};
}

std::string ok(std::string_view fields, std::string_view body) {
    return "HTTP/1.1 200 OK\r\n" + std::string(fields) + "\r\n" + std::string(body);
}
const std::string kChunked = "Transfer-Encoding: chunked\r\n";

TEST(ClientAnswers, TheRequestIsWrittenInFull) {
    ScriptedServer server({.answer = ok("Content-Length: 2\r\n", "{}")});
    auto client = *Client::create({.base_url = server.url() + "/p", .api_key = "k"});
    EXPECT_EQ(client->post("/a?b=c", "{\"d\":1}")->body, "{}");
    client.reset();
    const std::string host = server.url().substr(7);
    EXPECT_EQ(server.request(), "POST /p/a?b=c HTTP/1.1\r\nHost: " + host +
                                    "\r\nAccept: */*\r\nAuthorization: Bearer k\r\nContent-Type: "
                                    "application/json\r\nContent-Length: 7\r\n\r\n{\"d\":1}");
}

TEST(ClientAnswers, WhatCannotBeWrittenIsRefused) {
    ScriptedServer server({.answer = ok("Content-Length: 2\r\n", "{}")});
    {
        const auto client =
            *Client::create({.base_url = server.url(), .api_key = std::string(70'000, 'k')});
        const auto answer = client->get("/");
        ASSERT_FALSE(answer.has_value());
        EXPECT_EQ(answer.error().code, ErrorCode::kInvalidArgument);
    }
    EXPECT_EQ(server.request(), "");
}

TEST(ClientAnswers, EveryFramingInPiecesOfEverySize) {
    const std::vector<std::string> answers = {
        ok("Content-Length: 11\r\n", "hello world"),
        ok(kChunked, "5\r\nhello\r\n6;ext=\"1\"\r\n world\r\n0\r\nX-Trailer: t\r\n\r\n"),
        ok(kChunked, "000b\r\nhello world\r\n0\r\n\r\n"),
        ok("", "hello world"),
        "HTTP/1.0 200 OK\r\nX: y\r\n\r\nhello world",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" +
            ok("content-length:  11\r\n", "hello world"),
    };
    for (const std::string& text : answers) {
        for (const size_t piece : {size_t{1}, size_t{2}, size_t{7}, SIZE_MAX}) {
            const auto answer = ask({.answer = text, .piece_bytes = piece});
            ASSERT_TRUE(answer.has_value()) << text;
            EXPECT_EQ(answer->status, 200);
            EXPECT_EQ(answer->body, "hello world") << text;
            EXPECT_EQ(answer->header("x-trailer"), "");
        }
    }
}

TEST(ClientAnswers, AnAnswerCutAnywhereIsAnError) {
    for (const std::string& text :
         {ok("Content-Length: 5\r\n", "hello"), ok(kChunked, "5\r\nhello\r\n0\r\nX: t\r\n\r\n")}) {
        for (size_t cut = 0; cut < text.size(); ++cut) {
            const auto answer = ask({.answer = text.substr(0, cut)});
            ASSERT_FALSE(answer.has_value()) << cut;
            EXPECT_EQ(answer.error().code, ErrorCode::kIo) << cut;
        }
        EXPECT_TRUE(ask({.answer = text}).has_value());
    }
}

TEST(ClientAnswers, HostileAnswersAreErrors) {
    const std::string long_field(70'000, 'y');
    std::string many_fields;
    for (size_t i = 0; i <= limits::kHeaderFieldsMax; ++i) many_fields += "A: b\r\n";
    const std::vector<std::string> answers = {
        "SSH-2.0-server\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "HTTP/1.1 2x0 OK\r\n\r\n",
        ok("No colon\r\n", ""),
        ok("X: " + std::string(20'000, 'y') + "\r\n", ""),
        ok(many_fields, ""),
        ok("Content-Length: 3x\r\n", "abc"),
        ok("Content-Length: 3\r\nContent-Length: 4\r\n", "abc"),
        ok("Content-Length: 3\r\n" + kChunked, "0\r\n\r\n"),
        ok("Transfer-Encoding: gzip\r\n", "abc"),
        ok("Transfer-Encoding: gzip\r\nContent-Length: 3\r\n", "abc"),
        ok(kChunked, "zz\r\n"),
        ok(kChunked, "-1\r\nabc\r\n0\r\n\r\n"),
        ok(kChunked, "fffffffffffffffff\r\nabc\r\n"),
        ok(kChunked, "3\r\nabcX\r\n0\r\n\r\n"),
        ok(kChunked, "3\r\nabc\r\n0\r\nX: " + long_field + "\r\n\r\n"),
        ok(kChunked, "3;" + long_field + "\r\nabc\r\n0\r\n\r\n"),
    };
    for (const std::string& text : answers) {
        const auto answer = ask({.answer = text});
        ASSERT_FALSE(answer.has_value()) << text.substr(0, 80);
        EXPECT_EQ(answer.error().code, ErrorCode::kIo) << text.substr(0, 80);
        EXPECT_EQ(answer.error().message, "the server's answer is malformed") << text.substr(0, 80);
    }
}

TEST(ClientAnswers, BodiesAreBoundedInEveryFraming) {
    const std::string body(1001, 'x');
    for (const std::string& text :
         {ok("Content-Length: 1001\r\n", body), ok(kChunked, "3e9\r\n" + body + "\r\n0\r\n\r\n"),
          ok("", body)}) {
        const auto answer = ask({.answer = text}, {.body_bytes_max = 1000});
        ASSERT_FALSE(answer.has_value());
        EXPECT_EQ(answer.error().message, "the server's answer is too large");
        EXPECT_EQ(ask({.answer = text}, {.body_bytes_max = 1001})->body, body);
    }
}

TEST(ClientAnswers, HeadAnd204And304HaveNoBody) {
    EXPECT_EQ(ask({.answer = ok("Content-Length: 50\r\n", ""), .close = false}, {}, "HEAD")
                  ->header("content-length"),
              "50");
    for (const char* status : {"204 No Content", "304 Not Modified"}) {
        const auto answer =
            ask({.answer = "HTTP/1.1 " + std::string(status) + "\r\n\r\n", .close = false});
        ASSERT_TRUE(answer.has_value());
        EXPECT_EQ(answer->body, "");
    }
}

TEST(ClientAnswers, SilenceIsATimeout) {
    for (const std::string& text :
         {std::string(), std::string("HTTP/1.1 200 OK\r\n"), ok("Content-Length: 5\r\n", "hell"),
          ok(kChunked, "5\r\nhello\r\n")}) {
        const auto answer = ask({.answer = text, .close = false}, {.silence_timeout_ms = 20});
        ASSERT_FALSE(answer.has_value());
        EXPECT_EQ(answer.error().code, ErrorCode::kTimeout);
    }
}

TEST(ClientAnswers, EventsInPiecesOfEverySizeAndWhateverTheChunks) {
    const std::string events =
        ": ping\r\n\r\ndata: {\"a\":1}\r\n\r\nevent: x\ndata:two\n\ndata: [DONE]\n\n";
    std::string one_by_one;
    for (const char c : events) one_by_one += "1\r\n" + std::string(1, c) + "\r\n";
    const std::string type = "Content-Type: text/event-stream; charset=utf-8\r\n";
    for (const std::string& text :
         {ok(type, events), ok(type + kChunked, one_by_one + "0\r\n\r\n"),
          ok(type + "Content-Length: " + std::to_string(events.size()) + "\r\n", events)}) {
        for (const size_t piece : {size_t{1}, size_t{3}, SIZE_MAX}) {
            const Streamed result = ask_stream({.answer = text, .piece_bytes = piece});
            ASSERT_TRUE(result.answer.has_value());
            EXPECT_EQ(result.events, (std::vector<std::string>{"{\"a\":1}", "two", "[DONE]"}));
            EXPECT_EQ(result.answer->body, "");
        }
    }
}

TEST(ClientAnswers, WhatCameBeforeABreakIsDelivered) {
    const Streamed result =
        ask_stream({.answer = ok("Content-Type: text/event-stream\r\n" + kChunked,
                                 "9\r\ndata: 1\n\n\r\n9\r\ndata: 2\n\n")});
    ASSERT_FALSE(result.answer.has_value());
    EXPECT_EQ(result.answer.error().message, "the server closed the connection");
    EXPECT_EQ(result.events, (std::vector<std::string>{"1", "2"}));
}

}  // namespace
}  // namespace baton::http
