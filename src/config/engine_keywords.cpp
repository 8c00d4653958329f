#include <algorithm>
#include <array>

#include "config/arguments.hpp"
#include "config/launch_fields.hpp"

namespace baton::config {
namespace {

constexpr size_t kEnvsMax = 64;
constexpr size_t kEnvBytesMax = 4096;

using Take = Expected<void> (*)(const Json&, const std::string&, LaunchRequest&);

/// Web pages send the numbers of their forms as texts.
Json unquoted(const Json& v) {
    if (!v.is_string()) return v;
    const auto& text = v.get_ref<const std::string&>();
    uint64_t n = 0;
    return parse_number(std::string_view(text), n) ? Json(n) : v;
}

template <auto Member, uint64_t Min, uint64_t Max>
Expected<void> number(const Json& given, const std::string& key, LaunchRequest& request) {
    const Json v = unquoted(given);
    if (!is_integer(v)) return bad(key + " must be an integer, got " + kind_of(v), key);
    if ((!v.is_number_unsigned() && v.get<int64_t>() < 0) || v.get<uint64_t>() < Min || v.get<uint64_t>() > Max)
        return bad(key + " must be within " + std::to_string(Min) + ".." + std::to_string(Max) + ", got " + v.dump(), key);
    using Field = std::remove_reference_t<decltype(request.*Member)>;
    request.*Member = static_cast<Field>(v.get<uint64_t>());
    return {};
}

template <auto Member>
Expected<void> flag(const Json& v, const std::string& key, LaunchRequest& request) {
    if (!v.is_boolean()) return bad(key + " must be a boolean, got " + kind_of(v), key);
    request.*Member = v.get<bool>();
    return {};
}

struct Choice {
    std::string_view name;
    std::string_view means;
};

/// One of `choices`, stored as what it means; "" is the default.
template <auto Member, const auto& Choices>
Expected<void> choice(const Json& v, const std::string& key, LaunchRequest& request) {
    std::string names;
    for (const Choice& c : Choices) {
        if (v.is_string() && v.get_ref<const std::string&>() == c.name) {
            request.*Member = c.means;
            return {};
        }
        names += (names.empty() ? "" : ", ") + std::string(c.name);
    }
    return bad(key + " must be one of " + names + ", got " +
                   (v.is_string() ? in_quotes(v.get_ref<const std::string&>()) : kind_of(v)),
               key);
}

template <auto Member>
Expected<void> text(const Json& v, const std::string& key, LaunchRequest& request) {
    if (!v.is_string()) return bad(key + " must be a string, got " + kind_of(v), key);
    request.*Member = v.get<std::string>();
    return {};
}

Expected<void> gpu_memory(const Json& v, const std::string& key, LaunchRequest& request) {
    if (!v.is_number()) return bad(key + " must be a number, got " + kind_of(v), key);
    request.gpu_memory_utilization = v.get<double>();
    if (!(request.gpu_memory_utilization > 0 && request.gpu_memory_utilization <= 1))
        return bad(key + " must be above 0 and at most 1, got " + v.dump(), key);
    return {};
}

/// Any transport name means Xavier; that it was changed is said once, in the launch log.
Expected<void> transfer_backend(const Json& v, const std::string& key, LaunchRequest& request) {
    if (!v.is_string()) return bad(key + " must be a string, got " + kind_of(v), key);
    const auto& name = v.get_ref<const std::string&>();
    if (name == "xavier") return {};
    request.transfer_backend_normalised = true;
    request.transfer_backend = in_quotes(name);
    return {};
}

/// Names and values for the environment of the replicas' processes. What would change which code runs there, or who they
/// obey, is refused: whoever may launch a model may not run programs.
Expected<void> environment(const Json& v, const std::string& key, LaunchRequest& request) {
    if (!v.is_object()) return bad(key + " must be an object of strings, got " + kind_of(v), key);
    if (v.size() > kEnvsMax) return bad(key + " must have at most " + std::to_string(kEnvsMax) + " entries", key);
    for (const auto& [name, value] : v.items()) {
        const bool word = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
            return c == '_' || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        });
        if (!word) return bad(key + " has a name that is none of an environment variable: " + in_quotes(name), key);
        if (name.starts_with("LD_") || name.starts_with("BATON_") || name == "GCONV_PATH" || name == "GLIBC_TUNABLES")
            return bad(key + " must not set " + name, key);
        if (value.is_object() || value.is_array() || value.is_null())
            return bad(key + "." + name + " must be a string, got " + kind_of(value), key);
        const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
        if (text.size() > kEnvBytesMax || text.find('\0') != std::string::npos)
            return bad(key + "." + name + " must be a text of at most " + std::to_string(kEnvBytesMax) + " bytes", key);
        request.envs.emplace_back(name, text);
    }
    return {};
}

constexpr auto kDtypes = std::to_array<Choice>({{"auto", ""}, {"bfloat16", "bf16"}, {"bf16", "bf16"}, {"float16", "f16"},
                                                {"half", "f16"}, {"fp16", "f16"}, {"f16", "f16"}, {"float32", "f32"},
                                                {"float", "f32"}, {"fp32", "f32"}, {"f32", "f32"}});
constexpr auto kKvDtypes = std::to_array<Choice>({{"auto", ""}, {"bf16", "bf16"}, {"bfloat16", "bf16"}, {"f32", "f32"},
                                                  {"float32", "f32"}});
constexpr auto kKvLayouts = std::to_array<Choice>({{"auto", ""}, {"block", "block"}, {"kv", "kv"}});
constexpr auto kMovers = std::to_array<Choice>({{"auto", ""}, {"cuda_ipc", "cuda_ipc"}, {"nccl", "nccl"}, {"shm", "shm"}, {"tcp", "tcp"}});

constexpr uint64_t kTebibyte = 1ull << 40;

/// An engine keyword: how it is taken, and the part of the JSON schema that says the same.
struct Keyword {
    std::string_view name;
    Take take;
    Json (*schema)();
    std::string_view meaning;
};

template <auto Member, uint64_t Min, uint64_t Max>
Keyword number_of(std::string_view name, std::string_view meaning) {
    return {name, number<Member, Min, Max>, [] { return Json{{"type", {"integer", "null"}}, {"minimum", Min}, {"maximum", Max}}; }, meaning};
}

template <auto Member>
Keyword flag_of(std::string_view name, std::string_view meaning) {
    return {name, flag<Member>, [] { return Json{{"type", {"boolean", "null"}}}; }, meaning};
}

template <auto Member, const auto& Choices>
Keyword choice_of(std::string_view name, std::string_view meaning) {
    return {name, choice<Member, Choices>,
            [] {
                Json out{{"enum", Json::array()}};
                for (const Choice& c : Choices) out["enum"].push_back(c.name);
                out["enum"].push_back(nullptr);
                return out;
            },
            meaning};
}

Json text_or_null() { return {{"type", {"string", "null"}}}; }

template <auto Member>
Keyword text_of(std::string_view name, std::string_view meaning) {
    return {name, text<Member>, text_or_null, meaning};
}

Json gpu_memory_schema() { return {{"type", {"number", "null"}}, {"exclusiveMinimum", 0}, {"maximum", 1}, {"default", kGpuMemoryUtilization}}; }

Json environment_schema() {
    return {{"type", {"object", "null"}},
            {"maxProperties", kEnvsMax},
            {"propertyNames", {{"pattern", "^(?!LD_|BATON_|GCONV_PATH$|GLIBC_TUNABLES$)[A-Za-z0-9_]+$"}}},
            {"additionalProperties", {{"type", {"string", "number", "boolean"}}, {"maxLength", kEnvBytesMax}, {"not", {{"pattern", "\\u0000"}}}}}};
}

using R = LaunchRequest;

const std::vector<Keyword>& keywords() {
    static const std::vector<Keyword> kTable = {
        number_of<&R::max_model_len, 1, 1 << 20>("max_model_len", "positions a sequence may have; default: the model's context"),
        number_of<&R::max_model_len, 1, 1 << 20>("context_length", "another name of max_model_len"),
        number_of<&R::max_num_seqs, 1, 4096>("max_num_seqs", "sequences in a step; default 64, on a GPU 256"),
        number_of<&R::max_num_batched_tokens, 1, 1 << 16>("max_num_batched_tokens", "tokens in a step; default 512, on a GPU 2048"),
        number_of<&R::block_size, 1, 256>("block_size", "tokens of a KV block; default 16, on a GPU 64, where it is 16, 32 or 64"),
        number_of<&R::threads, 1, 256>("threads", "threads of a replica on the CPU; default: one a core"),
        number_of<&R::threads, 1, 256>("n_threads", "another name of threads"),
        number_of<&R::kv_cache_bytes, 1, 256 * kTebibyte>("kv_cache_bytes", "KV pool of each replica"),
        number_of<&R::kv_cache_bytes, 1, 256 * kTebibyte>("kv_cache_memory_bytes", "another name of kv_cache_bytes"),
        flag_of<&R::enable_prefix_caching>("enable_prefix_caching", "keep computed blocks for prompts that begin alike; default true"),
        flag_of<&R::enable_xavier>("enable_xavier", "hybrid replicas share KV over the snapshot store"),
        flag_of<&R::enable_thinking>("enable_thinking", "default of chat_template_kwargs.enable_thinking"),
        flag_of<&R::verify_handoff>("verify_handoff", "compare checksums of every block that is handed over"),
        flag_of<&R::snapshots>("snapshots", "use the host's snapshot store; default true"),
        flag_of<&R::snapshot_read_always>("snapshot_read_always", "read the snapshot store for every prompt, not only for recoveries"),
        flag_of<&R::deterministic>("deterministic", "GPU: bits that do not depend on the batch"),
        {"gpu_memory_utilization", gpu_memory, gpu_memory_schema, "share of a GPU's memory for this launch's replicas on it"},
        choice_of<&R::dtype, kDtypes>("dtype", "type of weights and activations"),
        choice_of<&R::kv_dtype, kKvDtypes>("kv_dtype", "type of keys and values in the cache"),
        choice_of<&R::kv_dtype, kKvDtypes>("kv_cache_dtype", "another name of kv_dtype"),
        choice_of<&R::kv_layout, kKvLayouts>("kv_layout", "order of a block's pages"),
        choice_of<&R::mover, kMovers>("mover", "how KV is moved; auto: the best that a pair of replicas has"),
        text_of<&R::fault>("fault", "fault hook for tests; only where allow_fault_hooks is set"),
        text_of<&R::tool_call_parser>("tool_call_parser", "format of the model's tool calls, by name; none: they are not told apart"),
        text_of<&R::reasoning_parser>("reasoning_parser", "format of thoughts, by name; none: they are not told apart"),
        {"envs", environment, environment_schema, "environment of the replicas' processes"},
        {"vllm_transfer_backend_type", transfer_backend, text_or_null, "any name means Xavier"},
        {"transfer_backend_type", transfer_backend, text_or_null, "any name means Xavier"},
    };
    return kTable;
}

}  // namespace

Expected<void> parse_engine_keywords(const Json& body, LaunchRequest& request) {
    for (const auto& [key, value] : body.items()) {
        if (value.is_null() || is_control_key(key)) continue;
        // Command lines send unknown options as they were typed: --max-model-len means max_model_len.
        std::string spelled = key;
        std::replace(spelled.begin(), spelled.end(), '-', '_');
        // Options of our command line. As keywords they would be kept and mean nothing: no roles, where somebody asked for some.
        if (spelled == "prefill" || spelled == "decode")
            return bad("`" + key + "` is an option of the command line; here roles stand in replica_config, one entry a replica: "
                           R"([{"role": "prefill", "devices": [{"worker_ip": "…"}]}, {"role": "decode", "devices": [{"worker_ip": "…"}]}])", key);
        Take take = nullptr;
        for (const Keyword& k : keywords())
            if (k.name == spelled) take = k.take;
        if (take != nullptr) {
            BATON_TRY(take(value, key, request));
        } else {
            request.ignored.push_back(key);
        }
    }
    return {};
}

void add_keyword_schemas(Json& properties) {
    for (const Keyword& k : keywords()) {
        Json& schema = properties[std::string(k.name)];
        schema = k.schema();
        schema["description"] = k.meaning;
    }
}

Expected<void> check_supported(const Json& body, const LaunchRequest& request) {
    for (const char* key : {"tensor_parallel_size", "pipeline_parallel_size"}) {
        const Json* v = member(body, key);
        if (v == nullptr) continue;
        if (!is_integer(*v)) return bad(std::string(key) + " must be an integer, got " + kind_of(*v), key);
        if (v->get<int64_t>() != 1)
            return bad("Xavier V1 currently requires TP=1 and PP=1; " + std::string(key) + " is " + v->dump(), key);
    }
    for (const auto& p : request.placements) {
        const int64_t gpus = std::max(p.n_gpu.value_or(0), static_cast<int64_t>(p.gpu_idx.size()));
        if (gpus > 1)
            return bad("Xavier V1 currently requires TP=1 and PP=1; a replica asks for " + std::to_string(gpus) + " GPUs",
                       request.from_replica_config ? "replica_config" : "n_gpu");
    }
    const Json* peft = member(body, "peft_model_config");
    if (peft == nullptr) return {};
    if (!peft->is_object()) return bad("peft_model_config must be an object, got " + kind_of(*peft), "peft_model_config");
    const Json* list = member(*peft, "lora_list");
    if (list != nullptr && !(list->is_array() && list->empty()))
        return bad("Xavier V1 currently supports text-only models without LoRA", "peft_model_config");
    return {};
}

}  // namespace baton::config
