#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "baton/base/clock.hpp"
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
        TimeMs registered_at{}, heard_at{};
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
    /// are of one host.
    [[nodiscard]] bool replaces(const std::string& gone, const std::string& address) const;
    /// Which registered worker each of these addresses means: the one that has it, else one that replaces it. A worker stands
    /// for one address; where `share` is set, for several if there are not enough. Those of hosts without a worker are absent.
    [[nodiscard]] std::map<std::string, std::string> now_at(const std::set<std::string>& addresses, bool share) const;
    /// The id of the host where a worker of that address is, or was; "" where nobody knows.
    [[nodiscard]] std::string host_id_of(const std::string& address) const;
    /// An address of an earlier supervisor's worker, and its host's id.
    void remember(const std::string& address, const std::string& host_id);
    /// Whether that worker shares this host, and its files.
    [[nodiscard]] bool on_this_host(const std::string& address) const;
    /// False when that worker is not registered.
    bool send(const std::string& address, const wire::Message& message);
    /// From now on workers may go: the supervisor ends.
    void expect_ends() { closing_ = true; }
    void close_all();

  private:
    void registered(const wire::WorkerReady& ready, const std::shared_ptr<net::Connection>& link);
    void lost(const std::string& address, const std::string& reason);
    void on_message(const std::string& address, const wire::Message& message);
    Events events_;
    std::map<std::string, std::string> gone_hosts_;  // address → host id of workers that are not registered
    std::map<std::string, Worker> workers_;
    bool closing_ = false;
};

/// Whether two workers' addresses (ip:port) and host ids say that both are of one host. The id alone does, while the host
/// runs; after a boot it is another one, and the ip tells, unless it is one that every host has. "" is an id that nobody knows.
[[nodiscard]] bool of_one_host(const std::string& address, const std::string& host_id, const std::string& other_address, const std::string& other_host_id);

/// What a GPU is doing now, as its worker last said.
struct GpuLoad {
    uint64_t memory_used = 0;
    double utilization = 0;  ///< 0 to 1
};
[[nodiscard]] GpuLoad gpu_load(const Workers::Worker& worker, const wire::Gpu& gpu);

}  // namespace baton::supervisor
