#include <algorithm>

#include "exposition.hpp"
#include "metrics.hpp"
#include "model_rows.hpp"

namespace baton::supervisor {
namespace {

using Labels = Exposition::Labels;

constexpr Exposition::About kFamilies[] = {
    {"xinference:generate_tokens_total", "counter", "Tokens generated."},
    {"xinference:input_tokens_total_counter", "counter", "Prompt tokens of requests that ended here."},
    {"xinference:output_tokens_total_counter", "counter", "Output tokens of requests that ended here."},
    {"xinference:model_request_errors_total", "counter", "Requests that failed."},
    {"xinference:model_request_duration_seconds", "histogram", "From a request's first byte to the end of its answer."},
    {"xinference:model_request_total", "counter", "Requests, by how they were to be answered."},
    {"xinference:time_to_first_token_seconds", "histogram", "From a request's first byte to its first token."},
    {"xinference:model_serve_count", "gauge", "Sequences the replica has now."},
    {"xinference:model_request_limit", "gauge", "Requests a replica may have at once; -1: any number."},
    {"xinference:model_last_load_duration_seconds", "gauge", "From the start of the replica's process until it was up."},
    {"xinference:model_info", "gauge", "1 for each worker a model runs on."},
    {"xinference:model_gpu_binding", "gauge", "1 for each GPU a replica runs on."},
    {"xinference:model_gpu_memory_used_bytes", "gauge", "Memory the replica took of its GPU."},
    {"xinference:model_unexpected_termination", "gauge", "1 once a replica has gone down by a fault, also when it is back, until the model is launched anew."},
    {"xinference:model_status", "gauge", "1; the state in its label."},
    {"xinference:worker_cpu_utilization", "gauge", "Share of the worker's processors in use, 0 to 1."},
    {"xinference:worker_memory_used_bytes", "gauge", "Memory in use on the worker's host."},
    {"xinference:worker_memory_total_bytes", "gauge", "Memory of the worker's host."},
    {"xinference:worker_gpu_utilization_percent", "gauge", "Share of the time that the GPU was busy."},
    {"xinference:worker_gpu_memory_used_bytes", "gauge", "GPU memory in use."},
    {"xinference:worker_gpu_memory_total_bytes", "gauge", "GPU memory."},
    {"xinference:build_info", "gauge", "1; the version in its label."},
    {"xinference:config_info", "gauge", "1; whether users must log in."},
    {"xinference:supervisor_uptime_seconds", "gauge", "Seconds since the supervisor started."},
    {"xinference:workers_total", "gauge", "Registered workers."},
    {"xinference:models_loaded_total", "gauge", "Running models."},
};
/// Only where there is an auth file.
constexpr Exposition::About kKeyFamilies[] = {
    {"xinference:api_keys_active_total", "gauge", "Keys of the auth file that are good."},
    {"xinference:api_keys_expired_total", "gauge", "Keys of the auth file that have expired."},
    {"xinference:api_key_requests_total", "counter", "Requests that came with a key of the auth file."},
    {"xinference:api_key_request_duration_seconds", "histogram", "From a request's first byte to the end of its answer, of those with a key of the auth file."},
    {"xinference:banned_ips_total", "gauge", "Addresses that are banned for keys and tokens that nobody has."},
    {"xinference:banned_keys_total", "gauge", "Keys that are banned at an address, where they were used although no longer good."},
};

std::string gpu_list(const Slot& s) {
    std::string out;
    for (const int64_t g : s.placement.gpu_idx) out += (out.empty() ? "" : ",") + std::to_string(g);
    return out;
}

/// The labels of everything that is about one replica; without a slot, of requests that no replica had.
Labels labels_of(const Deployment& d, const Slot* s) {
    const config::LaunchRequest& r = d.request();
    return {{"model_type", r.model_type},
            {"model_uid", d.uid()},
            {"replica_index", s == nullptr ? "" : std::to_string(s->id.value - 1)},
            {"model_name", r.model_name},
            {"engine", r.model_engine},
            {"worker_address", s == nullptr ? "" : s->placement.worker_ip},
            {"format", r.model_format.empty() ? d.model().format : r.model_format},
            {"quantization", r.quantization.empty() ? d.model().quantization : r.quantization},
            {"gpu_index", s == nullptr ? "" : gpu_list(*s)}};
}

Labels with(Labels labels, const char* key, const char* value) {
    labels.emplace_back(key, value);
    return labels;
}

void add_requests(Exposition& x, const Labels& who, const ReplicaRequests& m) {
    const auto count = [](uint64_t n) { return static_cast<double>(n); };
    x.add("xinference:generate_tokens_total", who, count(m.output_tokens));
    x.add("xinference:input_tokens_total_counter", who, count(m.input_tokens));
    x.add("xinference:output_tokens_total_counter", who, count(m.output_tokens));
    x.add("xinference:model_request_errors_total", who, count(m.errors));
    x.add("xinference:model_request_duration_seconds", who, m.duration);
    constexpr const char* kStream[] = {"false", "true", "unknown"};
    for (size_t i = 0; i < m.total.size(); ++i)
        x.add("xinference:model_request_total", with(who, "stream", kStream[i]), count(m.total[i]));
    constexpr const char* kTtft = "xinference:time_to_first_token_seconds";
    x.add(kTtft, with(who, "stream", "false"), m.ttft_plain);
    x.add(kTtft, with(who, "stream", "true"), m.ttft_stream);
}

void add_replica(Exposition& x, const Deployment& d, const Slot& s) {
    const Labels who = labels_of(d, &s);
    const std::string index = std::to_string(s.id.value - 1);
    const Labels info{{"model_uid", d.uid()}, {"model_name", d.request().model_name}, {"model_type", d.request().model_type}, {"worker_address", s.placement.worker_ip}};
    x.add("xinference:model_serve_count", who, s.stats.running + s.stats.waiting);
    x.add("xinference:model_request_limit", who, static_cast<double>(d.request().request_limits));
    x.add("xinference:model_last_load_duration_seconds", who, static_cast<double>(s.load_ms) / 1000);
    const size_t on_worker = static_cast<size_t>(std::count_if(d.slots().begin(), d.slots().end(), [&](const Slot& o) { return o.placement.worker_ip == s.placement.worker_ip; }));
    Labels shown = info;
    shown.emplace_back("replica_on_worker", std::to_string(on_worker));
    shown.emplace_back("replica_total", std::to_string(d.slots().size()));
    // One line a worker: the first of its replicas speaks for all.
    const auto first = std::find_if(d.slots().begin(), d.slots().end(), [&](const Slot& o) { return o.placement.worker_ip == s.placement.worker_ip; });
    if (first->id == s.id) x.add("xinference:model_info", shown, 1);
    for (const int64_t g : s.placement.gpu_idx) {
        Labels bound = info;
        bound.emplace_back("gpu_index", std::to_string(g));
        bound.emplace_back("replica_index", index);
        x.add("xinference:model_gpu_binding", bound, 1);
        x.add("xinference:model_gpu_memory_used_bytes", bound, static_cast<double>(s.ready.memory_bytes));
    }
    if (s.faults > 0) x.add("xinference:model_unexpected_termination", who, 1);
}

void add_deployment(Exposition& x, const Deployment& d) {
    x.add("xinference:model_status",
          {{"model_uid", d.uid()}, {"model_name", d.request().model_name}, {"status", instance_status(d)}}, 1);
    if (!d.has_router()) return;
    for (const Slot& s : d.slots()) {
        add_replica(x, d, s);
        const auto m = d.metrics.find(static_cast<int64_t>(s.id.value) - 1);
        add_requests(x, labels_of(d, &s), m == d.metrics.end() ? ReplicaRequests{} : m->second);
    }
    if (const auto none = d.metrics.find(-1); none != d.metrics.end()) add_requests(x, labels_of(d, nullptr), none->second);
}

void add_worker(Exposition& x, const Workers::Worker& w) {
    const Labels who{{"worker_address", w.address}};
    x.add("xinference:worker_cpu_utilization", who, w.stats.cpu_utilization);
    x.add("xinference:worker_memory_used_bytes", who, static_cast<double>(w.stats.memory_used));
    x.add("xinference:worker_memory_total_bytes", who, static_cast<double>(w.stats.memory_total));
    for (const wire::Gpu& gpu : w.ready.gpus) {
        const Labels one{{"worker_address", w.address}, {"gpu_index", std::to_string(gpu.index)}, {"gpu_name", gpu.name}};
        const GpuLoad load = gpu_load(w, gpu);
        x.add("xinference:worker_gpu_utilization_percent", one, 100 * load.utilization);
        x.add("xinference:worker_gpu_memory_used_bytes", one, static_cast<double>(load.memory_used));
        x.add("xinference:worker_gpu_memory_total_bytes", one, static_cast<double>(gpu.memory_bytes));
    }
}

}  // namespace

void add_xinference_metrics(Exposition& x, const Deployments& deployments, const Workers& workers, const Auth* auth, int64_t uptime_s) {
    x.declare(kFamilies);
    x.add("xinference:build_info", {{"version", BATON_VERSION}}, 1);
    x.add("xinference:config_info", {{"auth", auth != nullptr ? "true" : "false"}}, 1);
    x.add("xinference:supervisor_uptime_seconds", {}, static_cast<double>(uptime_s));
    x.add("xinference:workers_total", {}, static_cast<double>(workers.all().size()));
    size_t loaded = 0;
    for (const auto& [uid, d] : deployments.all()) {
        loaded += d->state() == DeploymentState::kReady ? 1 : 0;
        add_deployment(x, *d);
    }
    x.add("xinference:models_loaded_total", {{"model_type", "LLM"}}, static_cast<double>(loaded));
    for (const auto& [address, w] : workers.all()) add_worker(x, w);
    if (auth == nullptr) return;
    x.declare(kKeyFamilies);
    const Auth::Counts a = auth->counts();
    x.add("xinference:api_keys_active_total", {}, static_cast<double>(a.keys_active));
    x.add("xinference:api_keys_expired_total", {}, static_cast<double>(a.keys_expired));
    x.add("xinference:api_key_requests_total", {}, static_cast<double>(a.key_requests));
    x.add("xinference:api_key_request_duration_seconds", {}, a.key_seconds);
    x.add("xinference:banned_ips_total", {}, static_cast<double>(a.banned_addresses));
    x.add("xinference:banned_keys_total", {}, static_cast<double>(a.banned_keys));
}

}  // namespace baton::supervisor
