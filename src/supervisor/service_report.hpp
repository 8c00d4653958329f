#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <memory>
#include <string>

#include "baton/base/service_manager.hpp"

namespace baton::supervisor {

/// Tells the service manager how the supervisor is: ready once all that it was to start routes, alive as long as its loops turn.
/// Control thread.
class ServiceReport {
  public:
    struct Services {
        boost::asio::io_context& control;
        boost::asio::thread_pool& text;
        std::function<std::string()> not_ready;  ///< why not, or ""
        std::function<std::string()> summary;    ///< a line for people
    };
    ServiceReport(ServiceManager manager, Services services);

    /// Begins to look and to tell.
    void start();
    /// Settings are being read again, until reloaded().
    void reloading();
    void reloaded();
    /// The end has begun and takes at most that long. Nothing but signs of life follows.
    void stopping(const std::string& why, int64_t ms);

  private:
    void look();
    void watch();

    ServiceManager manager_;
    Services services_;
    boost::asio::steady_timer look_timer_, watch_timer_;
    std::string said_;
    bool ready_ = false;
    bool stopping_ = false;
};

}  // namespace baton::supervisor
