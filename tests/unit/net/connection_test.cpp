#include "baton/net/connection.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "net_harness.hpp"

namespace baton::net::test {
namespace {

using boost::asio::io_context;

std::vector<std::byte> random_bytes(size_t n, uint32_t seed) {
    std::mt19937 rng(seed);
    std::vector<std::byte> out(n);
    for (auto& b : out) b = static_cast<std::byte>(rng());
    return out;
}

wire::ExtentHeader extent_of(const std::vector<std::byte>& bytes) {
    wire::ExtentHeader h;
    h.bytes = bytes.size();
    return h;
}

class ConnectionOver : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Transports, ConnectionOver, testing::Values(false, true),
                         [](const auto& p) { return p.param ? "Tcp" : "Unix"; });

TEST_P(ConnectionOver, BothEndsKnowEachOther) {
    io_context io;
    Pair p(io, GetParam());
    EXPECT_EQ(p.a.link->peer().kind, "replica");
    EXPECT_EQ(p.a.link->peer().name, "server");
    EXPECT_EQ(p.b.link->peer().kind, "peer");
    EXPECT_EQ(p.b.link->peer().name, "client");
    EXPECT_EQ(p.a.link->local_ip(), GetParam() ? "127.0.0.1" : "");
    if (GetParam()) {
        EXPECT_EQ(p.a.link->remote(), p.listener->endpoint().tcp_address);
    } else {
        EXPECT_EQ(p.a.link->remote(), "unix");
    }
    p.end(io);
    EXPECT_EQ(p.listener->refused(), 0u);
}

TEST_P(ConnectionOver, ManySmallMessagesArriveInOrder) {
    io_context io;
    Pair p(io, GetParam());
    constexpr uint64_t kCount = 20'000;
    for (uint64_t i = 0; i < kCount; ++i) p.a.link->send(wire::Release{{i}, true});
    ASSERT_TRUE(pump(io, [&] { return p.b.heard.size() == kCount; }));
    for (uint64_t i = 0; i < kCount; ++i) {
        const auto* r = std::get_if<wire::Release>(&p.b.heard[i].message);
        ASSERT_NE(r, nullptr);
        ASSERT_EQ(r->offer.value, i);
    }
    EXPECT_EQ(p.a.link->queued_bytes(), 0u);
    p.end(io);
}

TEST_P(ConnectionOver, PayloadsOfEverySizeArriveWhole) {
    io_context io;
    Pair p(io, GetParam());
    std::vector<std::vector<std::byte>> sent;
    uint32_t seed = 0;
    for (const size_t n : {size_t{0}, size_t{1}, size_t{11}, size_t{8191}, size_t{8192}, size_t{65'000}, size_t{65'536},
                           size_t{65'537}, size_t{1'000'003}, size_t{4} << 20, size_t{30} << 20}) {
        sent.push_back(random_bytes(n, ++seed));
        p.a.link->send(extent_of(sent.back()), sent.back());
        p.a.link->send(wire::Accept{{n}, 0});
        // The other way at the same time.
        p.b.link->send(extent_of(sent.back()), sent.back());
    }
    ASSERT_TRUE(pump(io, [&] { return p.b.heard.size() == 2 * sent.size() && p.a.heard.size() == sent.size(); }));
    for (size_t i = 0; i < sent.size(); ++i) {
        ASSERT_TRUE(std::holds_alternative<wire::ExtentHeader>(p.b.heard[2 * i].message));
        EXPECT_TRUE(p.b.heard[2 * i].payload == sent[i]);
        EXPECT_TRUE(p.a.heard[i].payload == sent[i]);
        EXPECT_TRUE(p.b.heard[2 * i + 1].payload.empty());
    }
    p.end(io);
}

TEST_P(ConnectionOver, LargeBodiesArrive) {
    io_context io;
    Pair p(io, GetParam());
    wire::Prefill m;
    m.sequence.prompt.resize(1 << 20);
    for (size_t i = 0; i < m.sequence.prompt.size(); ++i) m.sequence.prompt[i] = static_cast<TokenId>(i * 2654435761u >> 8);
    p.a.link->send(m);
    ASSERT_TRUE(pump(io, [&] { return p.b.heard.size() == 1; }));
    const auto* got = std::get_if<wire::Prefill>(&p.b.heard[0].message);
    ASSERT_NE(got, nullptr);
    EXPECT_EQ(got->sequence.prompt, m.sequence.prompt);
    p.end(io);
}

/// `threads` threads send at once, each after `before(i)`: everything arrives, each thread's in its own order.
template <class Before>
void send_at_once(io_context& io, Pair& p, size_t threads, const Before& before) {
    constexpr uint64_t kEach = 2'000;
    std::vector<std::thread> senders;
    for (uint32_t t = 0; t < threads; ++t)
        senders.emplace_back([&, t] {
            for (uint64_t i = 0; i < kEach; ++i) {
                before(i);
                p.a.link->send(wire::Accept{{i}, t});
            }
        });
    EXPECT_TRUE(pump(io, [&] { return p.b.heard.size() == threads * kEach; }));
    for (auto& t : senders) t.join();
    std::vector<uint64_t> next(threads);
    for (const auto& r : p.b.heard) {
        const auto& m = std::get<wire::Accept>(r.message);
        ASSERT_EQ(m.offer.value, next.at(m.have_blocks)++);
    }
}

TEST_P(ConnectionOver, ThreadsMaySendAtOnce) {
    io_context io;
    Pair p(io, GetParam());
    send_at_once(io, p, 4, [](uint64_t) {});
    p.end(io);
}

TEST_P(ConnectionOver, ThreadsMaySendWhereTheLoopExpectsIt) {
    io_context io;
    Pair p(io, GetParam());
    send_at_once(io, p, 3, [&](uint64_t i) {
        // For ever, for a moment, and when it is over already.
        if (i % 5 == 0) p.a.link->expect_send(i % 3 == 0 ? INT64_MAX : steady_now_us() + (i % 3 == 1 ? 30 : 0));
    });
    p.a.link->expect_send(INT64_MAX);
    p.end(io);
    while (io.poll_one() > 0) {}  // it does not look any more
}

TEST_P(ConnectionOver, AnExpectedSendThatDoesNotComeChangesNothing) {
    io_context io;
    Pair p(io, GetParam());
    p.a.link->expect_send(INT64_MAX);
    for (int i = 0; i < 100; ++i) ASSERT_EQ(io.poll_one(), 1u);  // there is always a look to be made: nobody would wait
    for (uint64_t i = 0; i < 10; ++i) p.b.link->send(wire::Release{{i}, true});
    EXPECT_TRUE(pump(io, [&] { return p.a.heard.size() == 10; }));
    p.b.link->close();  // the peer goes
    EXPECT_TRUE(pump(io, [&] { return p.a.closed.size() == 1 && p.b.closed.size() == 1; }));
    while (io.poll_one() > 0) {}
    p.a.link->send(wire::Accept{{1}, 0});
    EXPECT_EQ(p.a.link->queued_bytes(), 0u);
}

TEST_P(ConnectionOver, CloseSendsWhatIsQueued) {
    io_context io;
    Pair p(io, GetParam());
    const auto bytes = random_bytes(2 << 20, 1);
    p.b.link->send(wire::Accept{{7}, 0});  // unread by the closing end: must not destroy what it sent
    for (int i = 0; i < 5; ++i) p.a.link->send(extent_of(bytes), bytes);
    p.a.link->close();
    ASSERT_TRUE(pump(io, [&] { return p.a.closed.size() == 1 && p.b.closed.size() == 1; }));
    EXPECT_EQ(p.b.heard.size(), 5u);
    EXPECT_EQ(p.a.closed[0].code, ErrorCode::kCancelled);
    EXPECT_EQ(p.b.closed[0].code, ErrorCode::kPeerLost);
    p.a.link->send(wire::Accept{});  // harmless
    p.a.link->close();
    io.restart();
    io.poll();
    EXPECT_EQ(p.a.closed.size(), 1u);
}

TEST_P(ConnectionOver, EachMessageIsAnsweredAtOnce) {
    io_context io;
    Pair p(io, GetParam());
    End &a = p.a, &b = p.b;
    a.link->send(wire::Accept{{1}, 0});
    for (uint64_t i = 1; i <= 500; ++i) {
        ASSERT_TRUE(pump(io, [&] { return b.heard.size() == i; }));
        b.link->send(wire::Accept{{i}, 0});
        ASSERT_TRUE(pump(io, [&] { return a.heard.size() == i; }));
        a.link->send(wire::Accept{{i + 1}, 0});
    }
    p.end(io);
}

TEST_P(ConnectionOver, AWatchLooksUntilItIsOver) {
    io_context io;
    Pair p(io, GetParam());
    constexpr uint64_t kCount = 1'000;
    const int64_t far = steady_now_us() + 3'600'000'000;
    p.a.link->watch(far);
    std::thread other([&] {
        for (uint64_t i = 0; i < kCount; ++i) p.b.link->send(wire::Release{{i}, true});
    });
    while (p.a.heard.size() < kCount) ASSERT_EQ(io.poll_one(), 1u);  // there is always a look to be made: nobody would wait
    other.join();
    for (uint64_t i = 0; i < kCount; ++i) EXPECT_EQ(std::get<wire::Release>(p.a.heard[i].message).offer.value, i);
    p.a.link->watch(0);
    while (io.poll_one() > 0) {}
    // A link that closes does not look any more.
    p.a.link->watch(far);
    p.end(io);
    while (io.poll_one() > 0) {}
}

TEST(Connection, PassesDescriptorsWithTheirMessage) {
    io_context io;
    Pair p(io, false);
    const auto bytes = random_bytes(100'000, 5);
    // Descriptors in the midst of other traffic, several times, before and after large and small frames.
    std::vector<std::pair<size_t, int>> expected;  // message index → size of the memfd
    size_t index = 0;
    for (int i = 1; i <= 40; ++i) {
        if (i % 3 == 0) p.a.link->send(extent_of(bytes), bytes), ++index;
        if (i % 2 == 0) p.a.link->send(wire::Accept{{1}, 0}), ++index;
        auto one = make_memfd("one", static_cast<size_t>(i) * 4096);
        auto two = make_memfd("two", 4096);
        ASSERT_TRUE(one && two);
        wire::LinkHello hello;
        if (i % 5 == 0) hello.layout.page_format = std::string(100'000, 'x');  // a frame of many kernel buffers
        p.a.link->send(hello, {}, {one->get(), two->get()});
        expected.emplace_back(index++, i * 4096);
    }
    p.a.link->send(wire::Accept{{2}, 0});
    ++index;
    ASSERT_TRUE(pump(io, [&] { return p.b.heard.size() == index; }));
    size_t with_fds = 0;
    for (const auto& r : p.b.heard) with_fds += r.fds.empty() ? 0 : 1;
    EXPECT_EQ(with_fds, expected.size());
    for (const auto& [at, size] : expected) {
        ASSERT_EQ(p.b.heard[at].fds.size(), 2u);
        struct stat st {};
        ASSERT_EQ(::fstat(p.b.heard[at].fds[0].get(), &st), 0);
        EXPECT_EQ(st.st_size, size);
        EXPECT_NE(::fcntl(p.b.heard[at].fds[0].get(), F_GETFD) & FD_CLOEXEC, 0);
    }
    p.end(io);
}

TEST(Connection, DescriptorsOverTcpCloseTheLink) {
    io_context io;
    Pair p(io, true);
    p.b.link->send(wire::LinkHello{}, {}, {0});
    ASSERT_TRUE(pump(io, [&] { return p.a.closed.size() == 1 && p.b.closed.size() == 1; }));
    EXPECT_EQ(p.b.closed[0].code, ErrorCode::kUnsupported);
}

TEST(Connection, IsSilentUntilStarted) {
    io_context io;
    RunDirectory dir;
    std::shared_ptr<Connection> server, client;
    auto listener = Listener::listen(io, {dir.file("s"), ""}, {"replica", "s", "k"},
                                     [&](std::shared_ptr<Connection> c) { server = std::move(c); });
    ASSERT_TRUE(listener);
    connect(io, {dir.file("s"), ""}, {"peer", "c", "k"}, 5'000, [&](auto c) { client = std::move(*c); });
    ASSERT_TRUE(pump(io, [&] { return client && server; }));
    // Sent right behind the handshake, kept for whoever starts later.
    client->send(wire::Accept{{42}, 0});
    ASSERT_TRUE(pump(io, [&] { return client->queued_bytes() == 0; }));
    End end;
    end.link = server;
    end.start();
    ASSERT_TRUE(pump(io, [&] { return end.heard.size() == 1; }));
    client.reset();  // never started: dropping it closes it
    ASSERT_TRUE(pump(io, [&] { return end.closed.size() == 1; }));
}

TEST(Connection, SilentPeerIsNoticed) {
    io_context io, frozen;
    RunDirectory dir;
    Options fast;
    fast.silence_ms = 200;
    End here, there;
    auto listener = Listener::listen(frozen, {dir.file("s"), ""}, {"replica", "s", "k"},
                                     [&](std::shared_ptr<Connection> c) { there.link = std::move(c); }, fast);
    ASSERT_TRUE(listener);
    connect(io, {dir.file("s"), ""}, {"peer", "c", "k"}, 5'000, [&](auto c) { here.link = std::move(*c); }, fast);
    const auto both = [&](const std::function<bool()>& done) {
        return pump(io, [&] {
            frozen.restart();
            frozen.poll();
            return done();
        });
    };
    ASSERT_TRUE(both([&] { return here.link && there.link; }));
    here.start();
    there.start();
    // Idle but alive for several silence periods.
    const TimeMs idle_until = steady_now() + 700;
    ASSERT_TRUE(both([&] { return steady_now() >= idle_until; }));
    EXPECT_TRUE(here.closed.empty());
    EXPECT_TRUE(there.closed.empty());
    EXPECT_TRUE(here.heard.empty());  // heartbeats are not passed on
    // The other process stops, its sockets stay open.
    ASSERT_TRUE(pump(io, [&] { return here.closed.size() == 1; }));
    EXPECT_EQ(here.closed[0].code, ErrorCode::kPeerLost);
    // When it goes on, it sees the close, not a silence.
    ASSERT_TRUE(both([&] { return there.closed.size() == 1; }));
    EXPECT_EQ(there.closed[0].message, "closed by the other side");
}

class ConnectionSends : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Connection, ConnectionSends, testing::Bool(), [](const auto& p) { return p.param ? "Expected" : "AtOnce"; });

TEST_P(ConnectionSends, PeerThatDoesNotReadIsClosed) {
    io_context io, frozen;
    RunDirectory dir;
    Options small;
    small.queue_bytes_max = 4u << 20;
    End here, there;
    auto listener = Listener::listen(frozen, {"", "127.0.0.1:0"}, {"replica", "s", "k"},
                                     [&](std::shared_ptr<Connection> c) { there.link = std::move(c); });
    ASSERT_TRUE(listener);
    connect(io, (*listener)->endpoint(), {"peer", "c", "k"}, 5'000, [&](auto c) { here.link = std::move(*c); }, small);
    ASSERT_TRUE(pump(io, [&] {
        frozen.restart();
        frozen.poll();
        return here.link && there.link;
    }));
    here.start();
    const auto bytes = random_bytes(1 << 20, 3);
    // How much the socket itself holds differs between systems.
    constexpr int kSentMax = 4096;
    int sent = 0;
    for (; sent < kSentMax && here.closed.empty(); ++sent) {
        io.restart();
        if (GetParam()) here.link->expect_send(INT64_MAX), io.poll_one();
        here.link->send(extent_of(bytes), bytes);
        for (int i = 0; i < 5; ++i) io.poll_one();  // poll() would not end while a send is expected
    }
    ASSERT_TRUE(pump(io, [&] { return here.closed.size() == 1; }));
    EXPECT_EQ(here.closed[0].code, ErrorCode::kOverloaded);
    EXPECT_LT(sent, kSentMax);
    there.link.reset();
}

TEST(Connection, WhatTheSocketTakesLeavesInTheSendersThread) {
    io_context io, other;
    RunDirectory dir;
    End here, there;
    auto listener = Listener::listen(other, {dir.file("s"), ""}, {"replica", "s", "k"},
                                     [&](std::shared_ptr<Connection> c) { there.link = std::move(c); });
    ASSERT_TRUE(listener);
    connect(io, {dir.file("s"), ""}, {"peer", "c", "k"}, 5'000, [&](auto c) { here.link = std::move(*c); });
    ASSERT_TRUE(pump(io, [&] {
        other.restart();
        other.poll();
        return here.link && there.link;
    }));
    here.start();
    there.start();
    io.restart();
    io.poll();  // from here on the sender's own loop stands still
    for (uint64_t i = 0; i < 100; ++i) here.link->send(wire::Accept{{i}, 0});
    EXPECT_EQ(here.link->queued_bytes(), 0u);
    ASSERT_TRUE(pump(other, [&] { return there.heard.size() == 100; }));
    // More than the socket holds: the rest waits for the loop, and what is sent later for the rest.
    const auto bytes = random_bytes(8 << 20, 5);
    here.link->send(extent_of(bytes), bytes);
    for (uint64_t i = 0; i < 100; ++i) here.link->send(wire::Accept{{i}, 0});
    EXPECT_GT(here.link->queued_bytes(), 0u);
    ASSERT_TRUE(pump(io, [&] {
        other.restart();
        other.poll();
        return there.heard.size() == 201;
    }));
    EXPECT_TRUE(there.heard[100].payload == bytes);
    for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(std::get<wire::Accept>(there.heard[101 + i].message).offer.value, i);
    here.link->close();
    there.link->close();
    EXPECT_TRUE(pump(io, [&] {
        other.restart();
        other.poll();
        return here.closed.size() == 1 && there.closed.size() == 1;
    }));
}

TEST(Connection, AnExpectedSendIsLeftToTheLoop) {
    io_context io;
    Pair p(io, false);
    while (io.poll_one() > 0) {}  // from here on the loop stands still but where it is asked
    p.a.link->expect_send(INT64_MAX);
    p.a.link->send(wire::Accept{{0}, 0});
    EXPECT_EQ(p.a.link->queued_bytes(), 0u) << "the loop is not awake yet";
    ASSERT_EQ(io.poll_one(), 1u);
    for (uint64_t i = 1; i < 4; ++i) p.a.link->send(wire::Accept{{i}, 0});
    const size_t queued = p.a.link->queued_bytes();
    EXPECT_GT(queued, 0u);
    EXPECT_EQ(queued % 3, 0u) << "none of the three has left";
    ASSERT_TRUE(pump(io, [&] { return p.b.heard.size() == 4; }));
    while (io.poll_one() > 0) {}  // the first frames ended it
    p.a.link->send(wire::Accept{{4}, 0});
    EXPECT_EQ(p.a.link->queued_bytes(), 0u) << "leaves in the sender's thread again";
    p.a.link->expect_send(INT64_MAX);
    ASSERT_EQ(io.poll_one(), 1u);
    p.a.link->expect_send(0);
    p.a.link->send(wire::Accept{{5}, 0});  // the loop has not seen yet that its time is over
    EXPECT_EQ(p.a.link->queued_bytes(), queued / 3);
    while (io.poll_one() > 0) {}
    p.a.link->expect_send(0);
    while (io.poll_one() > 0) {}
    p.a.link->send(wire::Accept{{6}, 0});
    EXPECT_EQ(p.a.link->queued_bytes(), 0u);
    ASSERT_TRUE(pump(io, [&] { return p.b.heard.size() == 7; }));
    for (uint64_t i = 0; i < 7; ++i) EXPECT_EQ(std::get<wire::Accept>(p.b.heard[i].message).offer.value, i);
    // What is left to the loop when the link closes still arrives.
    p.a.link->expect_send(INT64_MAX);
    ASSERT_EQ(io.poll_one(), 1u);
    p.a.link->send(wire::Accept{{7}, 0});
    EXPECT_EQ(p.a.link->queued_bytes(), queued / 3);
    p.a.link->close();
    EXPECT_TRUE(pump(io, [&] { return p.a.closed.size() == 1 && p.b.closed.size() == 1; }));
    EXPECT_EQ(p.b.heard.size(), 8u);
}

TEST(Connection, HandlerThatThrowsCostsOnlyItsLink) {
    io_context io;
    RunDirectory dir;
    std::shared_ptr<Connection> server, client;
    auto listener = Listener::listen(io, {dir.file("s"), ""}, {"replica", "s", "k"},
                                     [&](std::shared_ptr<Connection> c) { server = std::move(c); });
    ASSERT_TRUE(listener);
    connect(io, {dir.file("s"), ""}, {"peer", "c", "k"}, 5'000, [&](auto c) { client = std::move(*c); });
    ASSERT_TRUE(pump(io, [&] { return client && server; }));
    int closed = 0;
    Error why;
    server->start({[](Connection::Received) { throw std::runtime_error("boom"); },
                   [&](const Error& e) {
                       ++closed;
                       why = e;
                       throw std::runtime_error("again");
                   }});
    client->send(wire::Accept{{1}, 0});
    ASSERT_TRUE(pump(io, [&] { return closed == 1; }));
    EXPECT_EQ(why.code, ErrorCode::kInternal);
    server.reset();
    client.reset();
}

TEST(Host, IdAndRoute) {
    EXPECT_EQ(default_host_id(), default_host_id());
    EXPECT_GT(default_host_id().size(), 36u);
    EXPECT_FALSE(default_route_ip().empty());
}

}  // namespace
}  // namespace baton::net::test
