#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

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

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

/// Copies 16 bytes to shared memory; with `read` false it writes 16 zero bytes and reads nothing.
__device__ __forceinline__ void copy16(uint32_t to, const void* from, bool read) {
    const int bytes = read ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
/// Brings `bytes` (a multiple of 16) into the L2 cache. Nothing where the device has no such instruction.
__device__ __forceinline__ void prefetch_l2(const void* from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#else
    (void)from;
    (void)bytes;
#endif
}
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

}  // namespace baton::backend::cuda::dev

namespace baton::backend::cuda {

/// Launches `kernel` with one parameter block; with `launch.pdl` it may overlap the end of the kernel before it.
template <class Params>
cudaError_t launch_kernel(const Launch& launch, void (*kernel)(Params), unsigned grid, unsigned threads, size_t shared,
                          const Params& params) {
    if (shared > 48 * 1024) {
        const auto* function = reinterpret_cast<const void*>(kernel);
        cudaError_t error =
            cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
        if (error == cudaSuccess)
            error = cudaFuncSetAttribute(function, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
        if (error != cudaSuccess)
            return error;
    }
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(grid);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = launch.stream;
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &attribute;
    config.numAttrs = launch.pdl ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, params);
}

}  // namespace baton::backend::cuda
