#pragma once

#include "backend/cuda/sampler_device.cuh"

/// Masks: which tokens a row may sample, known to the host only while the step runs.
namespace baton::backend::cuda::sampling {

constexpr uint32_t kMaskThreads = 1024;
constexpr uint64_t kMaskWaitNs = 5'000'000'000;  ///< the host gives a mask within milliseconds

__device__ __forceinline__ uint64_t load_system(const uint64_t* at) {
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(at) : "memory");
    return v;
}
__device__ __forceinline__ uint64_t nanoseconds() {
    uint64_t t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

/// Largest raw logit and log of the sum of exp of a row, for logprobs. One block; a fixed order.
__device__ inline void sum_before_mask(const Args& a, uint32_t at, const float* logits) {
    __shared__ float maxima[32];
    __shared__ double sums[32];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float top = minus_infinity();
    for (uint32_t i = threadIdx.x; i < a.vocab; i += kMaskThreads) top = fmaxf(top, without_nan(logits[i]));
    for (int d = 16; d > 0; d >>= 1) top = fmaxf(top, __shfl_xor_sync(kAll, top, d));
    if (lane == 0) maxima[warp] = top;
    __syncthreads();
    top = maxima[lane];
    for (int d = 16; d > 0; d >>= 1) top = fmaxf(top, __shfl_xor_sync(kAll, top, d));
    double sum = 0;
    if (isfinite(top))
        for (uint32_t i = threadIdx.x; i < a.vocab; i += kMaskThreads)
            sum += static_cast<double>(weight_at(distance(without_nan(logits[i]), top, 1.0f)));
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(kAll, sum, d);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    double all = 0;
    for (double s : sums) all += s;
    a.states[at].raw_max = top;
    a.states[at].raw_log = static_cast<double>(top) + log(all);
    a.states[at].raw_known = 1;
}

/// Grid: [rows]. One thread of a row asks the host.
__global__ void __launch_bounds__(kMaskThreads) mask_kernel(const __grid_constant__ Args a) {
    __shared__ uint64_t word;
    dev::launch_dependents();
    dev::wait_for_earlier();
    const uint32_t at = blockIdx.x;
    if (at >= reinterpret_cast<const Header*>(a.upload)->rows) return;
    const uint32_t step = step_of(a);
    const size_t place = result_of(a, at);
    if (threadIdx.x == 0) {
        const uint64_t begin = nanoseconds(), without = mask_word(step, false);
        uint64_t seen = load_system(a.mask_words + place);
        while (seen != without && seen != without + 1 && nanoseconds() - begin < kMaskWaitNs) seen = load_system(a.mask_words + place);
        word = seen;
    }
    __syncthreads();
    if (word != mask_word(step, true)) return;
    float* logits = a.logits + static_cast<size_t>(at) * a.vocab;
    if (row_of(a, at).top >= 0) {
        sum_before_mask(a, at, logits);
        __syncthreads();
    }
    const uint32_t* mask = a.masks + place * a.mask_size;
    const uint32_t lane = threadIdx.x & 31;
    // A warp takes 32 words, 1024 tokens, at a time: one read of 128 bytes from the host.
    for (uint32_t first = threadIdx.x & ~31u; first < a.mask_size; first += kMaskThreads) {
        const uint32_t mine = first + lane < a.mask_size ? *reinterpret_cast<const volatile uint32_t*>(mask + first + lane) : 0;
#pragma unroll 4
        for (uint32_t w = 0; w < 32; ++w) {
            const uint32_t bits = __shfl_sync(kAll, mine, static_cast<int>(w)), id = (first + w) * 32 + lane;
            if (id < a.vocab && (bits >> lane & 1u) == 0) logits[id] = minus_infinity();
        }
    }
}

}  // namespace baton::backend::cuda::sampling
