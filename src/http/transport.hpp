#pragma once

#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>

#include "baton/http/tls_stream.hpp"

namespace baton::http {

/// A client's socket, with TLS over it where the server speaks that. Nothing waits: would_block says that wait_before_read(), or for a
/// write writability, comes first. I/O thread.
class Transport {
  public:
    using Socket = boost::asio::ip::tcp::socket;
    using Code = boost::system::error_code;

    explicit Transport(Socket socket) : socket_(std::move(socket)) {}

    [[nodiscard]] Socket& socket() { return socket_; }
    [[nodiscard]] bool is_tls() const { return tls_ != nullptr; }
    [[nodiscard]] Socket::wait_type wait_before_read() const { return read_wants_write_ ? Socket::wait_write : Socket::wait_read; }

    /// Without TLS that is the socket's own call.
    size_t read_some(boost::asio::mutable_buffer into, Code& ec) { return tls_ == nullptr ? socket_.read_some(into, ec) : read_tls(into, ec); }
    size_t write_some(boost::asio::const_buffer from, Code& ec) { return tls_ == nullptr ? socket_.write_some(from, ec) : write_tls(from, ec); }

    /// The first byte that waits to be read; would_block, eof.
    [[nodiscard]] char peek(Code& ec);
    /// One step of the server's handshake, which the first call begins. would_block: another one, after wait_before_read().
    void handshake(const TlsContext& context, Code& ec);
    /// Why handshake() failed, for people.
    [[nodiscard]] std::string reason() const { return tls_ == nullptr ? "" : tls_->reason(); }

    /// No more comes: TLS's closing alert, then the socket's end.
    void shut_down(Code& ec);
    /// The closing alert alone, so that a client knows that nothing was cut off.
    void say_end() {
        if (tls_ != nullptr) tls_->say_end();
    }
    void close() {
        Code ignored;
        socket_.close(ignored);
    }

  private:
    size_t read_tls(boost::asio::mutable_buffer into, Code& ec);
    size_t write_tls(boost::asio::const_buffer from, Code& ec);

    Socket socket_;
    std::unique_ptr<TlsStream> tls_;  ///< from the first byte of a handshake on
    bool read_wants_write_ = false;
};

}  // namespace baton::http
