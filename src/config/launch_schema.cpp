/// JSON schemas (draft 2020-12) of a launch body and of its replica_config. They take each value as it is best written; the
/// launch API takes digits in quotes and a replica_config as a text too, as web forms and command lines send them.
#include <array>

#include "baton/base/limits.hpp"
#include "config/launch_fields.hpp"

namespace baton::config {
namespace {

/// A field that is not an engine keyword. `schema` is JSON.
struct ControlField {
    std::string_view name;
    std::string_view schema;
    std::string_view meaning;
};

constexpr std::string_view kTextOrNull = R"({"type": ["string", "null"]})";
constexpr std::string_view kOneOrNull = R"({"enum": [1, null]})";

/// What check_model_uid refuses, as patterns.
constexpr std::string_view kUid = R"json({"type": ["string", "null"], "minLength": 1, "maxLength": 100, "pattern": "\\S", "not": {"anyOf": [
    {"type": "string", "pattern": ".-rep[0-9]+$"}, {"type": "string", "pattern": "(?:^|/)\\.{0,2}(?:/|$)"},
    {"type": "string", "pattern": "[?#\\u0000-\\u001f\\u007f]"}, {"type": "string", "pattern": "/(?:replicas|progress|cancel|events|abort)$"},
    {"type": "string", "pattern": "./replicas/[0-9]+$"},
    {"enum": ["prompts", "families", "llm/auto-register", "vllm-supported", "update_type", "instances", "instance"]}]}})json";

/// Where an entry is built from code: replica_config by reference, numbers by limits.
constexpr std::string_view kBuilt = "{}";

constexpr auto kControlFields = std::to_array<ControlField>({
    {"model_name", R"({"type": "string", "minLength": 1})", "name of the model: one of the registry, or any with a model_path"},
    {"model_uid", kUid, "what requests call it; default: the name"},
    {"model_engine", kBuilt, "any of these means baton"},
    {"model_type", R"({"enum": ["LLM", null], "default": "LLM"})", "LLM"},
    {"model_path", kTextOrNull, "file or folder of the model on the workers; in a start-up deployment ${cache_dir} stands for the cache folder"},
    {"model_format", kTextOrNull, "pytorch or ggufv2"},
    {"model_size_in_billions", R"({"type": ["number", "string", "null"]})", "size of a model by name: 0.6, \"0_6\""},
    {"quantization", kTextOrNull, "of a model by name"},
    {"replica", kBuilt, "number of replicas; with replica_config as many as it has entries"},
    {"replica_config", kBuilt, "roles and places of the replicas, one entry each"},
    {"replica-config", kBuilt, "another name of replica_config"},
    {"n_worker", R"({"type": "integer", "minimum": 1, "maximum": 9223372036854775807, "default": 1})", "workers of one replica: 1"},
    {"n_gpu", R"({"anyOf": [{"const": "auto"}, {"type": "null"}, {"type": "integer", "maximum": 1}], "default": "auto"})", "GPUs of a replica: 1, null for the CPU"},
    {"worker_ip", R"({"anyOf": [{"type": ["string", "null"]}, {"type": "array", "items": {"type": "string"}}]})", "address of a worker, or several, for the replicas in turn"},
    {"gpu_idx", R"({"anyOf": [{"type": ["integer", "null"], "minimum": 0, "maximum": 9223372036854775807}, {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9223372036854775807}}]})", "GPUs, for the replicas in turn"},
    {"request_limits", R"({"type": ["integer", "null"], "minimum": 0, "maximum": 9223372036854775807})", "requests that may be in flight at once for each replica; default: any number"},
    {"peft_model_config", R"({"type": ["object", "null"], "properties": {"lora_list": {"anyOf": [{"type": "null"}, {"type": "array", "maxItems": 0}]}}})", "LoRA is not supported"},
    {"tensor_parallel_size", kOneOrNull, "1"},
    {"pipeline_parallel_size", kOneOrNull, "1"},
    {"wait_ready", kBuilt, "of the launch API's query; says nothing here"},
});

/// The replica_config list. The last parts: one device an entry; roles that go together.
constexpr std::string_view kReplicaConfig = R"json({
    "type": "array", "minItems": 1,
    "items": {
        "type": "object", "additionalProperties": false, "required": ["devices"],
        "properties": {
            "replica_uid": {"type": ["string", "null"], "pattern": "\\S", "description": "name of the replica; default: the model's uid and a number",
                "not": {"anyOf": [{"type": "string", "pattern": "-rank0\\s*$"}, {"type": "string", "pattern": "\\S[\\s\\S]*-rep[0-9]+\\s*$"}]}},
            "role": {"enum": ["hybrid", "prefill", "decode", null], "default": "hybrid", "description": "prefill replicas compute prompts, decode replicas go on from there, hybrid ones do both"},
            "devices": {
                "type": "array", "minItems": 1, "maxItems": 1, "description": "where it runs",
                "items": {
                    "type": "object", "additionalProperties": false, "required": ["worker_ip"],
                    "properties": {
                        "worker_ip": {"type": "string", "description": "address of a worker; empty: any"},
                        "n_gpu": {"enum": ["auto", 0, 1], "default": "auto", "description": "0: the CPU"},
                        "gpu_idx": {"type": ["array", "null"], "maxItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": 9223372036854775807}, "description": "the GPU; default: the one with fewest replicas"}},
                    "if": {"required": ["gpu_idx"], "properties": {"gpu_idx": {"type": "array", "minItems": 1}}},
                    "then": {"properties": {"n_gpu": {"enum": ["auto", 1]}}}}}}},
    "anyOf": [
        {"items": {"properties": {"role": {"enum": ["hybrid", null]}}}},
        {"items": {"required": ["role"], "properties": {"role": {"enum": ["prefill", "decode"]}}},
         "allOf": [{"contains": {"required": ["role"], "properties": {"role": {"const": "prefill"}}}},
                   {"contains": {"required": ["role"], "properties": {"role": {"const": "decode"}}}}]}]
})json";

/// Fields that place replicas one way exclude the other.
constexpr std::string_view kConflict = R"json({
    "if": {"anyOf": [{"required": ["replica_config"], "properties": {"replica_config": {"type": "array"}}},
                     {"required": ["replica-config"], "properties": {"replica-config": {"type": "array"}}}]},
    "then": {"properties": {"worker_ip": {"type": "null"}, "gpu_idx": {"type": "null"}, "n_gpu": {"const": "auto"}}}
})json";

Json literal(std::string_view text) { return Json::parse(text.begin(), text.end()); }

}  // namespace

bool is_control_key(std::string_view key) {
    for (const ControlField& f : kControlFields)
        if (f.name == key) return true;
    return false;
}

Json replica_config_schema() {
    Json out = literal(kReplicaConfig);
    out["maxItems"] = limits::kReplicasMax;
    return out;
}

Json launch_schema(std::string_view replica_config_ref) {
    Json properties = Json::object();
    const Json list{{"anyOf", {{{"$ref", replica_config_ref}}, {{"type", "null"}}}}};
    for (const ControlField& f : kControlFields) {
        Json schema = literal(f.schema);
        if (f.name == "model_engine") schema = text_schema(engine_rule());
        if (f.name == "replica") schema = number_schema({.min = 1, .max = limits::kReplicasMax}, 0);
        if (f.name == "replica_config" || f.name == "replica-config") schema = list;
        schema["description"] = f.meaning;
        properties[std::string(f.name)] = std::move(schema);
    }
    add_keyword_schemas(properties);
    for (const char* option : {"prefill", "decode"}) properties[option] = {{"type", "null"}, {"description", "an option of the command line; here roles stand in replica_config"}};
    // Keywords of other engines are accepted and ignored.
    Json out{{"type", "object"}, {"required", {"model_name", "model_engine"}}, {"properties", std::move(properties)}, {"additionalProperties", true}};
    out.update(literal(kConflict));
    return out;
}

}  // namespace baton::config
