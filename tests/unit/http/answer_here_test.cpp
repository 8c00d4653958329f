// Answers whose bytes the answering thread itself writes to the socket.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "baton/http/direct_answer.hpp"
#include "unit/http/server_fixture.hpp"

namespace baton::http {
namespace {

using namespace test;

DirectAnswer& direct(const std::shared_ptr<Exchange>& exchange) {
    return dynamic_cast<DirectAnswer&>(*exchange);
}

/// A server whose handler hands every exchange to the test, which answers on its own thread.
struct AnswerHere : ::testing::Test {
    std::unique_ptr<Server> serve(ServerOptions options = {}) {
        return start([this](std::shared_ptr<Exchange> e) { inbox.put(std::move(e)); }, options);
    }
    std::shared_ptr<Exchange> take() {
        auto exchange = inbox.take();
        if (exchange != nullptr) direct(exchange).answer_here();
        return exchange;
    }
    Inbox inbox;
};

TEST_F(AnswerHere, RequestsFollowOneAnotherOnAConnection) {
    const auto server = serve();
    RawSocket client(server->port());
    for (int i = 0; i < 20; ++i) {
        client.send(post("/" + std::to_string(i), "body"));
        const auto exchange = take();
        ASSERT_NE(exchange, nullptr);
        EXPECT_EQ(exchange->request().path, "/" + std::to_string(i));
        exchange->respond(200, std::to_string(i));
        EXPECT_EQ(server->stats().exchanges, 0u) << "it is over when the last byte is out";
        EXPECT_EQ(body_of(client.read_answer()), std::to_string(i));
    }
    EXPECT_EQ(server->stats().requests, 20u);
    EXPECT_EQ(server->stats().disconnects, 0u);
}

TEST_F(AnswerHere, PipelinedRequestsAreServedInOrder) {
    const auto server = serve();
    RawSocket client(server->port());
    client.send(get("/a") + get("/b") + get("/c"));
    for (const char* body : {"a", "b", "c"}) {
        const auto exchange = take();
        ASSERT_NE(exchange, nullptr);
        exchange->respond(200, body);
        EXPECT_EQ(body_of(client.read_answer()), body);
    }
    // What comes while an answer is on its way is not lost either.
    for (int i = 0; i < 200; ++i) {
        client.send(get("/first"));
        const auto first = take();
        ASSERT_NE(first, nullptr);
        std::thread sender([&] { client.send(get("/second")); });
        first->respond(200, "1");
        sender.join();
        const auto second = take();
        ASSERT_NE(second, nullptr);
        second->respond(200, "2");
        EXPECT_EQ(body_of(client.read_answer()), "1");
        EXPECT_EQ(body_of(client.read_answer()), "2");
    }
}

TEST_F(AnswerHere, QueuedPiecesOfAStreamKeepTheirOrder) {
    const auto server = serve();
    RawSocket client(server->port());
    client.send(get("/"));
    const auto exchange = take();
    ASSERT_TRUE(exchange->begin_stream());
    std::string wanted;
    for (int i = 0; i < 300; ++i) {
        const std::string piece = "data: " + std::to_string(i) + "\r\n\r\n";
        wanted += piece;
        EXPECT_TRUE(i % 3 == 0 ? exchange->write(piece) : direct(exchange).queue(piece));
        if (i % 5 == 0) direct(exchange).flush(i % 2 == 0);
    }
    exchange->end();
    client.read_until("\r\n\r\n");
    std::string got;
    for (;;) {  // takes the chunked coding off
        const std::string line = client.read_until("\r\n");
        const size_t size = std::stoul(line, nullptr, 16);
        if (size == 0) break;
        got += client.read_exactly(size);
        client.read_until("\r\n");
    }
    client.read_until("\r\n");
    EXPECT_EQ(got, wanted);
    client.send(get("/next"));
    const auto next = take();
    ASSERT_NE(next, nullptr) << "the connection lives on";
    next->respond(200, "{}");
    EXPECT_EQ(status_of(client.read_answer()), 200);
}

TEST_F(AnswerHere, WhatTheSocketDoesNotTakeIsSentLater) {
    const auto server = serve();
    RawSocket client(server->port(), 4096);
    const std::string big(8 * 1024 * 1024, 'x');
    client.send(get("/"));
    take()->respond(200, big);
    EXPECT_EQ(body_of(client.read_answer()), big);
    client.send(get("/stream"));
    const auto exchange = take();
    ASSERT_TRUE(exchange->begin_stream());
    ASSERT_TRUE(direct(exchange).queue(std::string(limits::kStreamBufferBytesMax / 2, 'y')));
    direct(exchange).flush(true);
    ASSERT_TRUE(direct(exchange).queue("end"));
    direct(exchange).flush(true);
    exchange->end();
    EXPECT_NE(client.read_until("\r\n0\r\n\r\n").find("\r\n3\r\nend"), std::string::npos);
}

TEST_F(AnswerHere, EachFlushIsSentAtOnce) {
    const auto server = serve();
    RawSocket client(server->port());
    client.send(get("/"));
    const auto exchange = take();
    ASSERT_TRUE(exchange->begin_stream());
    client.read_until("\r\n\r\n");
    for (const bool here : {true, false, true}) {
        ASSERT_TRUE(direct(exchange).queue("data: 1\r\n\r\n"));
        direct(exchange).flush(here);
        EXPECT_NE(client.read_until("data: 1\r\n\r\n\r\n").find("data: 1"), std::string::npos);
    }
}

TEST_F(AnswerHere, PingsComeInSilenceAlone) {
    const auto server = serve();
    RawSocket client(server->port());
    client.send(get("/"));
    const auto exchange = take();
    ASSERT_TRUE(exchange->begin_stream({.ping_ms = 30}));
    client.read_until("\r\n\r\n");
    direct(exchange).queue("data: 1\r\n\r\n");
    direct(exchange).flush(true);
    EXPECT_NE(client.read_until(": ping\r\n\r\n\r\n").find("data: 1"), std::string::npos);
    EXPECT_EQ(client.read_until(": ping\r\n\r\n\r\n"), "a\r\n: ping\r\n\r\n\r\n");
    exchange->end();
}

TEST_F(AnswerHere, AnIdleConnectionRunsOutOfTime) {
    ServerOptions options;
    options.idle_timeout_ms = 60;
    const auto server = serve(options);
    RawSocket client(server->port());
    client.send(get("/"));
    take()->respond(200, "{}");
    EXPECT_EQ(status_of(client.read_to_end()), 200);
}

TEST_F(AnswerHere, StoppingClosesWhatHasSettled) {
    const auto server = serve();
    RawSocket client(server->port());
    client.send(get("/"));
    take()->respond(200, "{}");
    EXPECT_EQ(status_of(client.read_answer()), 200);
    EXPECT_TRUE(server->drain(10'000));
    server->stop_accepting();
    EXPECT_TRUE(client.at_end());
}

TEST_F(AnswerHere, SettledConnectionsMakeRoom) {
    ServerOptions options;
    options.connections_max = 8;
    const auto server = serve(options);
    std::vector<std::unique_ptr<RawSocket>> crowd;
    for (int i = 0; i < 40; ++i) {
        crowd.push_back(std::make_unique<RawSocket>(server->port()));
        crowd.back()->send(get("/"));
        const auto exchange = take();
        ASSERT_NE(exchange, nullptr) << i;
        exchange->respond(200, "{}");
        EXPECT_EQ(status_of(crowd.back()->read_answer()), 200) << i;
    }
}

TEST_F(AnswerHere, AHalfClosedClientGetsItsAnswerAndItsEnd) {
    const auto server = serve();
    RawSocket before(server->port());
    before.send(get("/"));
    const auto exchange = take();
    ASSERT_NE(exchange, nullptr);
    before.shutdown_send();
    exchange->respond(200, "late");
    EXPECT_NE(before.read_to_end().find("late"), std::string::npos);
    RawSocket after(server->port());
    after.send(get("/"));
    take()->respond(200, "early");
    after.shutdown_send();
    EXPECT_NE(after.read_to_end().find("early"), std::string::npos);
}

TEST_F(AnswerHere, ALeaverIsNoticedAndNothingIsWrittenAfterIt) {
    const auto server = serve();
    for (const bool stream : {false, true}) {
        RawSocket client(server->port());
        client.send(get("/"));
        const auto exchange = take();
        ASSERT_NE(exchange, nullptr);
        Event gone;
        exchange->on_disconnect([&] { gone.set(); });
        if (stream) exchange->begin_stream();
        client.reset();
        EXPECT_TRUE(gone.wait());
        direct(exchange).flush(true);
        EXPECT_FALSE(direct(exchange).queue("data: 1\r\n\r\n"));
        exchange->end();
        exchange->respond(200, "{}");
    }
    // Written while nobody knows yet that the client has left.
    RawSocket client(server->port());
    client.send(get("/"));
    const auto exchange = take();
    ASSERT_TRUE(exchange->begin_stream());
    client.read_until("\r\n\r\n");
    Event gone;
    exchange->on_disconnect([&] { gone.set(); });
    client.reset();
    while (!gone.is_set()) {
        direct(exchange).queue("data: 1\r\n\r\n");
        direct(exchange).flush(true);
        std::this_thread::yield();
    }
    server->close();
    direct(exchange).flush(true);
    EXPECT_EQ(server->stats().disconnects, 3u);
}

TEST_F(AnswerHere, AHeldTokenIsReleasedWithTheLastByte) {
    const auto server = serve();
    RawSocket client(server->port());
    client.send(get("/"));
    const auto exchange = take();
    std::atomic<bool> released = false;
    exchange->hold(std::shared_ptr<void>(nullptr, [&](void*) { released = true; }));
    exchange->respond(200, "{}");
    EXPECT_TRUE(released);
    EXPECT_EQ(status_of(client.read_answer()), 200);
}

TEST_F(AnswerHere, ManyThreadsAnswerWhileConnectionsComeAndGo) {
    ServerOptions options;
    options.threads = 2;
    std::atomic<bool> stop = false;
    const auto server = serve(options);
    std::vector<std::thread> answerers;
    for (int i = 0; i < 2; ++i) {
        answerers.emplace_back([&] {
            while (!stop) {
                const auto exchange = inbox.take();
                if (exchange == nullptr) return;
                if (exchange->request().path == "/stop") return exchange->respond(200, "");
                direct(exchange).answer_here();
                if (exchange->request().path == "/stream") {
                    exchange->begin_stream();
                    for (int k = 0; k < 5; ++k) {
                        direct(exchange).queue("data: x\r\n\r\n");
                        direct(exchange).flush(k % 2 == 0);
                    }
                    exchange->end();
                } else {
                    exchange->respond(200, exchange->request().path);
                }
            }
        });
    }
    std::vector<std::thread> clients;
    std::atomic<int> right = 0;
    for (int c = 0; c < 4; ++c) {
        clients.emplace_back([&, c] {
            for (int round = 0; round < 20; ++round) {
                RawSocket client(server->port());
                for (int i = 0; i < 10; ++i) {
                    if (i % 3 == 2) {
                        client.send(get("/stream"));
                        right += client.read_until("\r\n0\r\n\r\n").ends_with("\r\n0\r\n\r\n") ? 1 : 0;
                        continue;
                    }
                    const std::string path = "/" + std::to_string(c * 1000 + i);
                    client.send(get(path));
                    right += body_of(client.read_answer()) == path ? 1 : 0;
                }
            }
        });
    }
    for (std::thread& t : clients) t.join();
    EXPECT_EQ(right, 4 * 20 * 10);
    for (size_t i = 0; i < answerers.size(); ++i) {
        RawSocket last(server->port());
        last.send(get("/stop"));
        last.read_answer();
    }
    for (std::thread& t : answerers) t.join();
    EXPECT_TRUE(server->drain(10'000)) << "an exchange ends on its I/O thread, after its client has the answer";
}

}  // namespace
}  // namespace baton::http
