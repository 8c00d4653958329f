#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "baton/base/clock.hpp"
#include "baton/net/connection.hpp"

namespace baton::net::test {

/// Runs handlers until `done` holds; false when it does not within a generous time.
inline bool pump(boost::asio::io_context& io, const std::function<bool()>& done, int64_t limit_ms = 20'000) {
    const TimeMs end = steady_now() + limit_ms;
    while (!done()) {
        if (steady_now() >= end) return false;
        io.restart();
        io.run_one_for(std::chrono::milliseconds(20));
    }
    return true;
}

/// A directory of this test, removed afterwards.
class RunDirectory {
  public:
    RunDirectory() {
        char name[] = "/tmp/baton_net_XXXXXX";
        path_ = ::mkdtemp(name);
    }
    ~RunDirectory() { std::filesystem::remove_all(path_); }
    RunDirectory(const RunDirectory&) = delete;
    RunDirectory& operator=(const RunDirectory&) = delete;
    [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }

  private:
    std::string path_;
};

/// What one end of a link heard.
struct End {
    std::shared_ptr<Connection> link;
    std::vector<Connection::Received> heard;
    std::vector<Error> closed;

    void start() {
        link->start({[this](Connection::Received r) {
                         EXPECT_TRUE(closed.empty()) << "a message after the close";
                         heard.push_back(std::move(r));
                     },
                     [this](const Error& e) { closed.push_back(e); }});
    }
};

/// Two started ends over a unix or a TCP socket.
struct Pair {
    Pair(boost::asio::io_context& io, bool tcp, Options client = {}, Options server = {}) {
        Endpoint at;
        (tcp ? at.tcp_address : at.unix_path) = tcp ? "127.0.0.1:0" : directory.file("s");
        auto made = Listener::listen(
            io, at, {"replica", "server", "secret"}, [this](std::shared_ptr<Connection> c) { b.link = std::move(c); }, server);
        EXPECT_TRUE(made.has_value()) << made.error().message;
        listener = std::move(*made);
        connect(
            io, listener->endpoint(), {"peer", "client", "secret"}, 10'000,
            [this](Expected<std::shared_ptr<Connection>> c) {
                EXPECT_TRUE(c.has_value()) << c.error().message;
                if (c) a.link = std::move(*c);
            },
            client);
        EXPECT_TRUE(pump(io, [&] { return a.link && b.link; }));
        if (!a.link || !b.link) return;
        a.start();
        b.start();
    }
    /// Closes what is open and runs it out.
    void end(boost::asio::io_context& io) {
        a.link->close();
        b.link->close();
        EXPECT_TRUE(pump(io, [&] { return a.closed.size() == 1 && b.closed.size() == 1; }));
    }
    RunDirectory directory;
    std::unique_ptr<Listener> listener;
    End a, b;
};

}  // namespace baton::net::test
