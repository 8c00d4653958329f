// Kernels that treat each row by itself: norm, SwiGLU, gather, bias. Bound by memory: 16 bytes a thread.
#include "backend/cuda/gemm_device.cuh"
#include "backend/cuda/linear_kernels.hpp"

namespace baton::backend::cuda {

namespace {

using dev::launch_dependents;
using dev::Ops;
using dev::wait_for_earlier;

__global__ void __launch_bounds__(256) gather_kernel(const uint4* x, const int32_t* index, uint32_t words, uint4* out) {
    launch_dependents();
    wait_for_earlier();
    const uint32_t row = blockIdx.x;
    const size_t from = static_cast<size_t>(max(index[row], 0)) * words;
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) out[static_cast<size_t>(row) * words + i] = x[from + i];
}

constexpr int kNormThreadsMax = 512;

/// One block a row; each thread keeps up to V words of 8 elements. The order of summation depends on k alone.
template <class T, int V>
__global__ void __launch_bounds__(kNormThreadsMax)
    norm_kernel(const uint4* x, const float4* weight, float eps, uint32_t words, float inverse_k, uint4* out) {
    __shared__ float sums[kNormThreadsMax / 32];
    launch_dependents();
    // The weights of one step have driven a norm's out of all caches by the next: it is read ahead of the wait.
    uint4 g[V][2];
#pragma unroll
    for (int v = 0; v < V; ++v) {
        const uint32_t i = threadIdx.x + static_cast<uint32_t>(v) * blockDim.x;
        g[v][0] = i < words ? dev::load_once(weight + 2 * i) : uint4{};
        g[v][1] = i < words ? dev::load_once(weight + 2 * i + 1) : uint4{};
    }
    wait_for_earlier();
    const size_t base = static_cast<size_t>(blockIdx.x) * words;
    uint4 held[V];
    float sum = 0;
#pragma unroll
    for (int v = 0; v < V; ++v) {
        const uint32_t i = threadIdx.x + static_cast<uint32_t>(v) * blockDim.x;
        held[v] = i < words ? x[base + i] : uint4{};
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
        float f[8];
        gemm::unpack8<T>(held[v], f);
#pragma unroll
        for (float e : f) sum += e * e;
    }
    sum = dev::warp_sum(sum);
    if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = sum;
    __syncthreads();
    sum = 0;
    for (uint32_t w = 0; w < blockDim.x / 32; ++w) sum += sums[w];
    const float scale = rsqrtf(sum * inverse_k + eps);
#pragma unroll
    for (int v = 0; v < V; ++v) {
        const uint32_t i = threadIdx.x + static_cast<uint32_t>(v) * blockDim.x;
        if (i >= words) continue;
        float f[8];
        gemm::unpack8<T>(held[v], f);
        const uint32_t words8[8] = {g[v][0].x, g[v][0].y, g[v][0].z, g[v][0].w, g[v][1].x, g[v][1].y, g[v][1].z, g[v][1].w};
#pragma unroll
        for (int e = 0; e < 8; ++e) f[e] = f[e] * scale * __uint_as_float(words8[e]);
        out[base + i] = dev::pack8<T>(f);
    }
}

template <class T>
__global__ void __launch_bounds__(256) swiglu_kernel(const uint4* in, uint32_t words, uint64_t total, uint4* out) {
    launch_dependents();
    wait_for_earlier();
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += step) {
        const uint64_t row = i / words;
        const uint64_t at = row * 2 * words + (i - row * words);
        float gate[8];
        float up[8];
        gemm::unpack8<T>(in[at], gate);
        gemm::unpack8<T>(in[at + words], up);
#pragma unroll
        for (int e = 0; e < 8; ++e) gate[e] = gemm::silu(gate[e]) * up[e];
        out[i] = dev::pack8<T>(gate);
    }
}

template <class T>
__global__ void __launch_bounds__(256) bias_kernel(const T* bias, uint32_t n, uint64_t total, float* out) {
    launch_dependents();
    wait_for_earlier();
    const uint64_t step = static_cast<uint64_t>(gridDim.x) * blockDim.x;
    for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total; i += step)
        out[i] += Ops<T>::to_float(bias[i % n]);
}

/// Threads for a row of `words` 16-byte words.
uint32_t row_threads(uint32_t words, uint32_t most) {
    const uint32_t threads = (words + 31) / 32 * 32;
    return threads < most ? threads : most;
}

uint32_t stride_blocks(uint64_t items) {
    constexpr uint64_t kMost = 132 * 16;
    const uint64_t blocks = (items + 255) / 256;
    return static_cast<uint32_t>(blocks < kMost ? blocks : kMost);
}

template <class T>
cudaError_t norm(const Launch& launch, const void* x, const float* weight, float eps, uint32_t rows, uint32_t k, void* out) {
    const uint32_t words = k / 8;
    const auto* in = static_cast<const uint4*>(x);
    const auto* g = reinterpret_cast<const float4*>(weight);
    const float inverse = 1.0f / static_cast<float>(k);
    auto* to = static_cast<uint4*>(out);
    if (words <= kNormThreadsMax)
        return start(launch, norm_kernel<T, 1>, rows, row_threads(words, kNormThreadsMax), 0, 1, in, g, eps, words,
                           inverse, to);
    return start(launch, norm_kernel<T, 4>, rows, kNormThreadsMax, 0, 1, in, g, eps, words, inverse, to);
}

}  // namespace

cudaError_t rms_norm(const Launch& launch, Elem elem, const void* x, const float* weight, float eps, uint32_t rows,
                     uint32_t k, void* out) {
    if (rows == 0) return cudaSuccess;
    if (k == 0 || k % 8 != 0 || k / 8 > 4 * kNormThreadsMax) return cudaErrorInvalidValue;
    if (elem == Elem::kBF16) return norm<__nv_bfloat16>(launch, x, weight, eps, rows, k, out);
    return norm<__half>(launch, x, weight, eps, rows, k, out);
}

cudaError_t gather_rows(const Launch& launch, Elem, const void* x, const int32_t* index, uint32_t rows, uint32_t k, void* out) {
    if (rows == 0) return cudaSuccess;
    if (k == 0 || k % 8 != 0) return cudaErrorInvalidValue;
    return start(launch, gather_kernel, rows, row_threads(k / 8, 256), 0, 1, static_cast<const uint4*>(x), index, k / 8,
                       static_cast<uint4*>(out));
}

cudaError_t swiglu(const Launch& launch, Elem elem, const void* in, uint32_t rows, uint32_t columns, void* out) {
    if (rows == 0) return cudaSuccess;
    if (columns == 0 || columns % 8 != 0) return cudaErrorInvalidValue;
    const uint64_t total = static_cast<uint64_t>(rows) * (columns / 8);
    auto* kernel = elem == Elem::kBF16 ? swiglu_kernel<__nv_bfloat16> : swiglu_kernel<__half>;
    return start(launch, kernel, stride_blocks(total), 256, 0, 1, static_cast<const uint4*>(in), columns / 8, total,
                       static_cast<uint4*>(out));
}

cudaError_t add_bias_f32(const Launch& launch, Elem elem, const void* bias, uint32_t rows, uint32_t n, float* out) {
    if (rows == 0 || n == 0) return cudaSuccess;
    const uint64_t total = static_cast<uint64_t>(rows) * n;
    if (elem == Elem::kBF16)
        return start(launch, bias_kernel<__nv_bfloat16>, stride_blocks(total), 256, 0, 1,
                           static_cast<const __nv_bfloat16*>(bias), n, total, out);
    return start(launch, bias_kernel<__half>, stride_blocks(total), 256, 0, 1, static_cast<const __half*>(bias), n, total,
                       out);
}

}  // namespace baton::backend::cuda
