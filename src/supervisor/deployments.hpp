#pragma once

#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "deployment.hpp"
#include "model_directory.hpp"
#include "model_pulls.hpp"
#include "workers.hpp"

namespace baton::supervisor {

/// All deployments of the cluster: launch, terminate, and the state file that brings them back. Control thread only.
class Deployments {
  public:
    struct Services {
        boost::asio::io_context& io;
        boost::asio::thread_pool& background;
        const config::SupervisorSettings& settings;
        Workers& workers;
        ModelDirectory& models;
        registry::Registry& registry;
        ModelPulls& pulls;
        std::string control_unix;
        std::function<void(std::string reason)> fatal;  ///< ends the process with an error
    };
    using LaunchDone = std::function<void(Expected<std::string> uid)>;

    explicit Deployments(Services services);

    /// Checks, then launches. `accepted` (may be null) is called with the uid once every check has passed and the
    /// deployment is listed; `done` when it is ready or has failed. A failed check calls only `done`.
    void launch(config::LaunchRequest request, std::function<void(const std::string&)> accepted, LaunchDone done);
    /// kInvalidArgument `Model not found in the model list, uid: X`; `done` when all its processes are gone.
    void terminate(const std::string& uid, std::function<void(Expected<void>)> done);
    /// kInvalidArgument where nothing of that uid is launching; else `done` when the launch's processes are gone.
    void cancel(const std::string& uid, std::function<void(Expected<void>)> done);
    /// `body` as config::parse_added_replica takes it. For a running deployment of hybrid replicas.
    void add_replica(const std::string& uid, const std::string& body, std::function<void(Expected<ReplicaId>)> done);
    /// `done` with how many replicas are left; the last one's end is the model's.
    void remove_replica(const std::string& uid, ReplicaId id, std::function<void(Expected<size_t>)> done);
    /// Ends everything without touching the state file; `done` when the last process is gone.
    void shut_down(std::function<void()> done);

    /// Relaunches what the state file records, then the start-up deployments of the settings. Their replicas go to the local worker where
    /// they name none, and where a worker has another address now, to that. A recorded one that fails keeps its row and its record.
    void start_recorded();
    /// Whether these name workers that are not registered (yet).
    [[nodiscard]] bool awaits_workers() const;

    [[nodiscard]] std::shared_ptr<Deployment> find(const std::string& uid) const;  ///< running ones
    [[nodiscard]] const std::map<std::string, std::shared_ptr<Deployment>>& all() const { return all_; }  ///< also failed
    [[nodiscard]] bool starting() const { return !recorded_started_ || startup_pending_ > 0; }
    [[nodiscard]] const ObjectCounts& counts() const { return counts_; }

    void replica_connected(std::shared_ptr<net::Connection> link);
    void worker_registered(const std::string& address);
    void worker_lost(const std::string& address);
    void replica_spawned(const wire::SpawnResult& r);
    void replica_exited(const wire::ReplicaExited& r);
    void worker_stats(const std::string& address, const wire::WorkerStats& stats);

  private:
    /// What the registry knows of a model that was named; null where its files were.
    using Known = std::shared_ptr<const registry::Resolved>;
    void launch_files(config::LaunchRequest request, Known known, std::function<void(const std::string&)> accepted, LaunchDone done);
    void launch_by_name(config::LaunchRequest request, std::function<void(const std::string&)> accepted, LaunchDone done);
    void inspect_pulled(const std::shared_ptr<Deployment>& deployment, ModelPulls::Pulled pulled);
    [[nodiscard]] static Error inspection_error(const config::LaunchRequest& request, Error e);
    [[nodiscard]] Expected<std::shared_ptr<Deployment>> enlist(config::LaunchRequest request, model::ModelInfo info, Known known);
    [[nodiscard]] Deployment::Done when_launched(const std::shared_ptr<Deployment>& deployment, LaunchDone done);
    void launch_inspected(config::LaunchRequest request, model::ModelInfo info, Known known, std::function<void(const std::string&)> accepted, LaunchDone done);
    [[nodiscard]] std::vector<config::WorkerView> worker_views() const;
    [[nodiscard]] Expected<void> check_sizes(const config::LaunchRequest& request) const;
    [[nodiscard]] Expected<std::string> choose_uid(const config::LaunchRequest& request) const;
    [[nodiscard]] std::set<std::string> workers_awaited() const;
    [[nodiscard]] Expected<config::LaunchRequest> at_start(const std::string& body) const;
    void launch_configured(const std::string& body);
    void launch_recorded(const std::string& uid);
    void not_launched(const std::string& uid, config::LaunchRequest request, Error error);
    void launch_waiting();
    [[nodiscard]] bool one_host() const { return services_.settings.local_worker && services_.settings.link_address.empty(); }
    void forget_old_failures();
    [[nodiscard]] std::string state_path() const;
    /// Reads what is recorded, and the hosts of the workers that it names.
    void load_state();
    /// Writes what a restart launches again; `then` when it is on the disk, or could not be written. Never waits for the
    /// disk itself: that may take seconds, in which workers and replicas must not think us dead.
    void save_state(std::function<void()> then);

    Services services_;
    ObjectCounts counts_;
    std::map<std::string, std::shared_ptr<Deployment>> all_;
    std::map<std::string, std::string> recorded_;  ///< uid → launch body
    std::set<std::string> waiting_;  ///< recorded ones that were not launched for want of a worker
    std::list<std::vector<config::ReplicaPlacement>> placing_;  ///< of launches whose model is still being looked at
    boost::asio::strand<boost::asio::thread_pool::executor_type> disk_;
    boost::asio::steady_timer waiting_timer_;
    uint64_t last_epoch_ = 0;
    uint64_t last_sequence_ = 0;
    int startup_pending_ = 0;
    bool shutting_down_ = false;
    bool recorded_started_ = false;
};

}  // namespace baton::supervisor
