#include "baton/base/service_manager.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "baton/base/clock.hpp"
#include "baton/base/fd.hpp"

namespace baton {
namespace {

std::string take(const char* name) {
    const char* value = std::getenv(name);
    std::string text = value == nullptr ? "" : value;
    ::unsetenv(name);
    return text;
}

int64_t number(const std::string& text) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc{} && end == text.data() + text.size() ? value : 0;
}

/// A status is one line: what would begin another one does not.
std::string line(std::string_view text) {
    std::string out(text);
    std::replace_if(out.begin(), out.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
    return out;
}

}  // namespace

ServiceManager ServiceManager::from_environment() {
    ServiceManager manager;
    manager.address_ = take("NOTIFY_SOCKET");
    const int64_t usec = number(take("WATCHDOG_USEC"));
    const int64_t pid = number(take("WATCHDOG_PID"));
    // A path, or an abstract name behind '@'; vsock and the like are not for processes like this one.
    if (manager.address_.size() < 2 || (manager.address_[0] != '/' && manager.address_[0] != '@') || manager.address_.size() >= sizeof(sockaddr_un::sun_path))
        manager.address_.clear();
    else if (manager.address_[0] == '@')
        manager.address_[0] = '\0';
    if (manager.present() && usec > 0 && (pid == 0 || pid == ::getpid())) manager.watchdog_ms_ = std::max<int64_t>(1, usec / 1000);
    return manager;
}

void ServiceManager::ready(std::string_view status) const { send("READY=1\nSTATUS=" + line(status)); }

void ServiceManager::reloading() const { send("RELOADING=1\nMONOTONIC_USEC=" + std::to_string(steady_now_us())); }

void ServiceManager::stopping(std::string_view status) const { send("STOPPING=1\nSTATUS=" + line(status)); }

void ServiceManager::status(std::string_view status) const { send("STATUS=" + line(status)); }

void ServiceManager::keep_alive() const { send("WATCHDOG=1"); }

void ServiceManager::extend_timeout(int64_t ms) const { send("EXTEND_TIMEOUT_USEC=" + std::to_string(ms * 1000)); }

void ServiceManager::send(const std::string& text) const {
    if (!present()) return;
    const UniqueFd socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket) return;
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    std::memcpy(to.sun_path, address_.data(), address_.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address_.size());
    // What cannot be said is not said again: a manager that misses it acts by its own timeouts.
    (void)::sendto(socket.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT, reinterpret_cast<const sockaddr*>(&to), size);
}

}  // namespace baton
