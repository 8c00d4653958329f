#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/cuda/jitter.cuh"
#include "backend/cuda/wgmma.cuh"

/// Device pieces of sm_90a beside the products of a warpgroup: transaction barriers, tensor copies, named barriers.
namespace baton::backend::cuda::dev {

__device__ __forceinline__ void barrier_init(uint32_t barrier, int count) {
    jitter();
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
    jitter();
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    jitter();
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
    jitter();
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t phase) {
    if (jitter_waits(barrier, phase)) return;
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra end;\n"
        "bra again;\n"
        "end:\n"
        "}\n" ::"r"(barrier),
        "r"(phase)
        : "memory");
}
/// Brings the box at (element, token, head, block) of a map to shared memory and counts its bytes at the barrier.
__device__ __forceinline__ void copy_box(uint32_t to, const CUtensorMap* map, int element, int head, int block, uint32_t barrier) {
    jitter();
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(element), "r"(0), "r"(head), "r"(block)
        : "memory");
}
__device__ __forceinline__ void named_sync(int id, int threads) {
    jitter();
    if (jitter_leaves_out(Jitter::kNamed, static_cast<uint32_t>(id))) return;
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
    jitter();
}
__device__ __forceinline__ void named_arrive(int id, int threads) {
    jitter();
    if (jitter_leaves_out(Jitter::kNamed, static_cast<uint32_t>(id))) return;
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// A value that is the same in all lanes, in a form that the compiler knows to be so: products may not stand in a branch
/// that could split a warp.
__device__ __forceinline__ int uniform(int v) { return __shfl_sync(0xffffffffu, v, 0); }

}  // namespace baton::backend::cuda::dev
