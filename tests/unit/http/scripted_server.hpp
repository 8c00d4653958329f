#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <thread>

#include "baton/base/fd.hpp"

namespace baton::http::test {

/// A server that takes one connection, reads one request head and sends exactly the bytes a test
/// wants, in pieces of a size it wants, then says no more (its end of the stream closed, or open
/// and silent).
class ScriptedServer {
  public:
    struct Script {
        std::string answer;
        size_t piece_bytes = SIZE_MAX;
        bool close = true;
    };
    explicit ScriptedServer(Script script)
        : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof(address);
        (void)::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), size);
        (void)::listen(listener_.get(), 4);
        (void)::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
        port_ = ntohs(address.sin_port);
        thread_ = std::thread([this, script = std::move(script)] { serve(script); });
    }
    ~ScriptedServer() {
        if (thread_.joinable()) thread_.join();
    }
    [[nodiscard]] std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
    /// The request as it came. Joins: the client must be done with its connection.
    [[nodiscard]] const std::string& request() {
        if (thread_.joinable()) thread_.join();
        return request_;
    }

  private:
    void serve(const Script& script) {
        const UniqueFd fd(::accept(listener_.get(), nullptr, nullptr));
        std::array<char, 65536> bytes{};
        while (request_.find("\r\n\r\n") == std::string::npos) {
            const ssize_t size = ::recv(fd.get(), bytes.data(), bytes.size(), 0);
            if (size <= 0) return;
            request_.append(bytes.data(), static_cast<size_t>(size));
        }
        std::string_view rest = script.answer;
        while (!rest.empty()) {
            const std::string_view piece = rest.substr(0, script.piece_bytes);
            const ssize_t sent = ::send(fd.get(), piece.data(), piece.size(), MSG_NOSIGNAL);
            if (sent <= 0) return;
            rest.remove_prefix(static_cast<size_t>(sent));
        }
        if (script.close) ::shutdown(fd.get(), SHUT_WR);
        while (::recv(fd.get(), bytes.data(), bytes.size(), 0) > 0) {
        }
    }

    UniqueFd listener_;
    uint16_t port_ = 0;
    std::string request_;
    std::thread thread_;
};

}  // namespace baton::http::test
