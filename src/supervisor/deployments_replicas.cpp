#include "baton/base/log.hpp"
#include "deployments.hpp"
#include "launch_bodies.hpp"

// Replicas added to and taken from running deployments: where they are placed, and what a restart brings back.
namespace baton::supervisor {

void Deployments::add_replica(const std::string& uid, const std::string& body, std::function<void(Expected<ReplicaId>)> done) {
    const auto deployment = find(uid);
    if (!deployment || deployment->state() != DeploymentState::kReady)
        return done(fail(ErrorCode::kUnavailable, "Model is loading, please retry later: " + uid));
    auto given = config::parse_added_replica(body);
    if (!given) return done(fail(given.error()));
    config::LaunchRequest request = deployment->request();
    const bool on_cpu = !deployment->slots().empty() && deployment->slots().front().placement.gpu_idx.empty();
    config::ReplicaPlacement placement;
    if (*given) placement = std::move(**given);
    else if (on_cpu) placement.n_gpu = 0;
    for (const Slot& s : deployment->slots())
        if (!placement.replica_uid.empty() && s.placement.replica_uid == placement.replica_uid)
            return done(fail(ErrorCode::kInvalidArgument, "Duplicate replica_uid '" + placement.replica_uid + "' in replica_config.", "replica_config"));
    request.model_uid.clear();  // its own checks were made at the launch
    request.from_replica_config = given->has_value();
    request.placements = {std::move(placement)};
    std::vector<std::string> warnings;
    auto resolved = config::resolve_launch(std::move(request), worker_views(), one_host(), warnings);
    if (!resolved) return done(fail(resolved.error()));
    for (const std::string& w : warnings) log::warn("launch.placement", {{"warning", w}});
    deployment->add_replica(resolved->placements.front(), [this, uid, deployment, done = std::move(done)](Expected<ReplicaId> id) {
        const auto recorded = recorded_.find(uid);
        if (!id || recorded == recorded_.end()) return done(std::move(id));
        for (const Slot& s : deployment->slots())
            if (s.id == *id) recorded->second = with_replica(recorded->second, deployment->replicas_staying(), s.placement);
        save_state([id = *id, done] { done(id); });
    });
}

void Deployments::remove_replica(const std::string& uid, ReplicaId id, std::function<void(Expected<size_t>)> done) {
    const auto deployment = find(uid);
    if (!deployment || !deployment->has_replica(id)) return done(fail(ErrorCode::kUnavailable, "the replica is not running"));
    if (deployment->replicas_staying() == 1) {
        return terminate(uid, [done = std::move(done)](Expected<void> gone) {
            if (gone) done(0);
            else done(fail(gone.error()));
        });
    }
    size_t index = 0;
    for (const Slot& s : deployment->slots()) {
        if (s.id == id) break;
        index += s.removing ? 0 : 1;
    }
    deployment->remove_replica(id, [this, uid, done = std::move(done)](Expected<size_t> left) {
        if (!left) return done(std::move(left));
        save_state([left = *left, done] { done(left); });
    });
    const auto recorded = recorded_.find(uid);
    if (recorded == recorded_.end()) return;
    recorded->second = without_replica(recorded->second, deployment->replicas_staying(), index);
    save_state(nullptr);  // already now: a restart while it drains must not bring it back
}

}  // namespace baton::supervisor
