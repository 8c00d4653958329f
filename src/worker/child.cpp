#include "worker/child.hpp"

#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "baton/base/fd.hpp"

extern char** environ;

namespace baton::worker {
namespace {

constexpr size_t kPipeBytesMax = 64 * 1024;  // what a pipe holds

std::string os_error(const char* what) { return std::string(what) + ": " + std::strerror(errno); }

/// The environment of the child: ours without our own settings, then what the spec adds.
std::vector<std::string> make_environment(const ChildSpec& spec) {
    std::vector<std::string> out;
    for (char** e = environ; e != nullptr && *e != nullptr; ++e) {
        const std::string_view entry(*e);
        if (entry.starts_with("BATON_API_KEY") || entry.starts_with("BATON_LINK_SECRET=")) continue;
        const std::string_view name = entry.substr(0, entry.find('='));
        const bool replaced = std::any_of(spec.env.begin(), spec.env.end(), [&](const auto& kv) { return kv.first == name; });
        if (!replaced) out.emplace_back(entry);
    }
    for (const auto& [key, value] : spec.env) out.push_back(key + "=" + value);
    return out;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> out;
    for (auto& s : strings) out.push_back(s.data());
    out.push_back(nullptr);
    return out;
}

struct Launch {
    const char* executable;
    char** argv;
    char** envp;
    int null_fd, output_fd, error_fd;
    pid_t parent;
};

/// Runs in the child between fork and exec: async-signal-safe calls only.
[[noreturn]] void become(const Launch& l) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The parent may have died before the line above; then nobody would ever send the signal.
    if (::getppid() != l.parent) ::_exit(127);
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);
    for (const int s : {SIGTERM, SIGINT, SIGHUP, SIGPIPE, SIGCHLD, SIGQUIT}) ::signal(s, SIG_DFL);
    ::dup2(l.null_fd, STDIN_FILENO);
    ::dup2(l.output_fd, STDOUT_FILENO);
    ::dup2(l.output_fd, STDERR_FILENO);
    ::close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
    ::execve(l.executable, l.argv, l.envp);
    const int error = errno;
    [[maybe_unused]] const ssize_t n = ::write(l.error_fd, &error, sizeof error);
    ::_exit(127);
}

/// Our own stderr, as far as it takes bytes without waiting.
void write_without_waiting(std::string_view text) {
    while (!text.empty()) {
        pollfd p{STDERR_FILENO, POLLOUT, 0};
        if (::poll(&p, 1, 0) != 1 || (p.revents & POLLOUT) == 0) return;
        const ssize_t n = ::write(STDERR_FILENO, text.data(), std::min<size_t>(text.size(), 4096));
        if (n <= 0) return;
        text.remove_prefix(static_cast<size_t>(n));
    }
}

}  // namespace

Child::Child(boost::asio::io_context& io) : exit_(io), output_(io) {}

Child::~Child() {
    if (pid_ > 0 && !reaped_) {
        ::kill(-pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
}

Expected<std::shared_ptr<Child>> Child::spawn(boost::asio::io_context& io, const ChildSpec& spec, OnExit on_exit) {
    int output[2], error[2];
    if (::pipe2(output, O_CLOEXEC) != 0) return fail(ErrorCode::kIo, os_error("pipe"));
    UniqueFd output_read(output[0]), output_write(output[1]);
    if (::pipe2(error, O_CLOEXEC) != 0) return fail(ErrorCode::kIo, os_error("pipe"));
    UniqueFd error_read(error[0]), error_write(error[1]);
    UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (!null) return fail(ErrorCode::kIo, os_error("/dev/null"));

    std::vector<std::string> argv = spec.argv, env = make_environment(spec);
    std::vector<char*> argv_pointers = pointers(argv), env_pointers = pointers(env);
    const Launch launch{spec.executable.c_str(), argv_pointers.data(), env_pointers.data(), null.get(),
                        output_write.get(), error_write.get(), ::getpid()};
    const pid_t pid = ::fork();
    if (pid < 0) return fail(ErrorCode::kIo, os_error("fork"));
    if (pid == 0) become(launch);
    ::setpgid(pid, pid);  // the child does it too; whoever comes first

    auto child = std::make_shared<Child>(io);
    child->pid_ = pid;
    error_write.reset();
    int exec_error = 0;
    if (::read(error_read.get(), &exec_error, sizeof exec_error) == sizeof exec_error)
        return fail(ErrorCode::kIo, "cannot run " + spec.executable + ": " + std::strerror(exec_error));
    const int pidfd = static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
    if (pidfd < 0) return fail(ErrorCode::kIo, os_error("pidfd_open"));
    child->exit_.assign(pidfd);
    ::fcntl(output_read.get(), F_SETFL, O_NONBLOCK);
    child->output_.assign(output_read.release());
    child->on_exit_ = std::move(on_exit);
    child->watch();
    child->read_output();
    return child;
}

void Child::signal(int number) {
    if (pid_ > 0 && !reaped_) ::kill(-pid_, number);
}

void Child::watch() {
    exit_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     [self = shared_from_this()](const boost::system::error_code& error) {
                         if (!error) self->reap();
                     });
}

/// Waits for bytes and reads them itself, so that none are ever in a handler's hands when drain() reads the rest.
void Child::read_output() {
    output_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                       [self = shared_from_this()](const boost::system::error_code& error) {
                           if (error || self->reaped_) return;
                           if (self->read_chunk()) self->read_output();
                       });
}

/// False at the end of the output.
bool Child::read_chunk() {
    const ssize_t n = ::read(output_.native_handle(), chunk_.data(), chunk_.size());
    if (n > 0) take_output(static_cast<size_t>(n));
    return n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR));
}

void Child::take_output(size_t bytes) {
    const std::string_view text(chunk_.data(), bytes);
    tail_ += text;
    if (tail_.size() > 2 * kOutputTailBytes) tail_.erase(0, tail_.size() - kOutputTailBytes);
    line_ += text;
    forward_lines(line_.size() > kOutputTailBytes);
}

/// Whole lines only, so that those of several replicas do not mix.
void Child::forward_lines(bool all) {
    const size_t end = all ? line_.size() : line_.rfind('\n') + 1;  // npos + 1 is 0
    if (end == 0) return;
    write_without_waiting(std::string_view(line_).substr(0, end));
    line_.erase(0, end);
}

/// What is left in the pipe of a child that ended; others may still hold its write end, so never wait.
void Child::drain() {
    boost::system::error_code ignored;
    output_.cancel(ignored);
    pollfd p{output_.native_handle(), POLLIN, 0};
    for (size_t left = kPipeBytesMax / chunk_.size(); left > 0 && ::poll(&p, 1, 0) == 1; --left)
        if (!read_chunk()) break;
    if (!line_.empty()) forward_lines(true);
    output_.close(ignored);
    if (tail_.size() > kOutputTailBytes) tail_.erase(0, tail_.size() - kOutputTailBytes);
}

void Child::reap() {
    if (reaped_) return;
    // The group's number stays ours until the child is reaped: first whatever it left behind, then the child.
    ::kill(-pid_, SIGKILL);
    siginfo_t info{};
    while (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED) != 0 && errno == EINTR) {
    }
    reaped_ = true;
    drain();
    boost::system::error_code ignored;
    exit_.close(ignored);
    ChildExit result;
    result.status = info.si_code == CLD_EXITED ? info.si_status : -info.si_status;
    result.last_output = std::move(tail_);
    if (auto done = std::exchange(on_exit_, nullptr)) done(std::move(result));
}

}  // namespace baton::worker
