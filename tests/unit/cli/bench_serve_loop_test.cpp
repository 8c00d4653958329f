#include "cli/bench_serve_loop.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "baton/http/server.hpp"
#include "unit/http/certificates.hpp"

namespace baton::cli {
namespace {

/// Answers each request of each connection with three texts, on a thread a connection. After `per_connection` answers it
/// closes a connection without saying so; with `status` other than 200 it answers with that alone.
class ScriptedServer {
  public:
    ScriptedServer(int per_connection, int status) : per_connection_(per_connection), status_(status) {
        listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in at{};
        at.sin_family = AF_INET;
        at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t bytes = sizeof at;
        EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
        EXPECT_EQ(::listen(listener_, 128), 0);
        ::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &bytes);
        port_ = ntohs(at.sin_port);
        acceptor_ = std::thread([this] {
            for (int fd = ::accept(listener_, nullptr, nullptr); fd >= 0; fd = ::accept(listener_, nullptr, nullptr))
                threads_.emplace_back([this, fd] { serve(fd); });
        });
    }
    ~ScriptedServer() {
        ::shutdown(listener_, SHUT_RDWR);
        acceptor_.join();
        ::close(listener_);
        for (std::thread& t : threads_) t.join();
    }
    [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
    std::atomic<int> answered{0}, connections{0};

  private:
    static bool read_request(int fd) {
        std::string seen;
        char byte = 0;
        while (!seen.ends_with("\r\n\r\n")) {
            if (::read(fd, &byte, 1) != 1) return false;
            seen += byte;
        }
        size_t left = std::stoul(seen.substr(seen.find("Content-Length: ") + 16));
        std::string body(left, ' ');
        for (size_t at = 0; left > 0;) {
            const ssize_t n = ::read(fd, body.data() + at, left);
            if (n <= 0) return false;
            at += static_cast<size_t>(n);
            left -= static_cast<size_t>(n);
        }
        return true;
    }
    void serve(int fd) {
        ++connections;
        for (int i = 0; (per_connection_ == 0 || i < per_connection_) && read_request(fd); ++i) {
            std::string body;
            for (int t = 0; t < 3; ++t) body += "data: {\"choices\":[{\"text\":\" w\"}]}\n\n";
            body += "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n";
            const std::string answer = "HTTP/1.1 " + std::to_string(status_) + " X\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
            ++answered;
            if (::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL) < 0) break;
        }
        ::close(fd);
    }

    const int per_connection_, status_;
    int listener_ = -1;
    uint16_t port_ = 0;
    std::thread acceptor_;
    std::vector<std::thread> threads_;
};

struct Outcome {
    std::vector<RequestResult> results;
    uint64_t background_failed = 0;
    size_t background_gaps = 0;
    uint64_t in_flight_max = 0;
};

Outcome run(BenchServeOptions o, const std::string& url, uint32_t loops) {
    o.model = "m";
    o.input_tokens = 4;
    if (o.concurrency == 0 && o.rate <= 0 && o.interval_ms <= 0) o.concurrency = 8;
    const auto plan = LoadPlan::make(o);
    EXPECT_TRUE(plan);
    auto target = LoadTarget::resolve(url, "key", o.ca_file);
    EXPECT_TRUE(target);
    SharedLoad shared(o, *plan, *target);
    for (uint32_t i = 0; i < loops; ++i) shared.loops.push_back(std::make_unique<LoadLoop>(shared, i, loops));
    if (o.background == 0 && plan->open()) shared.zero_us = 0;  // all are due at once
    std::vector<std::thread> threads;
    for (const auto& loop : shared.loops) threads.emplace_back([&loop] { loop->run(); });
    for (std::thread& t : threads) t.join();
    Outcome out;
    for (const auto& loop : shared.loops) {
        for (RequestResult& r : loop->results) out.results.push_back(std::move(r));
        out.background_failed += loop->background_failed;
        out.background_gaps += loop->background_gaps.size();
    }
    out.in_flight_max = shared.in_flight_max();
    return out;
}

void expect_good(const Outcome& r, size_t requests) {
    ASSERT_EQ(r.results.size(), requests);
    for (const RequestResult& one : r.results) {
        EXPECT_TRUE(one.ok) << one.error;
        EXPECT_EQ(one.output_tokens, 3u);
        EXPECT_EQ(one.input_tokens, 4u);
        EXPECT_EQ(one.gaps_us.size(), 2u);
        EXPECT_GT(one.ttft_us, 0);
    }
}

TEST(LoadLoop, ClosedLoopSendsEachRequestOnceAndKeepsConnections) {
    ScriptedServer server(0, 200);
    BenchServeOptions o;
    o.requests = 60;
    o.warmup = 5;
    o.concurrency = 7;
    const Outcome r = run(o, server.url(), 3);
    expect_good(r, 65);
    EXPECT_EQ(server.answered, 65);
    EXPECT_EQ(std::count_if(r.results.begin(), r.results.end(), [](const RequestResult& x) { return x.measured; }), 60);
    EXPECT_LE(r.in_flight_max, 7u);
    EXPECT_LE(server.connections, 7);
}

TEST(LoadLoop, AConnectionThatTheServerClosedIsReplaced) {
    ScriptedServer server(3, 200);
    BenchServeOptions o;
    o.requests = 50;
    o.concurrency = 4;
    expect_good(run(o, server.url(), 2), 50);
}

TEST(LoadLoop, OpenLoopHasNoBoundOnRequestsInFlight) {
    ScriptedServer server(0, 200);
    BenchServeOptions o;
    o.requests = 100;
    o.rate = 1000;
    expect_good(run(o, server.url(), 2), 100);
}

TEST(LoadLoop, BackgroundStreamsRunUntilTheRequestsAreOver) {
    ScriptedServer server(0, 200);
    BenchServeOptions o;
    o.requests = 10;
    o.interval_ms = 2;
    o.background = 5;
    o.background_input = 3;
    o.settle_s = 0.01;
    const Outcome r = run(o, server.url(), 2);
    expect_good(r, 10);
    EXPECT_EQ(r.background_failed, 0u);
    EXPECT_GE(r.background_gaps, 10u);
}

TEST(LoadLoop, EndsWhereTheServerRefuses) {
    ScriptedServer server(0, 503);
    BenchServeOptions o;
    o.requests = 20;
    o.concurrency = 3;
    const Outcome refused = run(o, server.url(), 2);
    for (const RequestResult& r : refused.results) EXPECT_TRUE(!r.ok && r.error.starts_with("status 503")) << r.error;
    o.background = 2;
    EXPECT_GE(run(o, server.url(), 2).background_failed, 1u);
    const Outcome nobody = run(BenchServeOptions{}, "http://127.0.0.1:1", 2);
    ASSERT_FALSE(nobody.results.empty());
    for (const RequestResult& r : nobody.results) EXPECT_FALSE(r.ok);
}

/// Streams of three texts over TLS, on connections that stay; of long ones several records come at once.
TEST(LoadLoop, SpeaksHttps) {
    const http::test::TestFolder folder;
    const auto files = http::test::make_certificate(folder, "good");
    const auto other = http::test::make_certificate(folder, "other");
    http::ServerOptions options;
    options.tls_certificate = files.certificate;
    options.tls_key = files.key;
    const auto server = http::Server::start(std::move(options), [](const std::shared_ptr<http::Exchange>& e) {
        if (!e->begin_stream()) return;
        for (int t = 0; t < 3; ++t) e->write("data: {\"choices\":[{\"text\":\"" + std::string(20'000, 'w') + "\"}]}\r\n\r\n");
        e->write("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4,\"completion_tokens\":3}}\r\n\r\ndata: [DONE]\r\n\r\n");
        e->end();
    });
    ASSERT_TRUE(server);
    const std::string url = "https://127.0.0.1:" + std::to_string((*server)->port());
    BenchServeOptions o;
    o.requests = 60;
    o.ca_file = files.certificate;
    const Outcome good = run(o, url, 3);
    ASSERT_EQ(good.results.size(), 60u);
    for (const RequestResult& r : good.results) {
        EXPECT_TRUE(r.ok) << r.error;
        EXPECT_EQ(r.output_tokens, 3u);
    }
    EXPECT_LE((*server)->stats().connections, 8u);
    o.ca_file = other.certificate;
    o.requests = 4;
    const Outcome strange = run(o, url, 1);
    ASSERT_EQ(strange.results.size(), 4u);
    for (const RequestResult& r : strange.results) {
        EXPECT_FALSE(r.ok);
        EXPECT_NE(r.error.find("not trusted"), std::string::npos) << r.error;
        EXPECT_NE(r.error.find("--ca-file"), std::string::npos) << r.error;
    }
    // A port that speaks no TLS, and one that nobody has.
    const auto plain = http::Server::start({}, [](const std::shared_ptr<http::Exchange>& e) { e->respond(200, "{}"); });
    ASSERT_TRUE(plain);
    for (const std::string& at : {"https://127.0.0.1:" + std::to_string((*plain)->port()), std::string("https://127.0.0.1:1")})
        for (const RequestResult& r : run(o, at, 1).results) EXPECT_FALSE(r.ok) << at;
    EXPECT_FALSE(LoadTarget::resolve(url, "", folder.file("none")));
}

TEST(LoadTarget, RefusesWhatIsNoAddress) {
    EXPECT_FALSE(LoadTarget::resolve("ftp://127.0.0.1:1", ""));
    EXPECT_FALSE(LoadTarget::resolve("127.0.0.1:1", ""));
    const auto target = LoadTarget::resolve("http://127.0.0.1:90/prefix/", "key");
    ASSERT_TRUE(target);
    EXPECT_TRUE(target->head.starts_with("POST /prefix/v1/completions HTTP/1.1\r\nHost: 127.0.0.1:90\r\n"));
    EXPECT_NE(target->head.find("Authorization: Bearer key\r\n"), std::string::npos);
    const auto six = LoadTarget::resolve("http://[::1]:90", "");
    if (six) {
        EXPECT_EQ(six->family, AF_INET6);
    }
}

}  // namespace
}  // namespace baton::cli
