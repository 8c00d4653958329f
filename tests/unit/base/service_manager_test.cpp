#include "baton/base/service_manager.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>

#include "baton/base/fd.hpp"

namespace baton {
namespace {

/// What a service manager has: a datagram socket, by path or by abstract name.
class Manager {
  public:
    explicit Manager(const std::string& name) : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)), name_(name) {
        sockaddr_un at{};
        at.sun_family = AF_UNIX;
        std::memcpy(at.sun_path, name.data(), name.size());
        if (name[0] == '@') at.sun_path[0] = '\0';
        else ::unlink(name.c_str());
        EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<sockaddr*>(&at), static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size())), 0);
        ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
    }
    ~Manager() {
        if (name_[0] != '@') ::unlink(name_.c_str());
    }
    std::string next() {
        char text[512];
        const ssize_t n = ::recv(socket_.get(), text, sizeof text, 0);
        return n < 0 ? "" : std::string(text, static_cast<size_t>(n));
    }

  private:
    UniqueFd socket_;
    std::string name_;
};

std::string socket_path() { return "/tmp/baton-notify-" + std::to_string(::getpid()); }

TEST(ServiceManager, SpeaksToASocketByPathOrByAbstractName) {
    for (const std::string& name : {socket_path(), "@baton-notify-" + std::to_string(::getpid())}) {
        Manager manager(name);
        const auto to = ServiceManager::from_environment();
        ASSERT_TRUE(to.present()) << name;
        to.ready("2 models");
        EXPECT_EQ(manager.next(), "READY=1\nSTATUS=2 models");
        to.stopping("bye");
        EXPECT_EQ(manager.next(), "STOPPING=1\nSTATUS=bye");
        to.keep_alive();
        EXPECT_EQ(manager.next(), "WATCHDOG=1");
        to.extend_timeout(1500);
        EXPECT_EQ(manager.next(), "EXTEND_TIMEOUT_USEC=1500000");
        to.reloading();
        EXPECT_EQ(manager.next().substr(0, 27), "RELOADING=1\nMONOTONIC_USEC=");
    }
}

TEST(ServiceManager, AStatusCannotSayAnythingElse) {
    Manager manager(socket_path());
    ServiceManager::from_environment().status("a\nREADY=1\r\nb");
    EXPECT_EQ(manager.next(), "STATUS=a READY=1  b");
}

TEST(ServiceManager, ChildrenDoNotInheritTheWayToIt) {
    Manager manager(socket_path());
    ::setenv("WATCHDOG_USEC", "3000000", 1);
    ::setenv("WATCHDOG_PID", std::to_string(::getpid()).c_str(), 1);
    EXPECT_EQ(ServiceManager::from_environment().watchdog_ms(), 3000);
    for (const char* name : {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"}) EXPECT_EQ(std::getenv(name), nullptr) << name;
    EXPECT_FALSE(ServiceManager::from_environment().present());
}

TEST(ServiceManager, WhatItIsNotAskedForItDoesNot) {
    const auto watchdog = [](const char* usec, const char* pid) {
        Manager manager(socket_path());
        ::setenv("WATCHDOG_USEC", usec, 1);
        ::setenv("WATCHDOG_PID", pid, 1);
        return ServiceManager::from_environment().watchdog_ms();
    };
    EXPECT_EQ(watchdog("3000000", "1"), 0);  // for another process
    EXPECT_EQ(watchdog("", ""), 0);
    EXPECT_EQ(watchdog("many", ""), 0);
    EXPECT_EQ(watchdog("-5", ""), 0);
    EXPECT_EQ(watchdog("500", ""), 1);
    for (const std::string& name : {std::string("vsock:2:1234"), std::string("relative"), std::string(300, '/'), std::string("@")}) {
        ::setenv("NOTIFY_SOCKET", name.c_str(), 1);
        const auto none = ServiceManager::from_environment();
        EXPECT_FALSE(none.present()) << name;
        none.ready("nobody hears it");
    }
}

}  // namespace
}  // namespace baton
