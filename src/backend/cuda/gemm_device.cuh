#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/common.hpp"
#include "backend/cuda/element.cuh"
#include "backend/cuda/launch.cuh"
#include "backend/cuda/linear_kernels.hpp"
#include "backend/cuda/ptx.cuh"

/// Device building blocks of the linear kernels.
namespace baton::backend::cuda::gemm {

using dev::Ops;

/// What the arguments of all kernels of a product begin with.
struct Operands {
    const void* w;
    const void* bias;
    const float* norm;
    const void* x;
    void* out;
    uint32_t n;
    uint32_t k;
    uint32_t m;
    uint32_t columns;  ///< of the result
};
inline Operands operands_of(const Product& product) {
    const Matrix& matrix = product.matrix;
    return {matrix.w, matrix.bias, matrix.norm, product.x, product.out, matrix.n, matrix.k, product.m, result_columns(matrix)};
}

/// Two products, rounded to T.
template <class T>
__device__ __forceinline__ uint32_t multiply2(uint32_t a, uint32_t b) {
    using Pair = typename Ops<T>::Pair;
    const Pair product = __hmul2(*reinterpret_cast<const Pair*>(&a), *reinterpret_cast<const Pair*>(&b));
    return *reinterpret_cast<const uint32_t*>(&product);
}

/// Eight.
template <class T>
__device__ __forceinline__ uint4 multiply8(const uint4& a, const uint4& b) {
    return {multiply2<T>(a.x, b.x), multiply2<T>(a.y, b.y), multiply2<T>(a.z, b.z), multiply2<T>(a.w, b.w)};
}

/// The eight elements of a 16-byte word as f32.
template <class T>
__device__ __forceinline__ void unpack8(const uint4& v, float (&f)[8]) {
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 pair = Ops<T>::unpack_bits(words[i]);
        f[2 * i] = pair.x;
        f[2 * i + 1] = pair.y;
    }
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

__device__ __forceinline__ float silu(float v) { return v / (1.0f + __expf(-v)); }

/// Bias, SwiGLU, residual and the store of one result: `to` says where it goes and holds what the epilogue read ahead of the sums.
template <class T, class Args, class Result>
__device__ __forceinline__ void finish(const Args& a, const Result& to, float y, float up) {
    y += to.bias;
    const size_t at = static_cast<size_t>(to.row) * a.columns + to.column;
    if (a.kind == Out::kF32) {
        static_cast<float*>(a.out)[at] = y;
        return;
    }
    if (a.kind == Out::kSwiGlu) y = silu(y) * (up + to.bias_up);
    static_cast<T*>(a.out)[at] = Ops<T>::from_float(y + to.residual);
}

}  // namespace baton::backend::cuda::gemm
