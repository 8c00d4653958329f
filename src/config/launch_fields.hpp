#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "baton/config/launch.hpp"
#include "config/json_text.hpp"
#include "config/rule.hpp"

/// The parts of parse_launch, in the order of the reference's table of checks.
namespace baton::config {

/// An error of a launch body's field.
[[nodiscard]] inline tl::unexpected<Error> bad(std::string message, std::string param = {}) {
    return fail(ErrorCode::kInvalidArgument, std::move(message), std::move(param));
}

/// The member `key`, or null where it is absent or JSON null: clients send most fields as null.
[[nodiscard]] inline const Json* member(const Json& body, const char* key) {
    const auto it = body.find(key);
    return it == body.end() || it->is_null() ? nullptr : &*it;
}

/// Entries of a replica_config as parsed, before the checks that count them.
struct ReplicaConfigEntry {
    std::optional<std::string> replica_uid;  ///< as given
    std::optional<Role> role;
    struct Device {
        std::string worker_ip;
        std::optional<int64_t> n_gpu;
        std::vector<int64_t> gpu_idx;
    };
    std::vector<Device> devices;
};

/// Checks 1–4. None where the key is absent: inferred from the replica_config.
[[nodiscard]] Expected<std::optional<uint32_t>> parse_replica(const Json& body);
/// Check 6. `value` is the list, or the list as a JSON string.
[[nodiscard]] Expected<std::vector<ReplicaConfigEntry>> parse_replica_config(const Json& value);
/// Checks 9–10: sets request.pd.
[[nodiscard]] Expected<void> check_roles(const std::vector<ReplicaConfigEntry>& entries, LaunchRequest& request);
/// Checks 11–17 and fills request.placements.
[[nodiscard]] Expected<void> place_replicas(const std::vector<ReplicaConfigEntry>& entries, LaunchRequest& request);
/// Check 16 and 17 over the final uids: explicit ones are unique and no default "<model_uid>-<index>" equals one.
[[nodiscard]] Expected<void> check_replica_uids(const LaunchRequest& request);
/// Placements of an ordinary launch from worker_ip, n_gpu and gpu_idx.
[[nodiscard]] Expected<void> place_ordinary(const Json& body, LaunchRequest& request);
/// Everything that is not a control field: the engine keywords baton knows are checked and kept, others are named in
/// request.ignored.
[[nodiscard]] Expected<void> parse_engine_keywords(const Json& body, LaunchRequest& request);
/// What the first version cannot run: more than one GPU a replica, tensor and pipeline parallelism, LoRA.
[[nodiscard]] Expected<void> check_supported(const Json& body, const LaunchRequest& request);
/// Spellings of model_engine baton answers to; compared without case.
[[nodiscard]] bool is_known_engine(std::string_view engine);
/// "baton, vLLM, SGLang, MLX, Transformers or llama.cpp".
[[nodiscard]] std::string known_engines_text();
/// What matches those spellings.
[[nodiscard]] const Rule& engine_rule();

// The launch body's JSON schema (launch_schema.cpp); the tables of fields are the parser's own.
/// Keys of the launch API that code beside the engine keywords' reads, or that are accepted and say nothing baton could miss.
[[nodiscard]] bool is_control_key(std::string_view key);
/// Adds a schema for each engine keyword.
void add_keyword_schemas(Json& properties);
/// The replica_config list, and a whole launch body whose replica_config is at `replica_config_ref`.
[[nodiscard]] Json replica_config_schema();
[[nodiscard]] Json launch_schema(std::string_view replica_config_ref);

}  // namespace baton::config
