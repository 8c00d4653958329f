// The least that a process between a replica and a client can spend on a token: it sleeps until a message comes on a unix socket, and writes a
// frame to a TCP socket. One thread, three system calls, no text, no HTTP.
//   relay_floor TOKENS GAP_US [bytes of a message] [bytes of a frame]
// prints the port it listens on, takes one client, and after its first bytes relays TOKENS messages that another process sends GAP_US apart.
// scripts/measure_front_end.py reads what it spent.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

namespace {

/// Sends `tokens` messages, each `gap_ns` after the one before.
void feed(int to, int64_t tokens, int64_t gap_ns, size_t bytes) {
    ::prctl(PR_SET_TIMERSLACK, 1UL);
    const std::vector<char> message(bytes, 'm');
    timespec at{};
    ::clock_gettime(CLOCK_MONOTONIC, &at);
    for (int64_t i = 0; i < tokens; ++i) {
        at.tv_nsec += gap_ns;
        at.tv_sec += at.tv_nsec / 1'000'000'000;
        at.tv_nsec %= 1'000'000'000;
        ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
        if (::send(to, message.data(), bytes, MSG_NOSIGNAL) < 0) return;
    }
}

int listen_on_loopback(uint16_t& port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof at;
    if (::bind(fd, reinterpret_cast<sockaddr*>(&at), size) != 0 || ::listen(fd, 1) != 0) return -1;
    ::getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size);
    port = ntohs(at.sin_port);
    return fd;
}

/// Until `tokens` messages are through; false where an end is gone.
bool relay(int from, int to, int64_t tokens, size_t message_bytes, size_t frame_bytes) {
    const int poll = ::epoll_create1(EPOLL_CLOEXEC);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    ::epoll_ctl(poll, EPOLL_CTL_ADD, from, &event);
    std::string frame = "data: {";
    frame.resize(frame_bytes, 'f');
    std::string out;
    std::vector<char> in(64 * 1024);
    size_t left = 0;  // bytes of a message that is not whole
    for (int64_t done = 0; done < tokens;) {
        ::epoll_wait(poll, &event, 1, -1);
        const ssize_t got = ::recv(from, in.data(), in.size(), MSG_DONTWAIT);
        if (got < 0) continue;
        if (got == 0) return false;
        left += static_cast<size_t>(got);
        out.clear();
        for (; left >= message_bytes; left -= message_bytes, ++done) out += frame;
        if (::send(to, out.data(), out.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(out.size())) return false;
    }
    return true;
}

}  // namespace

int main(int count, char** values) {
    const auto number = [&](int i, int64_t otherwise) { return count > i ? std::atoll(values[i]) : otherwise; };
    const int64_t tokens = number(1, 1000), gap_us = number(2, 20);
    const auto message_bytes = static_cast<size_t>(number(3, 57)), frame_bytes = static_cast<size_t>(number(4, 330));
    int link[2];
    uint16_t port = 0;
    const int listener = listen_on_loopback(port);
    if (listener < 0 || ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, link) != 0) return 1;
    std::printf("%u\n", unsigned{port});
    std::fflush(stdout);
    const int client = ::accept(listener, nullptr, nullptr);
    const int one = 1;
    ::setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    char request[4096];
    if (::recv(client, request, sizeof request, 0) <= 0) return 1;
    const pid_t child = ::fork();
    if (child < 0) return 1;
    if (child == 0) {
        ::close(link[0]);
        feed(link[1], tokens, gap_us * 1000, message_bytes);
        ::_exit(0);
    }
    ::close(link[1]);
    if (!relay(link[0], client, tokens, message_bytes, frame_bytes)) return 1;
    ::send(client, "data: [DONE]", 12, MSG_NOSIGNAL);
    while (::recv(client, request, sizeof request, 0) > 0) {}
    return 0;
}
