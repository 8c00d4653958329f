#include <algorithm>
#include <nlohmann/json.hpp>

#include "baton/base/log.hpp"
#include "deployments.hpp"

// Replicas added to and taken from running deployments: where they are placed, and what a restart brings back.
namespace baton::supervisor {
namespace {

using Json = nlohmann::ordered_json;

/// The list of a body's replica_config, however it was sent; an empty one where there was none.
Json config_list(const Json& body) {
    for (const char* key : {"replica_config", "replica-config"}) {
        const auto it = body.find(key);
        if (it == body.end() || it->is_null()) continue;
        Json list = it->is_string() ? Json::parse(it->get<std::string>(), nullptr, false) : *it;
        if (list.is_array()) return list;
    }
    return Json::array();
}

/// A launch body after its replicas have become `count`. `change` edits its replica_config where it has one.
template <class Change>
std::string body_with(const std::string& raw, size_t count, const Change& change) {
    Json body = Json::parse(raw, nullptr, false);
    if (!body.is_object()) return raw;
    if (Json list = config_list(body); !list.empty()) {
        change(list);
        body.erase("replica-config");
        body["replica_config"] = std::move(list);
    }
    body["replica"] = count;
    body.erase("gpu_idx");  // one list for all replicas: it fits another number no more
    return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json entry_of(const config::ReplicaPlacement& p) {
    Json device = {{"worker_ip", p.worker_ip}};
    if (p.gpu_idx.empty()) device["n_gpu"] = 0;
    else device["gpu_idx"] = p.gpu_idx;
    return {{"replica_uid", p.replica_uid}, {"devices", Json::array({device})}};
}

}  // namespace

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
            if (s.id == *id) recorded->second = body_with(recorded->second, deployment->replicas_staying(), [&](Json& list) { list.push_back(entry_of(s.placement)); });
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
    recorded->second = body_with(recorded->second, deployment->replicas_staying(), [&](Json& list) {
        if (index < list.size()) list.erase(index);
    });
    save_state(nullptr);  // already now: a restart while it drains must not bring it back
}

}  // namespace baton::supervisor
