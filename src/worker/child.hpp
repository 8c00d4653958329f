#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "baton/base/error.hpp"

namespace baton::worker {

struct ChildSpec {
    std::string executable;
    std::vector<std::string> argv;  ///< argv[0] first
    std::vector<std::pair<std::string, std::string>> env;  ///< on top of this process's own
};

struct ChildExit {
    int status = 0;           ///< exit code, or -signal
    std::string last_output;  ///< the last kOutputTailBytes of its stdout and stderr
};

/// A child process in a process group of its own that dies with this process. What it writes is always drained, so that it
/// never blocks, goes on to our stderr as far as that takes it, and its tail is kept. One thread: the io_context's, which
/// must be the thread that called spawn() and live as long as the process, since the kernel ties the parent-death signal
/// to the thread that forked.
class Child : public std::enable_shared_from_this<Child> {
  public:
    static constexpr size_t kOutputTailBytes = 4096;
    using OnExit = std::function<void(ChildExit)>;

    /// Starts the process. `on_exit` runs once, after everything in its group was killed and the child was reaped. kIo
    /// when the executable cannot be run.
    static Expected<std::shared_ptr<Child>> spawn(boost::asio::io_context& io, const ChildSpec& spec, OnExit on_exit);
    explicit Child(boost::asio::io_context& io);
    ~Child();
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;

    [[nodiscard]] int pid() const { return pid_; }
    /// Sends a signal to the whole group; nothing happens when the child is already reaped.
    void signal(int number);

  private:
    void watch();
    void read_output();
    [[nodiscard]] bool read_chunk();
    void take_output(size_t bytes);
    void forward_lines(bool all);
    void drain();
    void reap();

    int pid_ = -1;
    bool reaped_ = false;
    boost::asio::posix::stream_descriptor exit_;    // pidfd
    boost::asio::posix::stream_descriptor output_;  // read end of the pipe
    std::array<char, 4096> chunk_{};
    std::string tail_;
    std::string line_;  // what has not been forwarded yet
    OnExit on_exit_;
};

}  // namespace baton::worker
