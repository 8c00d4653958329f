#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/cuda/common.hpp"

/// Device pieces of sm_90a: transaction barriers, tensor copies, asynchronous products of a warpgroup.
namespace baton::backend::cuda {

namespace dev {

__device__ __forceinline__ void barrier_init(uint32_t barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t phase) {
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
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(element), "r"(0), "r"(head), "r"(block)
        : "memory");
}
/// Makes ordinary writes to shared memory visible to the tensor cores' reads.
__device__ __forceinline__ void fence_for_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void named_sync(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
__device__ __forceinline__ void named_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
/// A value that is the same in all lanes, in a form that the compiler knows to be so: products may not stand in a branch
/// that could split a warp.
__device__ __forceinline__ int uniform(int v) { return __shfl_sync(0xffffffffu, v, 0); }
/// Keeps the compiler from moving reads or writes of accumulators across this place.
template <int N>
__device__ __forceinline__ void pin(float (&r)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i)
        asm volatile("" : "+f"(r[i])::"memory");
}

/// Shared-memory operand of rows of 128 bytes, 128-byte swizzle. `columns` bytes lie between blocks of 64 columns where the
/// columns are the outer dimension (V); unused else.
__device__ __forceinline__ uint64_t operand(uint32_t address, uint32_t columns) {
    return static_cast<uint64_t>((address & 0x3ffffu) >> 4) | (static_cast<uint64_t>(columns >> 4) << 16) |
           (static_cast<uint64_t>(1024 >> 4) << 32) | (1ull << 62);
}

#define BATON_REGS_32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31"
#define BATON_ACC_32 \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
    "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), \
    "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), \
    "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define BATON_REGS_64 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
    "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, " \
    "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define BATON_ACC_64 \
    "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
    "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), \
    "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), \
    "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), \
    "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), \
    "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), \
    "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), \
    "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])

/// acc (+)= a · b for 64 rows and N columns over 16 inner elements, by the 128 threads of a warpgroup, asynchronously.
/// from_shared: the rows of both operands run along the inner dimension. from_registers: b's rows run along the columns.
template <Elem E, int N>
struct Product;
template <>
struct Product<Elem::kBF16, 64> {
    static __device__ __forceinline__ void from_shared(float (&d)[32], uint64_t a, uint64_t b, int add) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" BATON_REGS_32 "}, %32, %33, p, 1, 1, 0, 0;\n}\n"
            : BATON_ACC_32
            : "l"(a), "l"(b), "r"(add));
    }
    static __device__ __forceinline__ void from_registers(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" BATON_REGS_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
            : BATON_ACC_32
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
    }
};
template <>
struct Product<Elem::kF16, 64> {
    static __device__ __forceinline__ void from_shared(float (&d)[32], uint64_t a, uint64_t b, int add) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" BATON_REGS_32 "}, %32, %33, p, 1, 1, 0, 0;\n}\n"
            : BATON_ACC_32
            : "l"(a), "l"(b), "r"(add));
    }
    static __device__ __forceinline__ void from_registers(float (&d)[32], const uint32_t (&a)[4], uint64_t b, int add) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" BATON_REGS_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
            : BATON_ACC_32
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
    }
};
template <>
struct Product<Elem::kBF16, 128> {
    static __device__ __forceinline__ void from_shared(float (&d)[64], uint64_t a, uint64_t b, int add) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" BATON_REGS_64 "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
            : BATON_ACC_64
            : "l"(a), "l"(b), "r"(add));
    }
    static __device__ __forceinline__ void from_registers(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int add) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" BATON_REGS_64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
            : BATON_ACC_64
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
    }
};
template <>
struct Product<Elem::kF16, 128> {
    static __device__ __forceinline__ void from_shared(float (&d)[64], uint64_t a, uint64_t b, int add) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" BATON_REGS_64 "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
            : BATON_ACC_64
            : "l"(a), "l"(b), "r"(add));
    }
    static __device__ __forceinline__ void from_registers(float (&d)[64], const uint32_t (&a)[4], uint64_t b, int add) {
        asm volatile(
            "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" BATON_REGS_64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
            : BATON_ACC_64
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
    }
};
#undef BATON_REGS_32
#undef BATON_ACC_32
#undef BATON_REGS_64
#undef BATON_ACC_64

}  // namespace dev

}  // namespace baton::backend::cuda
