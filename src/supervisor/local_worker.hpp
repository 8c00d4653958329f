#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <string>

#include "baton/config/settings.hpp"

namespace baton::supervisor {

/// The ip that the local worker is registered under, and that other hosts' replicas connect to: as set, else that of
/// `link_address` or `host` where one names a real one, else the default route's; 127.0.0.1 where nothing leaves this host.
[[nodiscard]] std::string advertised_ip(const config::SupervisorSettings& settings);
/// `bound`, the ip:port that HTTP listens on, with an ip that others can use in place of "all interfaces".
[[nodiscard]] std::string advertised_http(const config::SupervisorSettings& settings, const std::string& bound);

/// The worker that `baton serve` runs as its child process: started, reaped, started again when it dies. Control thread.
class LocalWorker {
  public:
    LocalWorker(boost::asio::io_context& io, config::WorkerSettings settings, std::string secret);
    void start();
    /// SIGTERM; the process ends its replicas. `done` when it is reaped, at most `grace_ms` later (SIGKILL then).
    void stop(int64_t grace_ms, std::function<void()> done);

  private:
    void spawn();
    void watch();

    boost::asio::io_context& io_;
    config::WorkerSettings settings_;
    std::string secret_;
    boost::asio::steady_timer timer_;
    pid_t pid_ = -1;
    int restarts_ = 0;
    int64_t spawn_at_ms_ = 0;
    bool stopping_ = false;
    int64_t kill_at_ms_ = 0;
    std::function<void()> stopped_;
};

}  // namespace baton::supervisor
