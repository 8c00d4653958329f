#include "baton/http/client.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "unit/http/server_fixture.hpp"

namespace baton::http {
namespace {

using namespace test;  // NOLINT: the fixture is this test's vocabulary

class ClientOver : public ServerOver {};
INSTANTIATE_TEST_SUITE_P(Transports, ClientOver, ::testing::Bool(),
                         [](const auto& transport) { return transport.param ? "Tls" : "Plain"; });

TEST_P(ClientOver, RefusesOtherUrlsAndDeadServers) {
    for (const char* url : {"https://", "ftp://a", "127.0.0.1:80", "http://", "http://a b", "http://[::1"}) {
        EXPECT_FALSE(Client::create({.base_url = url}).has_value()) << url;
    }
    const auto answer = (*Client::create({.base_url = "http://127.0.0.1:1"}))->get("/");
    ASSERT_FALSE(answer.has_value());
    EXPECT_EQ(answer.error().code, ErrorCode::kUnavailable);
}

TEST_P(ClientOver, SendsKeyAndReadsStreamsAndErrors) {
    ServerOptions options;
    options.inference_keys = {"k"};
    const auto server = start(
        [](std::shared_ptr<Exchange> exchange) {
            const std::string path = exchange->request().path;
            if (path == "/p/error") return exchange->respond(400, "{\"detail\":\"no\"}");
            if (path != "/p/stream" && path != "/p/broken") return exchange->respond(200, "{}");
            exchange->begin_stream();
            exchange->write(": ping\r\n\r\ndata: {\"a\":");
            exchange->write("1}\r\n\r\ndata: two\n\n");
            path == "/p/stream" ? exchange->end() : exchange->fail();
        },
        options);
    ClientOptions way = way_to(*server);
    way.base_url += "/p/";
    ClientOptions with_key = way;
    with_key.api_key = "k";
    auto client = *Client::create(with_key);
    EXPECT_EQ(client->get("/x")->status, 200);
    EXPECT_EQ(client->del("/x")->body, "{}");
    std::vector<std::string> seen;
    const auto keep = [&](std::string_view data) {
        seen.emplace_back(data);
        return true;
    };
    EXPECT_EQ(client->stream("/stream", "{}", keep)->status, 200);
    EXPECT_EQ(seen, (std::vector<std::string>{"{\"a\":1}", "two"}));
    EXPECT_EQ(client->stream("/error", "{}", keep)->body, "{\"detail\":\"no\"}");
    EXPECT_FALSE(client->stream("/broken", "{}", keep).has_value());
    seen.clear();
    EXPECT_EQ(client
                  ->stream("/stream", "{}",
                           [&](std::string_view data) {
                               seen.emplace_back(data);
                               return false;
                           })
                  ->status,
              200);
    EXPECT_EQ(seen.size(), 1u);
    EXPECT_EQ(client->get("/x")->status, 200);
    EXPECT_EQ((*Client::create(way))->get("/x")->status, 401);
}

// A stream that never says anything, and one that stopped after its first event: neither holds who wants to leave.
TEST_P(ClientOver, AnInterruptionEndsAStreamAndNothingElse) {
    std::atomic<bool> interrupted = false;
    std::mutex mutex;
    std::vector<std::shared_ptr<Exchange>> held;
    const auto server = start([&](std::shared_ptr<Exchange> exchange) {
        const std::string path = exchange->request().path;
        if (path == "/plain") return exchange->respond(200, "{}");
        if (path == "/begun") {
            exchange->begin_stream();
            exchange->write("data: 1\r\n\r\n");
        } else {
            interrupted = true;
        }
        const std::lock_guard lock(mutex);
        held.push_back(std::move(exchange));
    });
    ClientOptions way = way_to(*server);
    way.interrupted = [&] { return interrupted.load(); };
    auto client = *Client::create(way);
    for (const char* path : {"/begun", "/silent"}) {
        interrupted = false;
        const auto answer = client->stream(path, "{}", [&](std::string_view) { return interrupted = true; });
        ASSERT_FALSE(answer.has_value()) << path;
        EXPECT_EQ(answer.error().code, ErrorCode::kAborted) << path;
    }
    EXPECT_EQ(client->get("/plain")->status, 200);
    const std::lock_guard lock(mutex);
    held.clear();
}

TEST_P(ClientOver, ReconnectsWhenTheServerClosedARestingConnection) {
    ServerOptions options;
    options.idle_timeout_ms = 1;
    const auto server = start(echo(), options);
    auto client = *Client::create(way_to(*server));
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(client->get("/")->status, 200);
        while (server->stats().connections != 0) std::this_thread::yield();
    }
}

}  // namespace
}  // namespace baton::http
