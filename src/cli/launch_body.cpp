#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <initializer_list>
#include <sstream>
#include <utility>

#include "baton/config/launch.hpp"
#include "cli/commands.hpp"
#include "cli/user_files.hpp"

/// The body of a launch from what stands on the command line. What can be said about --replica-config without a server is
/// said here, before anything is sent.
namespace baton::cli {
namespace {

tl::unexpected<Error> usage(std::string message) { return fail(ErrorCode::kInvalidArgument, std::move(message)); }

template <class T>
bool whole(std::string_view text, T& out) {
    if (text.starts_with('+')) text.remove_prefix(1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

/// An unknown option keeps its spelling, as with the reference's client; a field of the launch body is meant with dashes too.
std::string extra_key(std::string name) {
    static constexpr auto kFields = std::to_array<std::string_view>(
        {"download_hub", "request_limits", "enable_xavier", "vllm_transfer_backend_type", "transfer_backend_type",
         "tensor_parallel_size", "pipeline_parallel_size", "xavier_transfer_block_num", "model_version"});
    std::string spelled = name;
    std::replace(spelled.begin(), spelled.end(), '-', '_');
    return std::find(kFields.begin(), kFields.end(), spelled) != kFields.end() ? spelled : name;
}

/// `--key value` and `--key=value` of options nobody declared.
Expected<void> add_extras(const std::vector<std::string>& extras, Json& body) {
    for (size_t i = 0; i < extras.size(); ++i) {
        const std::string& word = extras[i];
        if (!word.starts_with("--") || word.size() == 2) return usage("unexpected argument '" + word + "'");
        const size_t equals = word.find('=');
        if (equals == 2) return usage("unexpected argument '" + word + "'");
        if (equals != std::string::npos) {
            body[extra_key(word.substr(2, equals - 2))] = typed_value(word.substr(equals + 1));
        } else if (i + 1 < extras.size()) {
            body[extra_key(word.substr(2))] = typed_value(extras[++i]);
        } else {
            return usage("option " + word + " needs a value");
        }
    }
    return {};
}

Expected<Json> read_replica_config(const std::string& text) {
    std::string source = text;
    if (text.starts_with('@')) {
        auto file = read_text_file(text.substr(1));
        if (!file) return usage("--replica-config: " + file.error().message);
        source = std::move(*file);
    }
    Json list = Json::parse(source, nullptr, false);
    if (list.is_discarded()) return usage("--replica-config must be valid JSON");
    if (!list.is_array()) return usage("--replica-config must be a JSON array");
    if (list.empty()) return usage("--replica-config must be a non-empty JSON array");
    return list;
}

/// Of the options that are given, the names; "" where none is.
std::string given(std::initializer_list<std::pair<bool, const char*>> options) {
    std::string names;
    for (const auto& [there, option] : options)
        if (there) names += (names.empty() ? "" : ", ") + std::string(option);
    return names;
}

Expected<void> add_replica_config(const LaunchOptions& o, Json& body) {
    const std::string conflicts = given({{!o.worker_ip.empty(), "--worker-ip"},
                                         {!o.gpu_idx.empty(), "--gpu-idx"},
                                         {!o.n_gpu.empty() && o.n_gpu != "auto", "--n-gpu"},
                                         {o.n_worker > 1, "--n-worker"}});
    BATON_TRY_ASSIGN(Json list, read_replica_config(o.replica_config));
    if (o.replica && *o.replica != static_cast<int64_t>(list.size()))
        return usage("--replica (" + std::to_string(*o.replica) + ") must match the number of entries in --replica-config (" +
                     std::to_string(list.size()) + ")");
    if (!conflicts.empty()) return usage("--replica-config cannot be used together with " + conflicts);
    body["replica"] = list.size();
    body["replica_config"] = std::move(list);
    return {};
}

/// `--n-gpu` as the launch body has it: nothing for auto, null for the CPU.
Expected<std::optional<Json>> read_n_gpu(const LaunchOptions& o) {
    std::string n_gpu = o.n_gpu;
    std::transform(n_gpu.begin(), n_gpu.end(), n_gpu.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (n_gpu.empty() || n_gpu == "auto") return std::nullopt;
    if (n_gpu == "none") return Json(nullptr);
    int64_t gpus = 0;
    if (!whole(n_gpu, gpus)) return usage("--n-gpu must be a number, auto or none");
    return Json(gpus);
}

Expected<void> add_roles(const LaunchOptions& o, Json& body) {
    const std::string conflicts = given({{!o.replica_config.empty(), "--replica-config"},
                                         {o.replica.has_value(), "--replica"},
                                         {!o.worker_ip.empty(), "--worker-ip"},
                                         {!o.gpu_idx.empty(), "--gpu-idx"},
                                         {o.n_worker > 1, "--n-worker"}});
    if (!conflicts.empty()) return usage("--prefill and --decode cannot be used together with " + conflicts);
    BATON_TRY_ASSIGN(const auto n_gpu, read_n_gpu(o));
    body["replica"] = o.prefill + o.decode;
    body["replica_config"] = roles_config(o.prefill, o.decode);
    if (!n_gpu) return {};
    for (Json& replica : body["replica_config"]) replica["devices"][0]["n_gpu"] = n_gpu->is_null() ? Json(0) : *n_gpu;
    return {};
}

Expected<void> add_placement(const LaunchOptions& o, Json& body) {
    body["replica"] = o.replica.value_or(1);
    BATON_TRY_ASSIGN(const auto n_gpu, read_n_gpu(o));
    if (n_gpu) body["n_gpu"] = *n_gpu;
    if (!o.worker_ip.empty()) body["worker_ip"] = o.worker_ip;
    if (o.gpu_idx.empty()) return {};
    Json list = Json::array();
    std::stringstream in(o.gpu_idx);
    for (std::string one; std::getline(in, one, ',');) {
        int64_t index = 0;
        one.erase(std::remove(one.begin(), one.end(), ' '), one.end());
        if (!whole(one, index)) return usage("--gpu-idx must be numbers separated by commas");
        list.push_back(index);
    }
    body["gpu_idx"] = std::move(list);
    return {};
}

void add_names(const LaunchOptions& o, Json& body) {
    body["model_type"] = o.model_type;
    body["model_engine"] = o.model_engine;
    if (!o.model_uid.empty()) body["model_uid"] = o.model_uid;
    if (!o.model_format.empty()) body["model_format"] = o.model_format;
    if (!o.quantization.empty()) body["quantization"] = o.quantization;
    // A relative path means the caller's folder, not the server's.
    std::error_code ignored;
    if (!o.model_path.empty())
        body["model_path"] = std::filesystem::exists(o.model_path, ignored)
                                 ? std::filesystem::absolute(o.model_path).lexically_normal().string()
                                 : o.model_path;
    int64_t size = 0;
    if (!o.size_in_billions.empty())
        body["model_size_in_billions"] = whole(o.size_in_billions, size) ? Json(size) : Json(o.size_in_billions);
}

/// What Xinference's client sends for its own options; most of it means nothing to baton, which says so at the launch.
void add_reference_options(const LaunchOptions& o, Json& body) {
    if (o.context_length) body["context_length"] = *o.context_length;
    if (o.trust_remote_code) body["trust_remote_code"] = *o.trust_remote_code;
    if (o.enable_thinking) body["enable_thinking"] = *o.enable_thinking;
    if (o.enable_virtual_env) body["enable_virtual_env"] = *o.enable_virtual_env;
    if (!o.virtual_env_packages.empty()) body["virtual_env_packages"] = o.virtual_env_packages;
    if (!o.virtual_env_find_links.empty()) body["virtual_env_find_links"] = o.virtual_env_find_links;
    for (size_t i = 0; i + 1 < o.quantization_config.size(); i += 2)
        body["quantization_config"][o.quantization_config[i]] = typed_value(o.quantization_config[i + 1]);
    for (size_t i = 0; i + 1 < o.env.size(); i += 2) body["envs"][o.env[i]] = o.env[i + 1];
    for (size_t i = 0; i + 1 < o.lora_modules.size(); i += 2)
        body["peft_model_config"]["lora_list"].push_back({{"lora_name", o.lora_modules[i]}, {"local_path", o.lora_modules[i + 1]}});
}

}  // namespace

Json roles_config(uint32_t prefill, uint32_t decode) {
    Json list = Json::array();
    for (uint32_t i = 0; i < prefill + decode; ++i)
        list.push_back({{"role", i < prefill ? "prefill" : "decode"}, {"devices", {{{"worker_ip", ""}}}}});
    return list;
}

Json typed_value(const std::string& text) {
    if (text == "None" || text == "none") return nullptr;
    if (text == "True" || text == "true") return true;
    if (text == "False" || text == "false") return false;
    int64_t integer = 0;
    if (whole(text, integer)) return integer;
    double real = 0;
    if (whole(text, real)) return real;
    if (text.starts_with('{') || text.starts_with('[')) {
        Json value = Json::parse(text, nullptr, false);
        if (!value.is_discarded()) return value;
    }
    return text;
}

Expected<Json> make_launch_body(const LaunchOptions& o) {
    Json body;
    std::string name = o.model_name;
    if (name.empty() && !o.model_path.empty()) {
        const std::filesystem::path path = std::filesystem::path(o.model_path).lexically_normal();
        name = (path.has_filename() ? path : path.parent_path()).filename().string();
        if (name.ends_with(".gguf")) name.resize(name.size() - 5);
    }
    if (name.empty()) return usage("--model-name is required (or --model-path)");
    body["model_name"] = name;
    add_names(o, body);
    body["n_worker"] = o.n_worker;
    add_reference_options(o, body);
    BATON_TRY(o.prefill + o.decode > 0 ? add_roles(o, body) : o.replica_config.empty() ? add_placement(o, body) : add_replica_config(o, body));
    BATON_TRY(add_extras(o.extras, body));
    // The rest of what a wrong list is refused for, in the server's own words.
    if (body.contains("replica_config"))
        if (auto ok = config::parse_launch(body.dump(-1, ' ', false, Json::error_handler_t::replace)); !ok)
            return usage(ok.error().message);
    return body;
}

}  // namespace baton::cli
