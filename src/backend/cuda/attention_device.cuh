#pragma once

#include <atomic>
#include <cstdint>

#include "backend/cuda/common.hpp"
#include "backend/cuda/device_traits.hpp"
#include "backend/cuda/element.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/ptx.cuh"

/// What the attention kernels share: reductions over the lanes of a fragment, and their launch.
namespace baton::backend::cuda::dev {

/// Largest over the four lanes that hold one row of an accumulator tile.
__device__ __forceinline__ float quad_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}
__device__ __forceinline__ float quad_sum(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

/// Over the eight lanes that hold one column of an accumulator tile.
__device__ __forceinline__ float column_max(float v) {
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 4));
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 8));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 16));
}
__device__ __forceinline__ float column_sum(float v) {
    v += __shfl_xor_sync(0xffffffffu, v, 4);
    v += __shfl_xor_sync(0xffffffffu, v, 8);
    return v + __shfl_xor_sync(0xffffffffu, v, 16);
}

/// A barrier in shared memory that the bytes sent to it count up; the blocks of the cluster see it after their barrier's wait.
__device__ __forceinline__ void cluster_barrier_init(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    jitter();
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;" ::"r"(barrier) : "memory");
#endif
}
__device__ __forceinline__ void cluster_barrier_expect(uint32_t barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    jitter();
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}
/// Waits for the bytes; once in the barrier's life.
__device__ __forceinline__ void cluster_barrier_wait(uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    if (jitter_waits(barrier, 0)) return;
    uint32_t done = 0;
    while (done == 0)
        asm volatile(
            "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;\n}"
            : "=r"(done)
            : "r"(barrier)
            : "memory");
#endif
}
/// Stores two numbers in a block of the cluster and counts their bytes at its barrier.
__device__ __forceinline__ void send_in_cluster(uint32_t to, float2 v, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    jitter();
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to), "f"(v.x), "f"(v.y),
                 "r"(barrier)
                 : "memory");
#endif
}

/// Reads what another block has written and counted in: what it wrote before is seen by reads after this.
__device__ __forceinline__ int load_acquire(const int* from) {
    jitter();
    int v;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}

/// Policy for copies of what is read once.
__device__ __forceinline__ uint64_t read_once_policy() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
    return policy;
}
/// As copy16_of_line, with a policy for L2.
__device__ __forceinline__ void copy16_of_stream(uint32_t to, const void* from, bool read, uint64_t policy) {
    const int bytes = read ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;" ::"r"(to), "l"(from), "r"(bytes), "l"(policy)
                 : "memory");
}
}  // namespace baton::backend::cuda::dev

namespace baton::backend::cuda {

/// Lets a kernel use all of the shared memory there is, once per device. Any thread.
template <auto Kernel>
cudaError_t allow_shared(const DeviceTraits& device) {
    static std::atomic<uint64_t> done{0};
    const uint64_t bit = 1ull << device.index;
    if ((done.load(std::memory_order_relaxed) & bit) != 0)
        return cudaSuccess;
    const auto* function = reinterpret_cast<const void*>(Kernel);
    cudaError_t error = cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, device.shared_max);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
    if (error == cudaSuccess)
        done.fetch_or(bit, std::memory_order_relaxed);
    return error;
}

/// Launches `Kernel` with one parameter block, in clusters of so many thread blocks; with `launch.pdl` it may overlap the end
/// of the kernel before it.
template <auto Kernel, class Params>
cudaError_t launch_kernel(const Launch& launch, unsigned grid, unsigned threads, size_t shared, const Params& params,
                          unsigned cluster = 1) {
    const DeviceTraits& device = current_device();
    if (device.error != cudaSuccess)
        return device.error;
    if (shared > 48 * 1024) {
        const cudaError_t error = allow_shared<Kernel>(device);
        if (error != cudaSuccess)
            return error;
    }
    return start(launch, Kernel, dim3(grid), threads, shared, cluster, params);
}

/// Whether the kernels have pages of this size.
inline bool takes_pages(const KvView& kv) {
    return (kv.block_tokens == 16 || kv.block_tokens == 32 || kv.block_tokens == 64) && kv.kv_heads > 0;
}

/// Calls `launch` with the element type and the head's size as template arguments.
template <class F>
cudaError_t for_shape(Elem elem, uint32_t head_dim, const F& launch) {
    const bool bf16 = elem == Elem::kBF16;
    if (head_dim == 128)
        return bf16 ? launch.template operator()<Elem::kBF16, 128>() : launch.template operator()<Elem::kF16, 128>();
    if (head_dim == 64)
        return bf16 ? launch.template operator()<Elem::kBF16, 64>() : launch.template operator()<Elem::kF16, 64>();
    return cudaErrorInvalidValue;
}

}  // namespace baton::backend::cuda
