#include "baton/config/replica_settings.hpp"

#include "config/arguments.hpp"

namespace baton::config {
namespace {

using S = ReplicaSettings;

const std::vector<Argument<S>>& table() {
    static const std::vector<Argument<S>> kTable = {
        {"--role", &S::role, true},
        {"--model-uid", &S::model_uid, true},
        {"--replica", &S::replica, true},
        {"--epoch", &S::epoch, true},
        {"--model-path", &S::model_path},
        {"--supervisor-socket", &S::supervisor_unix},
        {"--supervisor", &S::supervisor_tcp},
        {"--worker-socket", &S::worker_unix},
        {"--listen-socket", &S::listen_unix},
        {"--listen-ip", &S::listen_tcp_ip},
        {"--host-id", &S::host_id},
        {"--threads", &S::threads},
        {"--kv-cache-bytes", &S::kv_cache_bytes},
        {"--block-tokens", &S::block_tokens},
        {"--max-model-len", &S::max_model_len},
        {"--max-num-seqs", &S::max_num_seqs},
        {"--max-num-batched-tokens", &S::max_num_batched_tokens},
        {"--prefix-cache", &S::prefix_cache},
        {"--kv-dtype", &S::kv_dtype, false, {"bf16", "f32"}},
        {"--kv-layout", &S::kv_layout, false, {"block", "kv"}},
        {"--device", &S::device},
        {"--dtype", &S::dtype, false, {"bf16", "f16"}},
        {"--gpu-memory-ppm", &S::gpu_memory_ppm},
        {"--gpu-memory-bytes", &S::gpu_memory_bytes},
        {"--deterministic", &S::deterministic},
        {"--mover", &S::mover, false, {"", "cuda_ipc", "nccl", "shm", "tcp"}},
        {"--verify-handoff", &S::verify_handoff},
        {"--snapshots", &S::snapshots},
        {"--snapshot-read-always", &S::snapshot_read_always},
        {"--isa", &S::isa},
        {"--log-level", &S::log_level, false, {"trace", "debug", "info", "warn", "error"}},
        {"--log-format", &S::log_format, false, {"text", "json"}},
        {"--fault", &S::fault},
    };
    return kTable;
}

tl::unexpected<Error> missing(const char* name) {
    return fail(ErrorCode::kInvalidArgument, std::string("argument ") + name + " is missing", name);
}

tl::unexpected<Error> out_of_range(const char* name) {
    return fail(ErrorCode::kInvalidArgument, std::string(name) + " is out of range", name);
}

}  // namespace

std::optional<uint32_t> gpu_of(const ReplicaSettings& settings) {
    constexpr std::string_view kCuda = "cuda:";
    uint32_t index = 0;
    if (!settings.device.starts_with(kCuda) || !parse_number(std::string_view(settings.device).substr(kCuda.size()), index))
        return std::nullopt;
    return index;
}

std::vector<std::string> to_args(const ReplicaSettings& settings) { return write_arguments<S>(table(), settings); }

Expected<ReplicaSettings> parse_replica_args(const std::vector<std::string>& args) {
    BATON_TRY_ASSIGN(ReplicaSettings s, read_arguments<S>(table(), args));
    if (s.model_uid.empty()) return missing("--model-uid");
    if (s.model_path.empty()) return missing("--model-path");
    if (!s.replica) return missing("--replica");
    if (!s.epoch) return missing("--epoch");
    if (s.supervisor_unix.empty() && s.supervisor_tcp.empty()) return missing("--supervisor-socket");
    if (s.block_tokens < 1 || s.block_tokens > 256) return out_of_range("--block-tokens");
    if (s.max_num_seqs < 1 || s.max_num_seqs > 4096) return out_of_range("--max-num-seqs");
    if (s.max_num_batched_tokens < 1 || s.max_num_batched_tokens > 65536) return out_of_range("--max-num-batched-tokens");
    if (s.threads > 1024) return out_of_range("--threads");
    if (s.gpu_memory_ppm > 1'000'000) return out_of_range("--gpu-memory-ppm");
    if (s.device != "cpu" && !gpu_of(s)) return fail(ErrorCode::kInvalidArgument, "--device must be cpu or cuda:N, got " + s.device, "--device");
    return s;
}

}  // namespace baton::config
