#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "backend/cuda/jitter.cuh"

/// The instructions that C++ has no words for, one function each: dependent launch, clusters, copies in the background, matrix
/// fragments, tensor core products. Fragment layouts are those of PTX mma.m16n8k16 and ldmatrix. What is sm_90's alone does
/// nothing elsewhere; the products of a warpgroup are in wgmma.cuh.
namespace baton::backend::cuda::dev {

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

/// Halves of a barrier of all threads of a cluster: who has passed the wait knows that all have arrived, and sees their
/// barriers that were made ahead of a fence for them, but no other writes: to publish those takes most of a microsecond. Whole warps
/// call.
__device__ __forceinline__ void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    jitter();
    if (jitter_leaves_out(Jitter::kCluster)) return;
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void cluster_wait() {
#if __CUDA_ARCH__ >= 900
    jitter();
    if (jitter_leaves_out(Jitter::kCluster)) return;
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    jitter();
#endif
}
/// Both halves at once, for warps whose lanes may come one by one.
__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#endif
}
/// The place that `address` has in the shared memory of block `rank` of the cluster.
__device__ __forceinline__ uint32_t address_in(uint32_t address, uint32_t rank) {
    uint32_t there = address;
#if __CUDA_ARCH__ >= 900
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
#endif
    return there;
}
__device__ __forceinline__ void store_in_cluster(uint32_t to, float v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
#endif
}
__device__ __forceinline__ float load_in_cluster(uint32_t from) {
    float v = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(from) : "memory");
#endif
    return v;
}
__device__ __forceinline__ float4 load4_in_cluster(uint32_t from) {
    float4 v = {};
#if __CUDA_ARCH__ >= 900
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(from)
                 : "memory");
#endif
    return v;
}

/// 16 bytes that are read once (weights, pages to copy, often over NVLink), kept out of L1. Not the read-only path: the assembler
/// moves its loads past griddepcontrol.wait, and then nothing overlaps; nor may others write what it reads.
__device__ __forceinline__ uint4 load_once(const void* from) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

/// Four numbers, as load_once.
__device__ __forceinline__ float4 load_once_f32(const float* from) {
    const uint4 v = load_once(from);
    return {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z), __uint_as_float(v.w)};
}
/// A word, read where this is written and not later.
__device__ __forceinline__ int load_word(const int32_t* from) {
    int v;
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

/// Copies 16 bytes to shared memory in the background; with `read` false it writes 16 zero bytes and reads nothing, but `from`
/// must be an address all the same.
__device__ __forceinline__ void copy16(uint32_t to, const void* from, bool read) {
    const int bytes = read ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
/// As copy16; L2 brings the whole line of 128 bytes.
__device__ __forceinline__ void copy16_of_line(uint32_t to, const void* from, bool read) {
    const int bytes = read ? 16 : 0;
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until all but the latest PENDING groups have arrived.
template <int PENDING>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/// Four 8 × 8 matrices as fragments; each lane gives the address of a row of 16 bytes.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}
__device__ __forceinline__ void load_matrices(uint32_t (&r)[2], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
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

/// d [16, 8] += a [16, 16] · b [16, 8], by a warp.
template <class T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (std::is_same_v<T, __half>) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        static_assert(std::is_same_v<T, __nv_bfloat16>);
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

}  // namespace baton::backend::cuda::dev
