#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "baton/base/fd.hpp"
#include "baton/base/socket_bio.hpp"

namespace baton::http::test {

/// Whether servers and clients of the running test speak TLS with each other.
inline bool& over_tls() {
    static bool on = false;
    return on;
}

/// A blocking socket to 127.0.0.1, with TLS over it where over_tls() says so: tests send exactly the bytes they mean.
class RawSocket {
  public:
    /// A socket that is not connected yet, but has its descriptor.
    RawSocket() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
    explicit RawSocket(uint16_t port, int receive_buffer_bytes = 0) {
        fd_.reset(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        if (receive_buffer_bytes != 0) {
            (void)::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes,
                               sizeof(receive_buffer_bytes));
        }
        connect(port);
    }
    void connect(uint16_t port) {
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_port = htons(port);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (::connect(fd_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
            fd_.reset();
        const int on = 1;
        (void)::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        const timeval limit{.tv_sec = 20, .tv_usec = 0};  // a test that waits that long has failed
        (void)::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
        if (fd_ && over_tls() && !start_tls()) {
            tls_.reset();
            fd_.reset();
        }
    }
    /// The handshake, with whatever certificate; false when the server does not take part in it.
    bool start_tls() {
        context_.reset(SSL_CTX_new(TLS_client_method()));
        tls_.reset(SSL_new(context_.get()));
        BIO* bio = new_socket_bio(fd_.get());
        SSL_set_bio(tls_.get(), bio, bio);
        return SSL_connect(tls_.get()) == 1;
    }
    [[nodiscard]] SSL* tls() const { return tls_.get(); }

    [[nodiscard]] int fd() const { return fd_.get(); }
    [[nodiscard]] bool connected() const { return static_cast<bool>(fd_); }
    bool send(std::string_view bytes) {
        while (!bytes.empty()) {
            const ssize_t sent = tls_ ? SSL_write(tls_.get(), bytes.data(), static_cast<int>(bytes.size()))
                                      : ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (sent <= 0) return false;
            bytes.remove_prefix(static_cast<size_t>(sent));
        }
        return true;
    }
    void shutdown_send() {
        if (tls_) SSL_shutdown(tls_.get());
        ::shutdown(fd_.get(), SHUT_WR);
    }
    void close() {
        tls_.reset();
        fd_.reset();
    }
    /// Closes with a reset instead of a FIN.
    void reset() {
        const linger now{.l_onoff = 1, .l_linger = 0};
        (void)::setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
        close();
    }

    /// Everything up to the end of the stream.
    std::string read_to_end() {
        while (fill()) {
        }
        return std::exchange(buffer_, {});
    }
    /// Up to and including `mark`; what came before the stream ended when it never does.
    std::string read_until(std::string_view mark) {
        for (;;) {
            const size_t at = buffer_.find(mark);
            if (at != std::string::npos) return take(at + mark.size());
            if (!fill()) return std::exchange(buffer_, {});
        }
    }
    std::string read_exactly(size_t bytes) {
        while (buffer_.size() < bytes && fill()) {
        }
        return take(std::min(bytes, buffer_.size()));
    }
    /// One whole answer with a Content-Length: head and body.
    std::string read_answer() {
        std::string head = read_until("\r\n\r\n");
        const size_t at = head.find("Content-Length: ");
        if (at == std::string::npos) return head;
        return head + read_exactly(static_cast<size_t>(std::stoul(head.substr(at + 16))));
    }
    /// Nothing but the end of the stream is left.
    bool at_end() { return buffer_.empty() && !fill(); }

  private:
    bool fill() {
        std::array<char, 65536> bytes{};
        const ssize_t size = tls_ ? SSL_read(tls_.get(), bytes.data(), static_cast<int>(bytes.size()))
                                  : ::recv(fd_.get(), bytes.data(), bytes.size(), 0);
        if (size <= 0) return false;
        buffer_.append(bytes.data(), static_cast<size_t>(size));
        return true;
    }
    std::string take(size_t bytes) {
        std::string out = buffer_.substr(0, bytes);
        buffer_.erase(0, bytes);
        return out;
    }

    UniqueFd fd_;
    std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_{nullptr, &SSL_CTX_free};
    std::unique_ptr<SSL, decltype(&SSL_free)> tls_{nullptr, &SSL_free};
    std::string buffer_;
};

/// The status of an answer, 0 where there is none.
inline int status_of(std::string_view answer) {
    if (answer.size() < 12 || !answer.starts_with("HTTP/1.1 ")) return 0;
    return std::stoi(std::string(answer.substr(9, 3)));
}
inline std::string body_of(std::string_view answer) {
    const size_t at = answer.find("\r\n\r\n");
    return at == std::string_view::npos ? std::string() : std::string(answer.substr(at + 4));
}

}  // namespace baton::http::test
