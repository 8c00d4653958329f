#include "net/socket.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>

#include "baton/base/clock.hpp"

namespace baton::net {
namespace {

constexpr int kBacklog = 256;

tl::unexpected<Error> os_error(const std::string& what, int error) {
    return fail(ErrorCode::kIo, what + ": " + std::strerror(error));
}

Expected<UniqueFd> open_socket(int family) {
    UniqueFd fd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) return os_error("cannot open a socket", errno);
    return fd;
}

Expected<SocketAddress> unix_address(const std::string& path) {
    if (path.empty()) return fail(ErrorCode::kInvalidArgument, "socket path is empty");
    if (path.size() > kUnixPathBytesMax)
        return fail(ErrorCode::kInvalidArgument, "socket path is " + std::to_string(path.size()) +
                                                     " bytes long, at most " + std::to_string(kUnixPathBytesMax) +
                                                     " are possible: choose a shorter run directory");
    if (path.find('\0') != std::string::npos) return fail(ErrorCode::kInvalidArgument, "socket path has a zero byte");
    SocketAddress a;
    sockaddr_un un{};
    un.sun_family = AF_UNIX;
    std::memcpy(un.sun_path, path.data(), path.size());
    std::memcpy(&a.storage, &un, sizeof un);
    a.bytes = sizeof un;
    return a;
}

/// Keeps two processes from replacing the same stale socket file at once; released on close.
Expected<UniqueFd> lock_directory_of(const std::string& path) {
    const size_t slash = path.rfind('/');
    const std::string directory = slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
    UniqueFd fd(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) return os_error("cannot open the socket's directory " + directory, errno);
    const TimeMs deadline = steady_now() + 2'000;
    while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) break;  // some file systems cannot lock a directory
        if (steady_now() >= deadline) return fail(ErrorCode::kUnavailable, directory + " stays locked by another process");
        const timespec nap{0, 1'000'000};
        ::nanosleep(&nap, nullptr);
    }
    return fd;
}

/// Removes a socket file that nobody listens on.
Expected<void> clear_stale(const std::string& path, const SocketAddress& address) {
    struct stat st {};
    if (::lstat(path.c_str(), &st) != 0) {
        if (errno == ENOENT) return {};
        return os_error("cannot look at " + path, errno);
    }
    if (!S_ISSOCK(st.st_mode)) return fail(ErrorCode::kInvalidArgument, path + " is there and is not a socket");
    auto probe = open_socket(AF_UNIX);
    if (!probe) return fail(std::move(probe).error());
    if (::connect(probe->get(), address.get(), address.bytes) == 0 || errno == EAGAIN)
        return fail(ErrorCode::kUnavailable, "another process listens on " + path);
    if (errno == ENOENT) return {};
    if (errno != ECONNREFUSED) return os_error("cannot probe " + path, errno);
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) return os_error("cannot remove the stale socket " + path, errno);
    return {};
}

}  // namespace

Expected<HostPort> parse_host_port(std::string_view text) {
    const auto bad = [&] {
        return fail(ErrorCode::kInvalidArgument, "address must be host:port, got '" + std::string(text.substr(0, 128)) + "'");
    };
    const size_t colon = text.rfind(':');
    if (colon == std::string_view::npos) return bad();
    std::string_view host = text.substr(0, colon);
    const std::string_view port = text.substr(colon + 1);
    if (host.size() >= 2 && host.front() == '[' && host.back() == ']')
        host = host.substr(1, host.size() - 2);
    else if (host.find(':') != std::string_view::npos)
        return bad();
    HostPort out;
    const auto [end, ec] = std::from_chars(port.data(), port.data() + port.size(), out.port);
    if (host.empty() || host.size() > 255 || port.empty() || ec != std::errc() || end != port.data() + port.size())
        return bad();
    out.host = std::string(host);
    return out;
}

Expected<SocketAddress> numeric_address(const std::string& host, uint16_t port) {
    SocketAddress a;
    sockaddr_in in4{};
    sockaddr_in6 in6{};
    if (::inet_pton(AF_INET, host.c_str(), &in4.sin_addr) == 1) {
        in4.sin_family = AF_INET;
        in4.sin_port = htons(port);
        std::memcpy(&a.storage, &in4, sizeof in4);
        a.bytes = sizeof in4;
        return a;
    }
    if (::inet_pton(AF_INET6, host.c_str(), &in6.sin6_addr) == 1) {
        in6.sin6_family = AF_INET6;
        in6.sin6_port = htons(port);
        std::memcpy(&a.storage, &in6, sizeof in6);
        a.bytes = sizeof in6;
        return a;
    }
    return fail(ErrorCode::kInvalidArgument, "not a numeric address: " + host.substr(0, 128));
}

std::string to_text(const SocketAddress& address, bool with_port) {
    std::array<char, INET6_ADDRSTRLEN> text{};
    if (address.storage.ss_family == AF_INET) {
        sockaddr_in in{};
        std::memcpy(&in, &address.storage, sizeof in);
        ::inet_ntop(AF_INET, &in.sin_addr, text.data(), text.size());
        return with_port ? std::string(text.data()) + ":" + std::to_string(ntohs(in.sin_port)) : text.data();
    }
    if (address.storage.ss_family == AF_INET6) {
        sockaddr_in6 in{};
        std::memcpy(&in, &address.storage, sizeof in);
        ::inet_ntop(AF_INET6, &in.sin6_addr, text.data(), text.size());
        if (!with_port) return text.data();
        std::string out(1, '[');  // appended piece by piece: gcc 12 warns falsely of "[" + std::string
        out.append(text.data()).append("]:").append(std::to_string(ntohs(in.sin6_port)));
        return out;
    }
    return "unix";
}

bool is_loopback(const SocketAddress& address) {
    if (address.storage.ss_family == AF_INET) {
        sockaddr_in in{};
        std::memcpy(&in, &address.storage, sizeof in);
        return (ntohl(in.sin_addr.s_addr) >> 24) == 127;
    }
    if (address.storage.ss_family == AF_INET6) {
        sockaddr_in6 in{};
        std::memcpy(&in, &address.storage, sizeof in);
        return IN6_IS_ADDR_LOOPBACK(&in.sin6_addr);
    }
    return false;
}

Expected<UniqueFd> listen_unix(const std::string& path) {
    BATON_TRY_ASSIGN(const SocketAddress address, unix_address(path));
    BATON_TRY_ASSIGN(const UniqueFd lock, lock_directory_of(path));
    BATON_TRY(clear_stale(path, address));
    BATON_TRY_ASSIGN(UniqueFd fd, open_socket(AF_UNIX));
    // Linux takes the file's mode from the socket's inode: no moment in which others could connect.
    if (::fchmod(fd.get(), 0600) != 0) return os_error("cannot restrict the socket", errno);
    if (::bind(fd.get(), address.get(), address.bytes) != 0) return os_error("cannot bind " + path, errno);
    struct stat st {};
    if (::lstat(path.c_str(), &st) != 0 || (st.st_mode & 0177) != 0) {
        ::unlink(path.c_str());
        return fail(ErrorCode::kIo, path + " cannot be made private to this user");
    }
    if (::listen(fd.get(), kBacklog) != 0) return os_error("cannot listen on " + path, errno);
    return fd;
}

Expected<UniqueFd> listen_tcp(const HostPort& at) {
    BATON_TRY_ASSIGN(const SocketAddress address, numeric_address(at.host, at.port));
    BATON_TRY_ASSIGN(UniqueFd fd, open_socket(address.storage.ss_family));
    const int one = 1;
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (::bind(fd.get(), address.get(), address.bytes) != 0) return os_error("cannot bind " + to_text(address), errno);
    if (::listen(fd.get(), kBacklog) != 0) return os_error("cannot listen on " + to_text(address), errno);
    return fd;
}

SocketAddress local_address(int fd) {
    SocketAddress a;
    a.bytes = sizeof a.storage;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&a.storage), &a.bytes) != 0) a = {};
    return a;
}

SocketAddress remote_address(int fd) {
    SocketAddress a;
    a.bytes = sizeof a.storage;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&a.storage), &a.bytes) != 0) a = {};
    return a;
}

Expected<ConnectStart> connect_unix(const std::string& path) {
    BATON_TRY_ASSIGN(const SocketAddress address, unix_address(path));
    BATON_TRY_ASSIGN(UniqueFd fd, open_socket(AF_UNIX));
    if (::connect(fd.get(), address.get(), address.bytes) == 0)
        return ConnectStart{std::move(fd), ConnectState::kConnected};
    if (errno == EAGAIN || errno == EINTR) return ConnectStart{std::move(fd), ConnectState::kTryAgain};
    return fail(ErrorCode::kUnavailable, "cannot connect to " + path + ": " + std::strerror(errno));
}

Expected<ConnectStart> connect_tcp(const SocketAddress& to) {
    BATON_TRY_ASSIGN(UniqueFd fd, open_socket(to.storage.ss_family));
    set_no_delay(fd.get());
    if (::connect(fd.get(), to.get(), to.bytes) == 0) return ConnectStart{std::move(fd), ConnectState::kConnected};
    if (errno == EINPROGRESS || errno == EINTR) return ConnectStart{std::move(fd), ConnectState::kInProgress};
    return fail(ErrorCode::kUnavailable, "cannot connect to " + to_text(to) + ": " + std::strerror(errno));
}

Expected<void> connect_result(int fd) {
    int error = 0;
    socklen_t bytes = sizeof error;
    if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
    if (error != 0) return fail(ErrorCode::kUnavailable, std::string("cannot connect: ") + std::strerror(error));
    return {};
}

void set_no_delay(int fd) {
    const int one = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

IoResult receive(int fd, std::span<std::byte> into, bool unix_socket, std::vector<UniqueFd>& fds) {
    iovec part{into.data(), into.size()};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int) * kFdsPerFrameMax)> control;
    msghdr msg{};
    msg.msg_iov = &part;
    msg.msg_iovlen = 1;
    if (unix_socket) {
        msg.msg_control = control.data();
        msg.msg_controllen = control.size();
    }
    ssize_t n = 0;
    do {
        n = ::recvmsg(fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n < 0) {
        const int error = errno;
        if (error == EAGAIN || error == EWOULDBLOCK) return {.would_block = true};
        return {.error = error};
    }
    for (cmsghdr* c = CMSG_FIRSTHDR(&msg); unix_socket && c != nullptr; c = CMSG_NXTHDR(&msg, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
        const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; ++i) {
            int passed = -1;
            std::memcpy(&passed, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            fds.emplace_back(passed);
        }
    }
    if ((msg.msg_flags & MSG_CTRUNC) != 0) return {.error = EMSGSIZE};
    return {.bytes = static_cast<size_t>(n), .end = n == 0};
}

IoResult send_buffers(int fd, std::span<const std::span<const std::byte>> buffers, std::span<const UniqueFd> fds) {
    std::array<iovec, 128> parts;
    size_t count = 0;
    for (const auto& b : buffers) {
        if (count == parts.size()) break;
        if (b.empty()) continue;
        parts[count++] = {const_cast<std::byte*>(b.data()), b.size()};
    }
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int) * kFdsPerFrameMax)> control{};
    msghdr msg{};
    msg.msg_iov = parts.data();
    msg.msg_iovlen = count;
    if (!fds.empty()) {
        msg.msg_control = control.data();
        msg.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
        cmsghdr* c = CMSG_FIRSTHDR(&msg);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
        for (size_t i = 0; i < fds.size(); ++i) {
            const int raw = fds[i].get();
            std::memcpy(CMSG_DATA(c) + i * sizeof(int), &raw, sizeof(int));
        }
    }
    ssize_t n = 0;
    do {
        n = ::sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n >= 0) return {.bytes = static_cast<size_t>(n)};
    const int error = errno;
    if (error == EAGAIN || error == EWOULDBLOCK) return {.would_block = true};
    return {.error = error};
}

}  // namespace baton::net
