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
using R = LaunchRequest;
const std::array<std::pair<std::string_view, Take>, 28> kKeywords = {{
    {"max_model_len", number<&R::max_model_len, 1, 1 << 20>},
    {"context_length", number<&R::max_model_len, 1, 1 << 20>},
    {"max_num_seqs", number<&R::max_num_seqs, 1, 4096>},
    {"max_num_batched_tokens", number<&R::max_num_batched_tokens, 1, 1 << 16>},
    {"block_size", number<&R::block_size, 1, 256>},
    {"threads", number<&R::threads, 1, 256>},
    {"n_threads", number<&R::threads, 1, 256>},
    {"kv_cache_bytes", number<&R::kv_cache_bytes, 1, 256 * kTebibyte>},
    {"kv_cache_memory_bytes", number<&R::kv_cache_bytes, 1, 256 * kTebibyte>},
    {"enable_prefix_caching", flag<&R::enable_prefix_caching>},
    {"enable_xavier", flag<&R::enable_xavier>},
    {"enable_thinking", flag<&R::enable_thinking>},
    {"verify_handoff", flag<&R::verify_handoff>},
    {"snapshots", flag<&R::snapshots>},
    {"snapshot_read_always", flag<&R::snapshot_read_always>},
    {"deterministic", flag<&R::deterministic>},
    {"gpu_memory_utilization", gpu_memory},
    {"dtype", choice<&R::dtype, kDtypes>},
    {"kv_dtype", choice<&R::kv_dtype, kKvDtypes>},
    {"kv_cache_dtype", choice<&R::kv_dtype, kKvDtypes>},
    {"kv_layout", choice<&R::kv_layout, kKvLayouts>},
    {"mover", choice<&R::mover, kMovers>},
    {"fault", text<&R::fault>},
    {"tool_call_parser", text<&R::tool_call_parser>},
    {"reasoning_parser", text<&R::reasoning_parser>},
    {"envs", environment},
    {"vllm_transfer_backend_type", transfer_backend},
    {"transfer_backend_type", transfer_backend},
}};

/// Keys of the launch API that other code reads, or that are accepted and say nothing baton could miss.
constexpr auto kControlKeys = std::to_array<std::string_view>(
    {"model_uid", "model_name", "model_engine", "model_type", "model_format", "model_size_in_billions", "quantization",
     "model_path", "replica", "replica_config", "replica-config", "n_worker", "n_gpu", "worker_ip", "gpu_idx",
     "request_limits", "peft_model_config", "tensor_parallel_size", "pipeline_parallel_size", "wait_ready"});

bool is_control_key(std::string_view key) {
    for (const std::string_view k : kControlKeys)
        if (k == key) return true;
    return false;
}

}  // namespace

Expected<void> parse_engine_keywords(const Json& body, LaunchRequest& request) {
    for (const auto& [key, value] : body.items()) {
        if (value.is_null() || is_control_key(key)) continue;
        // Command lines send unknown options as they were typed: --max-model-len means max_model_len.
        std::string spelled = key;
        std::replace(spelled.begin(), spelled.end(), '-', '_');
        Take take = nullptr;
        for (const auto& [name, how] : kKeywords)
            if (name == spelled) take = how;
        if (take != nullptr) {
            BATON_TRY(take(value, key, request));
        } else {
            request.ignored.push_back(key);
        }
    }
    return {};
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
