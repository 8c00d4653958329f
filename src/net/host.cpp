#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "baton/net/connection.hpp"
#include "net/socket.hpp"

namespace baton::net {

std::string default_host_id() {
    std::string boot;
    std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
    std::array<char, 64> link{};
    const ssize_t n = ::readlink("/proc/self/ns/net", link.data(), link.size());
    return boot + "/" + std::string(link.data(), n > 0 ? static_cast<size_t>(n) : 0);
}

std::string default_route_ip() {
    // Connecting a datagram socket sends nothing: it only picks the route and with it the source address.
    const auto to = numeric_address("192.0.2.1", 9);
    const UniqueFd fd(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!to || !fd || ::connect(fd.get(), to->get(), to->bytes) != 0) return "127.0.0.1";
    const SocketAddress own = local_address(fd.get());
    return own.storage.ss_family == AF_INET ? to_text(own, false) : "127.0.0.1";
}

}  // namespace baton::net
