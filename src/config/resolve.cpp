#include <algorithm>
#include <filesystem>
#include <map>

#include "baton/base/host_of.hpp"
#include "config/launch_fields.hpp"

namespace baton::config {
namespace {

std::string list_of(const std::vector<WorkerView>& workers) {
    std::string out = "[";
    for (const auto& w : workers) out += (out.size() > 1 ? ", '" : "'") + w.address + "'";
    return out + "]";
}

template <class T>
std::string list_of_numbers(const std::vector<T>& numbers) {
    std::string out = "[";
    for (const auto& n : numbers) out += (out.size() > 1 ? ", " : "") + std::to_string(n);
    return out + "]";
}

/// Chooses workers and GPUs for the placements of one launch, spreading them evenly.
class Placer {
  public:
    Placer(const std::vector<WorkerView>& workers, bool local_only) : workers_(workers), local_only_(local_only) {
        for (const WorkerView& w : workers)
            for (const auto& [gpu, replicas] : w.on_gpu) on_gpu_[{w.address, gpu}] = replicas;
    }

    Expected<void> place(ReplicaPlacement& p, size_t i, bool from_config, std::vector<std::string>& warnings) {
        BATON_TRY_ASSIGN(const WorkerView* worker, choose_worker(p, i, from_config, warnings));
        BATON_TRY(choose_gpus(p, *worker, i, from_config));
        p.worker_ip = worker->address;
        ++replicas_[worker->address];
        return {};
    }

  private:
    const WorkerView* least_used(std::string_view host) {
        const WorkerView* best = nullptr;
        for (const auto& w : workers_)
            if ((host.empty() || host_of(w.address) == host) &&
                (best == nullptr || replicas_[w.address] < replicas_[best->address]))
                best = &w;
        return best;
    }

    Expected<const WorkerView*> choose_worker(const ReplicaPlacement& p, size_t i, bool from_config,
                                              std::vector<std::string>& warnings) {
        if (workers_.empty())
            return fail(ErrorCode::kUnavailable, "No available worker found. Registered workers: []");
        if (p.worker_ip.empty() && (local_only_ || !from_config)) return least_used({});
        for (const auto& w : workers_)
            if (w.address == p.worker_ip) return &w;
        if (local_only_) {
            warnings.push_back("worker_ip " + in_quotes(p.worker_ip) + " of replica " + std::to_string(i) +
                               " is not the local worker " + workers_.front().address + ", which runs it all the same");
            return &workers_.front();
        }
        if (from_config)
            return bad("replica_config[" + std::to_string(i) + "].worker_ip " + in_quotes(p.worker_ip) +
                           " is not in the cluster. Registered workers: " + list_of(workers_) + ".",
                       "replica_config");
        // A bare host of an ordinary launch means all its workers.
        if (const WorkerView* w = least_used(p.worker_ip)) return w;
        return bad("Worker ip address " + in_quotes(p.worker_ip) + " is not in the cluster. Registered workers: " +
                       list_of(workers_) + ".",
                   "worker_ip");
    }

    Expected<void> choose_gpus(ReplicaPlacement& p, const WorkerView& worker, size_t i, bool from_config) {
        const auto have = static_cast<int64_t>(worker.gpus.size());
        if (!p.gpu_idx.empty()) {
            const bool visible = std::all_of(p.gpu_idx.begin(), p.gpu_idx.end(), [&](int64_t g) {
                return std::any_of(worker.gpus.begin(), worker.gpus.end(), [&](uint32_t have_g) { return have_g == g; });
            });
            const std::string field = from_config ? "replica_config[" + std::to_string(i) + "].gpu_idx" : "gpu_idx";
            if (!visible)
                return bad(field + " " + list_of_numbers(p.gpu_idx) + " is not visible on worker " + worker.address +
                               "; visible GPU indexes: " + list_of_numbers(worker.gpus) + why_none(worker),
                           from_config ? "replica_config" : "gpu_idx");
            p.n_gpu = static_cast<int64_t>(p.gpu_idx.size());
        }
        if (!p.n_gpu) p.n_gpu = have > 0 ? 1 : 0;
        if (*p.n_gpu < 0 || *p.n_gpu > have)
            return bad("The parameter `n_gpu` must be greater than 0 and not greater than the number of GPUs: " +
                           std::to_string(have) + " on the machine." + why_none(worker),
                       from_config ? "replica_config" : "n_gpu");
        BATON_TRY(check_sharing(p, worker, from_config));
        while (static_cast<int64_t>(p.gpu_idx.size()) < *p.n_gpu) {
            const int64_t gpu = next_gpu(worker);
            if (!worker.share_gpus && on_gpu_[{worker.address, gpu}] > 0)
                return fail(ErrorCode::kUnavailable, "No available slot found for the model");
            p.gpu_idx.push_back(gpu);
        }
        for (const int64_t g : p.gpu_idx) {
            ++on_gpu_[{worker.address, g}];
            ++of_this_launch_[{worker.address, g}];
        }
        return {};
    }

    /// Checks 20 and 21: GPUs that were named, on a worker whose GPUs serve one replica each.
    Expected<void> check_sharing(const ReplicaPlacement& p, const WorkerView& worker, bool from_config) {
        if (worker.share_gpus) return {};
        std::vector<int64_t> twice, taken;
        for (const int64_t g : p.gpu_idx) {
            if (of_this_launch_[{worker.address, g}] > 0) twice.push_back(g);
            else if (on_gpu_[{worker.address, g}] > 0) taken.push_back(g);
        }
        const std::string where = std::string(from_config ? "replica_config " : "") + "GPU conflict on worker " + worker.address + ": GPU indexes ";
        const char* param = from_config ? "replica_config" : "gpu_idx";
        if (!twice.empty())
            return bad(where + list_of_numbers(twice) + " requested by more than one replica, and this worker disallows sharing a GPU.", param);
        if (!taken.empty())
            return bad(where + list_of_numbers(taken) + " are already occupied, and this worker disallows sharing a GPU.", param);
        return {};
    }

    /// What is missing on a worker without GPUs, as a part of an error.
    static std::string why_none(const WorkerView& worker) {
        return worker.gpu_error.empty() ? "" : " (" + worker.gpu_error + ")";
    }

    int64_t next_gpu(const WorkerView& worker) {
        int64_t best = worker.gpus.front();
        for (const uint32_t g : worker.gpus)
            if (on_gpu_[{worker.address, g}] < on_gpu_[{worker.address, best}]) best = g;
        return best;
    }

    const std::vector<WorkerView>& workers_;
    bool local_only_;
    std::map<std::string, size_t> replicas_;
    std::map<std::pair<std::string, int64_t>, size_t> on_gpu_, of_this_launch_;
};

/// Keywords that mean nothing on the CPU, or cannot be had on a GPU, once it is known who runs where.
Expected<void> check_devices(const LaunchRequest& request) {
    size_t on_gpu = 0;
    for (const ReplicaPlacement& p : request.placements) on_gpu += p.gpu_idx.empty() ? 0 : 1;
    if (request.pd && on_gpu > 0 && on_gpu < request.placements.size())
        return bad("prefill and decode replicas must all run on GPUs or all on the CPU; " + std::to_string(on_gpu) + " of " +
                       std::to_string(request.placements.size()) + " are on GPUs (n_gpu: 0 means the CPU)",
                   "replica_config");
    if (on_gpu == 0) return {};
    if (request.dtype == "f32")
        return bad("dtype float32 cannot be had on a GPU; use auto, bfloat16 or float16, or n_gpu: 0 for the CPU", "dtype");
    if (request.kv_dtype == "f32")
        return bad("kv_dtype f32 cannot be had on a GPU, whose KV cache has the type of `dtype`; leave it out, or use n_gpu: 0 for the CPU", "kv_dtype");
    if (request.block_size != 0 && request.block_size != 16 && request.block_size != 32 && request.block_size != 64)
        return bad("block_size must be 16, 32 or 64 on a GPU, got " + std::to_string(request.block_size), "block_size");
    return {};
}

/// Check 22b: only a local worker's files can be seen from here; another host's replica reports them itself.
Expected<void> check_model_path(const LaunchRequest& request, const std::vector<WorkerView>& workers) {
    if (request.model_path.empty()) return {};
    const bool local = std::all_of(request.placements.begin(), request.placements.end(), [&](const ReplicaPlacement& p) {
        return std::any_of(workers.begin(), workers.end(),
                           [&](const WorkerView& w) { return w.local && w.address == p.worker_ip; });
    });
    std::error_code ignored;
    if (local && !std::filesystem::exists(request.model_path, ignored))
        return bad("Invalid input. `model_path`: " + request.model_path + " File or directory does not exist.",
                   "model_path");
    return {};
}

}  // namespace

Expected<LaunchRequest> resolve_launch(LaunchRequest request, const std::vector<WorkerView>& workers, bool local_only,
                                       std::vector<std::string>& warnings) {
    if (!request.model_uid.empty()) {
        BATON_TRY(check_replica_uids(request));
        for (size_t i = 0; i < request.placements.size(); ++i)
            if (auto& uid = request.placements[i].replica_uid; uid.empty())
                uid = request.model_uid + "-" + std::to_string(i);
    }
    Placer placer(workers, local_only);
    for (size_t i = 0; i < request.placements.size(); ++i)
        BATON_TRY(placer.place(request.placements[i], i, request.from_replica_config, warnings));
    BATON_TRY(check_devices(request));
    BATON_TRY(check_model_path(request, workers));
    if (!request.model_uid.empty()) BATON_TRY(check_model_uid(request.model_uid));
    return request;
}

}  // namespace baton::config
