#pragma once

#include "backend/cuda/wgmma.cuh"

/// Products of a warpgroup in the widths that only the linear kernels use. sm_90a only; operands and results as in wgmma.cuh.
namespace baton::backend::cuda::dev {

// Accumulators in groups of eight: their places in the text, and themselves.
#define BATON_WIDE_TEXT_0 "%0, %1, %2, %3, %4, %5, %6, %7"
#define BATON_WIDE_TEXT_1 "%8, %9, %10, %11, %12, %13, %14, %15"
#define BATON_WIDE_TEXT_2 "%16, %17, %18, %19, %20, %21, %22, %23"
#define BATON_WIDE_TEXT_3 "%24, %25, %26, %27, %28, %29, %30, %31"
#define BATON_WIDE_TEXT_4 "%32, %33, %34, %35, %36, %37, %38, %39"
#define BATON_WIDE_TEXT_5 "%40, %41, %42, %43, %44, %45, %46, %47"
#define BATON_WIDE_TEXT_6 "%48, %49, %50, %51, %52, %53, %54, %55"
#define BATON_WIDE_TEXT_7 "%56, %57, %58, %59, %60, %61, %62, %63"
#define BATON_WIDE_TEXT_8 "%64, %65, %66, %67, %68, %69, %70, %71"
#define BATON_WIDE_TEXT_9 "%72, %73, %74, %75, %76, %77, %78, %79"
#define BATON_WIDE_TEXT_10 "%80, %81, %82, %83, %84, %85, %86, %87"
#define BATON_WIDE_TEXT_11 "%88, %89, %90, %91, %92, %93, %94, %95"
#define BATON_WIDE_TEXT_12 "%96, %97, %98, %99, %100, %101, %102, %103"
#define BATON_WIDE_TEXT_13 "%104, %105, %106, %107, %108, %109, %110, %111"
#define BATON_WIDE_TEXT_14 "%112, %113, %114, %115, %116, %117, %118, %119"
#define BATON_WIDE_TEXT_15 "%120, %121, %122, %123, %124, %125, %126, %127"
#define BATON_WIDE_8(i) \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define BATON_WIDE(TYPE, WIDTH, TEXT, A, B, ...) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #WIDTH "k16.f32." TYPE "." TYPE " {" TEXT "}, " A ", " B ", 1, 1, 1, 0, 0;" \
                 : __VA_ARGS__ \
                 : "l"(a), "l"(b))
#define BATON_WIDE_EITHER(...) \
    if constexpr (std::is_same_v<T, __half>) \
        BATON_WIDE("f16", __VA_ARGS__); \
    else \
        BATON_WIDE("bf16", __VA_ARGS__)

/// d [64, N] += a [64, 16] · b [N, 16]; both in shared memory, rows along the inner dimension.
template <class T, int N>
__device__ __forceinline__ void wide_product(float (&d)[N / 2], uint64_t a, uint64_t b) {
    static_assert(std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>);
    if constexpr (N == 48) {
        BATON_WIDE_EITHER(48, BATON_WIDE_TEXT_0 ", " BATON_WIDE_TEXT_1 ", " BATON_WIDE_TEXT_2, "%24", "%25",
                          BATON_WIDE_8(0), BATON_WIDE_8(8), BATON_WIDE_8(16));
    } else if constexpr (N == 96) {
        BATON_WIDE_EITHER(96, BATON_WIDE_TEXT_0 ", " BATON_WIDE_TEXT_1 ", " BATON_WIDE_TEXT_2 ", " BATON_WIDE_TEXT_3 ", " BATON_WIDE_TEXT_4 ", " BATON_WIDE_TEXT_5, "%48", "%49",
                          BATON_WIDE_8(0), BATON_WIDE_8(8), BATON_WIDE_8(16), BATON_WIDE_8(24), BATON_WIDE_8(32), BATON_WIDE_8(40));
    } else if constexpr (N == 192) {
        BATON_WIDE_EITHER(192, BATON_WIDE_TEXT_0 ", " BATON_WIDE_TEXT_1 ", " BATON_WIDE_TEXT_2 ", " BATON_WIDE_TEXT_3 ", " BATON_WIDE_TEXT_4 ", " BATON_WIDE_TEXT_5 ", " BATON_WIDE_TEXT_6 ", " BATON_WIDE_TEXT_7 ", " BATON_WIDE_TEXT_8 ", " BATON_WIDE_TEXT_9 ", " BATON_WIDE_TEXT_10 ", " BATON_WIDE_TEXT_11, "%96", "%97",
                          BATON_WIDE_8(0), BATON_WIDE_8(8), BATON_WIDE_8(16), BATON_WIDE_8(24), BATON_WIDE_8(32), BATON_WIDE_8(40), BATON_WIDE_8(48), BATON_WIDE_8(56), BATON_WIDE_8(64), BATON_WIDE_8(72), BATON_WIDE_8(80), BATON_WIDE_8(88));
    } else if constexpr (N == 224) {
        BATON_WIDE_EITHER(224, BATON_WIDE_TEXT_0 ", " BATON_WIDE_TEXT_1 ", " BATON_WIDE_TEXT_2 ", " BATON_WIDE_TEXT_3 ", " BATON_WIDE_TEXT_4 ", " BATON_WIDE_TEXT_5 ", " BATON_WIDE_TEXT_6 ", " BATON_WIDE_TEXT_7 ", " BATON_WIDE_TEXT_8 ", " BATON_WIDE_TEXT_9 ", " BATON_WIDE_TEXT_10 ", " BATON_WIDE_TEXT_11 ", " BATON_WIDE_TEXT_12 ", " BATON_WIDE_TEXT_13, "%112", "%113",
                          BATON_WIDE_8(0), BATON_WIDE_8(8), BATON_WIDE_8(16), BATON_WIDE_8(24), BATON_WIDE_8(32), BATON_WIDE_8(40), BATON_WIDE_8(48), BATON_WIDE_8(56), BATON_WIDE_8(64), BATON_WIDE_8(72), BATON_WIDE_8(80), BATON_WIDE_8(88), BATON_WIDE_8(96), BATON_WIDE_8(104));
    } else if constexpr (N == 256) {
        BATON_WIDE_EITHER(256, BATON_WIDE_TEXT_0 ", " BATON_WIDE_TEXT_1 ", " BATON_WIDE_TEXT_2 ", " BATON_WIDE_TEXT_3 ", " BATON_WIDE_TEXT_4 ", " BATON_WIDE_TEXT_5 ", " BATON_WIDE_TEXT_6 ", " BATON_WIDE_TEXT_7 ", " BATON_WIDE_TEXT_8 ", " BATON_WIDE_TEXT_9 ", " BATON_WIDE_TEXT_10 ", " BATON_WIDE_TEXT_11 ", " BATON_WIDE_TEXT_12 ", " BATON_WIDE_TEXT_13 ", " BATON_WIDE_TEXT_14 ", " BATON_WIDE_TEXT_15, "%128", "%129",
                          BATON_WIDE_8(0), BATON_WIDE_8(8), BATON_WIDE_8(16), BATON_WIDE_8(24), BATON_WIDE_8(32), BATON_WIDE_8(40), BATON_WIDE_8(48), BATON_WIDE_8(56), BATON_WIDE_8(64), BATON_WIDE_8(72), BATON_WIDE_8(80), BATON_WIDE_8(88), BATON_WIDE_8(96), BATON_WIDE_8(104), BATON_WIDE_8(112), BATON_WIDE_8(120));
    } else {
        Product<T, N>::from_shared(d, a, b);
    }
}
#undef BATON_WIDE_EITHER
#undef BATON_WIDE
#undef BATON_WIDE_8
#undef BATON_WIDE_TEXT_0
#undef BATON_WIDE_TEXT_1
#undef BATON_WIDE_TEXT_2
#undef BATON_WIDE_TEXT_3
#undef BATON_WIDE_TEXT_4
#undef BATON_WIDE_TEXT_5
#undef BATON_WIDE_TEXT_6
#undef BATON_WIDE_TEXT_7
#undef BATON_WIDE_TEXT_8
#undef BATON_WIDE_TEXT_9
#undef BATON_WIDE_TEXT_10
#undef BATON_WIDE_TEXT_11
#undef BATON_WIDE_TEXT_12
#undef BATON_WIDE_TEXT_13
#undef BATON_WIDE_TEXT_14
#undef BATON_WIDE_TEXT_15

}  // namespace baton::backend::cuda::dev
