#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "baton/base/fd.hpp"
#include "baton/config/settings.hpp"
#include "baton/net/connection.hpp"
#include "baton/worker/host_facts.hpp"
#include "worker/child.hpp"
#include "worker/gpu_list.hpp"
#include "worker/gpu_meter.hpp"
#include "worker/pulls.hpp"
#include "worker/snapshot_store.hpp"

namespace baton::worker {

struct AgentOptions {
    config::WorkerSettings settings;
    std::string executable = "/proc/self/exe";                       ///< what a spawned replica runs (tests put others)
    std::vector<std::string> argv_prefix = {"baton", "replica"};     ///< before SpawnReplica::args
    int64_t stop_grace_ms = 5'000;                                   ///< SIGTERM to SIGKILL when the worker itself ends
    int64_t orphan_grace_ms = 1'000;                                 ///< the same when its parent is gone
    int64_t connect_patience_ms = 10'000;                            ///< of a child of `serve` for its first link
    int64_t stats_ms = 1'000;
    std::function<void()> on_registered;                             ///< every time; null: nobody asks
    std::function<GpuList()> list_gpus;                              ///< null: list_gpus() (tests put others)
};

/// A worker's life: keeps the link to the supervisor, spawns and ends replicas as told, reports what became of them, and
/// owns the snapshot store. One thread runs the io_context and calls everything here; it must live as long as the process
/// (see Child).
class Agent {
  public:
    Agent(boost::asio::io_context& io, AgentOptions options);
    ~Agent();
    Agent(const Agent&) = delete;
    Agent& operator=(const Agent&) = delete;

    /// Chooses the address, makes the run folder and listens for replicas, then starts to connect.
    [[nodiscard]] Expected<void> start();
    /// Ends all replicas (SIGTERM, SIGKILL after `grace_ms`), then stops the io_context.
    void stop(int64_t grace_ms, int exit_code);
    [[nodiscard]] int exit_code() const { return exit_code_; }
    [[nodiscard]] const std::string& address() const { return address_; }
    [[nodiscard]] size_t running() const { return replicas_.size(); }

  private:
    using Slot = std::pair<std::string, uint64_t>;           // model uid, replica
    using Key = std::tuple<std::string, uint64_t, uint64_t>; // and epoch
    struct Replica {
        std::string model_uid;
        wire::ReplicaTarget target;
        std::shared_ptr<Child> child;
        std::unique_ptr<boost::asio::steady_timer> kill_timer;
        bool stopping = false;  // as the supervisor asked
    };

    Expected<void> choose_address();
    void connect();
    void on_connected(Expected<std::shared_ptr<net::Connection>> result);
    void retry_or_give_up(const Error& error);
    void announce();
    void on_link_lost(const Error& error);
    void on_message(const wire::Message& message);
    void spawn(const wire::SpawnReplica& ask);
    [[nodiscard]] std::optional<std::string> refuse_spawn(const wire::SpawnReplica& ask);
    void stop_replica(const wire::StopReplica& ask);
    void on_exit(const Key& key, ChildExit exit);
    void report(wire::ReplicaExited exited);
    void forget_model_if_gone(const std::string& model_uid);
    void add_host_args(std::vector<std::string>& argv, const wire::ReplicaTarget& target) const;
    [[nodiscard]] uint64_t gpu_memory_bytes(const std::vector<std::string>& argv) const;
    void kill_after(Replica& replica, int64_t grace_ms);
    void finish_if_done();
    void send_stats();

    boost::asio::io_context& io_;
    AgentOptions options_;
    std::string address_;
    std::string host_id_;
    GpuList gpus_;  // as they were when the worker started
    std::unique_ptr<GpuMeter> gpu_meter_;
    UniqueFd port_holder_;  // bound, never listening: keeps the address ours on this host
    std::unique_ptr<SnapshotStore> store_;
    std::shared_ptr<net::Connection> link_;
    boost::asio::steady_timer retry_timer_, stats_timer_;
    TimeMs lost_at_{};
    int64_t backoff_ms_ = 0;
    bool was_registered_ = false;
    bool stopping_ = false;
    int exit_code_ = 0;
    std::unique_ptr<Pulls> pulls_;
    std::map<Key, Replica> replicas_;
    std::map<Slot, Epoch> newest_;
    std::deque<wire::ReplicaExited> unreported_;  // exits while no supervisor was there to hear of them
    CpuMeter cpu_;
    std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace baton::worker
