#include "registry_api.hpp"

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <filesystem>
#include <set>

#include "api_answers.hpp"
#include "baton/base/split_name.hpp"
#include "baton/hub/hub.hpp"
#include "baton/openai/json.hpp"

namespace baton::supervisor {
namespace {

constexpr std::array<std::string_view, 7> kTypes = {"LLM", "embedding", "rerank", "image", "audio", "video", "flexible"};

bool is_type(std::string_view type) { return std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end(); }

/// 400 for a type nobody knows. Of the known ones but LLM there are no models.
Expected<void> check_type(const std::string& type) {
    if (is_type(type)) return {};
    return fail(ErrorCode::kInvalidArgument, "Unsupported model type: " + openai::echo_input(type), "model_type");
}

Expected<void> check_llm(const std::string& type, const std::string& name) {
    BATON_TRY(check_type(type));
    if (type == "LLM") return {};
    return fail(ErrorCode::kInvalidArgument, "Model " + openai::echo_input(name) + " not found", "model_name");
}

void send(http::Exchange& exchange, Expected<std::string> body) {
    if (body) exchange.respond(200, std::move(*body));
    else respond_error(exchange, body.error());
}

void send(http::Exchange& exchange, Expected<void> done) { send(exchange, done ? Expected<std::string>("null") : Expected<std::string>(fail(done.error()))); }

}  // namespace

void RegistryApi::on_control(http::Router& router, const char* method, const char* pattern, http::Router::Rule rule, ControlHandler handler) {
    router.add(method, pattern, rule, on_control_thread(services_.control, std::move(handler)));
}

void RegistryApi::add_routes(http::Router& router) {
    using http::Access;
    using P = const http::Params&;
    const http::Router::Rule read{Access::kList, false}, open{Access::kOpen, false};
    on_control(router, "GET", "/v1/model_registrations/{type}", read, [this](Exchange e, P p, std::string) { list(e, p[0]); });
    on_control(router, "GET", "/v1/model_registrations/{type}/{name...}", read, [this](Exchange e, P p, std::string) { describe(e, p[0], p[1]); });
    on_control(router, "POST", "/v1/model_registrations/{type}", {Access::kRegister, true}, [this](Exchange e, P p, std::string body) { add(e, p[0], body); });
    on_control(router, "DELETE", "/v1/model_registrations/{type}/{name...}", {Access::kUnregister, false}, [this](Exchange e, P p, std::string) { remove(e, p[0], p[1]); });
    on_control(router, "GET", "/v1/engines/{name...}", read, [this](Exchange e, P p, std::string) { engines(e, p[0]); });
    on_control(router, "GET", "/v1/models/families", open, [this](Exchange e, P, std::string) { e->respond(200, services_.registry.families_json()); });
    on_control(router, "GET", "/v1/models/prompts", open, [](Exchange e, P, std::string) { e->respond(200, "{}"); });
    on_control(router, "GET", "/v1/models/vllm-supported", open, [this](Exchange e, P, std::string) { e->respond(200, services_.registry.vllm_supported_json()); });
    on_control(router, "GET", "/v1/cache/models", read, [this](Exchange e, P, std::string) { cached(e); });
}

void RegistryApi::with_cache(std::function<void(const registry::Registry::IsCached&)> then) {
    boost::asio::post(services_.background, [this, then = std::move(then)]() mutable {
        std::vector<hub::CachedModel> found;
        if (const auto settings = hub::settings_from_environment()) found = hub::list_cached(*settings);
        boost::asio::post(services_.control, [found = std::move(found), then = std::move(then)] {
            then([&](const std::string& hub, const std::string& repo, const std::string& format, const std::string& quantization) {
                return std::any_of(found.begin(), found.end(), [&](const hub::CachedModel& m) {
                    if (to_string(m.hub) != hub || m.repo != repo) return false;
                    return std::any_of(m.files.begin(), m.files.end(), [&](const std::string& f) {
                        return format == "ggufv2" ? f.ends_with(".gguf") && f.find(quantization) != std::string::npos : f.ends_with(".safetensors");
                    });
                });
            });
        });
    });
}

void RegistryApi::list(const Exchange& exchange, const std::string& type) {
    const auto detailed = bool_query(*exchange, "detailed", false);
    if (!detailed) return;
    if (auto ok = check_type(type); !ok) return respond_error(*exchange, ok.error());
    if (type != "LLM") return exchange->respond(200, "[]");
    if (!*detailed) return exchange->respond(200, services_.registry.list_json(false));
    with_cache([this, exchange](const registry::Registry::IsCached& is_cached) { exchange->respond(200, services_.registry.list_json(true, is_cached)); });
}

void RegistryApi::describe(const Exchange& exchange, const std::string& type, const std::string& name) {
    if (auto ok = check_llm(type, name); !ok) return respond_error(*exchange, ok.error());
    with_cache([this, exchange, name](const registry::Registry::IsCached& is_cached) { send(*exchange, services_.registry.family_json(name, is_cached)); });
}

void RegistryApi::add(const Exchange& exchange, const std::string& type, const std::string& body) {
    const auto refuse = [&](const std::string& why, const std::string& param) { respond_error(*exchange, Error{ErrorCode::kInvalidArgument, why, param}); };
    if (auto ok = check_type(type); !ok) return respond_error(*exchange, ok.error());
    if (type != "LLM") return refuse("models of type " + type + " are not served by baton", "model_type");
    if (auto ok = openai::check_json_object(body); !ok) return respond_error(*exchange, ok.error());
    const Json json = Json::parse(body, nullptr, false);
    const auto model = json.find("model");
    if (model == json.end() || !(model->is_string() || model->is_object())) return refuse("Invalid input. Please specify the `model` field.", "model");
    const auto persist = json.find("persist");
    if (persist != json.end() && !persist->is_null() && !persist->is_boolean()) return refuse("persist must be true or false", "persist");
    const bool keeps = persist != json.end() && persist->is_boolean() && persist->get<bool>();
    send(*exchange, services_.registry.add(model->is_string() ? model->get<std::string>() : model->dump(), keeps));
}

void RegistryApi::remove(const Exchange& exchange, const std::string& type, const std::string& name) {
    if (auto ok = check_llm(type, name); !ok) return respond_error(*exchange, ok.error());
    send(*exchange, services_.registry.remove(name));
}

/// TYPE/NAME or NAME; a name may hold slashes itself.
void RegistryApi::engines(const Exchange& exchange, const std::string& path) {
    const size_t slash = path.find('/');
    const std::string first = path.substr(0, slash);
    if (slash == std::string::npos || !is_type(first)) return send(*exchange, services_.registry.engines_json(path));
    const std::string name = path.substr(slash + 1);
    if (auto ok = check_llm(first, name); !ok) return respond_error(*exchange, ok.error());
    send(*exchange, services_.registry.engines_json(name));
}

void RegistryApi::cached(const Exchange& exchange) {
    const std::string* worker = exchange->request().query_value("worker_ip");
    const std::string* wanted = exchange->request().query_value("model_name");
    services_.pulls.list_cached(worker == nullptr ? "" : *worker, [this, exchange, name = wanted == nullptr ? std::string() : *wanted](const ModelPulls::Cached& found) {
        Json rows = Json::array();
        for (const auto& [address, snapshot] : found) {
            std::set<std::string> seen;
            for (const std::string& file : snapshot.files) {
                // One row a model: each GGUF is one, all safetensors are one.
                const bool gguf = file.ends_with(".gguf"), safetensors = file.ends_with(".safetensors");
                if (const auto part = parse_split_name(file); part && part->number != 1) continue;
                if ((!gguf && !safetensors) || !seen.insert(gguf ? file : "safetensors").second) continue;
                Json row = Json::parse(services_.registry.cached_row_json(snapshot.hub, snapshot.repo, file));
                if (!name.empty() && row["model_name"] != name) continue;
                row["model_version"] = snapshot.commit;
                row["actor_ip_address"] = address;
                row["path"] = gguf ? snapshot.path + "/" + file : snapshot.path;
                std::error_code error;
                const auto real = std::filesystem::canonical(row["path"].get<std::string>(), error);
                row["real_path"] = error ? row["path"] : Json(real.string());
                rows.push_back(std::move(row));
            }
        }
        answer(*exchange, {{"list", rows}});
    });
}

}  // namespace baton::supervisor
