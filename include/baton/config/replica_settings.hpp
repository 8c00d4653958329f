#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/base/ids.hpp"

namespace baton::config {

/// What a replica process is told at start. The supervisor fills it, the worker passes it as a command line, the replica
/// reads it. The link secret travels in the environment (BATON_LINK_SECRET), never here.
struct ReplicaSettings {
    std::string model_uid;
    std::string model_path;
    ReplicaId replica;
    Epoch epoch;
    Role role = Role::kHybrid;
    std::string supervisor_unix;  ///< control socket of the supervisor on this host, or
    std::string supervisor_tcp;   ///< its ip:port
    std::string worker_unix;      ///< socket of the worker (snapshot store); "" none
    std::string listen_unix;      ///< where peers on this host connect
    std::string listen_tcp_ip;    ///< ip to listen on for peers of other hosts; "" none
    std::string host_id;          ///< "" the default
    uint32_t threads = 0;         ///< 0: one per core
    uint64_t kv_cache_bytes = 0;  ///< 0: the default (ENGINE.md)
    uint32_t block_tokens = 16;
    uint32_t max_model_len = 0;   ///< 0: the model's context
    uint32_t max_num_seqs = 64;
    uint32_t max_num_batched_tokens = 512;
    bool prefix_cache = true;
    std::string kv_dtype = "bf16";     ///< bf16 or f32
    std::string device = "cpu";        ///< "cpu", or "cuda:N" with the GPU's index
    std::string dtype = "bf16";        ///< GPU: of weights, activations and KV: bf16 or f16
    uint32_t gpu_memory_ppm = 0;       ///< GPU: its share of the card's memory, in millionths; the worker makes bytes of it
    uint64_t gpu_memory_bytes = 0;     ///< GPU: all it may take; 0: most of what is free
    bool deterministic = false;        ///< GPU: bits that do not depend on the batch
    std::string kv_layout = "block";   ///< block (block-first) or kv (K/V-first)
    std::string mover;                 ///< "" by pair; "cuda_ipc", "nccl", "shm" or "tcp" forced
    bool verify_handoff = false;
    bool snapshots = true;
    bool snapshot_read_always = false;
    std::string isa;                   ///< "" the best; see backend::CpuOptions
    std::string log_level = "info";
    std::string log_format = "text";
    std::string fault;                 ///< fault hook for tests, e.g. "pull_delay_ms=200"; "" none

    friend bool operator==(const ReplicaSettings&, const ReplicaSettings&) = default;
};

/// Index of the GPU of `device`; none for the CPU.
[[nodiscard]] std::optional<uint32_t> gpu_of(const ReplicaSettings& settings);

/// Arguments after `baton replica`: `--role prefill --model-uid … `, only what differs from the defaults (the role and
/// the uid always, so that they show in ps).
[[nodiscard]] std::vector<std::string> to_args(const ReplicaSettings& settings);
/// The reverse. kInvalidArgument names the argument that is wrong.
[[nodiscard]] Expected<ReplicaSettings> parse_replica_args(const std::vector<std::string>& args);

}  // namespace baton::config
