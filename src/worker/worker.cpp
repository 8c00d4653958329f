#include "baton/worker/worker.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>

#include "baton/base/log.hpp"
#include "baton/base/service_manager.hpp"
#include "worker/agent.hpp"

namespace baton::worker {
namespace {

/// Makes the kernel end this process with its parent. False when the parent is gone already.
bool die_with_parent() {
    const pid_t parent = ::getppid();
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    return ::getppid() == parent;
}

/// Signs of life from the loop that does the worker's work.
void keep_alive(const ServiceManager& manager, boost::asio::steady_timer& timer) {
    manager.keep_alive();
    timer.expires_after(std::chrono::milliseconds(std::max<int64_t>(1, manager.watchdog_ms() / 3)));
    timer.async_wait([&](const boost::system::error_code& error) {
        if (!error) keep_alive(manager, timer);
    });
}

}  // namespace

int run(const config::WorkerSettings& given) {
    const ServiceManager manager = ServiceManager::from_environment();
    config::WorkerSettings settings = given;
    log::Level level = log::Level::kInfo;
    static_cast<void>(log::parse_level(settings.log_level, level));
    log::init(level, settings.log_format == "json" ? log::Format::kJson : log::Format::kText, {{"process", "worker"}});
    if (auto ok = config::check(settings).and_then([&] { return config::apply_environment(settings); }); !ok) {
        log::error("worker.start_failed", {{"error", ok.error().message}});
        return 2;
    }
    if (settings.child_of_supervisor && !die_with_parent()) return 1;
    ::signal(SIGPIPE, SIG_IGN);

    boost::asio::io_context io(1);
    AgentOptions options;
    options.settings = settings;
    if (options.settings.run_dir.empty()) options.settings.run_dir = config::default_state_dir() + "/run/worker-" + std::to_string(::getpid());
    options.on_registered = [&] { manager.ready("registered"); };
    Agent agent(io, options);
    boost::asio::steady_timer watch(io);
    if (manager.watchdog_ms() > 0) keep_alive(manager, watch);
    boost::asio::signal_set signals(io, SIGTERM);
    // A terminal's Ctrl-C reaches parent and child alike: under `serve` the parent decides.
    if (settings.child_of_supervisor) ::signal(SIGINT, SIG_IGN);
    else signals.add(SIGINT);
    signals.async_wait([&](const boost::system::error_code& error, int) {
        if (error) return;
        manager.stopping("ending its replicas");
        watch.cancel();
        agent.stop(options.stop_grace_ms, 0);
    });
    if (auto started = agent.start(); !started) {
        log::error("worker.start_failed", {{"error", started.error().message}});
        return 1;
    }
    io.run();
    return agent.exit_code();
}

}  // namespace baton::worker
