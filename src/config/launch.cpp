#include "baton/config/launch.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include "config/launch_fields.hpp"

namespace baton::config {
namespace {

Expected<void> take_string(const Json& body, const char* key, std::string& out) {
    const Json* v = member(body, key);
    if (v == nullptr) return {};
    if (!v->is_string()) return bad(std::string(key) + " must be a string, got " + kind_of(*v), key);
    out = v->get<std::string>();
    return {};
}

/// Size as text: 7 → "7", 0.5 → "0.5", "0_5" as it is.
Expected<void> take_size(const Json& body, std::string& out) {
    const Json* v = member(body, "model_size_in_billions");
    if (v == nullptr) return {};
    if (v->is_string()) {
        out = v->get<std::string>();
    } else if (v->is_number()) {
        out = v->dump();
    } else {
        return bad("model_size_in_billions must be a number or a string, got " + kind_of(*v), "model_size_in_billions");
    }
    return {};
}

/// Checks 7 and 8.
Expected<void> check_n_worker(const Json& body, bool local_only, bool has_replica_config) {
    const auto it = body.find("n_worker");
    if (it == body.end()) return {};
    if (!is_integer(*it) || it->get<int64_t>() < 1)
        return bad("n_worker must be a positive integer.", "n_worker");
    if (local_only || it->get<int64_t>() == 1) return {};
    if (has_replica_config) return bad("replica_config is incompatible with n_worker>1 (sharded launch).", "n_worker");
    return bad("n_worker>1 (one replica over several workers) is not supported by baton yet", "n_worker");
}

/// Check 5: fields that place replicas one way exclude the other.
Expected<void> check_placement_conflict(const Json& body) {
    const Json* n_gpu = body.contains("n_gpu") ? &body["n_gpu"] : nullptr;
    const bool n_gpu_set = n_gpu != nullptr && !(n_gpu->is_string() && *n_gpu == "auto");
    if (member(body, "worker_ip") != nullptr || member(body, "gpu_idx") != nullptr || n_gpu_set)
        return bad("Cannot specify worker_ip / n_gpu / gpu_idx together with replica_config.", "replica_config");
    return {};
}

Expected<void> take_names(const Json& body, LaunchRequest& request) {
    if (const Json* v = member(body, "model_name"); v == nullptr || (v->is_string() && v->get<std::string>().empty()))
        return bad("Invalid input. Please specify the `model_name` field.", "model_name");
    BATON_TRY(take_string(body, "model_name", request.model_name));
    BATON_TRY(take_string(body, "model_type", request.model_type));
    BATON_TRY(take_string(body, "model_engine", request.model_engine));
    if (request.model_type == "LLM" && request.model_engine.empty())
        return bad("Invalid input. Please specify the `model_engine` field.", "model_engine");
    BATON_TRY(take_string(body, "model_format", request.model_format));
    BATON_TRY(take_string(body, "quantization", request.quantization));
    BATON_TRY(take_string(body, "model_path", request.model_path));
    return take_size(body, request.size_in_billions);
}

Expected<void> check_engine(const LaunchRequest& request) {
    if (request.model_type != "LLM")
        return bad("model_type " + in_quotes(request.model_type) + " is not supported by baton; use LLM", "model_type");
    if (!is_known_engine(request.model_engine))
        return bad("model_engine " + in_quotes(request.model_engine) + " is not supported by baton; use " +
                       known_engines_text(),
                   "model_engine");
    return {};
}

Expected<void> take_uid(const Json& body, LaunchRequest& request) {
    const Json* v = member(body, "model_uid");
    if (v == nullptr) return {};
    BATON_TRY(take_string(body, "model_uid", request.model_uid));
    return check_model_uid(request.model_uid);
}

Expected<void> take_request_limits(const Json& body, LaunchRequest& request) {
    const Json* v = member(body, "request_limits");
    if (v == nullptr) return {};
    if (!is_integer(*v)) return bad("request_limits must be an integer, got " + kind_of(*v), "request_limits");
    request.request_limits = v->get<int64_t>();
    if (request.request_limits < 0)
        return bad("The `request_limits` parameter must be greater or equal than 0.", "request_limits");
    return {};
}

const Json* find_replica_config(const Json& body) {
    const Json* v = member(body, "replica_config");
    if (v == nullptr) v = member(body, "replica-config");
    return v;
}

Expected<LaunchRequest> parse_body(const Json& body, bool local_only) {
    LaunchRequest request;
    BATON_TRY_ASSIGN(const std::optional<uint32_t> replica, parse_replica(body));
    std::vector<ReplicaConfigEntry> entries;
    const Json* config = find_replica_config(body);
    Json decoded;  // the list of a replica_config that came as a JSON string
    if (config != nullptr && config->is_string()) {
        auto text = parse_json_text(config->get_ref<const std::string&>());
        if (!text) return bad("Invalid replica_config: " + text.error().message, "replica_config");
        decoded = std::move(*text);
        config = decoded.is_null() ? nullptr : &decoded;
    }
    if (config != nullptr) {
        BATON_TRY(check_placement_conflict(body));
        BATON_TRY_ASSIGN(entries, parse_replica_config(*config));
        request.from_replica_config = true;
    }
    // An empty list is as long as no number of replicas: that is said where the placements are made.
    request.replica = replica.value_or(std::max(1u, static_cast<uint32_t>(entries.size())));
    BATON_TRY(take_names(body, request));
    if (config == nullptr) BATON_TRY(place_ordinary(body, request));
    BATON_TRY(check_n_worker(body, local_only, config != nullptr));
    if (config != nullptr) BATON_TRY(check_roles(entries, request));
    BATON_TRY(check_engine(request));
    // The default replica uids of checks 15–17 need the model uid; whether that is valid is the last check.
    const Json* uid = member(body, "model_uid");
    if (uid != nullptr && uid->is_string()) request.model_uid = uid->get<std::string>();
    if (config != nullptr) BATON_TRY(place_replicas(entries, request));
    BATON_TRY(parse_engine_keywords(body, request));
    BATON_TRY(check_supported(body, request));
    BATON_TRY(take_uid(body, request));
    BATON_TRY(take_request_limits(body, request));
    return request;
}

bool ends_with_number_after(std::string_view text, std::string_view word) {
    size_t digits = 0;
    while (digits < text.size() && std::isdigit(static_cast<unsigned char>(text[text.size() - 1 - digits])) != 0) ++digits;
    if (digits == 0) return false;
    text.remove_suffix(digits);
    return text.size() > word.size() && text.ends_with(word);
}

}  // namespace

const Rule& engine_rule() {
    static const Rule kRule{.choices = {"baton", "vLLM", "SGLang", "MLX", "Transformers", "llama.cpp"}, .any_case = true};
    return kRule;
}

bool is_known_engine(std::string_view engine) { return why_broken(engine_rule(), engine).empty(); }

std::string known_engines_text() { return choices_text(engine_rule(), ""); }

Expected<LaunchRequest> parse_launch(std::string_view body, bool local_only) {
    BATON_TRY_ASSIGN(const Json json, parse_json_text(body));
    if (!json.is_object()) return bad("the launch body must be a JSON object, got " + kind_of(json));
    BATON_TRY_ASSIGN(LaunchRequest request, parse_body(json, local_only));
    request.raw_json = std::string(body);
    return request;
}

Expected<void> check_model_uid(std::string_view uid) {
    const auto blank = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
    const auto continuation = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
    const auto characters = uid.size() - static_cast<size_t>(std::count_if(uid.begin(), uid.end(), continuation));
    if (std::all_of(uid.begin(), uid.end(), blank) || characters > 100 || ends_with_number_after(uid, "-rep"))
        return bad("The model UID is invalid. Please specify the model UID by 0 < length <= 100, not ending with the "
                   "reserved replica suffix '-rep<number>'.",
                   "model_uid");
    for (std::string_view rest = uid;;) {
        const size_t slash = rest.find('/');
        const std::string_view part = rest.substr(0, slash);
        if (part.empty() || part == "." || part == ".." || part.find_first_of("?#") != std::string_view::npos)
            return bad("model_uid " + in_quotes(uid) + " cannot be part of a URL; please choose another name", "model_uid");
        if (slash == std::string_view::npos) break;
        rest.remove_prefix(slash + 1);
    }
    if (std::any_of(uid.begin(), uid.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }))
        return bad("model_uid must not contain control characters", "model_uid");
    static constexpr std::array<std::string_view, 7> kStatic = {
        "prompts", "families", "llm/auto-register", "vllm-supported", "update_type", "instances", "instance"};
    static constexpr std::array<std::string_view, 5> kSuffixes = {"/replicas", "/progress", "/cancel", "/events", "/abort"};
    if (std::find(kStatic.begin(), kStatic.end(), uid) != kStatic.end() ||
        std::any_of(kSuffixes.begin(), kSuffixes.end(), [&](std::string_view s) { return uid.ends_with(s); }) ||
        ends_with_number_after(uid, "/replicas/"))
        return bad("model_uid " + in_quotes(uid) + " would hide a route of the API; please choose another name",
                   "model_uid");
    return {};
}

}  // namespace baton::config
