#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "baton/backend/backend.hpp"
#include "baton/cli/bench.hpp"
#include "baton/net/connection.hpp"
#include "baton/xavier/mover.hpp"

/// One of the two processes of `baton bench handoff`: a pool in host memory or on a GPU, a transfer thread and a link, as a
/// replica has them, without engine and supervisor.
namespace baton::cli {

inline const wire::ReplicaTarget kBenchPrefill{{1}, {1}};
inline const wire::ReplicaTarget kBenchDecode{{2}, {1}};

/// GPU numbers of `devices` ("0,1": prefill on 0, decode on 1); none where it is empty. kInvalidArgument for other text.
struct BenchGpus {
    uint32_t prefill = 0, decode = 0;
};
[[nodiscard]] Expected<std::optional<BenchGpus>> bench_gpus(const std::string& devices);

/// Blocks that both processes know hand-off `i` of a set to have in the pool of one of them: each set lies elsewhere.
[[nodiscard]] std::vector<BlockId> bench_blocks(uint64_t set, bool prefill, uint32_t pool_blocks, uint32_t i, uint32_t count);

class HandoffEnd {
  public:
    /// Makes the pool (and loads random weights where it is on a GPU). `blocks` of it are for hand-offs, the others a
    /// decoding batch's.
    static Expected<std::unique_ptr<HandoffEnd>> make(const BenchHandoffOptions& options, bool prefill);
    ~HandoffEnd();
    HandoffEnd(const HandoffEnd&) = delete;
    HandoffEnd& operator=(const HandoffEnd&) = delete;

    [[nodiscard]] const kv::PoolLayout& layout() const { return words_->layout(); }
    [[nodiscard]] uint32_t handoff_blocks() const { return handoff_blocks_; }
    [[nodiscard]] backend::DeviceBackend* backend() { return backend_.get(); }
    [[nodiscard]] xavier::SharedPool& pool() { return *words_; }
    [[nodiscard]] xavier::TransferThread& thread() { return *thread_; }

    /// P: waits for a link at the unix socket `path`, and answers it. Returns when it listens.
    Expected<void> listen(const std::string& path, const std::string& secret, const std::string& mover);
    /// D: links with P there; returns when pulls can start. Their ends are told to take().
    Expected<void> connect(const std::string& path, const std::string& secret, const std::string& mover);
    void unlink();
    /// GPU, while not linked: how pulls copy from now on.
    void set_copy_ctas(const BenchHandoffOptions& options, uint32_t ctas);

    /// How a pull ended, and when: waits for it. kTimeout after a minute.
    struct Ended {
        pd::PullResult result;
        int64_t at_us = 0;
    };
    Expected<Ended> take(uint64_t pull);

  private:
    explicit HandoffEnd(bool prefill) : prefill_(prefill) {}
    Expected<void> load(const BenchHandoffOptions& options, uint32_t device);
    Expected<void> make_host(const BenchHandoffOptions& options);
    void start_thread();
    void attach(std::shared_ptr<net::Connection> link);
    void on_message(net::Connection::Received received);
    Expected<void> on_hello(const wire::LinkHello& hello, std::vector<UniqueFd> fds);
    [[nodiscard]] wire::LinkHello own_hello();
    void linked(Expected<void> how);

    const bool prefill_;
    uint32_t handoff_blocks_ = 0;
    std::string mover_;
    std::unique_ptr<backend::DeviceBackend> backend_;
    std::unique_ptr<xavier::SharedPool> words_;
    std::unique_ptr<xavier::TransferThread> thread_;

    boost::asio::io_context io_;
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{io_.get_executor()};
    std::thread io_thread_;
    std::unique_ptr<net::Listener> listener_;
    std::shared_ptr<net::Connection> link_;

    std::mutex mutex_;
    std::condition_variable changed_;
    std::optional<Expected<void>> linked_;
    std::vector<Ended> ended_;
};

}  // namespace baton::cli
