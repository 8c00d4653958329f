#include <cstdio>

#include "cli/commands.hpp"

namespace baton::cli {
namespace {

std::string bytes_text(const Json& object, const char* key) {
    const auto it = object.find(key);
    if (it == object.end() || !it->is_number()) return "-";
    char buf[32];
    std::snprintf(buf, sizeof buf, "%.1f GiB", it->get<double>() / (1024.0 * 1024.0 * 1024.0));
    return buf;
}

int print_json(const Json& value) {
    std::printf("%s\n", value.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    return kDone;
}

void print_deployments(ClientSession& session, const Json& instances) {
    std::vector<std::vector<std::string>> rows{{"MODEL UID", "STATUS", "REPLICA", "ROLE", "STATUS", "WORKER", "DEVICE", "ERROR"}};
    for (const Json& instance : instances) {
        Json replicas;
        const std::string uid = text_of(instance, "model_uid");
        if (!session.get("/v1/models/" + encode_path(uid) + "/replicas", replicas)) continue;
        for (const Json& r : replicas)
            rows.push_back({uid, text_of(instance, "status"), text_of(r, "replica_uid"), text_of(r, "role"),
                            text_of(r, "status"), text_of(r, "worker_address"),
                            text_of(r, "accelerators") == "-" ? "cpu" : text_of(r, "accelerators"), text_of(r, "error_message")});
    }
    print_table(rows);
}

}  // namespace

int run_list(const ModelOptions& options) {
    ClientSession session(options.server);
    Json answer;
    if (!session.get("/v1/models", answer)) return kFailed;
    if (options.json) return print_json(answer);
    std::vector<std::vector<std::string>> rows{{"UID", "TYPE", "NAME", "FORMAT", "SIZE (B)", "QUANTIZATION", "REPLICAS"}};
    for (const Json& m : answer.value("data", Json::array()))
        rows.push_back({text_of(m, "id"), text_of(m, "model_type"), text_of(m, "model_name"), text_of(m, "model_format"),
                        text_of(m, "model_size_in_billions"), text_of(m, "quantization"), text_of(m, "replica")});
    print_table(rows);
    return kDone;
}

int run_terminate(const ModelOptions& options) {
    ClientSession session(options.server);
    Json answer;
    return session.call("DELETE", "/v1/models/" + encode_path(options.model_uid), "", answer) ? kDone : kFailed;
}

int run_workers(const ModelOptions& options) {
    ClientSession session(options.server);
    Json answer;
    if (!session.get("/v1/workers", answer)) return kFailed;
    if (options.json) return print_json(answer);
    std::vector<std::vector<std::string>> rows{{"WORKER", "MODELS"}};
    for (const Json& w : answer) {
        std::string models;
        if (w.contains("models") && w["models"].is_object())
            for (const auto& [uid, description] : w["models"].items()) models += (models.empty() ? "" : ", ") + uid;
        rows.push_back({text_of(w, "work-ip"), models.empty() ? "-" : models});
    }
    print_table(rows);
    return kDone;
}

int run_status(const ModelOptions& options) {
    ClientSession session(options.server);
    Json status, instances;
    if (!session.get("/status", status) || !session.get("/v1/models/instances", instances)) return kFailed;
    if (options.json) return print_json({{"status", status}, {"instances", instances}});
    std::printf("up for %s s\n\n", text_of(status, "uptime").c_str());
    std::vector<std::vector<std::string>> rows{{"WORKER", "CPU", "MEMORY USED", "MEMORY", "GPUS"}};
    const Json workers = status.value("workers", Json::object());
    for (const auto& [address, worker] : workers.items()) {
        const Json devices = worker.value("status", Json::object());
        const Json cpu = devices.value("cpu", Json::object());
        size_t gpus = 0;
        for (const auto& [name, device] : devices.items()) gpus += name.starts_with("gpu-") ? 1u : 0u;
        rows.push_back({address, text_of(cpu, "usage"), bytes_text(cpu, "memory_used"), bytes_text(cpu, "memory_total"),
                        std::to_string(gpus)});
    }
    print_table(rows);
    std::printf("\n");
    print_deployments(session, instances);
    return kDone;
}

}  // namespace baton::cli
