#include "control_api.hpp"

#include <boost/asio/post.hpp>
#include <ctime>

#include "api_answers.hpp"
#include "baton/openai/error.hpp"
#include "baton/openai/json.hpp"
#include "baton/openai/tools.hpp"
#include "model_rows.hpp"

namespace baton::supervisor {
namespace {

constexpr const char* kFixedTopology = "PD topology is fixed until the model is terminated. ";

Error not_found(const std::string& uid) {
    return {ErrorCode::kInvalidArgument, "Model not found in the model list, uid: " + openai::echo_input(uid), "model_uid"};
}

/// "NAME--SIZEB--FORMAT--QUANTIZATION" of Xinference's model versions as launch fields.
Expected<Json> fields_of_version(const std::string& version) {
    std::vector<std::string> parts;
    std::string_view rest = version;
    for (;;) {
        const size_t at = rest.find("--");
        parts.emplace_back(rest.substr(0, at));
        if (at == std::string_view::npos) break;
        rest.remove_prefix(at + 2);
    }
    if (parts.size() != 4 || parts[0].empty() || parts[1].size() < 2 || parts[1].back() != 'B')
        return fail(ErrorCode::kInvalidArgument, "model_version must be NAME--SIZEB--FORMAT--QUANTIZATION, got " + openai::echo_input(version), "model_version");
    parts[1].pop_back();
    return Json{{"model_name", parts[0]}, {"model_size_in_billions", parts[1]}, {"model_format", parts[2]}, {"quantization", parts[3]}};
}

}  // namespace

void ControlApi::on_control(http::Router& router, const char* method, const char* pattern, http::Access access, Handler handler) {
    router.add(method, pattern, {access, false}, on_control_thread(services_.control, [handler = std::move(handler)](const Exchange& e, const http::Params& p, const std::string&) { handler(e, p); }));
}

void ControlApi::with_body(http::Router& router, const char* pattern, http::Router::Rule rule, ControlHandler handler) {
    router.add("POST", pattern, rule, on_control_thread(services_.control, std::move(handler)));
}

void ControlApi::add_routes(http::Router& router) {
    using http::Access;
    using P = const http::Params&;
    with_body(router, "/v1/models", {Access::kStart, true}, [this](Exchange e, P, std::string body) { launch(e, body); });
    with_body(router, "/v1/models/instance", {Access::kStart, true}, [this](Exchange e, P, std::string body) { launch_version(e, body); });
    on_control(router, "GET", "/v1/models", Access::kList, [this](Exchange e, P) { list_models(e); });
    on_control(router, "GET", "/anthropic/v1/models", Access::kList, [this](Exchange e, P) { list_for_anthropic(e); });
    on_control(router, "GET", "/v1/models/instances", Access::kList, [this](Exchange e, P) { instances(e); });
    on_control(router, "GET", "/v1/models/{uid...}", Access::kList, [this](Exchange e, P p) { describe(e, p[0]); });
    on_control(router, "DELETE", "/v1/models/{uid...}", Access::kStop, [this](Exchange e, P p) {
        services_.deployments.terminate(p[0], [e](Expected<void> done) {
            if (done) e->respond(200, "null");
            else respond_error(*e, done.error());
        });
    });
    on_control(router, "GET", "/v1/models/{uid...}/replicas", Access::kList, [this](Exchange e, P p) { replicas(e, p[0]); });
    with_body(router, "/v1/models/{uid...}/replicas", {Access::kStart, false}, [this](Exchange e, P p, std::string body) { add_replica(e, p[0], body); });
    on_control(router, "DELETE", "/v1/models/{uid...}/replicas/{replica_id}", Access::kStop, [this](Exchange e, P p) { remove_replica(e, p[0], p[1]); });
    on_control(router, "GET", "/v1/models/{uid...}/progress", Access::kInference, [this](Exchange e, P p) { progress(e, p[0]); });
    on_control(router, "GET", "/v1/models/{uid...}/events", Access::kInference, [this](Exchange e, P p) { events(e, p[0]); });
    on_control(router, "POST", "/v1/models/{uid...}/cancel", Access::kStart, [this](Exchange e, P p) {
        services_.deployments.cancel(p[0], [e](Expected<void> done) {
            if (done) e->respond(200, "null");
            else respond_error(*e, done.error());
        });
    });
}

// ---- launch -----------------------------------------------------------------------------------------------------------

void ControlApi::launch(const Exchange& exchange, const std::string& body) {
    const auto wait = bool_query(*exchange, "wait_ready", true);
    if (!wait) return;
    if (auto ok = openai::check_json_object(body); !ok) return respond_error(*exchange, ok.error());
    auto request = config::parse_launch(body, services_.settings.local_worker);
    if (!request) return respond_error(*exchange, request.error());
    if (!request->tool_call_parser.empty() && !openai::tool_format_by_name(request->tool_call_parser))
        return respond_error(*exchange, Error{ErrorCode::kInvalidArgument, "tool_call_parser must be " + openai::tool_format_names() + ", got " + openai::echo_input(request->tool_call_parser), "tool_call_parser"});
    auto answered = std::make_shared<bool>(false);
    std::function<void(const std::string&)> accepted;
    // Keywords that mean nothing here are no error, but whoever mistyped one should see it.
    Json launched = {{"model_uid", ""}};
    if (!request->ignored.empty()) launched["ignored_keywords"] = request->ignored;
    if (!*wait)
        accepted = [this, exchange, answered, launched](const std::string& uid) {
            *answered = true;
            answer(*exchange, with_warnings(launched, uid));
        };
    services_.deployments.launch(std::move(*request), std::move(accepted), [this, exchange, answered, launched](const Expected<std::string>& uid) {
        if (*answered) return;
        if (!uid) return respond_error(*exchange, uid.error());
        answer(*exchange, with_warnings(launched, *uid));
    });
}

/// The answer to a launch, with what it does not get of what it asked for.
Json ControlApi::with_warnings(Json launched, const std::string& uid) const {
    launched["model_uid"] = uid;
    const auto d = services_.deployments.find(uid);
    if (d && !d->warnings().empty()) launched["warnings"] = d->warnings();
    return launched;
}

/// A launch that names its model by a version's text.
void ControlApi::launch_version(const Exchange& exchange, const std::string& body) {
    if (auto ok = openai::check_json_object(body); !ok) return respond_error(*exchange, ok.error());
    Json json = Json::parse(body, nullptr, false);
    const auto version = json.find("model_version");
    if (version == json.end() || !version->is_string())
        return respond_error(*exchange, Error{ErrorCode::kInvalidArgument, "Invalid input. Please specify the `model_version` field.", "model_version"});
    const auto fields = fields_of_version(version->get<std::string>());
    if (!fields) return respond_error(*exchange, fields.error());
    json.erase("model_version");
    json.update(*fields);
    launch(exchange, json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

// ---- what there is ----------------------------------------------------------------------------------------------------

void ControlApi::list_models(const Exchange& exchange) {
    Json data = Json::array();
    for (const auto& [uid, d] : services_.deployments.all())
        if (d->state() == DeploymentState::kReady) data.push_back(model_entry(*d));
    answer(*exchange, {{"object", "list"}, {"data", data}});
}

void ControlApi::list_for_anthropic(const Exchange& exchange) {
    Json data = Json::array();
    for (const auto& [uid, d] : services_.deployments.all())
        if (d->state() == DeploymentState::kReady) data.push_back({{"type", "model"}, {"id", uid}, {"display_name", d->request().model_name}, {"created_at", "1970-01-01T00:00:00Z"}});
    const Json first = data.empty() ? Json(nullptr) : data.front()["id"], last = data.empty() ? Json(nullptr) : data.back()["id"];
    answer(*exchange, {{"data", data}, {"has_more", false}, {"first_id", first}, {"last_id", last}});
}

void ControlApi::describe(const Exchange& exchange, const std::string& uid) {
    const auto d = services_.deployments.find(uid);
    if (!d) return respond_error(*exchange, not_found(uid));
    if (d->state() != DeploymentState::kReady) return respond_error(*exchange, openai::model_not_ready(uid));
    answer(*exchange, model_entry(*d));
}

void ControlApi::instances(const Exchange& exchange) {
    const std::string* want_uid = exchange->request().query_value("model_uid");
    const std::string* want_name = exchange->request().query_value("model_name");
    Json rows = Json::array();
    for (const auto& [uid, d] : services_.deployments.all()) {
        if (want_uid != nullptr && !want_uid->empty() ? *want_uid != uid : want_name != nullptr && !want_name->empty() && *want_name != d->request().model_name) continue;
        rows.push_back(instance_row(*d));
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
    if (it == services_.deployments.all().end() || it->second->state() == DeploymentState::kError)
        return answer(*exchange, {{"progress", 0.0}, {"stage", "pending"}, {"download_files", Json::array()}, {"replicas", rows}});
    const Deployment& d = *it->second;
    const auto now = static_cast<double>(std::time(nullptr));
    const bool downloading = d.state() == DeploymentState::kCreating && d.download.begun();
    for (const Slot& s : d.slots())
        rows.push_back({{"replica_id", s.id.value - 1},
                        {"replica_model_uid", replica_model_uid(d, s)},
                        {"progress", s.state == SlotState::kUp ? 1.0 : 0.0},
                        {"stage", downloading ? "downloading" : s.state == SlotState::kSpawning ? "launching" : "loading"},
                        {"info", s.error},
                        {"updated_at", now},
                        {"download_files", d.download.rows(s.placement.worker_ip, steady_now())}});
    const char* stage = downloading ? "downloading" : d.state() == DeploymentState::kCreating ? "launching" : "loading";
    answer(*exchange, {{"progress", d.progress()}, {"stage", stage}, {"download_files", d.download.rows("", steady_now())}, {"replicas", rows}});
}

void ControlApi::events(const Exchange& exchange, const std::string& uid) {
    Json rows = Json::array();
    const auto it = services_.deployments.all().find(uid);
    if (it != services_.deployments.all().end())
        for (const Event& e : it->second->events()) rows.push_back({{"event_type", e.type}, {"event_ts", e.unix_s}, {"event_content", e.content}});
    answer(*exchange, rows);
}

// ---- replicas that come and go ------------------------------------------------------------------------------------------

void ControlApi::add_replica(const Exchange& exchange, const std::string& uid, const std::string& body) {
    const auto d = services_.deployments.find(uid);
    if (!d) return respond_error(*exchange, not_found(uid));
    if (d->request().pd)
        return respond_error(*exchange, Error{ErrorCode::kInvalidArgument, std::string(kFixedTopology) + "Adding replicas to Xavier-distributed models is not supported.", ""});
    if (!body.empty())
        if (auto ok = openai::check_json_object(body); !ok) return respond_error(*exchange, ok.error());
    services_.deployments.add_replica(uid, body, [exchange, d](Expected<ReplicaId> id) {
        if (!id) return respond_error(*exchange, id.error());
        for (const Slot& s : d->slots())
            if (s.id == *id)
                return answer(*exchange, {{"replica_id", id->value - 1}, {"replica_model_uid", replica_model_uid(*d, s)}, {"worker_address", s.placement.worker_ip}});
        respond_error(*exchange, Error{ErrorCode::kUnavailable, "the replica has gone again", ""});
    });
}

void ControlApi::remove_replica(const Exchange& exchange, const std::string& uid, const std::string& replica) {
    const auto number = int_in_path(*exchange, "replica_id", replica);
    if (!number) return;
    const auto d = services_.deployments.find(uid);
    if (d && d->request().pd)
        return respond_error(*exchange, Error{ErrorCode::kInvalidArgument, std::string(kFixedTopology) + "Removing replicas from Xavier-distributed models is not supported.", ""});
    const ReplicaId id{*number < 0 || !d ? 0 : static_cast<uint64_t>(*number) + 1};
    if (!d || !d->has_replica(id))
        return respond_error(*exchange, Error{ErrorCode::kInvalidArgument, "Replica not found in the model list, uid: " + openai::echo_input(uid) + ", replica_id: " + std::to_string(*number), "replica_id"});
    services_.deployments.remove_replica(uid, id, [exchange](Expected<size_t> left) {
        if (left) answer(*exchange, {{"remaining_replicas", *left}});
        else respond_error(*exchange, left.error());
    });
}

}  // namespace baton::supervisor
