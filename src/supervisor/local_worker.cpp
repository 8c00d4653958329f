#include "local_worker.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "baton/base/clock.hpp"
#include "baton/base/host_of.hpp"
#include "baton/base/log.hpp"
#include "baton/net/connection.hpp"

namespace baton::supervisor {
namespace {

constexpr int64_t kWatchMs = 50;

/// An address that a socket is bound to and others cannot connect to.
bool is_unspecified(std::string_view ip) { return ip == "0.0.0.0" || ip == "::" || ip == "[::]"; }

bool is_ip(const std::string& text) {
    in6_addr ip{};
    return ::inet_pton(AF_INET, text.c_str(), &ip) == 1 || ::inet_pton(AF_INET6, text.c_str(), &ip) == 1;
}

std::string without_brackets(std::string ip) {
    if (ip.starts_with('[') && ip.ends_with(']')) ip = ip.substr(1, ip.size() - 2);
    return ip;
}

/// The first process of a container also inherits what a killed worker leaves: its replicas, which nobody else waits for.
void reap_inherited(pid_t own) {
    if (::getpid() != 1) return;
    siginfo_t info{};
    while (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid > 0 && info.si_pid != own) {
        ::waitpid(info.si_pid, nullptr, WNOHANG);
        info = {};
    }
}

}  // namespace

std::string advertised_ip(const config::SupervisorSettings& settings) {
    if (!settings.advertise_address.empty()) return settings.advertise_address;
    const std::string link = settings.link_address.empty() ? "" : without_brackets(std::string(host_of(settings.link_address)));
    if (!link.empty() && !is_unspecified(link)) return link;
    const bool everywhere = is_unspecified(settings.host);
    if (link.empty() && !everywhere) return is_ip(settings.host) ? settings.host : "127.0.0.1";
    return net::default_route_ip();
}

std::string advertised_http(const config::SupervisorSettings& settings, const std::string& bound) {
    if (!is_unspecified(host_of(bound))) return bound;
    const std::string ip = advertised_ip(settings);
    return (ip.find(':') == std::string::npos ? ip : "[" + ip + "]") + bound.substr(bound.rfind(':'));
}

LocalWorker::LocalWorker(boost::asio::io_context& io, config::WorkerSettings settings, std::string secret)
    : io_(io), settings_(std::move(settings)), secret_(std::move(secret)), timer_(io) {}

void LocalWorker::start() {
    spawn();
    watch();
}

void LocalWorker::spawn() {
    // Everything the child needs is made before fork: between fork and exec only async-signal-safe calls are allowed.
    std::vector<std::string> args{"baton", "worker"};
    for (std::string& a : config::to_args(settings_)) args.push_back(std::move(a));
    std::vector<char*> argv;
    for (std::string& a : args) argv.push_back(a.data());
    argv.push_back(nullptr);
    std::vector<std::string> env;
    for (char** e = environ; *e != nullptr; ++e)
        if (std::string_view(*e).rfind("BATON_LINK_SECRET=", 0) != 0) env.emplace_back(*e);
    env.push_back("BATON_LINK_SECRET=" + secret_);
    std::vector<char*> envp;
    for (std::string& e : env) envp.push_back(e.data());
    envp.push_back(nullptr);

    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid == 0) {
        // The supervisor's main thread forks and lives as long as the process: its death is the process's death.
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (::getppid() != parent) ::_exit(1);
        ::setpgid(0, 0);
        sigset_t none;
        ::sigemptyset(&none);
        ::sigprocmask(SIG_SETMASK, &none, nullptr);
        const int null = ::open("/dev/null", O_RDONLY);
        if (null >= 0) ::dup2(null, STDIN_FILENO);
        // A listener or a client's connection that the worker held on to would outlive our closing it.
        ::close_range(3, ~0U, CLOSE_RANGE_CLOEXEC);
        ::execve("/proc/self/exe", argv.data(), envp.data());
        ::_exit(127);
    }
    if (pid < 0) log::error("worker.fork_failed");
    pid_ = pid;
}

void LocalWorker::watch() {
    timer_.expires_after(std::chrono::milliseconds(kWatchMs));
    timer_.async_wait([this](boost::system::error_code ec) {
        if (ec) return;
        int status = 0;
        if (pid_ > 0 && ::waitpid(pid_, &status, WNOHANG) == pid_) {
            pid_ = -1;
            if (!stopping_) log::error("worker.died", {{"status", WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status)}});
        }
        reap_inherited(pid_);
        if (stopping_) {
            if (pid_ < 0) {
                if (stopped_) std::exchange(stopped_, nullptr)();
                return;
            }
            if (steady_now().ms >= kill_at_ms_) ::kill(pid_, SIGKILL);
        } else if (pid_ < 0) {
            // A worker that cannot start must not fork in a loop: the pause grows to 5 s, and shrinks after a good minute.
            const int64_t now = steady_now().ms;
            if (now < spawn_at_ms_) return watch();
            restarts_ = now - spawn_at_ms_ > 60'000 ? 0 : std::min(restarts_ + 1, 6);
            spawn_at_ms_ = now + std::min<int64_t>(5'000, 100ll << restarts_);
            spawn();
        }
        watch();
    });
}

void LocalWorker::stop(int64_t grace_ms, std::function<void()> done) {
    stopping_ = true;
    stopped_ = std::move(done);
    kill_at_ms_ = steady_now().ms + grace_ms;
    if (pid_ > 0) ::kill(pid_, SIGTERM);
    timer_.cancel();
    watch();
}

}  // namespace baton::supervisor
