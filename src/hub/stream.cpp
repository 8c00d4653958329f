#include "stream.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "baton/base/clock.hpp"
#include "baton/base/socket_bio.hpp"

namespace baton::hub {
namespace {

void wake(int fd) {
    const uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(fd, &one, sizeof one);
}

/// Waits for `events` on `fd`. kTimeout at `deadline_ms`, kCancelled on a stop request.
Expected<void> wait_for(int fd, short events, int64_t deadline_ms, const CancelSignal& cancel) {
    for (;;) {
        if (cancel.requested()) return cancelled();
        const int64_t left = deadline_ms - steady_now().ms;
        if (left <= 0) return fail(ErrorCode::kTimeout, "the server did not answer in time");
        std::array<pollfd, 2> polled{{{fd, events, 0}, {cancel.fd(), POLLIN, 0}}};
        const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(std::min<int64_t>(left, 60'000)));
        if (ready < 0 && errno != EINTR) return fail(ErrorCode::kIo, std::string("poll: ") + std::strerror(errno));
        if (ready > 0 && polled[0].revents != 0) return {};
    }
}

struct Address {
    sockaddr_storage storage{};
    socklen_t length = 0;
    int family = 0;
};

/// Asks for a host's addresses on a thread of its own, since that cannot be interrupted.
Expected<std::vector<Address>> resolve(const std::string& host, uint16_t port, int64_t deadline_ms, const CancelSignal& cancel) {
    struct Asked {
        UniqueFd done{::eventfd(0, EFD_CLOEXEC)};
        std::vector<Address> found;
        int error = 0;
        std::string host, port;
    };
    const auto asked = std::make_shared<Asked>();
    asked->host = host;
    asked->port = std::to_string(port);
    if (!asked->done) return fail(ErrorCode::kIo, std::string("eventfd: ") + std::strerror(errno));
    try {
        std::thread([asked] {
            addrinfo hints{};
            hints.ai_socktype = SOCK_STREAM;
            addrinfo* list = nullptr;
            asked->error = ::getaddrinfo(asked->host.c_str(), asked->port.c_str(), &hints, &list);
            for (const addrinfo* a = list; asked->error == 0 && a != nullptr && asked->found.size() < 16; a = a->ai_next) {
                Address address;
                std::memcpy(&address.storage, a->ai_addr, std::min<size_t>(a->ai_addrlen, sizeof address.storage));
                address.length = a->ai_addrlen;
                address.family = a->ai_family;
                asked->found.push_back(address);
            }
            if (list != nullptr) ::freeaddrinfo(list);
            wake(asked->done.get());
        }).detach();
    } catch (const std::system_error&) {
        return fail(ErrorCode::kIo, "no thread can be started");
    }
    BATON_TRY(wait_for(asked->done.get(), POLLIN, deadline_ms, cancel));
    if (asked->error != 0 || asked->found.empty())
        return fail(ErrorCode::kUnavailable, "cannot find " + host + ": " + ::gai_strerror(asked->error));
    return asked->found;
}

Expected<UniqueFd> connect_to(const Address& address, int64_t deadline_ms, const CancelSignal& cancel) {
    UniqueFd fd(::socket(address.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd) return fail(ErrorCode::kIo, std::string("socket: ") + std::strerror(errno));
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) != 0) {
        if (errno != EINPROGRESS) return fail(ErrorCode::kUnavailable, std::strerror(errno));
        BATON_TRY(wait_for(fd.get(), POLLOUT, deadline_ms, cancel));
        int error = 0;
        socklen_t length = sizeof error;
        ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
        if (error != 0) return fail(ErrorCode::kUnavailable, std::strerror(error));
    }
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

std::string tls_reason(const SSL* tls) {
    const long verified = SSL_get_verify_result(tls);
    if (verified != X509_V_OK) return std::string("its certificate is not trusted: ") + X509_verify_cert_error_string(verified);
    std::array<char, 256> text{};
    const unsigned long code = ERR_peek_last_error();
    if (code == 0 || ERR_GET_REASON(code) == SSL_R_UNEXPECTED_EOF_WHILE_READING) return "the connection was closed";
    ERR_error_string_n(code, text.data(), text.size());
    return text.data();
}

bool is_ip(const std::string& host) {
    in6_addr address{};
    return ::inet_pton(AF_INET, host.c_str(), &address) == 1 || ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

}  // namespace

tl::unexpected<Error> cancelled() { return fail(ErrorCode::kCancelled, "the download was cancelled"); }

void CancelSignal::Wake::operator()() const { wake(fd); }

CancelSignal::CancelSignal(std::stop_token token) : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)), token_(std::move(token)) {
    callback_.emplace(token_, Wake{fd_.get()});
}

bool CancelSignal::wait(int64_t ms) const {
    pollfd polled{fd_.get(), POLLIN, 0};
    const int64_t until = steady_now().ms + ms;
    for (int64_t left = ms; left > 0 && !requested(); left = until - steady_now().ms)
        ::poll(&polled, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
    return requested();
}

Expected<std::shared_ptr<const TlsRoots>> TlsRoots::load(const std::string& ca_file) {
    auto roots = std::make_shared<const TlsRoots>(SSL_CTX_new(TLS_client_method()));
    SSL_CTX* context = roots->context();
    if (context == nullptr) return fail(ErrorCode::kInternal, "OpenSSL gives no context");
    SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    ERR_clear_error();
    if (ca_file.empty()) SSL_CTX_set_default_verify_paths(context);
    else if (SSL_CTX_load_verify_locations(context, ca_file.c_str(), nullptr) != 1)
        return fail(ErrorCode::kInvalidArgument, "no trusted certificates can be read from " + ca_file, "hub_ca_file");
    return roots;
}

Stream::Stream(UniqueFd fd, const CancelSignal& cancel) : fd_(std::move(fd)), cancel_(cancel) {}

Expected<std::unique_ptr<Stream>> Stream::connect(const std::string& host, uint16_t port, const CancelSignal& cancel, int64_t timeout_ms) {
    const int64_t deadline_ms = steady_now().ms + timeout_ms;
    BATON_TRY_ASSIGN(const std::vector<Address> addresses, resolve(host, port, deadline_ms, cancel));
    Error last;
    for (size_t i = 0; i < addresses.size(); ++i) {
        // One address that drops packets must not take the time of the others.
        const int64_t now = steady_now().ms;
        const int64_t share = (deadline_ms - now) / static_cast<int64_t>(addresses.size() - i);
        auto fd = connect_to(addresses[i], now + share, cancel);
        if (fd) return std::make_unique<Stream>(std::move(*fd), cancel);
        last = fd.error();
        if (last.code == ErrorCode::kCancelled) break;
    }
    if (last.code == ErrorCode::kUnavailable) last.message = "cannot connect to " + host + ": " + last.message;
    if (last.code == ErrorCode::kTimeout) last.message = "cannot connect to " + host + ": no answer in time";
    return fail(last);
}

Expected<void> Stream::wait(short events, int64_t deadline_ms) const { return wait_for(fd_.get(), events, deadline_ms, cancel_); }

template <class F>
Expected<int> Stream::patiently(F operation, int64_t timeout_ms) {
    const int64_t deadline_ms = steady_now().ms + timeout_ms;
    for (;;) {
        ERR_clear_error();
        const int result = operation();
        if (result > 0) return result;
        switch (SSL_get_error(tls_.get(), result)) {
            case SSL_ERROR_WANT_READ: BATON_TRY(wait(POLLIN, deadline_ms)); break;
            case SSL_ERROR_WANT_WRITE: BATON_TRY(wait(POLLOUT, deadline_ms)); break;
            case SSL_ERROR_ZERO_RETURN: return 0;
            default: return fail(ErrorCode::kPeerLost, "the connection broke: " + tls_reason(tls_.get()));
        }
    }
}

Expected<void> Stream::start_tls(const TlsRoots& roots, const std::string& host, int64_t timeout_ms) {
    tls_.reset(SSL_new(roots.context()));
    BIO* bio = tls_ ? new_socket_bio(fd_.get()) : nullptr;
    if (bio == nullptr) return fail(ErrorCode::kInternal, "OpenSSL gives no connection");
    SSL_set_bio(tls_.get(), bio, bio);
    X509_VERIFY_PARAM* verify = SSL_get0_param(tls_.get());
    X509_VERIFY_PARAM_set_hostflags(verify, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    if (is_ip(host)) {
        X509_VERIFY_PARAM_set1_ip_asc(verify, host.c_str());
    } else {
        X509_VERIFY_PARAM_set1_host(verify, host.c_str(), 0);
        SSL_set_tlsext_host_name(tls_.get(), host.c_str());
    }
    auto connected = patiently([this] { return SSL_connect(tls_.get()); }, timeout_ms);
    if (connected && *connected > 0) return {};
    if (!connected && connected.error().code != ErrorCode::kPeerLost) return fail(connected.error());
    return fail(ErrorCode::kUnavailable, "no TLS connection to " + host + ": " + tls_reason(tls_.get()));
}

Expected<size_t> Stream::read(std::span<char> into, int64_t timeout_ms) {
    if (tls_) {
        BATON_TRY_ASSIGN(const int n, patiently([&] { return SSL_read(tls_.get(), into.data(), static_cast<int>(std::min<size_t>(into.size(), 1 << 20))); }, timeout_ms));
        return static_cast<size_t>(n);
    }
    const int64_t deadline_ms = steady_now().ms + timeout_ms;
    for (;;) {
        const auto n = ::recv(fd_.get(), into.data(), into.size(), 0);
        if (n >= 0) return static_cast<size_t>(n);
        if (errno == EAGAIN) BATON_TRY(wait(POLLIN, deadline_ms));
        else if (errno != EINTR) return fail(ErrorCode::kPeerLost, std::string("the connection broke: ") + std::strerror(errno));
    }
}

Expected<void> Stream::write(std::string_view bytes, int64_t timeout_ms) {
    const int64_t deadline_ms = steady_now().ms + timeout_ms;
    while (!bytes.empty()) {
        if (tls_) {
            BATON_TRY_ASSIGN(const int n, patiently([&] { return SSL_write(tls_.get(), bytes.data(), static_cast<int>(std::min<size_t>(bytes.size(), 1 << 20))); }, timeout_ms));
            if (n == 0) return fail(ErrorCode::kPeerLost, "the server closed the connection");
            bytes.remove_prefix(static_cast<size_t>(n));
            continue;
        }
        const auto n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
        if (n >= 0) bytes.remove_prefix(static_cast<size_t>(n));
        else if (errno == EAGAIN) BATON_TRY(wait(POLLOUT, deadline_ms));
        else if (errno != EINTR) return fail(ErrorCode::kPeerLost, std::string("the connection broke: ") + std::strerror(errno));
    }
    return {};
}

bool Stream::idle_and_open() const {
    if (tls_ && SSL_pending(tls_.get()) > 0) return false;
    pollfd polled{fd_.get(), POLLIN, 0};
    return ::poll(&polled, 1, 0) == 0;
}

}  // namespace baton::hub
