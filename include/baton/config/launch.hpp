#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/base/ids.hpp"

namespace baton::config {

/// One entry of replica_config (reference: Xinference control API), or one replica of an ordinary launch.
struct ReplicaPlacement {
    Role role = Role::kHybrid;
    std::string replica_uid;        ///< stripped; default "<model_uid>-<index>" filled by resolve_launch
    std::string worker_ip;          ///< "" any worker
    std::optional<int64_t> n_gpu;   ///< none: auto; 0: the CPU; -1: an ordinary launch's n_gpu that is not positive,
                                    ///< which resolve_launch refuses
    std::vector<int64_t> gpu_idx;
};

inline constexpr double kGpuMemoryUtilization = 0.9;

/// A parsed POST /v1/models body.
struct LaunchRequest {
    std::string model_uid;          ///< "" choose one
    std::string model_name;
    std::string model_engine;
    std::string model_type = "LLM";
    std::string model_format, quantization, size_in_billions;
    std::string model_path;
    uint32_t replica = 1;
    bool pd = false;                ///< prefill and decode roles
    bool enable_xavier = false;
    int64_t request_limits = -1;    ///< -1 none
    std::vector<ReplicaPlacement> placements;  ///< one a replica, also without replica_config
    bool from_replica_config = false;
    std::vector<std::string> ignored;          ///< engine keywords that were kept but mean nothing here, for the launch log
    bool transfer_backend_normalised = false;
    std::string transfer_backend;              ///< as given, where it was not "xavier"
    std::vector<std::pair<std::string, std::string>> envs;  ///< for the replicas' processes

    // Engine keywords that mean something here; 0 / empty: the default.
    uint64_t kv_cache_bytes = 0;
    uint32_t max_model_len = 0, max_num_seqs = 0, max_num_batched_tokens = 0, block_size = 0, threads = 0;
    std::optional<bool> enable_prefix_caching;
    std::string dtype, kv_dtype, kv_layout, mover;  ///< dtype: bf16, f16, f32
    double gpu_memory_utilization = kGpuMemoryUtilization;  ///< of a card's memory, for all of this launch's replicas on it
    bool deterministic = false;     ///< GPU: bits that do not depend on the batch
    bool verify_handoff = false, snapshot_read_always = false;
    std::optional<bool> snapshots;
    std::optional<bool> enable_thinking;  ///< default of chat_template_kwargs.enable_thinking
    std::string tool_call_parser, reasoning_parser;  ///< formats by name; "": as the registration or the template says
    std::string fault;              ///< accepted only where the daemon allows fault hooks
    std::string raw_json;           ///< the body, for the state file
};

/// The replica that a body of POST /v1/models/{uid}/replicas asks for: `{"replica_config": {one entry}}`, or `{"n_gpu": 0}`,
/// or nothing ("" or `{}`): then it is placed where there is most room. Only hybrid replicas can be added, one at a time.
[[nodiscard]] Expected<std::optional<ReplicaPlacement>> parse_added_replica(std::string_view body);

struct WorkerView {
    std::string address;            ///< ip:port
    std::vector<uint32_t> gpus;     ///< their indexes
    bool local = false;             ///< the worker of `baton serve`
    std::map<int64_t, size_t> on_gpu{};  ///< replicas that run on each GPU already
    std::string gpu_error{};        ///< why there is none: no CUDA module, no driver, no GPU
    bool share_gpus = true;         ///< two replicas may use one GPU
};

/// Parses and checks a launch body by itself: checks 1–17, 23 of the replica_config rules, in that order, before any
/// side effect. Unknown top-level keys are never an error.
/// `local_only` (a single-host `serve`) takes n_worker as 1 whatever it says, as the reference does.
[[nodiscard]] Expected<LaunchRequest> parse_launch(std::string_view body, bool local_only = false);
/// Checks that need the cluster (18–22b, and that the keywords fit a GPU where one was placed) and fills worker addresses. `local_only`: a single-host `serve`, where any
/// worker_ip means the local worker (the caller logs `warnings`).
[[nodiscard]] Expected<LaunchRequest> resolve_launch(LaunchRequest request, const std::vector<WorkerView>& workers,
                                                     bool local_only, std::vector<std::string>& warnings);
/// Check 23 alone. Also refuses uids that would hide a static route.
[[nodiscard]] Expected<void> check_model_uid(std::string_view uid);

}  // namespace baton::config
