#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "backend/cuda/common.hpp"

/// Device building blocks of the linear kernels, and their launch.
namespace baton::backend::cuda::gemm {

/// The kernels after this one may start to be scheduled (sm_90; nothing elsewhere).
__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/// Waits until the kernels before this one have ended and their writes are visible.
__device__ __forceinline__ void wait_prerequisites() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Conversions of one element type, two to a 32-bit word.
template <class T>
struct Ops;
template <>
struct Ops<__nv_bfloat16> {
    static __device__ __forceinline__ float2 unpack(uint32_t v) {
        return {__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u)};
    }
    static __device__ __forceinline__ uint32_t pack(float lo, float hi) {
        const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
        return *reinterpret_cast<const uint32_t*>(&v);
    }
    static __device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
    static __device__ __forceinline__ __nv_bfloat16 from_float(float v) { return __float2bfloat16_rn(v); }
};
template <>
struct Ops<__half> {
    static __device__ __forceinline__ float2 unpack(uint32_t v) {
        return __half22float2(*reinterpret_cast<const __half2*>(&v));
    }
    static __device__ __forceinline__ uint32_t pack(float lo, float hi) {
        const __half2 v = __floats2half2_rn(lo, hi);
        return *reinterpret_cast<const uint32_t*>(&v);
    }
    static __device__ __forceinline__ float to_float(__half v) { return __half2float(v); }
    static __device__ __forceinline__ __half from_float(float v) { return __float2half_rn(v); }
};

/// Two products, rounded to T.
template <class T>
__device__ __forceinline__ uint32_t multiply2(uint32_t a, uint32_t b) {
    using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    const Pair product = __hmul2(*reinterpret_cast<const Pair*>(&a), *reinterpret_cast<const Pair*>(&b));
    return *reinterpret_cast<const uint32_t*>(&product);
}

/// The eight elements of a 16-byte word as f32.
template <class T>
__device__ __forceinline__ void unpack8(const uint4& v, float (&f)[8]) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 pair = Ops<T>::unpack(words[i]);
        f[2 * i] = pair.x;
        f[2 * i + 1] = pair.y;
    }
}
template <class T>
__device__ __forceinline__ uint4 pack8(const float (&f)[8]) {
    return {Ops<T>::pack(f[0], f[1]), Ops<T>::pack(f[2], f[3]), Ops<T>::pack(f[4], f[5]), Ops<T>::pack(f[6], f[7])};
}

/// 16 bytes of weights, kept out of L1. Not a read-only load: the assembler moves those past griddepcontrol.wait, and then
/// nothing overlaps.
__device__ __forceinline__ uint4 load_weights(const void* p) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

/// Bytes that later kernels read, and how many of them each block brings into L2: a multiple of 16.
struct Ahead {
    const unsigned char* from = nullptr;
    uint32_t bytes = 0;
    uint32_t share = 0;
};
/// One thread of each block asks for its share.
__device__ __forceinline__ void fetch_ahead(const Ahead& ahead) {
#if __CUDA_ARCH__ >= 900
    if (ahead.from == nullptr || threadIdx.x != 0) return;
    constexpr uint32_t kPiece = 4096;
    const uint32_t begin = blockIdx.x * ahead.share;
    const uint32_t end = min(begin + ahead.share, ahead.bytes);
    for (uint32_t at = begin; at < end; at += kPiece) {
        const uint32_t size = min(kPiece, end - at);
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(ahead.from + at), "r"(size) : "memory");
    }
#endif
}
/// Deals `bytes` over the blocks of a launch; none where they are more than L2 can keep beside what the step itself reads,
/// as fetching twice costs more than it hides.
inline Ahead deal_ahead(const void* from, size_t bytes, uint32_t blocks) {
    constexpr size_t kMost = size_t{24} << 20;
    const size_t whole = bytes / 16 * 16;
    if (from == nullptr || whole == 0 || whole > kMost || reinterpret_cast<uintptr_t>(from) % 16 != 0) return {};
    const size_t share = (whole / 16 + blocks - 1) / blocks * 16;
    return {static_cast<const unsigned char*>(from), static_cast<uint32_t>(whole), static_cast<uint32_t>(share)};
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

__device__ __forceinline__ float silu(float v) { return v / (1.0f + __expf(-v)); }

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
/// Copies 16 bytes to shared memory in the background; zeros where `valid` is false (`src` must be readable all the same).
__device__ __forceinline__ void copy_async(uint32_t dst, const void* src, bool valid) {
    const int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until all but the latest N groups have arrived.
template <int N>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

__device__ __forceinline__ void ldmatrix4(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void ldmatrix2(uint32_t (&r)[2], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(address)
                 : "memory");
}

/// d [16, 8] += a [16, 16] · b [16, 8].
template <class T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
template <>
__device__ __forceinline__ void mma<__nv_bfloat16>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
template <>
__device__ __forceinline__ void mma<__half>(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// All threads of the cluster meet; what each wrote to shared memory before is visible to all after.
__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#endif
}
/// The address in the cluster's shared memory of `address` in block `rank`.
__device__ __forceinline__ uint32_t cluster_address(uint32_t address, uint32_t rank) {
    uint32_t mapped = address;
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
#endif
    return mapped;
}
__device__ __forceinline__ float4 cluster_load4(uint32_t address) {
    float4 v = {};
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
#endif
    return v;
}
__device__ __forceinline__ float cluster_load(uint32_t address) {
    float v = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
#endif
    return v;
}

/// Launches with the attribute of programmatic stream serialisation where `launch.pdl`, and in clusters where > 1.
template <class... Params, class... Args>
cudaError_t start(const Launch& launch, void (*kernel)(Params...), uint32_t blocks, uint32_t threads, size_t shared_bytes,
                  uint32_t cluster, Args&&... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = launch.stream;
    cudaLaunchAttribute attributes[2] = {};
    unsigned int count = 0;
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
    return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...);
}

}  // namespace baton::backend::cuda::gemm
