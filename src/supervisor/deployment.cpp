#include "deployment.hpp"

#include <algorithm>
#include <ctime>

#include "baton/base/log.hpp"
#include "baton/config/replica_settings.hpp"
#include "exit_reason.hpp"
#include "launch_warnings.hpp"
#include "workers.hpp"

namespace baton::supervisor {
namespace {

constexpr int64_t kTickMs = 50;
constexpr int64_t kLaunchTimeoutMs = 600'000;
constexpr int kLinkRefusalsMax = 4;  ///< of one pair, each after a longer pause
constexpr uint32_t kStopGraceMs = 3'000;
constexpr size_t kEventsMax = 100;
constexpr int64_t kExitNewsMs = 1'000;  ///< after its link, a process is reported gone within that time, or never
constexpr int64_t kProbeTimeoutMs = 60'000;
// Defaults of replicas on a GPU; those of the CPU are config::ReplicaSettings'.
constexpr uint32_t kGpuBlockTokens = 64;
constexpr uint32_t kGpuSequences = 256;
constexpr uint32_t kGpuStepTokens = 2048;

pd::RouterStats without(pd::RouterStats now, const pd::RouterStats& base) {
    const auto subtract = [](auto& list, const auto& from) {
        for (auto& [name, value] : list)
            for (const auto& [n, v] : from)
                if (n == name) value -= v;
    };
    now.ended_ok -= base.ended_ok;
    now.ended_error -= base.ended_error;
    subtract(now.handoffs_by_mover, base.handoffs_by_mover);
    subtract(now.handoff_bytes_by_mover, base.handoff_bytes_by_mover);
    subtract(now.handoff_pull_us_by_mover, base.handoff_pull_us_by_mover);
    subtract(now.handoff_exposed_us_by_mover, base.handoff_exposed_us_by_mover);
    subtract(now.fallbacks_by_reason, base.fallbacks_by_reason);
    subtract(now.failovers_by_reason, base.failovers_by_reason);
    return now;
}

}  // namespace

const char* to_string(DeploymentState state) {
    switch (state) {
        case DeploymentState::kCreating: return "CREATING";
        case DeploymentState::kLoading: return "LOADING";
        case DeploymentState::kReady: return "READY";
        case DeploymentState::kError: return "ERROR";
        case DeploymentState::kTerminating: return "TERMINATING";
        case DeploymentState::kTerminated: return "TERMINATED";
    }
    return "ERROR";
}

Deployment::Deployment(Services services, config::LaunchRequest request, model::ModelInfo model, std::shared_ptr<const registry::Resolved> known)
    : services_(std::move(services)),
      request_(std::move(request)),
      model_(std::move(model)),
      known_(std::move(known)),
      context_length_(request_.max_model_len == 0 ? model_.context_length : std::min(request_.max_model_len, model_.context_length)),
      created_unix_(std::time(nullptr)),
      timer_(services_.io),
      launch_deadline_(services_.io) {
    pd::RouterConfig routing;
    routing.replacement_wait_ms = services_.settings.replacement_wait_ms;
    router_ = std::make_unique<pd::Router>(routing);
    if (model_.context_length != 0) warnings_ = launch_warnings(request_, model_, known_ == nullptr);
    router_count_ = std::make_unique<Counted>(services_.counts.router);
    coordinator_ = std::make_unique<Coordinator>(services_.counts);
    links_ = std::make_unique<CollectiveManager>(services_.counts);
    tracker_ = std::make_unique<BlockTracker>(services_.counts);
    for (size_t i = 0; i < request_.placements.size(); ++i) {
        Slot s;
        s.id = ReplicaId{i + 1};
        s.placement = request_.placements[i];
        s.created_unix = created_unix_;
        router_->add_replica(s.id, s.placement.role);
        ring_.insert(s.id);
        slots_.push_back(std::move(s));
    }
}

Deployment::~Deployment() = default;

Slot* Deployment::slot(ReplicaId id) {
    for (Slot& s : slots_)
        if (s.id == id) return &s;
    return nullptr;
}

std::optional<uint64_t> Deployment::in_flight_max() const {
    if (request_.request_limits < 0) return std::nullopt;
    // A request is with one decode replica in the end, whoever prefills it.
    const auto replicas = std::count_if(slots_.begin(), slots_.end(), [](const Slot& s) { return s.placement.role != Role::kPrefill; });
    return static_cast<uint64_t>(request_.request_limits) * static_cast<uint64_t>(replicas);
}

void Deployment::event(std::string type, std::string content) {
    if (events_.size() == kEventsMax) events_.pop_front();
    events_.push_back({std::move(type), std::time(nullptr), std::move(content)});
}

// ---- launch ---------------------------------------------------------------------------------------------------------

void Deployment::launch(Done done) {
    launch_done_ = std::move(done);
    state_ = DeploymentState::kLoading;
    log::info("launch.begin", {{"model_uid", uid()},
                               {"model", model_.architecture},
                               {"engine", request_.model_engine},
                               {"served_by", "baton"},
                               {"replicas", slots_.size()},
                               {"pd", request_.pd},
                               {"transfer_backend", "xavier"},
                               {"normalised", request_.transfer_backend_normalised}});
    if (request_.transfer_backend_normalised)
        log::info("launch.transfer_backend", {{"model_uid", uid()}, {"given", request_.transfer_backend}, {"used", "xavier"}});
    if (request_.enable_xavier && !request_.pd && slots_.size() == 1) {
        log::warn("launch.xavier_alone", {{"model_uid", uid()}, {"reason", "one replica shares its KV with nobody"}});
        event("WARNING", "enable_xavier: one replica shares its KV with nobody");
    }
    for (const std::string& warning : warnings_) {
        log::warn("launch.warning", {{"model_uid", uid()}, {"warning", warning}});
        event("WARNING", warning);
    }
    for (const std::string& key : request_.ignored) log::info("launch.ignored_keyword", {{"model_uid", uid()}, {"key", key}});
    event("INFO", "launch of " + std::to_string(slots_.size()) + " replicas");
    launch_deadline_.expires_after(std::chrono::milliseconds(kLaunchTimeoutMs));
    launch_deadline_.async_wait([w = weak_from_this()](boost::system::error_code ec) {
        if (const auto self = w.lock(); self && !ec) self->fail_launch({ErrorCode::kTimeout, "the launch took too long", ""});
    });
    tick();
    for (Slot& s : slots_) {
        if (ending_) return;  // a worker was gone before all had been asked
        spawn(s);
    }
}

void Deployment::prepare(Done done) {
    launch_done_ = std::move(done);
    event("INFO", "the files of " + request_.model_name + " are brought");
}

void Deployment::launch_prepared(model::ModelInfo model, std::string path, std::map<std::string, std::string> paths) {
    if (ending_ || !launch_done_) return;
    model_ = std::move(model);
    context_length_ = request_.max_model_len == 0 ? model_.context_length : std::min(request_.max_model_len, model_.context_length);
    warnings_ = launch_warnings(request_, model_, false);  // its labels are what the registry filled in
    request_.model_path = std::move(path);
    worker_paths_ = std::move(paths);
    launch(std::exchange(launch_done_, nullptr));
}

void Deployment::fail_prepared(Error error) { fail_launch(std::move(error)); }

void Deployment::fail_unlaunched(Error error, Done done) {
    launch_done_ = std::move(done);
    fail_launch(std::move(error));
}

std::vector<std::string> Deployment::replica_args(const Slot& s) const {
    config::ReplicaSettings r;
    const Workers::Worker* worker = services_.workers.find(s.placement.worker_ip);
    const bool local = worker == nullptr || worker->local;
    r.model_uid = uid();
    const auto own_path = worker_paths_.find(s.placement.worker_ip);
    r.model_path = own_path == worker_paths_.end() ? request_.model_path : own_path->second;
    r.replica = s.id;
    r.epoch = s.epoch;
    r.role = s.placement.role;
    if (local) r.supervisor_unix = services_.control_unix;
    else r.supervisor_tcp = services_.settings.link_address;
    r.threads = request_.threads;
    r.kv_cache_bytes = request_.kv_cache_bytes;
    if (!s.placement.gpu_idx.empty()) use_gpu(s, r);
    if (request_.block_size != 0) r.block_tokens = request_.block_size;
    r.max_model_len = context_length_;
    if (request_.max_num_seqs != 0) r.max_num_seqs = request_.max_num_seqs;
    if (request_.max_num_batched_tokens != 0) r.max_num_batched_tokens = request_.max_num_batched_tokens;
    r.prefix_cache = request_.enable_prefix_caching.value_or(true);
    if (!request_.kv_dtype.empty()) r.kv_dtype = request_.kv_dtype;
    if (!request_.kv_layout.empty()) r.kv_layout = request_.kv_layout;
    r.mover = request_.mover;
    r.verify_handoff = request_.verify_handoff;
    r.snapshots = request_.snapshots.value_or(true) && (request_.pd || request_.enable_xavier);
    r.snapshot_read_always = request_.snapshot_read_always;
    r.log_level = services_.settings.log_level;
    r.log_format = services_.settings.log_format;
    if (services_.settings.allow_fault_hooks) r.fault = request_.fault;
    return config::to_args(r);
}

/// What a replica on a GPU gets other than one on the CPU. The replicas of this launch on one card share what the launch
/// may take of it.
void Deployment::use_gpu(const Slot& s, config::ReplicaSettings& r) const {
    const auto sharing = std::count_if(slots_.begin(), slots_.end(), [&](const Slot& other) {
        return other.placement.worker_ip == s.placement.worker_ip && other.placement.gpu_idx == s.placement.gpu_idx;
    });
    r.device = "cuda:" + std::to_string(s.placement.gpu_idx.front());
    r.gpu_memory_ppm = static_cast<uint32_t>(request_.gpu_memory_utilization * 1e6 / static_cast<double>(sharing));
    if (request_.dtype == "f16") r.dtype = "f16";
    r.deterministic = request_.deterministic;
    r.block_tokens = kGpuBlockTokens;
    r.max_num_seqs = kGpuSequences;
    r.max_num_batched_tokens = kGpuStepTokens;
}

void Deployment::spawn(Slot& s) {
    s.respawn_pending = false;
    s.state = SlotState::kSpawning;
    s.error.clear();
    const Workers::Worker* worker = services_.workers.find(s.placement.worker_ip);
    if (worker != nullptr) {
        // A process that outlived the supervisor is taken over instead of being started again.
        const auto process = worker->running.find({uid(), s.id});
        if (process != worker->running.end() && s.epoch.value == 0) {
            s.epoch = process->second.epoch;
            s.pid = process->second.pid;
            s.state = SlotState::kLoading;
            log::info("replica.adopted", {{"model_uid", uid()}, {"replica", s.id.value - 1}, {"pid", s.pid}});
            return;
        }
    }
    s.epoch = Epoch{services_.next_epoch()};
    wire::SpawnReplica spawn;
    spawn.model_uid = uid();
    spawn.target = s.target();
    spawn.role = static_cast<uint8_t>(s.placement.role);
    spawn.args = replica_args(s);
    spawn.env = request_.envs;
    s.spawned_at = steady_now();
    if (!services_.workers.send(s.placement.worker_ip, spawn)) {
        s.state = SlotState::kDown;
        s.error = "worker " + s.placement.worker_ip + " is not registered";
        if (launch_done_) fail_launch({ErrorCode::kUnavailable, s.error, ""});
    }
}

void Deployment::replica_spawned(const wire::SpawnResult& result) {
    if (over()) return;
    Slot* s = slot(result.target.replica);
    if (s == nullptr || s->epoch != result.target.epoch) return;
    s->pid = result.pid;
    if (result.error.empty()) {
        if (s->state == SlotState::kSpawning) s->state = SlotState::kLoading;
        return;
    }
    s->error = result.error;
    slot_down(*s, result.error);
    if (ending_) return maybe_finished();
    if (change_ended(*s, result.error)) return;
    if (launch_done_) fail_launch({ErrorCode::kInternal, "replica " + std::to_string(s->id.value - 1) + " did not start: " + result.error, ""});
    else respawn_later(*s);
}

void Deployment::replica_connected(std::shared_ptr<net::Connection> link, ReplicaId id, Epoch epoch) {
    if (state_ == DeploymentState::kCreating) return link->close();  // it outlived a supervisor, and tries again
    Slot* s = slot(id);
    if (s == nullptr || s->epoch != epoch || ending_ || over()) {
        link->send(wire::Refused{static_cast<uint8_t>(ErrorCode::kInvalidArgument), "this replica is not expected"});
        link->close();
        return;
    }
    s->link = link;
    link->start({[w = weak_from_this(), id, epoch](net::Connection::Received r) {
                     if (const auto self = w.lock()) self->on_replica_message(id, epoch, r.message);
                 },
                 [w = weak_from_this(), id, epoch](const Error& e) {
                     const auto self = w.lock();
                     if (!self) return;
                     Slot* lost = self->slot(id);
                     if (lost != nullptr && lost->epoch == epoch) {
                         lost->link.reset();
                         self->slot_down(*lost, "its link was lost: " + e.message);
                     }
                 }});
}

void Deployment::on_replica_message(ReplicaId id, Epoch epoch, const wire::Message& message) {
    if (over()) return;
    Slot* s = slot(id);
    if (s == nullptr || s->epoch != epoch) return;
    if (const auto* ready = std::get_if<wire::ReplicaReady>(&message)) return on_ready(*s, *ready);
    if (const auto* links = std::get_if<wire::LinkState>(&message)) return on_links(*s, *links);
    if (const auto* stats = std::get_if<wire::ReplicaStats>(&message)) {
        s->stats = *stats;
        return;
    }
    router_->on_message(steady_now(), s->target(), message);
    pump();
}

void Deployment::on_ready(Slot& s, const wire::ReplicaReady& ready) {
    tell_down(s, s.error);
    s.error.clear();
    s.ready = ready;
    s.pid = ready.pid;
    s.state = SlotState::kUp;
    s.load_ms = steady_now() - s.spawned_at;
    log::info("replica.up", {{"model_uid", uid()}, {"replica", s.id.value - 1}, {"role", baton::to_string(s.placement.role)}, {"engine", ready.engine}, {"pid", ready.pid}});
    event("INFO", "replica " + std::to_string(s.id.value - 1) + " (" + baton::to_string(s.placement.role) + ") is up");
    wire::Peer peer;
    peer.target = s.target();
    peer.role = static_cast<uint8_t>(s.placement.role);
    peer.host_id = ready.host_id;
    peer.unix_path = ready.unix_path;
    peer.tcp_address = ready.tcp_address;
    coordinator_->set(peer);
    router_->replica_up(steady_now(), s.target());
    send_peers();
    pump();
    if (s.adding) end_change(s.id, s.id);
    check_ready();
}

void Deployment::send_peers() {
    const wire::Peers peers = coordinator_->peers();
    for (Slot& s : slots_)
        if (s.link && s.state == SlotState::kUp) s.link->send(peers);
}

void Deployment::on_links(Slot& s, const wire::LinkState& state) {
    for (const wire::LinkState::Item& item : state.links) {
        Slot* other = slot(item.peer.replica);
        if (other == nullptr || other->epoch != item.peer.epoch) continue;
        // Both ends report; the decode side, which connects and pulls, decides.
        if (s.placement.role != Role::kDecode) continue;
        links_->set(s.id, other->id, item.up, item.mover);
        router_->link_state(steady_now(), s.target(), other->target(), item.up);
        if (item.up) log::info("xavier.pair_up", {{"model_uid", uid()}, {"decode", s.id.value - 1}, {"prefill", other->id.value - 1}, {"mover", item.mover}});
        else if (!item.reason.empty()) link_refused(s, *other, item.reason);
        if (over() || ending_) return;
    }
    pump();
    check_ready();
}

/// The decode side tries again by itself; a launch does not wait for what never comes.
void Deployment::link_refused(const Slot& decode, const Slot& prefill, const std::string& reason) {
    const std::string pair = "replicas " + std::to_string(decode.id.value - 1) + " and " + std::to_string(prefill.id.value - 1);
    event("WARNING", "link of " + pair + ": " + reason);
    if (!launch_done_ || state_ != DeploymentState::kLoading) return;
    if (++link_refusals_[{decode.id, prefill.id}] < kLinkRefusalsMax) return;
    fail_launch({ErrorCode::kInvalidArgument, pair + " cannot be linked: " + reason, ""});
}

void Deployment::check_ready() {
    if (!launch_done_ || state_ != DeploymentState::kLoading || probes_left_ != 0 || ending_) return;
    size_t pairs = 0;
    for (const Slot& s : slots_) {
        if (s.state != SlotState::kUp) return;
        if (s.placement.role != Role::kDecode) {
            pairs += s.placement.role == Role::kHybrid ? 1 : 0;
            continue;
        }
        for (const Slot& p : slots_) {
            if (p.placement.role != Role::kPrefill) continue;
            if (!links_->up(s.id, p.id)) return;
            ++pairs;
        }
    }
    // The route opens when a real token has gone over every pair (the ring visits each once in so many requests).
    probes_left_ = pairs;
    probe_next();
}

void Deployment::probe_next() {
    wire::Sequence probe;
    probe.ref.id = services_.next_sequence();
    probe.request_id = "probe";
    // Different prompts, so that no probe is answered by the prefix another one left behind.
    const auto salt = static_cast<TokenId>(probes_left_ % model_.shape.vocab);
    probe.prompt.assign(4, salt);
    probe.sampling.temperature = 0;
    probe.sampling.max_tokens = 2;
    const SequenceId id = probe.ref.id;
    const TimeMs now = steady_now();
    const auto submitted = router_->submit(now, std::move(probe), now + kProbeTimeoutMs);
    if (!submitted) return fail_launch(submitted.error());
    sequences_[id] = {nullptr, [w = weak_from_this()](const pd::End& end) {
                          const auto self = w.lock();
                          if (!self || !self->launch_done_) return;
                          if (end.finish == wire::Finish::kNone)
                              return self->fail_launch({end.error.code, "the hand-off probe failed: " + end.error.message, ""});
                          if (--self->probes_left_ == 0) return self->open_route();
                          self->probe_next();
                      }};
    pump();
}

void Deployment::open_route() {
    // The last counters of the probe arrive within the replicas' reporting interval.
    launch_deadline_.expires_after(std::chrono::milliseconds(250));
    launch_deadline_.async_wait([w = weak_from_this()](boost::system::error_code ec) {
        const auto self = w.lock();
        if (!self || ec || self->ending_ || !self->launch_done_) return;
        for (Slot& s : self->slots_) {
            s.probe = s.stats;
            s.probe.prefill_tokens += s.before.prefill_tokens;
            s.probe.generated_tokens += s.before.generated_tokens;
        }
        self->probe_stats_ = self->router_->stats();
        self->state_ = DeploymentState::kReady;
        log::info("launch.ready", {{"model_uid", self->uid()}, {"replicas", self->slots_.size()}});
        self->event("INFO", "ready");
        self->finish_launch({});
    });
}

void Deployment::finish_launch(Expected<void> result) {
    if (!launch_done_) return;
    Done done = std::move(launch_done_);
    launch_done_ = nullptr;
    done(std::move(result));
}

void Deployment::fail_launch(Error error) {
    if (!launch_done_ || ending_) return;
    log::error("launch.failed", {{"model_uid", uid()}, {"reason", error.message}});
    event("ERROR", error.message);
    error_ = error.message;
    launch_error_ = std::move(error);
    ending_ = true;
    launch_deadline_.cancel();
    router_->close(steady_now(), "the launch failed");
    pump();
    stop_slots(0);
    maybe_finished();
}

void Deployment::cancel_launch(std::function<void()> gone) {
    if (gone) gone_.push_back(std::move(gone));
    fail_launch({ErrorCode::kCancelled, "Launch cancelled", ""});
}

// ---- loss and return of replicas --------------------------------------------------------------------------------------

void Deployment::slot_down(Slot& s, const std::string& reason) {
    if (over()) return;
    coordinator_->remove(s.id);
    links_->drop(s.id);
    if (s.state == SlotState::kUp) {
        const bool meant = ending_ || s.removing;
        log::event(meant ? log::Level::kInfo : log::Level::kWarn, "replica.down", {{"model_uid", uid()}, {"replica", s.id.value - 1}, {"reason", reason}});
        if (!meant) {
            ++s.faults;
            s.error = reason;
            s.down_untold = true;
            s.down_at = steady_now();
        }
        s.before.prefill_tokens += s.stats.prefill_tokens;
        s.before.generated_tokens += s.stats.generated_tokens;
        s.stats = {};
        router_->replica_expected(steady_now(), s.id, !meant);
        router_->replica_down(steady_now(), s.target());
        s.state = SlotState::kDown;
        send_peers();
        pump();
    } else if (s.state != SlotState::kFailed) {
        s.state = SlotState::kDown;
    }
}

/// The event of a replica that is down. Links end before the worker has reaped the process: what it says of the end is
/// worth a moment's wait.
void Deployment::tell_down(Slot& s, const std::string& reason) {
    if (!std::exchange(s.down_untold, false)) return;
    event("WARNING", "replica " + std::to_string(s.id.value - 1) + " is down: " + reason);
}

void Deployment::tell_old_losses() {
    const TimeMs now = steady_now();
    for (Slot& s : slots_)
        if (s.down_untold && now - s.down_at > kExitNewsMs) tell_down(s, s.error);
}

void Deployment::replica_exited(const wire::ReplicaExited& exited) {
    if (over()) return;
    Slot* s = slot(exited.target.replica);
    if (s == nullptr || s->epoch != exited.target.epoch) return;
    const std::string how = exit_text(exited.status);
    if (s->link) {
        auto link = std::move(s->link);
        s->link.reset();
        link->close();
    }
    slot_down(*s, how);
    tell_down(*s, how);
    s->pid = 0;
    if (ending_) {
        s->state = SlotState::kDown;
        return maybe_finished();
    }
    s->error = exit_reason(how, exited.last_output);
    if (change_ended(*s, s->error)) return;
    if (launch_done_) return fail_launch({ErrorCode::kInvalidArgument, "replica " + std::to_string(s->id.value - 1) + " failed to load: " + s->error, ""});
    respawn_later(*s);
}

void Deployment::respawn_later(Slot& s) {
    const TimeMs now = steady_now();
    if (s.respawn_pending || ending_) return;
    while (!s.restarts.empty() && now - s.restarts.front() > limits::kRestartWindowMs) s.restarts.pop_front();
    if (s.restarts.size() >= static_cast<size_t>(limits::kRestartsMax)) {
        s.state = SlotState::kFailed;
        error_ = "replica " + std::to_string(s.id.value - 1) + " failed " + std::to_string(limits::kRestartsMax) + " times: " + s.error;
        log::error("replica.gave_up", {{"model_uid", uid()}, {"replica", s.id.value - 1}});
        event("ERROR", error_);
        router_->replica_expected(now, s.id, false);
        return pump();
    }
    s.respawn_pending = true;
    const int64_t delay_ms = 100ll << (2 * s.restarts.size());
    s.restarts.push_back(now);
    auto timer = std::make_shared<boost::asio::steady_timer>(services_.io, std::chrono::milliseconds(delay_ms));
    timer->async_wait([w = weak_from_this(), timer, id = s.id](boost::system::error_code ec) {
        const auto self = w.lock();
        if (!self || ec || self->ending_) return;
        Slot* again = self->slot(id);
        if (again != nullptr && again->respawn_pending && !again->removing) self->spawn(*again);
    });
}

void Deployment::worker_lost(const std::string& address) {
    if (over()) return;
    tracker_->remove(address);
    for (auto it = slots_.begin(); it != slots_.end();) {
        Slot& s = *it++;  // it may be taken out of the list below
        if (s.placement.worker_ip != address) continue;
        // Its processes may live on for a while under a separate worker: fenced by their epoch.
        if (s.link) {
            auto link = std::move(s.link);
            s.link.reset();
            link->close();
        }
        slot_down(s, "its worker was lost");
        tell_down(s, "its worker was lost");
        s.pid = 0;
        if (!ending_ && change_ended(s, "worker " + address + " was lost")) continue;
        if (launch_done_ && !ending_) fail_launch({ErrorCode::kUnavailable, "worker " + address + " was lost during the launch", ""});
    }
    if (ending_) maybe_finished();
}

void Deployment::worker_registered(const std::string& address) {
    if (over() || ending_ || launch_done_) return;
    for (Slot& s : slots_) {
        // A worker that was started again, on another port.
        if (services_.workers.replaces(s.placement.worker_ip, address)) s.placement.worker_ip = address;
        if (s.placement.worker_ip == address && s.state == SlotState::kDown && !s.respawn_pending) spawn(s);
    }
}

void Deployment::worker_stats(const std::string& address, const wire::WorkerStats& stats) {
    if (!over()) tracker_->set(address, stats);
}

// ---- end --------------------------------------------------------------------------------------------------------------

void Deployment::terminate(std::function<void()> done) {
    gone_.push_back(std::move(done));
    state_ = DeploymentState::kTerminating;
    log::info("terminate.begin", {{"model_uid", uid()}});
    ending_ = true;
    for (const auto& [id, change] : std::exchange(changes_, {})) change(fail(ErrorCode::kUnavailable, "the model was terminated"));
    router_->close(steady_now(), "the model was terminated");
    pump();
    stop_slots(kStopGraceMs);
    maybe_finished();
}

void Deployment::stop_slots(uint32_t grace_ms) {
    for (Slot& s : slots_) {
        if (s.epoch.value == 0) continue;
        if (!services_.workers.send(s.placement.worker_ip, wire::StopReplica{uid(), s.target(), grace_ms})) s.pid = 0;
    }
}

void Deployment::maybe_finished() {
    if (!ending_ || state_ == DeploymentState::kTerminated) return;
    // One that is being spawned has no pid yet: its worker spawns it, then hears that it is to stop. One without an epoch was
    // never asked for: the launch ended while the model's files were brought.
    for (const Slot& s : slots_) {
        const bool has_process = s.pid != 0 || (s.state == SlotState::kSpawning && s.epoch.value != 0);
        if (has_process && services_.workers.find(s.placement.worker_ip) != nullptr) return;
    }
    timer_.cancel();
    router_.reset();
    router_count_.reset();
    coordinator_.reset();
    links_.reset();
    tracker_.reset();
    const bool failed = static_cast<bool>(launch_done_);
    state_ = failed ? DeploymentState::kError : DeploymentState::kTerminated;
    log::info("terminate.done", {{"model_uid", uid()}});
    model_.tokenizer.reset();              // what is kept of a failed launch is its row
    const auto self = shared_from_this();  // the callbacks may drop the last other reference
    if (failed) finish_launch(fail(launch_error_));
    for (const auto& gone : std::exchange(gone_, {})) gone();
}

// ---- requests ---------------------------------------------------------------------------------------------------------

Expected<SequenceId> Deployment::submit(wire::Sequence sequence, TimeMs deadline, SequenceEvents events) {
    if (state_ != DeploymentState::kReady || ending_)
        return fail(ErrorCode::kUnavailable, "Model is loading, please retry later: " + uid());
    sequence.ref.id = services_.next_sequence();
    const SequenceId id = sequence.ref.id;
    BATON_TRY(router_->submit(steady_now(), std::move(sequence), deadline));
    sequences_[id] = std::move(events);
    pump();
    return id;
}

void Deployment::abort(SequenceId id, std::string_view reason) {
    if (over()) return;
    router_->abort(steady_now(), id, reason);
    pump();
}

void Deployment::pump() {
    // Events may call back into submit() or abort(): their actions are taken by the loop that runs already.
    if (pumping_ || !router_) return;
    pumping_ = true;
    const auto self = shared_from_this();
    std::vector<pd::RouterAction> actions = router_->take_actions(std::move(spare_actions_));
    while (!actions.empty()) {
        for (pd::RouterAction& action : actions) {
            if (auto* send = std::get_if<pd::SendReplica>(&action)) {
                Slot* s = slot(send->to.replica);
                if (s != nullptr && s->epoch == send->to.epoch && s->link) s->link->send(send->message);
            } else if (auto* deliver = std::get_if<pd::Deliver>(&action)) {
                const auto it = sequences_.find(deliver->id);
                if (it != sequences_.end() && it->second.tokens) it->second.tokens(*deliver);
            } else if (auto* end = std::get_if<pd::End>(&action)) {
                const auto it = sequences_.find(end->id);
                if (it == sequences_.end()) continue;
                SequenceEvents events = std::move(it->second);
                sequences_.erase(it);
                if (events.end) events.end(*end);
            } else if (const auto* again = std::get_if<pd::Retried>(&action)) {
                log::warn("request.retried", {{"req", again->request_id}, {"model_uid", uid()}, {"attempt", again->attempt}, {"reason", again->reason}});
            }
        }
        if (!router_) break;
        actions = router_->take_actions(std::move(actions));
    }
    spare_actions_ = std::move(actions);
    pumping_ = false;
}

void Deployment::tick() {
    timer_.expires_after(std::chrono::milliseconds(kTickMs));
    timer_.async_wait([w = weak_from_this()](boost::system::error_code ec) {
        const auto self = w.lock();
        if (!self || ec || !self->router_) return;
        self->router_->on_tick(steady_now());
        self->pump();
        self->advance_changes();
        self->tell_old_losses();
        self->tick();
    });
}

double Deployment::progress() const {
    if (state_ == DeploymentState::kReady) return 1.0;
    size_t up = 0;
    for (const Slot& s : slots_) up += s.state == SlotState::kUp ? 1 : 0;
    const double loaded = slots_.empty() ? 0.0 : 0.95 * static_cast<double>(up) / static_cast<double>(slots_.size());
    return download.begun() ? 0.5 * download.fraction() + 0.5 * loaded : loaded;
}

std::optional<pd::Phase> Deployment::phase_of(SequenceId id) const {
    return router_ ? router_->phase_of(id) : std::nullopt;
}

pd::RouterStats Deployment::router_stats() const {
    return router_ ? without(router_->stats(), probe_stats_) : pd::RouterStats{};
}

}  // namespace baton::supervisor
