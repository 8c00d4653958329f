#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "cli/commands.hpp"

namespace baton::cli {
namespace {

tl::unexpected<Error> usage(std::string message) { return fail(ErrorCode::kInvalidArgument, std::move(message)); }

template <class T>
bool whole(std::string_view text, T& out) {
    if (text.starts_with('+')) text.remove_prefix(1);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
    return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

/// `--key value` and `--key=value` of options nobody declared.
Expected<void> add_extras(const std::vector<std::string>& extras, Json& body) {
    for (size_t i = 0; i < extras.size(); ++i) {
        const std::string& word = extras[i];
        if (!word.starts_with("--") || word.size() == 2) return usage("unexpected argument '" + word + "'");
        const size_t equals = word.find('=');
        if (equals != std::string::npos) {
            body[word.substr(2, equals - 2)] = typed_value(word.substr(equals + 1));
        } else if (i + 1 < extras.size()) {
            body[word.substr(2)] = typed_value(extras[++i]);
        } else {
            return usage("option " + word + " needs a value");
        }
    }
    return {};
}

Expected<Json> read_replica_config(const std::string& text) {
    std::string source = text;
    if (text.starts_with('@')) {
        std::ifstream in(text.substr(1));
        if (!in) return usage("cannot read " + text.substr(1));
        std::ostringstream all;
        all << in.rdbuf();
        source = all.str();
    }
    Json list = Json::parse(source, nullptr, false);
    if (list.is_discarded()) return usage("--replica-config must be valid JSON");
    if (!list.is_array()) return usage("--replica-config must be a JSON array");
    if (list.empty()) return usage("--replica-config must be a non-empty JSON array");
    return list;
}

/// The reference's client refuses a wrong set of roles before it asks the server.
Expected<void> check_roles(const Json& list) {
    bool prefill = false, decode = false, hybrid = false;
    for (const Json& entry : list) {
        const std::string role = entry.is_object() && entry.contains("role") && entry["role"].is_string()
                                     ? entry["role"].get<std::string>()
                                     : "hybrid";
        prefill |= role == "prefill";
        decode |= role == "decode";
        hybrid |= role != "prefill" && role != "decode";
    }
    if ((prefill || decode) && (!prefill || !decode || hybrid))
        return usage("PD separation requires both prefill and decode replicas, without hybrid replicas");
    return {};
}

Expected<void> add_replica_config(const LaunchOptions& o, Json& body) {
    if (!o.worker_ip.empty() || !o.gpu_idx.empty() || (!o.n_gpu.empty() && o.n_gpu != "auto") || o.n_worker > 1)
        return usage("--replica-config cannot be used together with --worker-ip, --gpu-idx, --n-gpu or --n-worker > 1");
    BATON_TRY_ASSIGN(Json list, read_replica_config(o.replica_config));
    if (o.replica && *o.replica != static_cast<int64_t>(list.size()))
        return usage("--replica (" + std::to_string(*o.replica) +
                     ") must match the number of entries in --replica-config (" + std::to_string(list.size()) + ")");
    BATON_TRY(check_roles(list));
    body["replica"] = list.size();
    body["replica_config"] = std::move(list);
    return {};
}

Expected<void> add_placement(const LaunchOptions& o, Json& body) {
    body["replica"] = o.replica.value_or(1);
    int64_t gpus = 0;
    if (o.n_gpu == "none") body["n_gpu"] = nullptr;
    else if (!o.n_gpu.empty() && o.n_gpu != "auto" && !whole(o.n_gpu, gpus)) return usage("--n-gpu must be a number, auto or none");
    else if (!o.n_gpu.empty() && o.n_gpu != "auto") body["n_gpu"] = gpus;
    if (!o.worker_ip.empty()) body["worker_ip"] = o.worker_ip;
    if (o.gpu_idx.empty()) return {};
    Json list = Json::array();
    std::stringstream in(o.gpu_idx);
    for (std::string one; std::getline(in, one, ',');) {
        int64_t index = 0;
        if (!whole(one, index)) return usage("--gpu-idx must be numbers separated by commas");
        list.push_back(index);
    }
    body["gpu_idx"] = std::move(list);
    return {};
}

/// Asks until every instance is settled, showing how far it is. The replicas tell why one failed.
int wait_until_ready(ClientSession& session, const std::string& uid) {
    const std::string path = "/v1/models/" + encode_path(uid);
    std::string shown;
    for (;;) {
        Json instances, progress;
        if (!session.get("/v1/models/instances?model_uid=" + encode_path(uid), instances)) return kFailed;
        const std::string status = instances.is_array() && !instances.empty() ? text_of(instances[0], "status") : "gone";
        if (status == "READY") break;
        if (status == "ERROR" || status == "TERMINATED" || status == "TERMINATING" || status == "gone") {
            complain("launch of " + uid + " failed");
            Json events;
            if (session.get(path + "/events", events) && events.is_array())
                for (const Json& e : events)
                    if (text_of(e, "event_type") == "ERROR") complain(text_of(e, "event_content"));
            return kFailed;
        }
        if (session.get(path + "/progress", progress) && text_of(progress, "stage") != shown) {
            shown = text_of(progress, "stage");
            std::fprintf(stderr, "%s: %s\n", uid.c_str(), shown.c_str());
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return kDone;
}

}  // namespace

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
    if (name.empty() && !o.model_path.empty()) name = std::filesystem::path(o.model_path).stem().string();
    if (name.empty()) return usage("--model-name is required (or --model-path)");
    body["model_name"] = name;
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
    body["n_worker"] = o.n_worker;
    for (size_t i = 0; i + 1 < o.env.size(); i += 2) body["envs"][o.env[i]] = o.env[i + 1];
    for (size_t i = 0; i + 1 < o.lora_modules.size(); i += 2)
        body["peft_model_config"]["lora_list"].push_back({{"lora_name", o.lora_modules[i]}, {"local_path", o.lora_modules[i + 1]}});
    BATON_TRY(o.replica_config.empty() ? add_placement(o, body) : add_replica_config(o, body));
    BATON_TRY(add_extras(o.extras, body));
    return body;
}

int run_launch(const LaunchOptions& options) {
    const auto body = make_launch_body(options);
    if (!body) {
        complain(body.error().message);
        return kUsage;
    }
    ClientSession session(options.server);
    Json answer;
    if (!session.call("POST", "/v1/models?wait_ready=false", body->dump(), answer)) return kFailed;
    const std::string uid = text_of(answer, "model_uid");
    if (const auto ignored = answer.find("ignored_keywords"); ignored != answer.end() && ignored->is_array())
        for (const Json& key : *ignored)
            complain("warning: " + key.dump() + " means nothing to this server and is ignored");
    if (options.wait)
        if (const int code = wait_until_ready(session, uid); code != kDone) return code;
    std::printf("Model uid: %s\n", uid.c_str());
    return kDone;
}

}  // namespace baton::cli
