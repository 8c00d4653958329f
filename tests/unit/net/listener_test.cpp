#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>

#include "baton/base/limits.hpp"
#include "net/socket.hpp"
#include "net_harness.hpp"

namespace baton::net::test {
namespace {

using boost::asio::io_context;

const Identity kServer{"replica", "server", "right"};

/// A listener that accepts nobody without the secret, and counts who came.
struct Door {
    explicit Door(io_context& io, int64_t handshake_ms = limits::kHandshakeTimeoutMs) {
        Options o;
        o.handshake_ms = handshake_ms;
        auto made = Listener::listen(
            io, {dir.file("s"), "127.0.0.1:0"}, kServer, [this](std::shared_ptr<Connection> c) { links.push_back(std::move(c)); }, o);
        EXPECT_TRUE(made.has_value()) << made.error().message;
        listener = std::move(*made);
    }
    [[nodiscard]] UniqueFd raw() const {
        auto started = connect_unix(dir.file("s"));
        EXPECT_TRUE(started.has_value());
        return std::move(started->fd);
    }
    /// A real peer still gets in.
    void expect_open(io_context& io) {
        const size_t before = links.size();
        std::shared_ptr<Connection> link;
        connect(io, listener->endpoint(), {"peer", "p", "right"}, 10'000, [&](auto c) {
            EXPECT_TRUE(c.has_value()) << c.error().message;
            if (c) link = *c;
        });
        EXPECT_TRUE(pump(io, [&] { return link && links.size() == before + 1; }));
    }
    RunDirectory dir;
    std::vector<std::shared_ptr<Connection>> links;
    std::unique_ptr<Listener> listener;
};

/// True when the other end has closed `fd`; what it sent before is dropped.
bool ended(int fd) {
    std::array<char, 4096> scrap;
    ssize_t n = 0;
    while ((n = ::recv(fd, scrap.data(), scrap.size(), MSG_DONTWAIT)) > 0) {
    }
    return n == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
}

void write_all(int fd, const void* data, size_t n) {
    EXPECT_GE(::send(fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT), 0);
}

TEST(Listener, WrongSecretIsRefusedAndCounted) {
    io_context io;
    Door door(io);
    for (const bool tcp : {false, true}) {
        Endpoint to = door.listener->endpoint();
        if (tcp) to.unix_path.clear();
        Error why;
        bool done = false;
        connect(io, to, {"peer", "p", "wrong"}, 5'000, [&](auto c) {
            done = true;
            ASSERT_FALSE(c.has_value());
            why = c.error();
        });
        const uint64_t before = door.listener->refused();
        ASSERT_TRUE(pump(io, [&] { return done && door.listener->refused() == before + 1; }));
        EXPECT_EQ(why.code, ErrorCode::kUnauthorized);
        EXPECT_EQ(why.message.find("wrong"), std::string::npos);
    }
    EXPECT_TRUE(door.links.empty());
    door.expect_open(io);
}

/// Whoever runs the server has to learn why a worker does not come; whoever scans its ports must not fill its log.
TEST(Listener, WrongSecretIsToldOnceWithTheAddressAndTheReason) {
    io_context io;
    Door door(io);
    Endpoint to = door.listener->endpoint();
    to.unix_path.clear();
    testing::internal::CaptureStderr();
    for (int i = 0; i < 3; ++i) {
        bool done = false;
        connect(io, to, {"worker", "10.0.0.7:4000", "wrong"}, 5'000, [&](auto) { done = true; });
        const uint64_t before = door.listener->refused();
        EXPECT_TRUE(pump(io, [&] { return done && door.listener->refused() == before + 1; }));
    }
    const std::string log = testing::internal::GetCapturedStderr();
    const size_t at = log.find("net.link_refused");
    ASSERT_NE(at, std::string::npos) << log;
    EXPECT_EQ(log.find("net.link_refused", at + 1), std::string::npos) << log;
    EXPECT_NE(log.find("remote=127.0.0.1:", at), std::string::npos) << log;
    EXPECT_NE(log.find("BATON_LINK_SECRET", at), std::string::npos) << log;
}

TEST(Listener, StrangersAreNotToldOf) {
    io_context io;
    Door door(io);
    testing::internal::CaptureStderr();
    const uint64_t before = door.listener->refused();
    for (const char* said : {"", "GET / HTTP/1.1\r\n\r\n"}) {
        const UniqueFd fd = door.raw();
        write_all(fd.get(), said, std::strlen(said));
    }
    EXPECT_TRUE(pump(io, [&] { return door.listener->refused() == before + 2; }));
    EXPECT_EQ(testing::internal::GetCapturedStderr().find("net.link_refused"), std::string::npos);
}

TEST(Listener, GarbageIsBoundedAndRefused) {
    io_context io;
    Door door(io);
    std::mt19937 rng(11);
    std::string noise(1 << 20, '\0');
    for (auto& c : noise) c = static_cast<char>(rng());
    uint64_t refused = 0;
    const auto expect_refused = [&](std::string bytes) {
        const UniqueFd fd = door.raw();
        write_all(fd.get(), bytes.data(), bytes.size());
        ++refused;
        EXPECT_TRUE(pump(io, [&] { return ended(fd.get()) && door.listener->refused() == refused; }));
    };
    expect_refused(noise);
    expect_refused("G");  // one wrong byte is enough
    expect_refused("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    expect_refused(std::string("BTN1\x01\x00\x00\x00\xff\xff\xff\x03", 12));  // a hello of 64 MB
    expect_refused(std::string("BTN1\x01\x00\x00\x00\xff\xff\xff\xff", 12));
    expect_refused(std::string("BTN1\x01\x00\x00\x00\x02\x00\x00\x00\x01\x00", 14));  // torn hello
    const auto framed = [](const wire::Message& m) {
        const auto b = wire::encode(m);
        return std::string(reinterpret_cast<const char*>(b.data()), b.size());
    };
    expect_refused(framed(wire::Abort{}));  // a command before the handshake
    wire::ExtentHeader extent;
    extent.bytes = 1 << 20;
    expect_refused(framed(extent));
    expect_refused(framed(wire::Hello{2, "peer", "p", std::string(64, 'c'), ""}));
    expect_refused(framed(wire::Hello{1, "", "p", std::string(64, 'c'), ""}));
    expect_refused(framed(wire::Hello{1, "peer", "p", "short", ""}));
    expect_refused(framed(wire::Hello{1, "peer", std::string(300, 'n'), std::string(64, 'c'), ""}));
    const wire::Hello good{1, "peer", "p", std::string(64, 'c'), ""};
    wire::Hello forged = good;
    forged.proof = std::string(64, '0');
    expect_refused(framed(good) + framed(forged));
    forged.name = "other";
    expect_refused(framed(good) + framed(forged));
    EXPECT_TRUE(door.links.empty());
    door.expect_open(io);
}

TEST(Listener, ProofCannotBeReflected) {
    // A stranger shows the server the server's own proof of another link.
    io_context io;
    Door door(io);
    const UniqueFd one = door.raw(), two = door.raw();
    const auto read_hello = [&](int fd) {
        std::vector<std::byte> got(8192);
        size_t n = 0;
        EXPECT_TRUE(pump(io, [&] {
            const ssize_t r = ::recv(fd, got.data() + n, got.size() - n, MSG_DONTWAIT);
            if (r > 0) n += static_cast<size_t>(r);
            return n > wire::kFrameHeaderBytes;
        }));
        auto m = wire::decode_body(1, std::span(got).subspan(wire::kFrameHeaderBytes, n - wire::kFrameHeaderBytes));
        EXPECT_TRUE(m.has_value());
        return std::get<wire::Hello>(*m);
    };
    const auto send = [](int fd, const wire::Hello& h) {
        const auto b = wire::encode(h);
        write_all(fd, b.data(), b.size());
    };
    wire::Hello mine{1, kServer.kind, kServer.name, std::string(64, 'x'), ""};
    send(one.get(), mine);
    const wire::Hello challenge = read_hello(one.get());
    wire::Hello oracle = mine;
    oracle.challenge = challenge.challenge;
    send(two.get(), oracle);
    mine.proof = read_hello(two.get()).proof;
    send(one.get(), mine);
    EXPECT_TRUE(pump(io, [&] { return ended(one.get()); }));
    EXPECT_TRUE(door.links.empty());
}

TEST(Listener, HalfOpenAndSlowPeersAreDropped) {
    io_context io;
    Door door(io, 600);
    const UniqueFd mute = door.raw(), slow = door.raw();
    write_all(slow.get(), "BTN", 3);
    ASSERT_TRUE(pump(io, [&] { return ended(mute.get()) && ended(slow.get()) && door.listener->refused() == 2; }));
    door.expect_open(io);
}

TEST(Listener, CrowdOfStrangersDoesNotLockOutPeers) {
    io_context io;
    Door door(io);
    std::vector<UniqueFd> strangers;
    for (int i = 0; i < 200; ++i) {
        strangers.push_back(door.raw());
        io.restart();
        io.poll();
    }
    door.expect_open(io);
    size_t open = 0;
    for (const auto& fd : strangers) open += ended(fd.get()) ? 0 : 1;
    EXPECT_LE(open, 64u);
}

TEST(Listener, PeerThatGoesInMidHandshakeIsForgotten) {
    io_context io;
    Door door(io);
    for (int i = 0; i < 50; ++i) door.raw().reset();
    ASSERT_TRUE(pump(io, [&] { return door.listener->refused() == 50; }));
    door.expect_open(io);
}

TEST(Listener, SocketFileIsPrivate) {
    io_context io;
    Door door(io);
    struct stat st {};
    ASSERT_EQ(::lstat(door.dir.file("s").c_str(), &st), 0);
    EXPECT_TRUE(S_ISSOCK(st.st_mode));
    EXPECT_EQ(st.st_mode & 0777, 0600u);
    door.listener.reset();
    EXPECT_NE(::lstat(door.dir.file("s").c_str(), &st), 0);
}

TEST(Listener, LongPathIsAClearError) {
    io_context io;
    RunDirectory dir;
    const std::string path = dir.file(std::string(108, 'x'));
    const auto made = Listener::listen(io, {path, ""}, kServer, [](auto) {});
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(made.error().message.find("at most 107"), std::string::npos);
    bool done = false;
    connect(io, {path, ""}, kServer, 1'000, [&](auto c) {
        done = true;
        ASSERT_FALSE(c);
        EXPECT_EQ(c.error().code, ErrorCode::kInvalidArgument);
    });
    EXPECT_TRUE(pump(io, [&] { return done; }));
    // The longest possible one works.
    const std::string fits = dir.file("");
    const std::string longest = fits + std::string(kUnixPathBytesMax - fits.size(), 'y');
    EXPECT_TRUE(Listener::listen(io, {longest, ""}, kServer, [](auto) {}).has_value());
}

TEST(Listener, StaleSocketIsReplacedAndALiveOneIsNot) {
    io_context io;
    RunDirectory dir;
    const std::string path = dir.file("s");
    {  // a process that died leaves its file
        sockaddr_un un{};
        un.sun_family = AF_UNIX;
        std::strncpy(un.sun_path, path.c_str(), sizeof un.sun_path - 1);
        const UniqueFd dead(::socket(AF_UNIX, SOCK_STREAM, 0));
        ASSERT_EQ(::bind(dead.get(), reinterpret_cast<const sockaddr*>(&un), sizeof un), 0);
    }
    auto first = Listener::listen(io, {path, ""}, kServer, [](auto) {});
    ASSERT_TRUE(first) << first.error().message;
    const auto second = Listener::listen(io, {path, ""}, kServer, [](auto) {});
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, ErrorCode::kUnavailable);
    // The refused attempt did not take the file away, and a successor's file survives its predecessor.
    EXPECT_TRUE(std::filesystem::exists(path));
    ASSERT_EQ(::unlink(path.c_str()), 0);
    auto successor = Listener::listen(io, {path, ""}, kServer, [](auto) {});
    ASSERT_TRUE(successor);
    first->reset();
    EXPECT_TRUE(std::filesystem::exists(path));
    // A file that is no socket is left alone.
    const std::string file = dir.file("notes");
    std::ofstream(file) << "keep";
    EXPECT_FALSE(Listener::listen(io, {file, ""}, kServer, [](auto) {}).has_value());
    EXPECT_TRUE(std::filesystem::is_regular_file(file));
}

TEST(Listener, RefusesOpenAddressesWithoutASecret) {
    io_context io;
    EXPECT_FALSE(Listener::listen(io, {"", "0.0.0.0:0"}, {"worker", "w", ""}, [](auto) {}).has_value());
    EXPECT_TRUE(Listener::listen(io, {"", "0.0.0.0:0"}, {"worker", "w", "k"}, [](auto) {}).has_value());
    EXPECT_TRUE(Listener::listen(io, {"", "127.0.0.1:0"}, {"worker", "w", ""}, [](auto) {}).has_value());
    for (const char* bad : {"", "127.0.0.1", "127.0.0.1:", ":80", "127.0.0.1:70000", "127.0.0.1:8x", "name:80", "::1:80"})
        EXPECT_FALSE(Listener::listen(io, {"", bad}, kServer, [](auto) {}).has_value()) << bad;
}

TEST(Connect, FailsClearlyAndInTime) {
    io_context io;
    RunDirectory dir;
    const auto error_of = [&](const Endpoint& to, int64_t timeout_ms) {
        Error why;
        bool done = false;
        connect(io, to, {"peer", "p", "k"}, timeout_ms, [&](auto c) {
            EXPECT_FALSE(done) << "done ran twice";
            done = true;
            EXPECT_FALSE(c.has_value());
            if (!c) why = c.error();
        });
        EXPECT_TRUE(pump(io, [&] { return done; }));
        return why;
    };
    EXPECT_EQ(error_of({dir.file("nobody"), ""}, 2'000).code, ErrorCode::kUnavailable);
    EXPECT_EQ(error_of({"", "127.0.0.1:1"}, 2'000).code, ErrorCode::kUnavailable);
    EXPECT_EQ(error_of({"", "nonsense"}, 2'000).code, ErrorCode::kInvalidArgument);
    // Somebody accepts and says nothing; somebody whose backlog is full.
    auto mute = listen_unix(dir.file("mute"));
    ASSERT_TRUE(mute);
    EXPECT_EQ(error_of({dir.file("mute"), ""}, 100).code, ErrorCode::kTimeout);
    ASSERT_EQ(::listen(mute->get(), 0), 0);
    std::vector<UniqueFd> waiting;
    for (int i = 0; i < 4; ++i)
        if (auto c = connect_unix(dir.file("mute"))) waiting.push_back(std::move(c->fd));
    EXPECT_EQ(error_of({dir.file("mute"), ""}, 100).code, ErrorCode::kTimeout);
}

TEST(Connect, NamesAreResolved) {
    io_context io;
    Door door(io);
    const std::string address = door.listener->endpoint().tcp_address;
    const std::string port = address.substr(address.rfind(':'));
    std::shared_ptr<Connection> link;
    bool done = false;
    connect(io, {"", "localhost" + port}, {"peer", "p", "right"}, 10'000, [&](auto c) {
        done = true;
        EXPECT_TRUE(c.has_value()) << c.error().message;
        if (c) link = *c;
    });
    ASSERT_TRUE(pump(io, [&] { return done; }));
}

TEST(Connect, IoContextMayEndAtAnyPoint) {
    // Whatever is under way is destroyed with the io_context; the sanitizers see a leak or a late use.
    for (int steps = 0; steps < 60; ++steps) {
        RunDirectory dir;
        auto io = std::make_unique<io_context>();
        std::vector<std::shared_ptr<Connection>> links;
        auto listener = Listener::listen(*io, {dir.file("s"), ""}, kServer, [&](auto c) { links.push_back(c); });
        ASSERT_TRUE(listener);
        connect(*io, {dir.file("s"), ""}, {"peer", "p", "right"}, 5'000, [&](auto c) {
            if (c) links.push_back(*c);
        });
        for (int i = 0; i < steps; ++i) io->poll_one();
        for (auto& link : links) link->start({});
        io->poll_one();
        links.clear();
        listener->reset();
        io.reset();
    }
}

}  // namespace
}  // namespace baton::net::test
