#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "baton/base/clock.hpp"
#include "baton/config/launch.hpp"
#include "baton/config/replica_settings.hpp"
#include "baton/config/settings.hpp"
#include "baton/model/model.hpp"
#include "baton/net/connection.hpp"
#include "baton/pd/router.hpp"
#include "baton/registry/registry.hpp"
#include "download_progress.hpp"
#include "request_metrics.hpp"
#include "xavier_objects.hpp"

namespace baton::supervisor {

class Workers;

enum class DeploymentState : uint8_t { kCreating, kLoading, kReady, kError, kTerminating, kTerminated };
[[nodiscard]] const char* to_string(DeploymentState state);  ///< names of the control API: CREATING, …

enum class SlotState : uint8_t { kSpawning, kLoading, kUp, kDown, kFailed };

/// One replica's place in a deployment; the process in it may change.
struct Slot {
    ReplicaId id;
    config::ReplicaPlacement placement;
    SlotState state = SlotState::kSpawning;
    Epoch epoch;
    uint32_t pid = 0;
    std::shared_ptr<net::Connection> link;
    wire::ReplicaReady ready;
    wire::ReplicaStats stats;          ///< of the process there now
    wire::ReplicaStats before;         ///< counters of processes before it
    wire::ReplicaStats probe;          ///< counters when the route opened: the probe is not counted
    int64_t created_unix = 0;
    std::string error;
    std::deque<TimeMs> restarts;
    uint64_t faults = 0;               ///< times that it went down unasked
    bool down_untold = false;          ///< no event has said so yet: the worker may know how the process ended
    TimeMs down_at{};
    bool respawn_pending = false;
    bool adding = false;               ///< asked for after the launch, and not up yet
    bool removing = false;             ///< drains, then ends for good
    bool stopping = false;             ///< was told to end for that
    TimeMs change_begun{};             ///< of adding or removing
    TimeMs spawned_at{};
    int64_t load_ms = 0;               ///< from the process's start until it was up, the last time
    [[nodiscard]] wire::ReplicaTarget target() const { return {id, epoch}; }
    [[nodiscard]] uint64_t prefill_tokens() const { return before.prefill_tokens + stats.prefill_tokens - probe.prefill_tokens; }
    [[nodiscard]] uint64_t generated_tokens() const { return before.generated_tokens + stats.generated_tokens - probe.generated_tokens; }
};

struct Event {
    std::string type;  ///< INFO, WARNING, ERROR
    int64_t unix_s = 0;
    std::string content;
};

/// What a sequence's owner hears. Control thread.
struct SequenceEvents {
    std::function<void(const pd::Deliver&)> tokens;
    std::function<void(const pd::End&)> end;
};

/// Everything under one model uid: its replicas, their links, the PD router, coordinator, collective manager and block
/// tracker. Control thread only.
class Deployment : public std::enable_shared_from_this<Deployment> {
  public:
    struct Services {
        boost::asio::io_context& io;
        Workers& workers;
        const config::SupervisorSettings& settings;
        std::string control_unix;   ///< where replicas of this host connect
        std::function<uint64_t()> next_epoch;
        std::function<SequenceId()> next_sequence;
        ObjectCounts& counts;
    };
    using Done = std::function<void(Expected<void>)>;

    /// `known`: what the registry says of the model; null where it was given by its files.
    Deployment(Services services, config::LaunchRequest request, model::ModelInfo model, std::shared_ptr<const registry::Resolved> known);
    ~Deployment();

    /// Spawns all replicas; `done` once, when the route is open or the launch failed and everything of it is gone.
    void launch(Done done);
    /// Instead of launch(), where the files have to be brought first: the deployment is listed, and can be cancelled or
    /// fail, before there are any. `done` as launch().
    void prepare(Done done);
    /// The files are there: launches. `paths`: where they are on each worker. Nothing when it has ended meanwhile.
    void launch_prepared(model::ModelInfo model, std::string path, std::map<std::string, std::string> paths);
    /// The files cannot be had.
    void fail_prepared(Error error);
    /// Its launch failed before anything of it was begun: what is left is its row. `done` as launch().
    void fail_unlaunched(Error error, Done done);
    DownloadProgress download;  ///< of the files
    /// Ends the route at once, then the replicas; `done` when the last process is reaped.
    void terminate(std::function<void()> done);
    /// `gone` when the last process of the launch is reaped.
    void cancel_launch(std::function<void()> gone);

    /// Starts one more hybrid replica; `done` with its id when it is up, or when it could not come up and is gone again.
    void add_replica(config::ReplicaPlacement placement, std::function<void(Expected<ReplicaId>)> done);
    /// Lets a replica finish what it runs, within bounds, then ends it; `done` with how many are left.
    void remove_replica(ReplicaId id, std::function<void(Expected<size_t>)> done);
    /// A replica of that number that is not being removed.
    [[nodiscard]] bool has_replica(ReplicaId id) const;
    /// Replicas that are not being removed.
    [[nodiscard]] size_t replicas_staying() const;
    /// Replicas come or go.
    [[nodiscard]] bool updating() const { return state_ == DeploymentState::kReady && !changes_.empty(); }

    // From the links.
    void replica_connected(std::shared_ptr<net::Connection> link, ReplicaId id, Epoch epoch);
    void replica_spawned(const wire::SpawnResult& result);
    void replica_exited(const wire::ReplicaExited& exited);
    void worker_registered(const std::string& address);
    void worker_lost(const std::string& address);
    void worker_stats(const std::string& address, const wire::WorkerStats& stats);

    // Requests.
    [[nodiscard]] Expected<SequenceId> submit(wire::Sequence sequence, TimeMs deadline, SequenceEvents events);
    void abort(SequenceId id, std::string_view reason);
    [[nodiscard]] bool ready() const { return state_ == DeploymentState::kReady && router_ && router_->ready(); }

    [[nodiscard]] const std::string& uid() const { return request_.model_uid; }
    [[nodiscard]] DeploymentState state() const { return state_; }
    [[nodiscard]] const config::LaunchRequest& request() const { return request_; }
    [[nodiscard]] const model::ModelInfo& model() const { return model_; }
    [[nodiscard]] const std::shared_ptr<const registry::Resolved>& known() const { return known_; }
    /// What the launch does not get of what it asked for, once the model's files are known.
    [[nodiscard]] const std::vector<std::string>& warnings() const { return warnings_; }
    [[nodiscard]] uint32_t context_length() const { return context_length_; }
    [[nodiscard]] const std::list<Slot>& slots() const { return slots_; }
    [[nodiscard]] const std::deque<Event>& events() const { return events_; }
    [[nodiscard]] const std::string& error() const { return error_; }
    [[nodiscard]] int64_t created_unix() const { return created_unix_; }
    [[nodiscard]] double progress() const;
    [[nodiscard]] pd::RouterStats router_stats() const;
    /// Of a sequence that runs; nothing where it does not.
    [[nodiscard]] std::optional<pd::Phase> phase_of(SequenceId id) const;
    [[nodiscard]] bool has_router() const { return router_ != nullptr; }

    /// HTTP requests that hold a slot of request_limits. Shared with what holds them, which ends on other threads.
    const std::shared_ptr<std::atomic<uint32_t>> in_flight = std::make_shared<std::atomic<uint32_t>>(0);
    /// Requests that may be in flight at once; nothing: any number.
    [[nodiscard]] std::optional<uint64_t> in_flight_max() const;
    RequestMetrics metrics;
    Histogram ttft{kLatencyBounds}, tpot{kLatencyBounds};  ///< seconds: to the first token, between two tokens on average
    StageSeconds stages;
    std::array<uint64_t, 4> aborts_by_phase{};  ///< requests, by how far the furthest of their sequences was (pd::Phase)
    uint64_t requests_ok = 0, requests_error = 0, requests_aborted = 0, prompt_tokens = 0, completion_tokens = 0, cached_tokens = 0;

  private:
    void spawn(Slot& slot);
    void respawn_later(Slot& slot);
    [[nodiscard]] std::vector<std::string> replica_args(const Slot& slot) const;
    void use_gpu(const Slot& s, config::ReplicaSettings& settings) const;
    void on_replica_message(ReplicaId id, Epoch epoch, const wire::Message& message);
    void on_ready(Slot& slot, const wire::ReplicaReady& ready);
    void on_links(Slot& slot, const wire::LinkState& state);
    void link_refused(const Slot& decode, const Slot& prefill, const std::string& reason);
    void slot_down(Slot& slot, const std::string& reason);
    void tell_down(Slot& slot, const std::string& reason);
    void tell_old_losses();
    void send_peers();
    void check_ready();
    void probe_next();
    void open_route();
    void fail_launch(Error error);
    void finish_launch(Expected<void> result);
    void stop_slots(uint32_t grace_ms);
    void maybe_finished();
    void pump();
    void tick();
    void event(std::string type, std::string content);
    [[nodiscard]] Slot* slot(ReplicaId id);
    void advance_changes();
    void end_change(ReplicaId id, Expected<ReplicaId> result);
    bool change_ended(Slot& slot, std::string reason);
    /// Everything of it has ended; late news of links and processes means nothing any more.
    [[nodiscard]] bool over() const { return router_ == nullptr; }

    Services services_;
    config::LaunchRequest request_;
    model::ModelInfo model_;
    std::shared_ptr<const registry::Resolved> known_;
    std::map<std::string, std::string> worker_paths_;  ///< of the model's files, where they differ by worker
    uint32_t context_length_ = 0;
    std::vector<std::string> warnings_;
    DeploymentState state_ = DeploymentState::kCreating;
    std::list<Slot> slots_;
    std::set<ReplicaId> ring_;  ///< slots the router has, some of them empty
    std::map<ReplicaId, std::function<void(Expected<ReplicaId>)>> changes_;
    std::unique_ptr<pd::Router> router_;
    std::unique_ptr<Counted> router_count_;
    std::unique_ptr<Coordinator> coordinator_;
    std::unique_ptr<CollectiveManager> links_;
    std::unique_ptr<BlockTracker> tracker_;
    std::unordered_map<SequenceId, SequenceEvents> sequences_;
    std::map<std::pair<ReplicaId, ReplicaId>, int> link_refusals_;  ///< by decode and prefill replica
    std::deque<Event> events_;
    std::string error_;
    int64_t created_unix_ = 0;
    Done launch_done_;
    std::vector<std::function<void()>> gone_;
    bool ending_ = false;
    Error launch_error_;
    size_t probes_left_ = 0;
    pd::RouterStats probe_stats_;
    boost::asio::steady_timer timer_;
    boost::asio::steady_timer launch_deadline_;
    bool pumping_ = false;
    std::vector<pd::RouterAction> spare_actions_;  ///< of pump(), for its memory
};

}  // namespace baton::supervisor
