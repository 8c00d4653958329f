#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <atomic>
#include <cstdint>

#include "backend/cuda/common.hpp"

/// Device pieces the attention kernels share: asynchronous copies, matrix fragments, tensor core products, dependent
/// launch. Fragment layouts are those of PTX mma.m16n8k16 and ldmatrix.
namespace baton::backend::cuda::dev {

template <Elem E>
struct Number;
template <>
struct Number<Elem::kBF16> {
    using Type = __nv_bfloat16;
    static __device__ __forceinline__ float to_float(Type v) { return __bfloat162float(v); }
    static __device__ __forceinline__ Type from_float(float v) { return __float2bfloat16_rn(v); }
    /// Two numbers in a word, the first in the low half.
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&v);
    }
    static __device__ __forceinline__ float2 unpack(uint32_t word) {
        return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&word));
    }
    /// c += a · b for one 16 × 8 tile over 16 inner elements.
    static __device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                               uint32_t b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
};
template <>
struct Number<Elem::kF16> {
    using Type = __half;
    static __device__ __forceinline__ float to_float(Type v) { return __half2float(v); }
    static __device__ __forceinline__ Type from_float(float v) { return __float2half_rn(v); }
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        const __half2 v = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&v);
    }
    static __device__ __forceinline__ float2 unpack(uint32_t word) {
        return __half22float2(*reinterpret_cast<const __half2*>(&word));
    }
    static __device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                               uint32_t b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
};

/// Lets the next kernel of the stream start its prologue.
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/// Waits until every earlier kernel of the stream has ended and its writes are visible. All kernels wait, also those of
/// a batch without work, so that "the one before has ended" means "all before have ended".
__device__ __forceinline__ void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Halves of a barrier of all threads of a cluster: writes to each other's shared memory before the arrival are seen after
/// the wait.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
/// The place that `address` has in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ uint32_t address_in(uint32_t address, int rank) {
#if __CUDA_ARCH__ >= 900
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
#else
    (void)rank;
    return address;
#endif
}
__device__ __forceinline__ void store_in_cluster(uint32_t to, float v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
#else
    (void)to;
    (void)v;
#endif
}

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

/// Copies 16 bytes to shared memory; with `read` false it writes 16 zero bytes and reads nothing.
__device__ __forceinline__ void copy16(uint32_t to, const void* from, bool read) {
    const int bytes = read ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
/// Asks for a line to be brought nearer.
__device__ __forceinline__ void prefetch(const void* from) { asm volatile("prefetch.global.L1 [%0];" ::"l"(from)); }
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/// Turns an 8 × 8 matrix of 16-bit numbers, held as a fragment by a warp, over its diagonal.
__device__ __forceinline__ uint32_t transpose_matrix(uint32_t v) {
    uint32_t t;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(t) : "r"(v));
    return t;
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }

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

}  // namespace baton::backend::cuda::dev

namespace baton::backend::cuda {

/// What a launch needs to know of the current device. Asking the runtime each time would cost more than the launch.
struct DeviceTraits {
    cudaError_t error = cudaSuccess;
    int index = 0;
    int major = 0;
    int minor = 0;
    int multiprocessors = 0;
    int shared_max = 0;  ///< bytes of shared memory a block may ask for
    int compiled = 0;    ///< the architecture that the code which runs here was compiled for, e.g. 90: not more than the device's
};
const DeviceTraits& current_device();

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
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(grid);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = launch.stream;
    cudaLaunchAttribute attributes[2] = {};
    unsigned count = 0;
    if (launch.pdl) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count].val.clusterDim.x = cluster;
        attributes[count].val.clusterDim.y = 1;
        attributes[count++].val.clusterDim.z = 1;
    }
    config.attrs = attributes;
    config.numAttrs = count;
    return cudaLaunchKernelEx(&config, Kernel, params);
}

}  // namespace baton::backend::cuda
