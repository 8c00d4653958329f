#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <string>

#include "baton/config/settings.hpp"

namespace baton::supervisor {

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
