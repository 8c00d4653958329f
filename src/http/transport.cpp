#include "http/transport.hpp"

#include <boost/system/errc.hpp>

namespace baton::http {
namespace {

namespace asio = boost::asio;
using Outcome = TlsStream::Outcome;

/// What a step of TLS means to one who knows sockets.
boost::system::error_code code_of(Outcome outcome) {
    switch (outcome) {
        case Outcome::kDone: return {};
        case Outcome::kWantRead:
        case Outcome::kWantWrite: return asio::error::would_block;
        case Outcome::kEnd: return asio::error::eof;
        case Outcome::kBroken: break;
    }
    return asio::error::connection_reset;
}

}  // namespace

char Transport::peek(Code& ec) {
    char first = 0;
    (void)socket_.receive(asio::buffer(&first, 1), asio::socket_base::message_peek, ec);
    return first;
}

void Transport::handshake(const TlsContext& context, Code& ec) {
    if (tls_ == nullptr) tls_ = TlsStream::accept(context, socket_.native_handle());
    if (tls_ == nullptr) {
        ec = asio::error::no_memory;
        return;
    }
    const Outcome outcome = tls_->handshake();
    read_wants_write_ = outcome == Outcome::kWantWrite;
    ec = code_of(outcome);
}

size_t Transport::read_tls(asio::mutable_buffer into, Code& ec) {
    const TlsStream::Moved moved = tls_->read(into.data(), into.size());
    read_wants_write_ = moved.outcome == Outcome::kWantWrite;
    ec = code_of(moved.outcome);
    return moved.bytes;
}

size_t Transport::write_tls(asio::const_buffer from, Code& ec) {
    const TlsStream::Moved moved = tls_->write(from.data(), from.size());
    // Without renegotiation nothing has to be read before something can be written: one who waits for that would wait for ever.
    ec = moved.outcome == Outcome::kWantRead ? Code(asio::error::connection_reset) : code_of(moved.outcome);
    return moved.bytes;
}

void Transport::shut_down(Code& ec) {
    say_end();
    socket_.shutdown(Socket::shutdown_send, ec);
}

}  // namespace baton::http
