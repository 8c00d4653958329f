#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "baton/backend/backend.hpp"
#include "baton/backend/plan.hpp"
#include "baton/base/error.hpp"

/// The door to libbaton_cuda.so, which is opened at run time from beside the binary (or ../lib/baton): the binary itself
/// needs neither driver nor CUDA libraries. Every function says in its error what is missing: the module, the driver, a GPU.
namespace baton::backend {

struct CudaDevice {
    uint32_t index = 0;
    std::string name;
    std::string uuid;
    uint32_t major = 0;  ///< compute capability
    uint32_t minor = 0;
    uint32_t multiprocessors = 0;
    uint64_t total_bytes = 0;
    uint64_t free_bytes = 0;
};

/// Order and sizes as in CpuOptions.
struct CudaOptions {
    uint32_t device = 0;
    bool fp16 = false;               ///< fp16 instead of bf16 weights, activations and KV
    uint32_t block_tokens = 64;      ///< 16, 32 or 64
    uint32_t blocks = 0;             ///< 0: as many as `memory_bytes` leaves after weights and buffers
    uint64_t memory_bytes = 0;       ///< all this backend may take of the device; 0: 90 % of what is free
    uint32_t max_batch_tokens = 2048;
    uint32_t max_batch_slices = 256;
    uint32_t max_model_len = 0;      ///< positions a sequence may have; 0: the model's context
    bool deterministic = false;
    bool kv_first = false;           ///< PoolOrder::kKvFirst instead of kBlockFirst
    std::string cache_folder;        ///< for what was tuned; empty: tuned anew at each load
    bool keep_logits = false;        ///< for tests: DeviceBackend::debug_logits works
    bool noise = false;              ///< for benchmarks: the pool starts with random values instead of zeros
};

/// What a GPU reaches in plain operations, measured now: the ceilings that a benchmark's figures are shares of.
struct CudaCalibration {
    double copy_bytes_per_s = 0;    ///< device to device, bytes read and written
    double gemm_flops_per_s = 0;    ///< bf16, 8192 x 8192 x 8192
    double upload_bytes_per_s = 0;  ///< from pinned host memory
};

/// Opens the module and lists the GPUs. Errors: kUnavailable with the reason (no module in this build, no driver, no GPU).
[[nodiscard]] Expected<std::vector<CudaDevice>> cuda_devices();

/// Does the part of make_cuda_backend that needs no plan: opens the module and makes the process ready to use that GPU, which takes
/// some 0.3 s. Any thread; errors come again from make_cuda_backend.
[[nodiscard]] Expected<void> cuda_open(uint32_t device);

/// Takes about 100 ms and 512 MiB of the device.
[[nodiscard]] Expected<CudaCalibration> cuda_calibrate(uint32_t device);

/// Loads the plan's weights onto the device (quantised ones become bf16 or fp16), tunes, captures graphs. Errors name the
/// bytes needed and free, the GPU index and what is there, the tensor or size that does not fit.
[[nodiscard]] Expected<std::unique_ptr<DeviceBackend>> make_cuda_backend(const Plan& plan, const CudaOptions& options);

}  // namespace baton::backend
