#include "service_report.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>

#include "baton/base/log.hpp"

namespace baton::supervisor {
namespace {

constexpr int64_t kStartingLookMs = 50;
constexpr int64_t kLookMs = 2'000;
constexpr int64_t kStartPatienceMs = 30'000;

}  // namespace

ServiceReport::ServiceReport(ServiceManager manager, Services services)
    : manager_(std::move(manager)), services_(std::move(services)), look_timer_(services_.control), watch_timer_(services_.control) {}

void ServiceReport::start() {
    if (!manager_.present()) return;
    look();
    if (manager_.watchdog_ms() > 0) watch();
}

void ServiceReport::reloading() {
    if (ready_ && !stopping_) manager_.reloading();
}

void ServiceReport::reloaded() {
    if (ready_ && !stopping_) manager_.ready(services_.summary());
}

void ServiceReport::stopping(const std::string& why, int64_t ms) {
    if (stopping_) return;
    stopping_ = true;
    manager_.stopping(why);
    manager_.extend_timeout(ms);
}

void ServiceReport::look() {
    if (stopping_) return;
    const std::string why = services_.not_ready();
    const std::string line = why.empty() ? services_.summary() : why;
    if (!ready_ && why.empty()) {
        ready_ = true;
        manager_.ready(line);
        log::info("service.ready", {{"status", line}});
    } else if (line != said_) {
        manager_.status(line);
    }
    // A model may load, or download, for longer than the manager waits for a start. A launch that hangs ends by its own limits.
    if (!ready_) manager_.extend_timeout(kStartPatienceMs);
    said_ = line;
    look_timer_.expires_after(std::chrono::milliseconds(ready_ ? kLookMs : kStartingLookMs));
    look_timer_.async_wait([this](boost::system::error_code ec) {
        if (!ec) look();
    });
}

/// A sign of life goes through the control loop and the pool that prepares requests: where one of them is stuck, none comes.
void ServiceReport::watch() {
    boost::asio::post(services_.text, [this] {
        boost::asio::post(services_.control, [this] {
            manager_.keep_alive();
            watch_timer_.expires_after(std::chrono::milliseconds(std::max<int64_t>(1, manager_.watchdog_ms() / 3)));
            watch_timer_.async_wait([this](boost::system::error_code ec) {
                if (!ec) watch();
            });
        });
    });
}

}  // namespace baton::supervisor
