#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace baton {

/// The way to a service manager that started this process with a notification socket (systemd, sd_notify(3)). Without one every
/// call does nothing. Any thread.
class ServiceManager {
  public:
    /// Takes NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID out of the environment, so that children do not speak for this
    /// process. Call it while the process has one thread.
    static ServiceManager from_environment();

    [[nodiscard]] bool present() const { return !address_.empty(); }
    /// How often it wants to hear keep_alive() at least; 0: it does not watch this process.
    [[nodiscard]] int64_t watchdog_ms() const { return watchdog_ms_; }

    void ready(std::string_view status) const;      ///< serving, also after reloading()
    void reloading() const;                         ///< until the next ready()
    void stopping(std::string_view status) const;
    void status(std::string_view status) const;     ///< one line for people
    void keep_alive() const;
    /// The manager's patience with a start or stop under way, from now.
    void extend_timeout(int64_t ms) const;

  private:
    void send(const std::string& text) const;

    std::string address_;  ///< path, or '\0' and an abstract name
    int64_t watchdog_ms_ = 0;
};

}  // namespace baton
