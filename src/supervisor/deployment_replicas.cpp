#include <algorithm>
#include <ctime>

#include "baton/base/limits.hpp"
#include "baton/base/log.hpp"
#include "deployment.hpp"
#include "workers.hpp"

// Replicas that join or leave a running deployment of hybrid replicas.
namespace baton::supervisor {
namespace {

constexpr int64_t kAddTimeoutMs = 600'000;
constexpr int64_t kDrainMs = 10'000;       ///< after that what still runs goes on at another replica
constexpr int64_t kFreshStatsMs = 300;     ///< replicas report ten times a second
constexpr uint32_t kStopGraceMs = 3'000;

}  // namespace

bool Deployment::has_replica(ReplicaId id) const {
    return std::any_of(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.id == id && !s.removing; });
}

size_t Deployment::replicas_staying() const {
    return static_cast<size_t>(std::count_if(slots_.begin(), slots_.end(), [](const Slot& s) { return !s.removing; }));
}

void Deployment::add_replica(config::ReplicaPlacement placement, std::function<void(Expected<ReplicaId>)> done) {
    if (state_ != DeploymentState::kReady || ending_) return done(fail(ErrorCode::kUnavailable, "the model is not running"));
    if (slots_.size() >= limits::kReplicasMax)
        return done(fail(ErrorCode::kInvalidArgument, "a model has at most " + std::to_string(limits::kReplicasMax) + " replicas"));
    ReplicaId id{1};
    while (slot(id) != nullptr) ++id.value;
    Slot s;
    s.id = id;
    s.placement = std::move(placement);
    if (s.placement.replica_uid.empty()) s.placement.replica_uid = uid() + "-" + std::to_string(id.value - 1);
    s.created_unix = std::time(nullptr);
    s.adding = true;
    s.change_begun = steady_now();
    if (ring_.insert(id).second) router_->add_replica(id, s.placement.role);
    slots_.push_back(std::move(s));
    changes_[id] = std::move(done);
    event("INFO", "replica " + std::to_string(id.value - 1) + " is being added");
    Slot& added = slots_.back();
    spawn(added);
    if (added.state == SlotState::kDown) change_ended(added, added.error);
}

void Deployment::remove_replica(ReplicaId id, std::function<void(Expected<size_t>)> done) {
    Slot* s = slot(id);
    if (state_ != DeploymentState::kReady || ending_ || s == nullptr || s->removing)
        return done(fail(ErrorCode::kUnavailable, "the replica is not running"));
    if (s->adding) return done(fail(ErrorCode::kUnavailable, "the replica is still loading"));
    s->removing = true;
    s->change_begun = steady_now();
    changes_[id] = [this, done = std::move(done)](Expected<ReplicaId> gone) {
        if (gone) done(replicas_staying());
        else done(fail(gone.error()));
    };
    event("INFO", "replica " + std::to_string(id.value - 1) + " is being removed");
    router_->replica_draining(steady_now(), s->target(), true);
    pump();
}

/// Every tick: ends what has drained, gives up what does not come up.
void Deployment::advance_changes() {
    if (changes_.empty() || ending_) return;
    const TimeMs now = steady_now();
    for (auto it = slots_.begin(); it != slots_.end();) {
        Slot& s = *it++;
        if (s.stopping || (!s.adding && !s.removing)) continue;
        const int64_t since = now - s.change_begun;
        const bool drained = since > kFreshStatsMs && s.stats.running + s.stats.waiting == 0;
        if (s.adding ? since < kAddTimeoutMs : !drained && since < kDrainMs) continue;
        s.stopping = true;
        if (!services_.workers.send(s.placement.worker_ip, wire::StopReplica{uid(), s.target(), s.adding ? 0 : kStopGraceMs}))
            change_ended(s, "its worker is not registered");
    }
}

void Deployment::end_change(ReplicaId id, Expected<ReplicaId> result) {
    if (Slot* s = slot(id)) s->adding = false;
    const auto it = changes_.find(id);
    if (it == changes_.end()) return;
    const auto done = std::move(it->second);
    changes_.erase(it);
    done(std::move(result));
}

/// The process of a slot is gone. True when that was the end of a change: then the slot is no more, nor what it held:
/// `reason` may be the slot's own text.
bool Deployment::change_ended(Slot& s, std::string reason) {
    if (!s.adding && !s.removing) return false;
    const ReplicaId id = s.id;
    const bool added = s.adding;
    const std::string name = "replica " + std::to_string(id.value - 1);
    coordinator_->remove(id);
    slots_.remove_if([&](const Slot& other) { return other.id == id; });
    if (added) {
        event("ERROR", name + " failed to load: " + reason);
        end_change(id, fail(ErrorCode::kInvalidArgument, name + " failed to load: " + reason));
    } else {
        log::info("replica.removed", {{"model_uid", uid()}, {"replica", id.value - 1}});
        event("INFO", name + " is removed");
        end_change(id, id);
    }
    return true;
}

}  // namespace baton::supervisor
