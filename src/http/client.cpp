/// The client: sockets with time limits, and TLS on them, are ours; HTTP/1.1 is Beast's.

#include "baton/http/client.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/span_body.hpp>
#include <boost/beast/http/write.hpp>
#include <cerrno>
#include <exception>
#include <iterator>
#include <optional>
#include <utility>

#include "baton/base/clock.hpp"
#include "baton/base/fd.hpp"
#include "baton/base/limits.hpp"
#include "baton/http/tls_stream.hpp"
#include "http/request_parser.hpp"

namespace baton::http {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace bhttp = boost::beast::http;

using OutgoingRequest = bhttp::request<bhttp::span_body<const char>>;
using ResponseParser = bhttp::response_parser<bhttp::buffer_body>;

/// Beast reads into this much. It holds the largest head or trailer taken, and is below the 64 KiB
/// of a field at which Beast throws.
constexpr size_t kBufferBytes = 32 * 1024;
static_assert(kBufferBytes > limits::kHeaderBytesMax && kBufferBytes < 64 * 1024);

struct Address {
    bool tls = false;
    std::string host;
    std::string port;
    std::string prefix;
    std::string host_header;
    [[nodiscard]] std::string url() const { return (tls ? "https://" : "http://") + host_header; }
};

Expected<Address> parse_url(std::string_view url) {
    constexpr std::string_view kScheme = "http://", kTlsScheme = "https://";
    const auto bad = [] {
        return fail(ErrorCode::kInvalidArgument, "the address must look like http://host:port or https://host:port",
                    "base_url");
    };
    Address out;
    out.tls = url.starts_with(kTlsScheme);
    out.port = out.tls ? "443" : "80";
    if (!out.tls && !url.starts_with(kScheme)) return bad();
    url.remove_prefix((out.tls ? kTlsScheme : kScheme).size());
    const size_t slash = url.find('/');
    std::string_view authority = url.substr(0, slash);
    if (slash != std::string_view::npos) out.prefix = url.substr(slash);
    while (out.prefix.ends_with('/')) out.prefix.pop_back();
    out.host_header = authority;
    if (authority.starts_with('[')) {
        const size_t end = authority.find(']');
        if (end == std::string_view::npos) return bad();
        out.host = authority.substr(1, end - 1);
        authority.remove_prefix(end + 1);
    } else {
        out.host = authority.substr(0, authority.find(':'));
        authority.remove_prefix(out.host.size());
    }
    if (authority.starts_with(':')) out.port = authority.substr(1);
    const auto clean = [](std::string_view text) {
        return !text.empty() && text.find_first_of(" \t\r\n") == std::string_view::npos;
    };
    if (!clean(out.host) || !clean(out.port) || (!out.prefix.empty() && !clean(out.prefix)))
        return bad();
    return out;
}

using Interrupted = std::function<bool()>;

/// Waits until `events` are there; false when `deadline_ms` passes first, or when `interrupted` says so.
bool wait_for(int fd, short events, int64_t deadline_ms, const Interrupted& interrupted = nullptr) {
    const int64_t slice_ms = interrupted ? 200 : 60'000;
    for (;;) {
        const int64_t left = deadline_ms - steady_now().ms;
        if (left <= 0 || (interrupted && interrupted())) return false;
        pollfd poll{.fd = fd, .events = events, .revents = 0};
        const int ready = ::poll(&poll, 1, static_cast<int>(std::min(left, slice_ms)));
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) return false;
    }
}

bool is_readable(int fd) {
    pollfd poll{.fd = fd, .events = POLLIN, .revents = 0};
    return ::poll(&poll, 1, 0) > 0;
}

/// A non-blocking socket, with TLS over it where `tls` is not null, as the synchronous stream that
/// Beast reads and writes. Every call waits at most `silence_timeout_ms`, then says timed_out.
class PatientSocket {
  public:
    PatientSocket(const UniqueFd& fd, TlsStream* tls, int64_t silence_timeout_ms,
                  Interrupted interrupted = nullptr)
        : fd_(fd.get()),
          tls_(tls),
          silence_timeout_ms_(silence_timeout_ms),
          interrupted_(std::move(interrupted)) {}

    template <typename MutableBuffers>
    size_t read_some(const MutableBuffers& buffers, beast::error_code& ec) {
        asio::mutable_buffer into;
        for (const asio::mutable_buffer piece : beast::buffers_range_ref(buffers)) {
            into = piece;
            if (into.size() != 0) break;
        }
        if (tls_ != nullptr)
            return transfer_tls(ec, [&] { return tls_->read(into.data(), into.size()); });
        return transfer(POLLIN, ec, [&] { return ::recv(fd_, into.data(), into.size(), 0); });
    }
    template <typename ConstBuffers>
    size_t write_some(const ConstBuffers& buffers, beast::error_code& ec) {
        std::array<iovec, 16> pieces{};
        msghdr message{};
        message.msg_iov = pieces.data();
        for (const asio::const_buffer piece : beast::buffers_range_ref(buffers)) {
            if (message.msg_iovlen == pieces.size()) break;
            pieces[message.msg_iovlen++] = {const_cast<void*>(piece.data()), piece.size()};
        }
        if (tls_ != nullptr) {  // which takes one piece after the other
            const iovec* piece = pieces.data();
            while (piece->iov_len == 0 && piece + 1 < pieces.data() + message.msg_iovlen) ++piece;
            return transfer_tls(ec, [&] { return tls_->write(piece->iov_base, piece->iov_len); });
        }
        return transfer(POLLOUT, ec, [&] { return ::sendmsg(fd_, &message, MSG_NOSIGNAL); });
    }
    // Beast asks a synchronous stream for the throwing forms too.
    template <typename MutableBuffers>
    size_t read_some(const MutableBuffers& buffers) {
        beast::error_code ec;
        const size_t size = read_some(buffers, ec);
        if (ec) throw beast::system_error(ec);
        return size;
    }
    template <typename ConstBuffers>
    size_t write_some(const ConstBuffers& buffers) {
        beast::error_code ec;
        const size_t size = write_some(buffers, ec);
        if (ec) throw beast::system_error(ec);
        return size;
    }

  private:
    template <typename Call>
    size_t transfer(short event, beast::error_code& ec, Call call) {
        ec = {};
        for (;;) {
            const ssize_t size = call();
            if (size > 0) return static_cast<size_t>(size);
            if (size == 0 || (event == POLLIN && errno == ECONNRESET)) {
                ec = asio::error::eof;
                return 0;
            }
            if (errno == EINTR) continue;
            if (errno != EAGAIN) {
                ec.assign(errno, beast::system_category());
                return 0;
            }
            if (!wait(event, ec)) return 0;
        }
    }
    template <typename Step>
    size_t transfer_tls(beast::error_code& ec, Step step) {
        ec = {};
        for (;;) {
            const TlsStream::Moved moved = step();
            switch (moved.outcome) {
                case TlsStream::Outcome::kDone: return moved.bytes;
                case TlsStream::Outcome::kWantRead:
                    if (!wait(POLLIN, ec)) return 0;
                    break;
                case TlsStream::Outcome::kWantWrite:
                    if (!wait(POLLOUT, ec)) return 0;
                    break;
                case TlsStream::Outcome::kEnd: ec = asio::error::eof; return 0;
                case TlsStream::Outcome::kBroken: ec = asio::error::connection_reset; return 0;
            }
        }
    }
    bool wait(short event, beast::error_code& ec) {
        if (wait_for(fd_, event, steady_now().ms + silence_timeout_ms_, interrupted_)) return true;
        ec = interrupted_ && interrupted_() ? asio::error::operation_aborted
                                            : asio::error::timed_out;
        return false;
    }

    const int fd_;
    TlsStream* const tls_;
    const int64_t silence_timeout_ms_;
    const Interrupted interrupted_;
};

/// What a failed read means to the caller.
tl::unexpected<Error> reading_failed(const beast::error_code& ec) {
    if (ec == asio::error::timed_out)
        return fail(ErrorCode::kTimeout, "the server does not answer");
    if (ec == asio::error::operation_aborted) return fail(ErrorCode::kAborted, "interrupted");
    if (ec == bhttp::error::body_limit)
        return fail(ErrorCode::kIo, "the server's answer is too large");
    if (ec.category() == make_error_code(bhttp::error::bad_value).category() &&
        ec != bhttp::error::end_of_stream && ec != bhttp::error::partial_message)
        return fail(ErrorCode::kIo, "the server's answer is malformed");
    return fail(ErrorCode::kIo, "the server closed the connection");
}

class ClientOnSockets final : public Client {
  public:
    ClientOnSockets(ClientOptions options, Address address)
        : options_(std::move(options)), address_(std::move(address)) {}

    Expected<ClientResponse> request(std::string_view method, std::string_view target,
                                     std::string_view json_body) override {
        return exchange(method, target, json_body, nullptr);
    }
    Expected<ClientResponse> stream(std::string_view target, std::string_view json_body,
                                    const OnData& on_data) override {
        return exchange("POST", target, json_body, &on_data);
    }

  private:
    Expected<ClientResponse> exchange(std::string_view method, std::string_view target,
                                      std::string_view json_body, const OnData* on_data);
    Expected<ClientResponse> run(std::string_view method, std::string_view target,
                                 std::string_view json_body, const OnData* on_data);
    Expected<void> connect();
    Expected<void> start_tls(int64_t deadline_ms);
    /// Throws where Beast does: a field of 64 KiB, an empty method.
    OutgoingRequest make_request(std::string_view method, std::string_view target,
                                 std::string_view json_body) const;
    Expected<void> send(std::string_view method, std::string_view target,
                        std::string_view json_body);
    Expected<void> read_head(std::optional<ResponseParser>& parser, bool head_only,
                             const Interrupted& interrupted);
    Expected<void> read_body(ResponseParser& parser, ClientResponse& response,
                             const OnData* on_data);
    Expected<void> deliver(std::string_view bytes, const OnData& on_data);
    void drop();

    const ClientOptions options_;
    const Address address_;
    TlsContext context_;  ///< null before the first TLS connection
    UniqueFd socket_;
    std::unique_ptr<TlsStream> tls_;  ///< over it, where the address says so
    beast::flat_buffer buffer_{kBufferBytes};
    // of the exchange in progress
    std::string event_line_;
    bool stopped_ = false;
    bool reusable_ = false;  ///< the connection may carry another exchange
};

void ClientOnSockets::drop() {
    if (tls_ != nullptr) tls_->say_end();
    tls_.reset();
    socket_.reset();
    buffer_.clear();
}

Expected<void> ClientOnSockets::connect() {
    // A server may have closed a resting connection: anything readable now means just that.
    if (reusable_ && buffer_.size() == 0 && !is_readable(socket_.get())) return {};
    drop();
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (::getaddrinfo(address_.host.c_str(), address_.port.c_str(), &hints, &found) != 0) {
        return fail(ErrorCode::kUnavailable, "cannot resolve " + address_.host);
    }
    const int64_t deadline = steady_now().ms + options_.connect_timeout_ms;
    for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
        UniqueFd fd(::socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
        if (!fd) continue;
        int error = ::connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
        if (error == EINPROGRESS) {
            socklen_t size = sizeof(error);
            if (!wait_for(fd.get(), POLLOUT, deadline) ||
                ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
                error = ETIMEDOUT;
            }
        }
        if (error != 0) continue;
        const int on = 1;
        (void)::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
        socket_ = std::move(fd);
        break;
    }
    ::freeaddrinfo(found);
    if (!socket_)
        return fail(ErrorCode::kUnavailable, "no server answers at " + address_.url());
    return address_.tls ? start_tls(deadline) : Expected<void>{};
}

Expected<void> ClientOnSockets::start_tls(int64_t deadline_ms) {
    if (context_ == nullptr) {
        BATON_TRY_ASSIGN(context_, load_client_tls(options_.ca_file));
    }
    tls_ = TlsStream::connect(context_, socket_.get(), address_.host);
    if (tls_ == nullptr) return fail(ErrorCode::kInternal, "no memory for TLS");
    std::string why;
    while (why.empty()) {
        const TlsStream::Outcome outcome = tls_->handshake();
        if (outcome == TlsStream::Outcome::kDone) return {};
        if (outcome == TlsStream::Outcome::kWantRead || outcome == TlsStream::Outcome::kWantWrite) {
            const short event = outcome == TlsStream::Outcome::kWantRead ? POLLIN : POLLOUT;
            if (!wait_for(socket_.get(), event, deadline_ms)) why = "the server does not answer";
        } else {
            why = tls_->reason();
        }
    }
    drop();
    return fail(ErrorCode::kIo, "no TLS connection to " + address_.url() + " (" + why + ")");
}

OutgoingRequest ClientOnSockets::make_request(std::string_view method, std::string_view target,
                                              std::string_view json_body) const {
    using bhttp::field;
    OutgoingRequest message;
    message.version(11);
    message.method_string(method);
    message.target(address_.prefix + std::string(target));
    message.set(field::host, address_.host_header);
    message.set(field::accept, "*/*");
    if (!options_.api_key.empty()) message.set(field::authorization, "Bearer " + options_.api_key);
    if (!json_body.empty() || method == "POST" || method == "PUT") {
        if (!json_body.empty()) message.set(field::content_type, "application/json");
        message.content_length(json_body.size());
        message.body() = {json_body.data(), json_body.size()};
    }
    return message;
}

Expected<void> ClientOnSockets::send(std::string_view method, std::string_view target,
                                     std::string_view json_body) {
    OutgoingRequest message;
    try {
        message = make_request(method, target, json_body);
    } catch (const std::exception&) {  // a field of 64 KiB, a method that is none
        return fail(ErrorCode::kInvalidArgument, "the request cannot be written as HTTP");
    }
    PatientSocket stream(socket_, tls_.get(), options_.silence_timeout_ms);
    beast::error_code ec;
    bhttp::write(stream, message, ec);
    if (ec == asio::error::timed_out)
        return fail(ErrorCode::kTimeout, "the server does not take the request");
    // The server may have refused early: its answer is still to be read.
    if (ec && ec != asio::error::broken_pipe && ec != asio::error::connection_reset)
        return reading_failed(ec);
    return {};
}

/// Reads up to the end of the head of the final answer.
Expected<void> ClientOnSockets::read_head(std::optional<ResponseParser>& parser, bool head_only,
                                          const Interrupted& interrupted) {
    PatientSocket stream(socket_, tls_.get(), options_.silence_timeout_ms, interrupted);
    beast::error_code ec;
    do {
        parser.emplace();
        parser->header_limit(limits::kHeaderBytesMax);
        parser->body_limit(options_.body_bytes_max);
        parser->skip(head_only);
        bhttp::read_header(stream, buffer_, *parser, ec);
        if (ec) return reading_failed(ec);
    } while (parser->get().result_int() < 200);
    // Beast takes a coding it does not know for no coding at all.
    const bool unknown_coding =
        parser->get().count(bhttp::field::transfer_encoding) != 0 && !parser->chunked();
    const auto fields = std::distance(parser->get().begin(), parser->get().end());
    if (unknown_coding || static_cast<size_t>(fields) > limits::kHeaderFieldsMax)
        return fail(ErrorCode::kIo, "the server's answer is malformed");
    return {};
}

/// Takes bytes of a stream and hands its data lines to the caller of stream().
Expected<void> ClientOnSockets::deliver(std::string_view bytes, const OnData& on_data) {
    while (!bytes.empty() && !stopped_) {
        const size_t end = bytes.find('\n');
        event_line_.append(bytes.substr(0, end));
        if (end == std::string_view::npos) {
            if (event_line_.size() > options_.body_bytes_max)
                return fail(ErrorCode::kIo, "an event is too large");
            return {};
        }
        bytes.remove_prefix(end + 1);
        std::string line = std::exchange(event_line_, {});
        if (line.ends_with('\r')) line.pop_back();
        std::string_view data = line;
        if (!data.starts_with("data:")) continue;
        data.remove_prefix(5);
        if (data.starts_with(' ')) data.remove_prefix(1);
        stopped_ = !on_data(data);
    }
    return {};
}

/// Reads the body piece by piece as it comes: into the response, or to `on_data` where there is
/// one.
Expected<void> ClientOnSockets::read_body(ResponseParser& parser, ClientResponse& response,
                                          const OnData* on_data) {
    PatientSocket stream(socket_, tls_.get(), options_.silence_timeout_ms,
                         on_data != nullptr ? options_.interrupted : nullptr);
    std::array<char, kBufferBytes> bytes;  // NOLINT: filled by the parser
    while (!parser.is_done() && !stopped_) {
        parser.get().body().data = bytes.data();
        parser.get().body().size = bytes.size();
        beast::error_code ec;
        bhttp::read_some(stream, buffer_, parser, ec);
        if (ec == bhttp::error::need_buffer) ec = {};
        // What came before a fault is still the caller's.
        const std::string_view piece(bytes.data(), bytes.size() - parser.get().body().size);
        if (on_data == nullptr) {
            response.body.append(piece);
        } else {
            BATON_TRY(deliver(piece, *on_data));
        }
        if (ec && !stopped_) return reading_failed(ec);
    }
    return {};
}

Expected<ClientResponse> ClientOnSockets::run(std::string_view method, std::string_view target,
                                              std::string_view json_body, const OnData* on_data) {
    BATON_TRY(send(method, target, json_body));
    std::optional<ResponseParser> parser;
    BATON_TRY(read_head(parser, method == "HEAD",
                        on_data != nullptr ? options_.interrupted : nullptr));
    ClientResponse response;
    response.status = static_cast<int>(parser->get().result_int());
    for (const auto& entry : parser->get()) {
        const auto name = entry.name_string();
        const auto value = entry.value();
        response.headers.emplace_back(to_lower({name.data(), name.size()}),
                                      std::string(value.data(), value.size()));
    }
    if (!response.header("content-type").starts_with("text/event-stream")) on_data = nullptr;
    if (on_data != nullptr)
        parser->body_limit(boost::none);  // a stream may go on; its lines may not
    BATON_TRY(read_body(*parser, response, on_data));
    reusable_ = !stopped_ && parser->keep_alive();
    return response;
}

Expected<ClientResponse> ClientOnSockets::exchange(std::string_view method, std::string_view target,
                                                   std::string_view json_body,
                                                   const OnData* on_data) {
    BATON_TRY(connect());
    event_line_.clear();
    stopped_ = false;
    reusable_ = false;
    auto result = run(method, target, json_body, on_data);
    if (!reusable_) drop();
    return result;
}

}  // namespace

std::string_view ClientResponse::header(std::string_view lower_case_name) const {
    for (const auto& [name, value] : headers) {
        if (name == lower_case_name) return value;
    }
    return {};
}

Expected<std::unique_ptr<Client>> Client::create(ClientOptions options) {
    BATON_TRY_ASSIGN(Address address, parse_url(options.base_url));
    return std::unique_ptr<Client>(
        std::make_unique<ClientOnSockets>(std::move(options), std::move(address)));
}

}  // namespace baton::http
