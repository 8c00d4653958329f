#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <span>

namespace baton::backend::cuda {

inline uint32_t ceil_div(uint32_t a, uint32_t b) { return (a + b - 1) / b; }
/// Of the least power of two that is not below `v`.
inline uint32_t log2_of(uint32_t v) {
    uint32_t log = 0;
    while ((1u << log) < v) ++log;
    return log;
}
inline bool is_power_up_to(uint32_t v, uint32_t most) { return v != 0 && (v & (v - 1)) == 0 && v <= most; }

/// Allows kernels that need sm_90 code as much dynamic shared memory as a block may have on the current device; `most` gets it, 0 where
/// they do not run.
inline cudaError_t allow_shared_of_sm90(std::span<const void* const> kernels, uint32_t& most) {
    most = 0;
    int device = 0;
    int major = 0;
    int shared = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess || major != 9) return error;
    // A build without sm_90 code runs on such a device from older PTX, in which these kernels are empty.
    cudaFuncAttributes attributes = {};
    error = cudaFuncGetAttributes(&attributes, kernels.front());
    if (error != cudaSuccess || attributes.binaryVersion != 90 || attributes.ptxVersion < 90) return error;
    for (const void* kernel : kernels) {
        error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
        if (error != cudaSuccess) return error;
    }
    most = static_cast<uint32_t>(shared);
    return cudaSuccess;
}

/// Up to 16 rows that kernels of a step hand on: row behind row, or in the order in which the lanes of a warp read them as an operand of
/// mma.sync, 1,024 bytes for each 32 columns, so that a warp asks for half as many lines.
struct Rows {
    void* data = nullptr;
    bool for_lanes = false;
};

/// What a device allows kernels whose blocks wait for each other, so that all of them must find room at once.
struct AtOnceLimits {
    uint32_t shared_bytes = 0;  ///< dynamic shared memory a block may have; 0: the kernels do not run here
    uint32_t multiprocessors = 0;
};
/// Sets such kernels' shared memory limits once; reads the current device.
inline cudaError_t prepare_at_once(std::span<const void* const> kernels, AtOnceLimits& limits) {
    int device = 0;
    int count = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    limits.multiprocessors = static_cast<uint32_t>(count);
    return error == cudaSuccess ? allow_shared_of_sm90(kernels, limits.shared_bytes) : error;
}

}  // namespace baton::backend::cuda
