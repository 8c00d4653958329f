#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

/// Products of a warpgroup, asynchronous: sm_90a only. Operands in shared memory are rows of 128 bytes whose 16-byte words sit
/// at word ^ (row & 7), in tiles aligned to 1,024 bytes. Warp w of the four holds rows 16 w … of the result, laid out as
/// mma.m16n8 lays out its own, one block of 8 columns after the other.
namespace baton::backend::cuda::dev {

/// Makes ordinary writes to shared memory visible to the tensor cores' reads after the next barrier.
__device__ __forceinline__ void fence_for_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
/// Registers written before are seen by the products that follow.
__device__ __forceinline__ void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Waits until all but the latest PENDING groups are done.
template <int PENDING>
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
/// Keeps the compiler from moving reads or writes of accumulators across this place.
template <int N>
__device__ __forceinline__ void pin(float (&r)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i)
        asm volatile("" : "+f"(r[i])::"memory");
}

/// What the hardware needs to know of an operand's tile at a shared address; + 2 is the next 16 elements of a row. `columns`
/// bytes lie between blocks of 64 columns where the columns are the outer dimension (V of attention); unused else.
__device__ __forceinline__ uint64_t operand(uint32_t address, uint32_t columns = 16) {
    constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
    constexpr uint64_t kEightRows = uint64_t{1024 >> 4} << 32;
    return kSwizzle128 | kEightRows | (uint64_t{columns >> 4} << 16) | ((address & 0x3ffffu) >> 4);
}

// The text of one product: COUNT accumulators d, then the operands whose places the other arguments name.
#define BATON_TEXT_4 "%0, %1, %2, %3"
#define BATON_TEXT_8 BATON_TEXT_4 ", %4, %5, %6, %7"
#define BATON_TEXT_16 BATON_TEXT_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define BATON_TEXT_32 \
    BATON_TEXT_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define BATON_TEXT_64 \
    BATON_TEXT_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define BATON_D_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define BATON_D_8(i) BATON_D_4(i), BATON_D_4(i + 4)
#define BATON_D_16(i) BATON_D_8(i), BATON_D_8(i + 8)
#define BATON_D_32(i) BATON_D_16(i), BATON_D_16(i + 16)
#define BATON_D_64(i) BATON_D_32(i), BATON_D_32(i + 32)
#define BATON_PRODUCT_OF(TYPE, HEAD, WIDTH, COUNT, OPERANDS, TAIL, ...) \
    asm volatile(HEAD "wgmma.mma_async.sync.aligned.m64n" #WIDTH "k16.f32." TYPE "." TYPE " {" BATON_TEXT_##COUNT "}, " OPERANDS \
                 ", " TAIL \
                 : BATON_D_##COUNT(0) \
                 : __VA_ARGS__)
#define BATON_PRODUCT(...) \
    if constexpr (std::is_same_v<T, __half>) \
        BATON_PRODUCT_OF("f16", __VA_ARGS__); \
    else \
        BATON_PRODUCT_OF("bf16", __VA_ARGS__)
#define BATON_ADD(FLAG) "{\n.reg .pred p;\nsetp.ne.b32 p, " FLAG ", 0;\n"

/// d [64, N] += a [64, 16] · b, by the 128 threads of a warpgroup; with `add` 0 the sum so far counts for nothing.
template <class T, int N>
struct Product {
    static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);

    /// b [N, 16]: the rows of both operands run along the inner dimension.
    static __device__ __forceinline__ void from_shared(float (&d)[N / 2], uint64_t a, uint64_t b) {
        if constexpr (N == 8) {
            BATON_PRODUCT("", 8, 4, "%4, %5", "1, 1, 1, 0, 0;", "l"(a), "l"(b));
        } else if constexpr (N == 16) {
            BATON_PRODUCT("", 16, 8, "%8, %9", "1, 1, 1, 0, 0;", "l"(a), "l"(b));
        } else if constexpr (N == 32) {
            BATON_PRODUCT("", 32, 16, "%16, %17", "1, 1, 1, 0, 0;", "l"(a), "l"(b));
        } else if constexpr (N == 64) {
            BATON_PRODUCT("", 64, 32, "%32, %33", "1, 1, 1, 0, 0;", "l"(a), "l"(b));
        } else {
            static_assert(N == 128);
            BATON_PRODUCT("", 128, 64, "%64, %65", "1, 1, 1, 0, 0;", "l"(a), "l"(b));
        }
    }
    static __device__ __forceinline__ void from_shared(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {
        static_assert(N == 128);
        BATON_PRODUCT(BATON_ADD("%66"), 128, 64, "%64, %65", "p, 1, 1, 0, 0;\n}\n", "l"(a), "l"(b), "r"(add));
    }
    /// b [16, N]: its rows run along the columns; a comes from registers.
    static __device__ __forceinline__ void from_registers(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int add) {
        if constexpr (N == 64) {
            BATON_PRODUCT(BATON_ADD("%37"), 64, 32, "{%32, %33, %34, %35}, %36", "p, 1, 1, 1;\n}\n", "r"(a[0]), "r"(a[1]),
                          "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
        } else {
            static_assert(N == 128);
            BATON_PRODUCT(BATON_ADD("%69"), 128, 64, "{%64, %65, %66, %67}, %68", "p, 1, 1, 1;\n}\n", "r"(a[0]), "r"(a[1]),
                          "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
        }
    }
};
#undef BATON_ADD
#undef BATON_PRODUCT
#undef BATON_PRODUCT_OF
#undef BATON_D_4
#undef BATON_D_8
#undef BATON_D_16
#undef BATON_D_32
#undef BATON_D_64
#undef BATON_TEXT_4
#undef BATON_TEXT_8
#undef BATON_TEXT_16
#undef BATON_TEXT_32
#undef BATON_TEXT_64

}  // namespace baton::backend::cuda::dev
