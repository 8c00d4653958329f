#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cuda/atomic>

#include "backend/cuda/device_ops.hpp"

namespace baton::backend::cuda {

namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kCtasMax = 64;

__global__ void upload_kernel(const int32_t* __restrict__ from, int32_t* __restrict__ to, uint32_t count,
                              const int2* __restrict__ pairs, uint32_t patches, int32_t* __restrict__ table) {
    const uint32_t stride = gridDim.x * blockDim.x;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count + patches; i += stride) {
        if (i < count) {
            to[i] = __ldcv(from + i);  // host memory that changes from step to step: never from a cache
        } else {
            const int2 patch = __ldcv(pairs + (i - count));
            table[patch.x] = patch.y;
        }
    }
}

__global__ void rope_kernel(const float* __restrict__ inv_freq, uint32_t half, float scale, size_t n, float2* __restrict__ out) {
    const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i >= n) return;
    // The angle is an f32 product as in the models' reference code; its sine and cosine are then exact to f32.
    const float angle = __fmul_rn(static_cast<float>(i / half), inv_freq[i % half]);
    double sine = 0, cosine = 0;
    sincos(static_cast<double>(angle), &sine, &cosine);
    out[i] = {__fmul_rn(static_cast<float>(cosine), scale), __fmul_rn(static_cast<float>(sine), scale)};
}

__global__ void noise_kernel(Elem elem, uint16_t* out, size_t n, uint32_t seed) {
    const size_t stride = size_t{gridDim.x} * blockDim.x;
    for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
        uint32_t h = static_cast<uint32_t>(i) * 2654435761u ^ static_cast<uint32_t>(i >> 32) * 40503u ^ seed;
        h = (h ^ (h >> 16)) * 0x85ebca6bu;
        h = (h ^ (h >> 13)) * 0xc2b2ae35u;
        h ^= h >> 16;
        const float value = static_cast<float>(h & 0xffffu) / 32768.0f - 1.0f;
        out[i] = elem == Elem::kBF16 ? __bfloat16_as_ushort(__float2bfloat16(value)) : __half_as_ushort(__float2half(value));
    }
}

__global__ void progress_kernel(const ProgressWord* __restrict__ words, uint32_t count, uint32_t layers) {
    for (uint32_t i = threadIdx.x; i < count; i += blockDim.x) {
        if (words[i].word == nullptr) continue;
        __threadfence_system();
        ::cuda::atomic_ref<uint64_t, ::cuda::thread_scope_system> word(*words[i].word);
        word.store(words[i].base + (uint64_t{layers} << 48), ::cuda::std::memory_order_release);
    }
}

}  // namespace

cudaError_t upload_rows(cudaStream_t stream, const int32_t* from, int32_t* to, uint32_t count, const int2* pairs, uint32_t patches,
                        int32_t* table) {
    const uint32_t total = count + patches;
    if (total == 0) return cudaSuccess;
    const uint32_t ctas = (total + kThreads - 1) / kThreads;
    upload_kernel<<<ctas < kCtasMax ? ctas : kCtasMax, kThreads, 0, stream>>>(from, to, count, pairs, patches, table);
    return cudaGetLastError();
}

cudaError_t rope_table(cudaStream_t stream, const float* inv_freq, uint32_t half, float scale, uint32_t positions, float2* out) {
    const size_t n = size_t{positions} * half;
    rope_kernel<<<static_cast<uint32_t>((n + kThreads - 1) / kThreads), kThreads, 0, stream>>>(inv_freq, half, scale, n, out);
    return cudaGetLastError();
}

cudaError_t fill_noise(cudaStream_t stream, Elem elem, void* out, size_t elements, uint32_t seed) {
    noise_kernel<<<1024, kThreads, 0, stream>>>(elem, static_cast<uint16_t*>(out), elements, seed);
    return cudaGetLastError();
}

cudaError_t publish_progress(cudaStream_t stream, const ProgressWord* words, uint32_t count, uint32_t layers) {
    if (count == 0) return cudaSuccess;
    progress_kernel<<<1, 64, 0, stream>>>(words, count, layers);
    return cudaGetLastError();
}

}  // namespace baton::backend::cuda
