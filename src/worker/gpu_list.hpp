#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "baton/backend/cuda.hpp"
#include "baton/wire/messages.hpp"

namespace baton::worker {

/// The GPUs that replicas of this host can use, by the index CUDA counts them with; why there are none.
struct GpuList {
    std::vector<wire::Gpu> gpus;
    std::string error;  ///< "" where there are some
};

/// Asks a process of its own for backend::cuda_devices() and waits for it: what the driver takes of memory, and where it
/// hangs or crashes, is not the worker's. `ask` and `timeout_ms` are for tests. Call while this process has one thread.
[[nodiscard]] GpuList list_gpus(const std::function<Expected<std::vector<backend::CudaDevice>>()>& ask = backend::cuda_devices,
                                int64_t timeout_ms = 60'000);

}  // namespace baton::worker
