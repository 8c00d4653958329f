#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/base/fd.hpp"

/// The operating system's sockets, without Asio. All descriptors are non-blocking and closed on exec.
namespace baton::net {

/// Descriptors one frame may carry.
inline constexpr size_t kFdsPerFrameMax = 8;
/// Bytes of a unix socket's path, without the terminator (sockaddr_un).
inline constexpr size_t kUnixPathBytesMax = 107;

/// A numeric address, or a name that still has to be resolved.
struct HostPort {
    std::string host;
    uint16_t port = 0;
};
/// "1.2.3.4:80", "[::1]:80" or "name:80". kInvalidArgument where it is none of these.
[[nodiscard]] Expected<HostPort> parse_host_port(std::string_view text);
/// `host` as a socket address; kInvalidArgument when it is not a numeric IPv4 or IPv6 address.
struct SocketAddress {
    sockaddr_storage storage{};
    socklen_t bytes = 0;
    [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};
[[nodiscard]] Expected<SocketAddress> numeric_address(const std::string& host, uint16_t port);
/// "ip:port" ("[ip]:port" for IPv6), or "unix".
[[nodiscard]] std::string to_text(const SocketAddress& address, bool with_port = true);
[[nodiscard]] bool is_loopback(const SocketAddress& address);

/// Binds a unix stream socket at `path` with mode 0600 from the first moment. A socket file nobody listens on any more is
/// replaced; one in use, or a file of another kind, is kUnavailable or kInvalidArgument.
[[nodiscard]] Expected<UniqueFd> listen_unix(const std::string& path);
[[nodiscard]] Expected<UniqueFd> listen_tcp(const HostPort& at);
/// The address `fd` is bound to.
[[nodiscard]] SocketAddress local_address(int fd);
[[nodiscard]] SocketAddress remote_address(int fd);

enum class ConnectState : uint8_t { kConnected, kInProgress, kTryAgain };
struct ConnectStart {
    UniqueFd fd;
    ConnectState state = ConnectState::kConnected;
};
/// Begins to connect. kInProgress: wait until writable, then ask connect_result(). kTryAgain: the listener's backlog is
/// full (unix sockets say so instead of waiting).
[[nodiscard]] Expected<ConnectStart> connect_unix(const std::string& path);
[[nodiscard]] Expected<ConnectStart> connect_tcp(const SocketAddress& to);
/// How a connect in progress ended.
[[nodiscard]] Expected<void> connect_result(int fd);

/// Small messages leave at once.
void set_no_delay(int fd);

/// What a read or write call did.
struct IoResult {
    size_t bytes = 0;
    bool would_block = false;
    bool end = false;  ///< the other side closed its sending half
    int error = 0;     ///< errno, 0 where none
};
/// recvmsg with the descriptors that came along. More of them than a frame may carry is the error EMSGSIZE.
[[nodiscard]] IoResult receive(int fd, std::span<std::byte> into, bool unix_socket, std::vector<UniqueFd>& fds);
/// sendmsg of several buffers; `fds` (unix sockets only) go with the first byte.
[[nodiscard]] IoResult send_buffers(int fd, std::span<const std::span<const std::byte>> buffers, std::span<const UniqueFd> fds);

}  // namespace baton::net
