#include "cluster_api.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <ctime>

#include "api_answers.hpp"
#include "baton/base/build_info.hpp"
#include "baton/openai/json.hpp"
#include "model_rows.hpp"

namespace baton::supervisor {
namespace {

constexpr int kFailuresLeft = 5;  ///< Xinference counts failed health checks down; a worker here is there or is not listed

Json worker_status(const Workers::Worker& w) {
    const wire::WorkerStats& s = w.stats;
    Json out = {{"cpu",
                 {{"usage", s.cpu_utilization},
                  {"total", w.ready.cpu_count},
                  {"memory_used", s.memory_used},
                  {"memory_available", s.memory_total - std::min(s.memory_used, s.memory_total)},
                  {"memory_total", s.memory_total}}}};
    for (const wire::Gpu& gpu : w.ready.gpus) {
        const GpuLoad load = gpu_load(w, gpu);
        out["gpu-" + std::to_string(gpu.index)] = {{"name", gpu.name},
                                                   {"mem_total", gpu.memory_bytes},
                                                   {"mem_free", gpu.memory_bytes - std::min(load.memory_used, gpu.memory_bytes)},
                                                   {"mem_used", load.memory_used},
                                                   {"mem_usage", gpu.memory_bytes == 0 ? 0.0 : static_cast<double>(load.memory_used) / static_cast<double>(gpu.memory_bytes)},
                                                   {"gpu_util", load.utilization}};
    }
    return out;
}

/// One line of /v1/cluster/info.
Json node(const char* type, const std::string& address, const Workers::Worker* w, bool detailed, bool with_gpus) {
    uint64_t vram = 0, used = 0;
    double load = 0;
    const size_t gpus = w != nullptr && with_gpus ? w->ready.gpus.size() : 0;
    for (size_t i = 0; i < gpus; ++i) {
        const GpuLoad now = gpu_load(*w, w->ready.gpus[i]);
        vram += w->ready.gpus[i].memory_bytes;
        used += now.memory_used;
        load += now.utilization;
    }
    Json out = {{"node_type", type}, {"ip_address", address}, {"gpu_count", gpus}};
    if (!detailed) {
        out["gpu_vram_total"] = gpus == 0 ? Json(0) : Json(std::to_string(vram >> 20) + "MiB");
        return out;
    }
    const double cpus = w != nullptr ? w->ready.cpu_count : 0;
    const uint64_t total = w != nullptr ? w->stats.memory_total : 0, in_use = w != nullptr ? std::min(w->stats.memory_used, total) : 0;
    out["gpu_vram_total"] = vram;
    out["gpu_vram_available"] = vram - std::min(used, vram);
    out["gpu_utilization"] = gpus == 0 ? Json(nullptr) : Json(load / static_cast<double>(gpus));
    out["cpu_count"] = cpus;
    out["cpu_available"] = w != nullptr ? cpus * (1 - std::clamp(w->stats.cpu_utilization, 0.0, 1.0)) : 0.0;
    out["mem_total"] = total;
    out["mem_used"] = in_use;
    out["mem_available"] = total - in_use;
    return out;
}

}  // namespace

ClusterApi::ClusterApi(Services services) : services_(std::move(services)), started_unix_(std::time(nullptr)) {}

void ClusterApi::on_control(http::Router& router, const char* method, const char* pattern, http::Access access, std::function<void(const Exchange&)> handler) {
    router.add(method, pattern, {access, false}, on_control_thread(services_.control, [handler = std::move(handler)](const Exchange& e, const http::Params&, const std::string&) { handler(e); }));
}

void ClusterApi::add_routes(http::Router& router) {
    using http::Access;
    router.add("GET", "/health", {Access::kOpen, false}, [](Exchange e, const http::Params&) { e->respond(200, R"({"status":"ok"})"); });
    router.add("GET", "/v1/cluster/auth", {Access::kOpen, false}, [this](Exchange e, const http::Params&) {
        const config::SupervisorSettings& s = services_.settings;
        answer(*e, {{"auth", services_.auth != nullptr || !s.api_keys.empty() || !s.inference_api_keys.empty()}});
    });
    router.add("GET", "/v1/cluster/ui_config", {Access::kOpen, false}, [](Exchange e, const http::Params&) {
        answer(*e, {{"grafana_url", ""}, {"grafana_dashboard_uid", ""}, {"cluster_name", ""}, {"es_enabled", false}, {"auth_advanced", false},
                    {"oidc_enabled", false}, {"token_router_enabled", false}});
    });
    on_control(router, "GET", "/ready", Access::kOpen, [this](Exchange e) { ready(e); });
    on_control(router, "GET", "/status", Access::kOpen, [this](Exchange e) { status(e); });
    on_control(router, "GET", "/v1/address", Access::kOpen, [this](Exchange e) { answer(*e, services_.address()); });
    on_control(router, "GET", "/metrics", Access::kInference, [this](Exchange e) {
        e->respond(200, services_.metrics(), {}, "text/plain; version=0.0.4; charset=utf-8");
    });
    on_control(router, "GET", "/v1/supervisor", Access::kAdmin, [this](Exchange e) { answer(*e, {{"supervisor_ip", services_.address()}}); });
    on_control(router, "GET", "/v1/workers", Access::kAdmin, [this](Exchange e) { list_workers(e); });
    on_control(router, "GET", "/v1/cluster/info", Access::kAdmin, [this](Exchange e) { cluster_info(e); });
    on_control(router, "GET", "/v1/cluster/devices", Access::kAdmin, [this](Exchange e) {
        size_t most = 0;
        for (const auto& [address, w] : services_.workers.all()) most = std::max(most, w.ready.gpus.size());
        answer(*e, most);
    });
    on_control(router, "GET", "/v1/cluster/version", Access::kAdmin, [](Exchange e) { 
        const BuildInfo& b = build_info();
        answer(*e, {{"version", b.version}, {"full-revisionid", b.revision.empty() ? Json(nullptr) : Json(b.revision)}, {"build_type", b.type}, {"compiler", b.compiler}});
    });
    on_control(router, "DELETE", "/v1/clusters", Access::kAdmin, [this](Exchange e) {
        answer(*e, {{"result", true}});
        services_.stop();
    });
    add_token_routes(router);
}

// ---- tokens -----------------------------------------------------------------------------------------------------------

void ClusterApi::add_token_routes(http::Router& router) {
    const auto add = [&](const char* pattern) {
        router.add("POST", pattern, {http::Access::kOpen, true}, [this](Exchange e, const http::Params&) {
            std::string body = e->take_body();
            // A hashed password takes a while to check: not on a thread that others wait for.
            boost::asio::post(services_.background, [this, e = std::move(e), body = std::move(body)] { log_in(e, body); });
        });
    };
    add("/token");
    add("/token/refresh");
}

void ClusterApi::log_in(const Exchange& exchange, const std::string& body) {
    const auto bad = [&](const char* message) { respond_error(*exchange, Error{ErrorCode::kInvalidArgument, message, ""}); };
    if (services_.auth == nullptr) return bad("there are no users here: no auth file is configured");
    if (auto ok = openai::check_json_object(body); !ok) return respond_error(*exchange, ok.error());
    const Json json = Json::parse(body, nullptr, false);
    const auto text = [&](const char* key) -> std::optional<std::string> {
        const auto it = json.find(key);
        return it != json.end() && it->is_string() ? std::optional(it->get<std::string>()) : std::nullopt;
    };
    Expected<Auth::Tokens> tokens;
    if (exchange->request().path == "/token/refresh") {
        const auto token = text("refresh_token");
        if (!token) return bad("the body must have refresh_token, a string");
        tokens = services_.auth->refresh(*token);
    } else {
        const auto user = text("username"), password = text("password");
        if (!user || !password) return bad("the body must have username and password, both strings");
        tokens = services_.auth->log_in(*user, *password, exchange->request().remote_address);
    }
    if (!tokens) {
        openai::ApiError e = openai::to_api_error(tokens.error());
        if (tokens.error().code == ErrorCode::kOverloaded) e.retry_after_s = static_cast<int>(std::max<int64_t>(1, services_.auth->login_locked_s(exchange->request().remote_address)));
        return respond_error(*exchange, e);
    }
    answer(*exchange, {{"access_token", tokens->access}, {"refresh_token", tokens->refresh}, {"token_type", "bearer"}});
}

// ---- the cluster ------------------------------------------------------------------------------------------------------

void ClusterApi::list_workers(const Exchange& exchange) {
    Json rows = Json::array();
    for (const auto& [address, w] : services_.workers.all()) {
        Json models = Json::object();
        for (const auto& [uid, d] : services_.deployments.all())
            for (const Slot& s : d->slots())
                if (s.placement.worker_ip == address && s.state == SlotState::kUp) models[replica_model_uid(*d, s)] = description(*d);
        rows.push_back({{"work-ip", address}, {"models", models}, {"registered_ts", w.registered_unix}});
    }
    answer(*exchange, rows);
}

void ClusterApi::status(const Exchange& exchange) {
    Json workers = Json::object();
    for (const auto& [address, w] : services_.workers.all())
        workers[address] = {{"update_time", static_cast<double>(std::time(nullptr))},
                            {"registered_ts", w.registered_unix},
                            {"failure_remaining_count", kFailuresLeft},
                            {"status", worker_status(w)}};
    answer(*exchange, {{"uptime", std::time(nullptr) - started_unix_}, {"workers", workers}});
}

void ClusterApi::cluster_info(const Exchange& exchange) {
    const auto detailed = bool_query(*exchange, "detailed", false);
    if (!detailed) return;
    // There are no token routers here; the parameter is checked and says nothing.
    if (!bool_query(*exchange, "include_routers", false)) return;
    Json rows = Json::array();
    const Workers::Worker* here = nullptr;
    for (const auto& [address, w] : services_.workers.all())
        if (w.local) here = &w;
    rows.push_back(node("Supervisor", services_.address(), here, *detailed, false));
    for (const auto& [address, w] : services_.workers.all()) rows.push_back(node("Worker", address, &w, *detailed, true));
    answer(*exchange, rows);
}

std::string ClusterApi::not_ready() const {
    if (services_.draining()) return "draining";
    if (services_.workers.all().empty()) return "no worker is registered";
    if (services_.deployments.starting()) return "start-up deployments are loading";
    for (const auto& [uid, d] : services_.deployments.all()) {
        if (d->state() == DeploymentState::kLoading || d->state() == DeploymentState::kCreating) return "model " + uid + " is loading";
        if (d->state() != DeploymentState::kReady) continue;
        for (const Slot& s : d->slots())
            if (s.state != SlotState::kUp && !s.adding && !s.removing) return "model " + uid + ": replica " + std::to_string(s.id.value - 1) + " is down";
    }
    return "";
}

void ClusterApi::ready(const Exchange& exchange) {
    const std::string reason = not_ready();
    if (reason.empty()) return answer(*exchange, {{"status", "ready"}});
    openai::ApiError e;
    e.status = 503;
    e.message = reason;
    e.type = "server_error";
    e.code = "not_ready";
    e.retry_after_s = 1;
    respond_error(*exchange, e);
}

}  // namespace baton::supervisor
