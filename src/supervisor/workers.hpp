#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "baton/config/launch.hpp"
#include "baton/net/connection.hpp"
#include "baton/wire/messages.hpp"

namespace baton::supervisor {

/// The registered hosts. Control thread only.
class Workers {
  public:
    struct Events {
        std::function<void(const std::string& address)> registered;
        std::function<void(const std::string& address)> lost;
        std::function<void(const wire::SpawnResult&)> spawned;
        std::function<void(const wire::ReplicaExited&)> exited;
        std::function<void(const std::string& address, const wire::WorkerStats&)> stats;
        std::function<void(const std::string& address, const wire::Message&)> other;
    };
    struct Worker {
        std::string address;
        wire::WorkerReady ready;
        wire::WorkerStats stats;
        std::shared_ptr<net::Connection> link;
        int64_t registered_unix = 0;
        bool local = false;
        /// Replicas it said it runs: (model uid, slot) → process.
        struct Process {
            Epoch epoch;
            uint32_t pid = 0;
        };
        std::map<std::pair<std::string, ReplicaId>, Process> running;
    };
    explicit Workers(Events events) : events_(std::move(events)) {}

    /// A link whose Hello says "worker".
    void connected(std::shared_ptr<net::Connection> link);
    [[nodiscard]] const std::map<std::string, Worker>& all() const { return workers_; }
    [[nodiscard]] const Worker* find(const std::string& address) const;
    [[nodiscard]] std::vector<config::WorkerView> views() const;
    /// Whether decode replicas can reach the prefill replicas that they take KV from: one that is on another host than its
    /// peer must be on a worker whose address other hosts can use. kInvalidArgument names the worker.
    [[nodiscard]] Expected<void> check_transfer(const std::vector<config::ReplicaPlacement>& placements) const;
    /// Whether the worker at `address` is what became of the one that was at `gone`: that one is not registered, and both
    /// are of one host (or the local worker of `serve`, which comes back on another port).
    [[nodiscard]] bool replaces(const std::string& gone, const std::string& address) const;
    /// Whether that worker shares this host, and its files.
    [[nodiscard]] bool on_this_host(const std::string& address) const;
    /// False when that worker is not registered.
    bool send(const std::string& address, const wire::Message& message);
    void close_all();

  private:
    void registered(const wire::WorkerReady& ready, const std::shared_ptr<net::Connection>& link);
    void lost(const std::string& address, const std::string& reason);
    void on_message(const std::string& address, const wire::Message& message);
    Events events_;
    std::map<std::string, std::string> lost_hosts_;  // address → host id of workers that are gone
    std::map<std::string, Worker> workers_;
};

/// What a GPU is doing now, as its worker last said.
struct GpuLoad {
    uint64_t memory_used = 0;
    double utilization = 0;  ///< 0 to 1
};
[[nodiscard]] GpuLoad gpu_load(const Workers::Worker& worker, const wire::Gpu& gpu);

}  // namespace baton::supervisor
