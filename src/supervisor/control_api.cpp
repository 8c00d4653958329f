#include "control_api.hpp"

#include <boost/asio/post.hpp>
#include <ctime>
#include <nlohmann/json.hpp>

#include "baton/openai/error.hpp"
#include "baton/openai/json.hpp"
#include "inference_api.hpp"

namespace baton::supervisor {
namespace {

using Json = nlohmann::json;

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }
void answer(http::Exchange& exchange, const Json& json) { exchange.respond(200, dump(json)); }

const char* slot_status(const Deployment& d, const Slot& s) {
    switch (s.state) {
        case SlotState::kSpawning: return "CREATING";
        case SlotState::kLoading: return "LOADING";
        case SlotState::kUp: return d.state() == DeploymentState::kReady ? "READY" : "LOADING";
        case SlotState::kDown: return d.state() == DeploymentState::kTerminating ? "TERMINATING" : d.state() == DeploymentState::kError ? "ERROR" : "UPDATING";
        case SlotState::kFailed: return "ERROR";
    }
    return "ERROR";
}

/// GPU numbers as texts; null on the CPU.
Json accelerators(const Slot& s) {
    if (s.placement.gpu_idx.empty()) return nullptr;
    Json out = Json::array();
    for (const int64_t g : s.placement.gpu_idx) out.push_back(std::to_string(g));
    return out;
}

Json description(const Deployment& d) {
    const model::ModelInfo& m = d.model();
    const config::LaunchRequest& r = d.request();
    Json ability = Json::array({"generate"});
    if (m.chat_template) ability.push_back("chat");
    Json size = r.size_in_billions.empty() ? Json(nullptr) : Json(r.size_in_billions);
    return {{"model_type", "LLM"},
            {"address", d.slots().empty() ? "" : d.slots().front().placement.worker_ip},
            {"accelerators", d.slots().empty() ? Json(nullptr) : accelerators(d.slots().front())},
            {"model_name", r.model_name},
            {"model_lang", Json::array({"en"})},
            {"model_ability", ability},
            {"model_description", ""},
            {"model_format", r.model_format.empty() ? (m.format == "gguf" ? "ggufv2" : "pytorch") : r.model_format},
            {"model_size_in_billions", size},
            {"model_family", m.family},
            {"quantization", r.quantization.empty() ? m.quantization : r.quantization},
            {"multimodal_projector", nullptr},
            {"model_hub", "huggingface"},
            {"revision", nullptr},
            {"context_length", d.context_length()},
            {"strict_system_first", false},
            {"model_engine", r.model_engine},
            {"replica", d.slots().size()}};
}

Json model_entry(const std::string& uid, const Deployment& d) {
    Json entry = {{"id", uid}, {"object", "model"}, {"created", 0}, {"owned_by", "xinference"}};
    entry.update(description(d));
    return entry;
}

Json replica_row(const Deployment& d, const Slot& s) {
    const std::string index = std::to_string(s.id.value - 1);
    return {{"replica_id", s.id.value - 1},
            {"replica_model_uid", d.uid() + "-rep" + index},
            {"worker_address", s.placement.worker_ip},
            {"model_address", nullptr},
            {"accelerators", accelerators(s)},
            {"status", slot_status(d, s)},
            {"created_ts", s.created_unix},
            {"error_message", s.error.empty() ? Json(nullptr) : Json(s.error)},
            {"replica_uid", s.placement.replica_uid},
            {"gpu_idx", s.placement.gpu_idx.empty() ? Json(nullptr) : Json(s.placement.gpu_idx)},
            {"role", to_string(s.placement.role)},
            {"pid", s.pid == 0 ? Json(nullptr) : Json(s.pid)},
            {"running", s.stats.running},
            {"waiting", s.stats.waiting},
            {"kv_blocks_free", s.stats.blocks_free}};
}

/// wait_ready of a launch: true unless the query says otherwise; nullopt for nonsense.
std::optional<bool> wait_ready(const http::Request& request) {
    const std::string* value = request.query_value("wait_ready");
    if (value == nullptr) return true;
    std::string v = *value;
    for (char& c : v) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (v == "true" || v == "1" || v == "yes" || v == "on" || v == "t" || v == "y") return true;
    if (v == "false" || v == "0" || v == "no" || v == "off" || v == "f" || v == "n") return false;
    return std::nullopt;
}

}  // namespace

ControlApi::ControlApi(Services services) : services_(std::move(services)), started_unix_(std::time(nullptr)) {}

void ControlApi::on_control(http::Router& router, const char* method, const char* pattern, http::Router::Rule rule, Handler handler) {
    router.add(method, pattern, rule, [this, handler = std::move(handler)](Exchange e, const http::Params& params) {
        boost::asio::post(services_.control, [handler, e = std::move(e), params] {
            try {
                handler(e, params);
            } catch (const std::exception&) {
                respond_error(*e, Error{ErrorCode::kInternal, "internal error", ""});
            }
        });
    });
}

void ControlApi::add_routes(http::Router& router) {
    using http::Access;
    const http::Router::Rule open{Access::kOpen, false}, read{Access::kInference, false}, admin{Access::kAdmin, false}, launch_rule{Access::kAdmin, true};
    router.add("GET", "/health", open, [](Exchange e, const http::Params&) { e->respond(200, R"({"status":"ok"})"); });
    on_control(router, "GET", "/ready", open, [this](Exchange e, const http::Params&) { ready(e); });
    router.add("GET", "/v1/cluster/auth", open, [this](Exchange e, const http::Params&) {
        e->respond(200, services_.settings.api_keys.empty() ? R"({"auth":false})" : R"({"auth":true})");
    });
    on_control(router, "GET", "/metrics", read, [this](Exchange e, const http::Params&) {
        e->respond(200, services_.metrics(), {}, "text/plain; version=0.0.4; charset=utf-8");
    });
    on_control(router, "GET", "/status", open, [this](Exchange e, const http::Params&) { status(e); });
    on_control(router, "GET", "/v1/address", open, [this](Exchange e, const http::Params&) { answer(*e, services_.address()); });
    on_control(router, "GET", "/v1/supervisor", admin, [this](Exchange e, const http::Params&) { answer(*e, {{"supervisor_ip", services_.address()}}); });
    on_control(router, "GET", "/v1/workers", admin, [this](Exchange e, const http::Params&) { list_workers(e); });
    on_control(router, "GET", "/v1/cluster/version", admin, [](Exchange e, const http::Params&) { answer(*e, {{"version", BATON_VERSION}, {"full-revisionid", nullptr}}); });
    on_control(router, "DELETE", "/v1/clusters", admin, [this](Exchange e, const http::Params&) {
        answer(*e, {{"result", true}});
        services_.stop();
    });

    router.add("POST", "/v1/models", launch_rule, [this](Exchange e, const http::Params&) {
        std::string body = e->take_body();
        boost::asio::post(services_.control, [this, e = std::move(e), body = std::move(body)] { launch(e, body); });
    });
    on_control(router, "GET", "/v1/models", read, [this](Exchange e, const http::Params&) { list_models(e); });
    on_control(router, "GET", "/v1/models/instances", read, [this](Exchange e, const http::Params&) { instances(e); });
    on_control(router, "GET", "/v1/models/{uid}", read, [this](Exchange e, const http::Params& p) { describe(e, p[0]); });
    on_control(router, "DELETE", "/v1/models/{uid}", admin, [this](Exchange e, const http::Params& p) {
        services_.deployments.terminate(p[0], [e](Expected<void> done) {
            if (done) e->respond(200, "null");
            else respond_error(*e, done.error());
        });
    });
    on_control(router, "GET", "/v1/models/{uid}/replicas", read, [this](Exchange e, const http::Params& p) { replicas(e, p[0]); });
    on_control(router, "POST", "/v1/models/{uid}/replicas", admin, [](Exchange e, const http::Params&) {
        respond_error(*e, Error{ErrorCode::kInvalidArgument, "PD topology is fixed until the model is terminated. Adding replicas to Xavier-distributed models is not supported.", ""});
    });
    on_control(router, "DELETE", "/v1/models/{uid}/replicas/{replica_id}", admin, [](Exchange e, const http::Params&) {
        respond_error(*e, Error{ErrorCode::kInvalidArgument, "PD topology is fixed until the model is terminated; replicas cannot be removed.", ""});
    });
    on_control(router, "GET", "/v1/models/{uid}/progress", read, [this](Exchange e, const http::Params& p) { progress(e, p[0]); });
    on_control(router, "GET", "/v1/models/{uid}/events", read, [this](Exchange e, const http::Params& p) { events(e, p[0]); });
    on_control(router, "POST", "/v1/models/{uid}/cancel", admin, [this](Exchange e, const http::Params& p) {
        if (auto done = services_.deployments.cancel(p[0]); !done) return respond_error(*e, done.error());
        e->respond(200, "null");
    });
}

void ControlApi::launch(const Exchange& exchange, const std::string& body) {
    const auto wait = wait_ready(exchange->request());
    if (!wait) return respond_error(*exchange, Error{ErrorCode::kInvalidArgument, "wait_ready must be true or false", "wait_ready"});
    if (auto ok = openai::check_json_object(body); !ok) return respond_error(*exchange, ok.error());
    auto request = config::parse_launch(body, services_.settings.local_worker);
    if (!request) return respond_error(*exchange, request.error());
    auto answered = std::make_shared<bool>(false);
    std::function<void(const std::string&)> accepted;
    // Keywords that mean nothing here are no error, but whoever mistyped one should see it.
    Json launched = {{"model_uid", ""}};
    if (!request->ignored.empty()) launched["ignored_keywords"] = request->ignored;
    if (!*wait)
        accepted = [exchange, answered, launched](const std::string& uid) mutable {
            *answered = true;
            launched["model_uid"] = uid;
            answer(*exchange, launched);
        };
    services_.deployments.launch(std::move(*request), std::move(accepted), [exchange, answered, launched](Expected<std::string> uid) mutable {
        if (*answered) return;
        if (!uid) return respond_error(*exchange, uid.error());
        launched["model_uid"] = *uid;
        answer(*exchange, launched);
    });
}

void ControlApi::list_models(const Exchange& exchange) {
    Json data = Json::array();
    for (const auto& [uid, d] : services_.deployments.all())
        if (d->state() == DeploymentState::kReady) data.push_back(model_entry(uid, *d));
    answer(*exchange, {{"object", "list"}, {"data", data}});
}

void ControlApi::describe(const Exchange& exchange, const std::string& uid) {
    const auto d = services_.deployments.find(uid);
    if (!d) return respond_error(*exchange, Error{ErrorCode::kInvalidArgument, "Model not found in the model list, uid: " + openai::echo_input(uid), "model_uid"});
    if (d->state() != DeploymentState::kReady) return respond_error(*exchange, openai::model_not_ready(uid));
    answer(*exchange, model_entry(uid, *d));
}

void ControlApi::instances(const Exchange& exchange) {
    const std::string* want_uid = exchange->request().query_value("model_uid");
    const std::string* want_name = exchange->request().query_value("model_name");
    Json rows = Json::array();
    for (const auto& [uid, d] : services_.deployments.all()) {
        if (want_uid != nullptr && !want_uid->empty() ? *want_uid != uid : want_name != nullptr && !want_name->empty() && *want_name != d->request().model_name) continue;
        Json replica_rows = Json::array();
        for (const Slot& s : d->slots()) replica_rows.push_back(replica_row(*d, s));
        Json ability = Json::array({"generate"});
        if (d->model().chat_template) ability.push_back("chat");
        rows.push_back({{"model_name", d->request().model_name},
                        {"model_uid", uid},
                        {"model_version", nullptr},
                        {"model_ability", ability},
                        {"replica", d->slots().size()},
                        {"status", to_string(d->state())},
                        {"instance_created_ts", d->created_unix()},
                        {"n_worker", 1},
                        {"replica_statuses", replica_rows}});
    }
    answer(*exchange, rows);
}

void ControlApi::replicas(const Exchange& exchange, const std::string& uid) {
    Json rows = Json::array();
    const auto it = services_.deployments.all().find(uid);
    if (it != services_.deployments.all().end())
        for (const Slot& s : it->second->slots()) rows.push_back(replica_row(*it->second, s));
    answer(*exchange, rows);
}

void ControlApi::progress(const Exchange& exchange, const std::string& uid) {
    const auto it = services_.deployments.all().find(uid);
    Json rows = Json::array();
    if (it == services_.deployments.all().end())
        return answer(*exchange, {{"progress", 0.0}, {"stage", "pending"}, {"download_files", Json::array()}, {"replicas", rows}});
    const Deployment& d = *it->second;
    for (const Slot& s : d.slots())
        rows.push_back({{"replica_id", s.id.value - 1},
                        {"replica_model_uid", d.uid() + "-rep" + std::to_string(s.id.value - 1)},
                        {"progress", s.state == SlotState::kUp ? 1.0 : 0.0},
                        {"stage", s.state == SlotState::kSpawning ? "launching" : "loading"},
                        {"info", s.error},
                        {"updated_at", s.created_unix},
                        {"download_files", Json::array()}});
    answer(*exchange, {{"progress", d.progress()}, {"stage", d.state() == DeploymentState::kCreating ? "launching" : "loading"}, {"download_files", Json::array()}, {"replicas", rows}});
}

void ControlApi::events(const Exchange& exchange, const std::string& uid) {
    Json rows = Json::array();
    const auto it = services_.deployments.all().find(uid);
    if (it != services_.deployments.all().end())
        for (const Event& e : it->second->events()) rows.push_back({{"event_type", e.type}, {"event_ts", e.unix_s}, {"event_content", e.content}});
    answer(*exchange, rows);
}

void ControlApi::list_workers(const Exchange& exchange) {
    Json rows = Json::array();
    for (const auto& [address, w] : services_.workers.all()) {
        Json models = Json::object();
        for (const auto& [uid, d] : services_.deployments.all())
            for (const Slot& s : d->slots())
                if (s.placement.worker_ip == address && s.state == SlotState::kUp)
                    models[uid + "-rep" + std::to_string(s.id.value - 1)] = description(*d);
        rows.push_back({{"work-ip", address}, {"models", models}});
    }
    answer(*exchange, rows);
}

void ControlApi::status(const Exchange& exchange) {
    Json workers = Json::object();
    for (const auto& [address, w] : services_.workers.all()) {
        const wire::WorkerStats& s = w.stats;
        workers[address] = {{"update_time", static_cast<double>(std::time(nullptr))},
                            {"registered_ts", w.registered_unix},
                            {"failure_remaining_count", 5},
                            {"status",
                             {{"cpu",
                               {{"usage", s.cpu_utilization},
                                {"total", w.ready.cpu_count},
                                {"memory_used", s.memory_used},
                                {"memory_available", s.memory_total - std::min(s.memory_used, s.memory_total)},
                                {"memory_total", s.memory_total}}}}}};
        for (const wire::Gpu& gpu : w.ready.gpus)
            workers[address]["status"]["gpu-" + std::to_string(gpu.index)] = {{"name", gpu.name}, {"mem_total", gpu.memory_bytes}};
    }
    answer(*exchange, {{"uptime", std::time(nullptr) - started_unix_}, {"workers", workers}});
}

void ControlApi::ready(const Exchange& exchange) {
    std::string reason;
    if (services_.draining()) reason = "draining";
    else if (services_.workers.all().empty()) reason = "no worker is registered";
    else if (services_.deployments.starting()) reason = "start-up deployments are loading";
    for (const auto& [uid, d] : services_.deployments.all()) {
        if (!reason.empty()) break;
        if (d->state() == DeploymentState::kLoading || d->state() == DeploymentState::kCreating) reason = "model " + uid + " is loading";
        else if (d->state() == DeploymentState::kReady) {
            for (const Slot& s : d->slots())
                if (s.state != SlotState::kUp) reason = "model " + uid + ": replica " + std::to_string(s.id.value - 1) + " is down";
        }
    }
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
