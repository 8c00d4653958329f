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
#include <cerrno>
#include <charconv>
#include <utility>

#include "baton/base/clock.hpp"
#include "baton/base/fd.hpp"
#include "baton/base/limits.hpp"
#include "http/request_parser.hpp"

namespace baton::http {
namespace {

struct Address {
    std::string host;
    std::string port = "80";
    std::string prefix;
    std::string host_header;
};

Expected<Address> parse_url(std::string_view url) {
    constexpr std::string_view kScheme = "http://";
    const auto bad = [] {
        return fail(ErrorCode::kInvalidArgument, "the address must look like http://host:port",
                    "base_url");
    };
    if (!url.starts_with(kScheme)) return bad();
    url.remove_prefix(kScheme.size());
    const size_t slash = url.find('/');
    std::string_view authority = url.substr(0, slash);
    Address out;
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

/// Waits until `events` are there; false when `deadline_ms` passes first.
bool wait_for(int fd, short events, int64_t deadline_ms) {
    for (;;) {
        const int64_t left = deadline_ms - steady_now().ms;
        if (left <= 0) return false;
        pollfd poll{.fd = fd, .events = events, .revents = 0};
        const int ready = ::poll(&poll, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) return false;
    }
}

bool is_readable(int fd) {
    pollfd poll{.fd = fd, .events = POLLIN, .revents = 0};
    return ::poll(&poll, 1, 0) > 0;
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
    Expected<void> connect();
    Expected<void> send(std::string_view bytes);
    Expected<void> fill();
    Expected<std::string> read_line();
    Expected<ClientResponse> read_head();
    Expected<void> read_exactly(size_t bytes);
    Expected<void> read_chunks();
    Expected<void> read_to_end();
    Expected<void> read_body(const ClientResponse& response, bool head_only);
    Expected<void> deliver(std::string_view bytes);
    void drop();
    static tl::unexpected<Error> broken() {
        return fail(ErrorCode::kIo, "the server closed the connection");
    }

    const ClientOptions options_;
    const Address address_;
    UniqueFd socket_;
    std::string buffer_;
    // of the exchange in progress
    const OnData* on_data_ = nullptr;
    std::string body_;
    std::string event_line_;
    bool stopped_ = false;
    bool saw_eof_ = false;
};

void ClientOnSockets::drop() {
    socket_.reset();
    buffer_.clear();
}

Expected<void> ClientOnSockets::connect() {
    if (socket_) {
        // A server may have closed a resting connection: anything readable now means just that.
        if (buffer_.empty() && !is_readable(socket_.get())) return {};
        drop();
    }
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
        return fail(ErrorCode::kUnavailable, "no server answers at http://" + address_.host_header);
    return {};
}

Expected<void> ClientOnSockets::send(std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (sent > 0) {
            bytes.remove_prefix(static_cast<size_t>(sent));
        } else if (errno == EAGAIN) {
            if (!wait_for(socket_.get(), POLLOUT, steady_now().ms + options_.silence_timeout_ms)) {
                return fail(ErrorCode::kTimeout, "the server does not take the request");
            }
        } else if (errno == EPIPE || errno == ECONNRESET) {
            return {};  // the server may have refused early: its answer is still to be read
        } else if (errno != EINTR) {
            return broken();
        }
    }
    return {};
}

/// Reads what is there into the buffer, waiting for at least one byte. At the end of the stream
/// saw_eof_ is set.
Expected<void> ClientOnSockets::fill() {
    std::array<char, 64 * 1024> bytes;  // NOLINT: filled by recv
    for (;;) {
        const ssize_t size = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
        if (size > 0) {
            buffer_.append(bytes.data(), static_cast<size_t>(size));
            return {};
        }
        if (size == 0 || errno == ECONNRESET) {
            saw_eof_ = true;
            return {};
        }
        if (errno == EAGAIN) {
            if (!wait_for(socket_.get(), POLLIN, steady_now().ms + options_.silence_timeout_ms)) {
                return fail(ErrorCode::kTimeout, "the server does not answer");
            }
        } else if (errno != EINTR) {
            return broken();
        }
    }
}

Expected<std::string> ClientOnSockets::read_line() {
    size_t searched = 0;
    for (;;) {
        const size_t end = buffer_.find("\r\n", searched);
        if (end != std::string::npos) {
            std::string line = buffer_.substr(0, end);
            buffer_.erase(0, end + 2);
            return line;
        }
        if (buffer_.size() > limits::kHeaderBytesMax)
            return fail(ErrorCode::kIo, "the server's answer is malformed");
        searched = buffer_.empty() ? 0 : buffer_.size() - 1;
        BATON_TRY(fill());
        if (saw_eof_) return broken();
    }
}

Expected<ClientResponse> ClientOnSockets::read_head() {
    for (;;) {
        ClientResponse response;
        BATON_TRY_ASSIGN(const std::string first, read_line());
        const auto bad = [] { return fail(ErrorCode::kIo, "the server's answer is malformed"); };
        if (!first.starts_with("HTTP/1.") || first.size() < 12) return bad();
        if (std::from_chars(first.data() + 9, first.data() + 12, response.status).ec != std::errc{})
            return bad();
        for (;;) {
            BATON_TRY_ASSIGN(const std::string line, read_line());
            if (line.empty()) break;
            const size_t colon = line.find(':');
            if (colon == std::string::npos || response.headers.size() >= limits::kHeaderFieldsMax)
                return bad();
            response.headers.emplace_back(
                to_lower(std::string_view(line).substr(0, colon)),
                std::string(trim(std::string_view(line).substr(colon + 1))));
        }
        if (response.status >= 200) return response;
    }
}

/// Takes body bytes: into the body, or line by line to the caller of stream().
Expected<void> ClientOnSockets::deliver(std::string_view bytes) {
    if (on_data_ == nullptr) {
        if (body_.size() + bytes.size() > options_.body_bytes_max) {
            return fail(ErrorCode::kIo, "the server's answer is too large");
        }
        body_.append(bytes);
        return {};
    }
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
        stopped_ = !(*on_data_)(data);
    }
    return {};
}

Expected<void> ClientOnSockets::read_exactly(size_t bytes) {
    while (bytes > 0 && !stopped_) {
        if (buffer_.empty()) {
            BATON_TRY(fill());
            if (saw_eof_) return broken();
        }
        const size_t take = std::min(bytes, buffer_.size());
        BATON_TRY(deliver(std::string_view(buffer_).substr(0, take)));
        buffer_.erase(0, take);
        bytes -= take;
    }
    return {};
}

Expected<void> ClientOnSockets::read_chunks() {
    while (!stopped_) {
        BATON_TRY_ASSIGN(const std::string line, read_line());
        size_t size = 0;
        if (std::from_chars(line.data(), line.data() + line.size(), size, 16).ec != std::errc{}) {
            return fail(ErrorCode::kIo, "the server's answer is malformed");
        }
        if (size == 0) {
            for (;;) {
                BATON_TRY_ASSIGN(const std::string trailer, read_line());
                if (trailer.empty()) return {};
            }
        }
        BATON_TRY(read_exactly(size));
        if (stopped_) return {};
        BATON_TRY(read_line());
    }
    return {};
}

Expected<void> ClientOnSockets::read_to_end() {
    while (!stopped_) {
        BATON_TRY(deliver(buffer_));
        buffer_.clear();
        if (saw_eof_) return {};
        BATON_TRY(fill());
    }
    return {};
}

Expected<void> ClientOnSockets::read_body(const ClientResponse& response, bool head_only) {
    if (head_only || response.status == 204 || response.status == 304) return {};
    if (to_lower(response.header("transfer-encoding")) == "chunked") return read_chunks();
    const std::string_view length = response.header("content-length");
    if (length.empty()) return read_to_end();
    size_t bytes = 0;
    if (std::from_chars(length.data(), length.data() + length.size(), bytes).ec != std::errc{}) {
        return fail(ErrorCode::kIo, "the server's answer is malformed");
    }
    return read_exactly(bytes);
}

Expected<ClientResponse> ClientOnSockets::exchange(std::string_view method, std::string_view target,
                                                   std::string_view json_body,
                                                   const OnData* on_data) {
    saw_eof_ = false;
    BATON_TRY(connect());
    std::string head;
    head.append(method)
        .append(" ")
        .append(address_.prefix)
        .append(target)
        .append(" HTTP/1.1\r\nHost: ");
    head.append(address_.host_header).append("\r\nAccept: */*\r\n");
    if (!options_.api_key.empty())
        head.append("Authorization: Bearer ").append(options_.api_key).append("\r\n");
    if (!json_body.empty() || method == "POST" || method == "PUT") {
        if (!json_body.empty()) head.append("Content-Type: application/json\r\n");
        head.append("Content-Length: ").append(std::to_string(json_body.size())).append("\r\n");
    }
    head.append("\r\n");
    body_.clear();
    event_line_.clear();
    stopped_ = false;
    on_data_ = nullptr;
    const auto run = [&]() -> Expected<ClientResponse> {
        BATON_TRY(send(head));
        BATON_TRY(send(json_body));
        BATON_TRY_ASSIGN(ClientResponse response, read_head());
        if (response.header("content-type").starts_with("text/event-stream")) on_data_ = on_data;
        BATON_TRY(read_body(response, method == "HEAD"));
        response.body = std::move(body_);
        return response;
    };
    auto result = run();
    const bool reusable =
        result && !stopped_ && !saw_eof_ && to_lower(result->header("connection")) != "close";
    if (!reusable) drop();
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
