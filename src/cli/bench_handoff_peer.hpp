#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "baton/base/fd.hpp"
#include "baton/cli/bench.hpp"
#include "cli/client_session.hpp"

namespace baton::cli {

/// Lines of JSON over a socket between the two processes of a bench: the parent asks, the child answers.
class BenchControl {
  public:
    explicit BenchControl(UniqueFd fd) : fd_(std::move(fd)) {}
    /// False where the other process is gone.
    bool send(const Json& line);
    /// kPeerLost where the other process is gone.
    Expected<Json> receive();

  private:
    UniqueFd fd_;
    std::string buffer_;
};

/// The prefill process of `baton bench handoff`: this program, started again. Ends with its parent.
class BenchPeer {
  public:
    /// Starts it; the error says what it says where it cannot make its pool.
    static Expected<std::unique_ptr<BenchPeer>> start(const BenchHandoffOptions& options);
    ~BenchPeer();
    BenchPeer(const BenchPeer&) = delete;
    BenchPeer& operator=(const BenchPeer&) = delete;
    /// Waits until it has its pool.
    Expected<void> wait_ready();
    /// Sends without waiting, and waits for the answer to what was sent; an answer with an "error" is one.
    Expected<void> send(const Json& ask);
    Expected<Json> answer();
    Expected<Json> call(const Json& ask) {
        BATON_TRY(send(ask));
        return answer();
    }

  private:
    BenchPeer(pid_t pid, UniqueFd fd) : pid_(pid), control_(std::move(fd)) {}
    pid_t pid_;
    BenchControl control_;
};

/// What the child runs; `options.peer_fd` is its end of the control socket. The exit code.
int run_bench_handoff_peer(const BenchHandoffOptions& options);

}  // namespace baton::cli
