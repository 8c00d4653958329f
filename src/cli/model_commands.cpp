#include <cstdio>

#include "cli/commands.hpp"
#include "cli/progress_line.hpp"

/// Commands that look at a server, or end something of it.
namespace baton::cli {
namespace {

double number_of(const Json& object, const char* key) {
    const Json* value = member_of(object, key);
    return value != nullptr && value->is_number() ? value->get<double>() : 0.0;
}

std::string bytes_text(const Json& object, const char* key) {
    return member_of(object, key) == nullptr ? "-" : format_bytes(number_of(object, key));
}

std::string percent_text(double fraction) {
    char buf[24];
    std::snprintf(buf, sizeof buf, "%.0f%%", fraction * 100);
    return buf;
}

std::string duration_text(int64_t seconds) {
    char buf[64];
    const long long s = seconds;
    if (s >= 86'400) std::snprintf(buf, sizeof buf, "%lld d %lld h", s / 86'400, s / 3600 % 24);
    else if (s >= 3600) std::snprintf(buf, sizeof buf, "%lld h %lld min", s / 3600, s / 60 % 60);
    else if (s >= 60) std::snprintf(buf, sizeof buf, "%lld min %lld s", s / 60, s % 60);
    else std::snprintf(buf, sizeof buf, "%lld s", s);
    return buf;
}

std::string device_of(const Json& replica) {
    const Json* gpus = member_of(replica, "gpu_idx");
    if (gpus == nullptr || !gpus->is_array() || gpus->empty()) return "cpu";
    std::string out = "gpu ";
    for (const Json& g : *gpus) out += (out.size() > 4 ? "," : "") + g.dump();
    return out;
}

void print_workers(const Json& status) {
    Table table{{{"WORKER"}, {"CPUS", true}, {"CPU", true}, {"MEMORY USED", true}, {"MEMORY", true}, {"GPUS"}}, {}};
    const Json* workers = member_of(status, "workers");
    if (workers == nullptr || !workers->is_object() || workers->empty()) {
        std::printf("no worker is registered\n");
        return;
    }
    for (const auto& [address, worker] : workers->items()) {
        const Json devices = worker.value("status", Json::object());
        const Json cpu = devices.value("cpu", Json::object());
        std::string gpus;
        for (const auto& [name, device] : devices.items()) {
            if (!name.starts_with("gpu-")) continue;
            gpus += (gpus.empty() ? "" : ", ") + name.substr(4) + ": " + text_of(device, "name");
            if (number_of(device, "mem_total") > 0 && member_of(device, "mem_used") != nullptr)
                gpus += " " + percent_text(number_of(device, "mem_used") / number_of(device, "mem_total")) + " used";
        }
        table.rows.push_back({address, text_of(cpu, "total"), percent_text(number_of(cpu, "usage")), bytes_text(cpu, "memory_used"),
                              bytes_text(cpu, "memory_total"), gpus.empty() ? "-" : gpus});
    }
    print_table(table);
}

bool print_deployments(ClientSession& session, const Json& instances) {
    Table table{{{"MODEL UID"}, {"REPLICA"}, {"ROLE"}, {"STATUS"}, {"WORKER"}, {"DEVICE"}, {"RUNNING", true}, {"WAITING", true}, {"ERROR"}}, {}};
    bool complete = true;
    for (const Json& instance : instances) {
        Json replicas;
        const std::string uid = text_of(instance, "model_uid");
        if (!session.get("/v1/models/" + encode_path(uid) + "/replicas", replicas)) {
            complete = false;
            continue;
        }
        if (replicas.empty()) table.rows.push_back({uid, "-", "-", text_of(instance, "status"), "-", "-", "-", "-", "-"});
        for (const Json& r : replicas)
            table.rows.push_back({uid, text_of(r, "replica_uid"), text_of(r, "role"), text_of(r, "status"), text_of(r, "worker_address"),
                                  device_of(r), text_of(r, "running"), text_of(r, "waiting"), text_of(r, "error_message")});
    }
    if (table.rows.empty()) std::printf("no model is running\n");
    else print_table(table);
    return complete;
}

}  // namespace

int run_list(const ModelOptions& options) {
    ClientSession session(options.server);
    Json answer;
    if (!session.get("/v1/models", answer)) return kFailed;
    if (options.json) return print_json(answer);
    Table table{{{"UID"}, {"TYPE"}, {"NAME"}, {"FORMAT"}, {"SIZE (B)", true}, {"QUANTIZATION"}, {"CONTEXT", true}, {"REPLICAS", true}}, {}};
    for (const Json& m : answer.value("data", Json::array()))
        table.rows.push_back({text_of(m, "id"), text_of(m, "model_type"), text_of(m, "model_name"), text_of(m, "model_format"),
                              text_of(m, "model_size_in_billions"), text_of(m, "quantization"), text_of(m, "context_length"),
                              text_of(m, "replica")});
    print_table(table);
    return kDone;
}

int run_terminate(const ModelOptions& options) {
    ClientSession session(options.server);
    Json answer;
    if (!session.call("DELETE", "/v1/models/" + encode_path(options.model_uid), "", answer)) return kFailed;
    if (options.json) return print_json({{"model_uid", options.model_uid}, {"status", "TERMINATED"}});
    std::printf("terminated %s\n", printable(options.model_uid).c_str());
    return kDone;
}

int run_workers(const ModelOptions& options) {
    ClientSession session(options.server);
    Json answer;
    if (!session.get("/v1/workers", answer)) return kFailed;
    if (options.json) return print_json(answer);
    Table table{{{"WORKER"}, {"REPLICAS"}}, {}};
    for (const Json& w : answer) {
        std::string models;
        if (const Json* running = member_of(w, "models"); running != nullptr && running->is_object())
            for (const auto& [uid, description] : running->items()) models += (models.empty() ? "" : ", ") + uid;
        table.rows.push_back({text_of(w, "work-ip"), models.empty() ? "-" : models});
    }
    print_table(table);
    return kDone;
}

int run_status(const ModelOptions& options) {
    ClientSession session(options.server);
    Json status, instances;
    if (!session.get("/status", status) || !session.get("/v1/models/instances", instances)) return kFailed;
    if (options.json) return print_json({{"status", status}, {"instances", instances}});
    std::printf("%s, up for %s\n\n", session.endpoint().c_str(), duration_text(static_cast<int64_t>(number_of(status, "uptime"))).c_str());
    print_workers(status);
    std::printf("\n");
    return print_deployments(session, instances) ? kDone : kFailed;
}

int run_stop_cluster(const ModelOptions& options) {
    ClientSession session(options.server);
    if (!options.check) {
        Json supervisor, workers;
        if (!session.get("/v1/supervisor", supervisor) || !session.get("/v1/workers", workers)) return kFailed;
        std::fprintf(stderr, "This stops the server at %s (supervisor %s) with all its models.\n", session.endpoint().c_str(),
                     printable(text_of(supervisor, "supervisor_ip")).c_str());
        for (const Json& w : workers) std::fprintf(stderr, "  worker %s\n", printable(text_of(w, "work-ip")).c_str());
        if (!confirm("Continue?")) {
            complain("nothing was stopped");
            return kFailed;
        }
    }
    Json answer;
    if (!session.call("DELETE", "/v1/clusters", "", answer)) return kFailed;
    const Json* result = member_of(answer, "result");
    if (options.json) return print_json(answer);
    std::printf("Cluster stopped: %s\n", result != nullptr && *result == false ? "no" : "yes");
    return result != nullptr && *result == false ? kFailed : kDone;
}

}  // namespace baton::cli
