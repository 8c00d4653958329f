#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/asio/post.hpp>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "baton/base/log.hpp"
#include "deployments.hpp"
#include "launch_bodies.hpp"

// What a restart launches again: the state file, and the deployments that it and the settings name.
namespace baton::supervisor {
namespace {

/// A worker that outlived the last supervisor names its replicas right after it registers.
constexpr int64_t kAdoptionMs = 500;

void write_state(const std::string& path, const std::string& text) {
    const std::string temporary = path + ".new";
    const UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    const bool written = fd && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(fd.get()) == 0;
    if (!written || std::rename(temporary.c_str(), path.c_str()) != 0) log::error("state.write_failed", {{"path", path}});
}

}  // namespace

std::string Deployments::state_path() const { return services_.settings.state_dir + "/deployments.json"; }

void Deployments::load_state() {
    std::ifstream in(state_path());
    if (!in) return;
    std::stringstream text;
    text << in.rdbuf();
    const auto state = nlohmann::json::parse(text.str(), nullptr, false);
    if (!state.is_object() || !state.contains("deployments") || !state["deployments"].is_object()) {
        log::error("state.unreadable", {{"path", state_path()}});
        return;
    }
    for (const auto& [uid, raw] : state["deployments"].items())
        if (raw.is_string()) recorded_[uid] = raw.get<std::string>();
    if (!state.contains("hosts") || !state["hosts"].is_object()) return;
    for (const auto& [address, host_id] : state["hosts"].items())
        if (host_id.is_string()) services_.workers.remember(address, host_id.get<std::string>());
}

void Deployments::save_state(std::function<void()> then) {
    nlohmann::json state = {{"version", 1}, {"deployments", nlohmann::json::object()}, {"hosts", nlohmann::json::object()}};
    for (const auto& [uid, raw] : recorded_) {
        state["deployments"][uid] = raw;
        // A worker's address has another port after its next start: by the host's id it is known again.
        for (const std::string& address : workers_named(raw))
            if (const std::string host_id = services_.workers.host_id_of(address); !host_id.empty()) state["hosts"][address] = host_id;
    }
    std::string text = state.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    // One strand: a later state is never overwritten by an earlier one.
    boost::asio::post(disk_, [this, path = state_path(), text = std::move(text), then = std::move(then)]() mutable {
        write_state(path, text);
        if (then) boost::asio::post(services_.io, std::move(then));
    });
}

// ---- start ------------------------------------------------------------------------------------------------------------

/// Workers that start-up deployments name.
std::set<std::string> Deployments::workers_awaited() const {
    std::set<std::string> named;
    for (const auto& [uid, body] : recorded_) named.merge(workers_named(body));
    for (const std::string& body : services_.settings.deployments) named.merge(workers_named(body));
    return named;
}

bool Deployments::awaits_workers() const {
    if (one_host()) return false;
    const std::set<std::string> named = workers_awaited();
    return services_.workers.now_at(named, false).size() < named.size();
}

void Deployments::start_recorded() {
    recorded_started_ = true;
    // What the configuration or the command line names now wins over what was recorded under the same uid.
    for (const std::string& body : services_.settings.deployments)
        if (const auto request = config::parse_launch(body, services_.settings.local_worker))
            recorded_.erase(request->model_uid.empty() ? request->model_name : request->model_uid);
    for (const auto& [uid, body] : std::map(recorded_))
        if (!all_.contains(uid)) launch_recorded(uid);  // somebody may have launched it already
    for (const std::string& body : services_.settings.deployments) launch_configured(body);
}

/// A start-up deployment's launch: workers that have another address now are named by that.
Expected<config::LaunchRequest> Deployments::at_start(const std::string& body) const {
    BATON_TRY_ASSIGN(auto request, config::parse_launch(readdressed(body, services_.workers.now_at(workers_named(body), true)), services_.settings.local_worker));
    for (config::ReplicaPlacement& p : request.placements)
        for (const auto& [address, w] : services_.workers.all())
            if (request.from_replica_config && p.worker_ip.empty() && w.local) p.worker_ip = address;
    return request;
}

/// What the configuration names must work, else the process ends.
void Deployments::launch_configured(const std::string& body) {
    auto request = at_start(body);
    if (!request) {
        log::error("startup.launch_invalid", {{"reason", request.error().message}});
        return;
    }
    const std::string named = request->model_uid.empty() ? request->model_name : request->model_uid;
    recorded_[named] = body;
    ++startup_pending_;
    launch(std::move(*request), nullptr, [this, named](const Expected<std::string>& done) {
        --startup_pending_;
        if (done) return;
        log::error("startup.launch_failed", {{"model_uid", named}, {"reason", done.error().message}});
        recorded_.erase(named);
        services_.fatal("the start-up deployment " + named + " failed: " + done.error().message);
    });
}

/// What was running before. A launch that fails stays recorded: its row says why, and the next start tries again; so does the
/// registration of a worker that it wants.
void Deployments::launch_recorded(const std::string& uid) {
    auto request = at_start(recorded_.at(uid));
    if (!request) return not_launched(uid, {}, request.error());
    request->model_uid = uid;
    ++startup_pending_;
    config::LaunchRequest row = *request;
    launch(std::move(*request), nullptr, [this, uid, row = std::move(row)](const Expected<std::string>& done) {
        --startup_pending_;
        if (!done) not_launched(uid, row, done.error());
    });
}

void Deployments::not_launched(const std::string& uid, config::LaunchRequest request, Error error) {
    const auto recorded = recorded_.find(uid);
    if (shutting_down_ || recorded == recorded_.end()) return;
    if (error.code == ErrorCode::kCancelled) {  // whoever did that waits for the state to be saved
        recorded_.erase(recorded);
        return;
    }
    const std::set<std::string> named = workers_named(recorded->second);
    if (!one_host() && services_.workers.now_at(named, true).size() < named.size()) {
        waiting_.insert(uid);
        if (error.message.ends_with('.')) error.message.pop_back();
        error.message += "; it is launched when its workers are there";
    }
    log::error("startup.launch_failed", {{"model_uid", uid}, {"reason", error.message}});
    if (const auto it = all_.find(uid); it != all_.end()) return;  // it has a row
    request.model_uid = uid;
    if (request.model_name.empty()) request.model_name = uid;
    const auto row = enlist(std::move(request), {}, nullptr);
    if (!row) return;
    (*row)->fail_unlaunched(std::move(error), when_launched(*row, [](const Expected<std::string>&) {}));
}

/// Tries those again that wanted a worker which is there now.
void Deployments::launch_waiting() {
    for (const std::string& uid : std::set(waiting_)) {
        const auto recorded = recorded_.find(uid);
        const auto row = all_.find(uid);
        // Somebody else's launch of that uid goes before.
        if (recorded == recorded_.end() || (row != all_.end() && row->second->state() != DeploymentState::kError)) {
            waiting_.erase(uid);
            continue;
        }
        const std::set<std::string> named = workers_named(recorded->second);
        if (services_.workers.now_at(named, true).size() < named.size()) continue;
        waiting_.erase(uid);
        if (row != all_.end()) all_.erase(row);
        launch_recorded(uid);
    }
}

// ---- workers that come back -------------------------------------------------------------------------------------------

void Deployments::worker_registered(const std::string& address) {
    bool moved = false;
    for (const auto& [uid, d] : std::map(all_)) {
        std::map<std::string, std::string> now;
        for (const Slot& s : d->slots())
            if (s.placement.worker_ip != address && services_.workers.replaces(s.placement.worker_ip, address)) now[s.placement.worker_ip] = address;
        d->worker_registered(address);
        const auto recorded = recorded_.find(uid);
        if (now.empty() || recorded == recorded_.end()) continue;
        recorded->second = readdressed(recorded->second, now);
        moved = true;
    }
    if (moved) save_state(nullptr);
    if (waiting_.empty() || !recorded_started_) return;
    waiting_timer_.expires_after(std::chrono::milliseconds(kAdoptionMs));
    waiting_timer_.async_wait([this](boost::system::error_code ec) {
        if (!ec && !shutting_down_) launch_waiting();
    });
}

}  // namespace baton::supervisor
