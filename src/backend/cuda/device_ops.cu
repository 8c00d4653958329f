#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cuda/atomic>

#include "backend/cuda/device_ops.hpp"

namespace baton::backend::cuda {

namespace {

constexpr uint32_t kThreads = 256;
constexpr uint32_t kCtasMax = 64;  // that copy
constexpr uint32_t kWarps = kThreads / 32;

/// Host memory that changes from step to step: never from a cache.
__device__ __forceinline__ uint4 from_host(const uint4* at) { return __ldcv(at); }

/// StepHeader::follows; not asked for where it must be 0.
__device__ __forceinline__ uint32_t follows_of(const StepBegin& b, const std::byte* from) {
    return b.may_follow ? __ldcv(&reinterpret_cast<const StepHeader*>(from)->follows) : 0;
}

/// Rows of the embedding, a warp each.
__device__ void look_up(const StepBegin& b, const std::byte* from, uint32_t block) {
    __shared__ int32_t ids[kWarps];
    const uint32_t first = block * kWarps;
    if (threadIdx.x < kWarps && first + threadIdx.x < b.rows) {
        const uint32_t row = first + threadIdx.x, follows = follows_of(b, from);
        int32_t id = 0;
        if (follows > 0) {
            if (row < follows) id = b.last[b.arrays[b.states_at + row]];
        } else {
            const auto* arrays = reinterpret_cast<const int32_t*>(from + sizeof(StepHeader));
            const int32_t state = __ldcv(arrays + b.states_at + row);
            id = __ldcv(arrays + b.tokens_at + row);
            if (id < 0) id = b.last[state];
        }
        ids[threadIdx.x] = min(max(id, 0), static_cast<int>(b.vocab) - 1);
    }
    __syncthreads();
    const uint32_t row = first + threadIdx.x / 32, words = b.hidden / 8;
    if (row >= b.rows) return;
    const uint4* found = static_cast<const uint4*>(b.embedding) + static_cast<size_t>(ids[threadIdx.x / 32]) * words;
    uint4* to = static_cast<uint4*>(b.out) + static_cast<size_t>(row) * words;
#pragma unroll 4
    for (uint32_t i = threadIdx.x % 32; i < words; i += 32) to[i] = __ldg(found + i);
}

/// Arrays and settings, spread over `blocks` blocks; how many there are is known ahead.
__device__ void copy_input(const StepBegin& b, const std::byte* from, const std::byte* settings, uint32_t block, uint32_t blocks) {
    if (b.may_follow) {
        __shared__ uint32_t follows;
        if (threadIdx.x == 0) follows = follows_of(b, from);
        __syncthreads();
        if (follows > 0) return;
    }
    const uint4* arrays = reinterpret_cast<const uint4*>(from + sizeof(StepHeader));
    const uint32_t values = b.values / 4, rows = (b.settings.head + b.samples * b.settings.row) / 16;
    for (uint32_t i = block * kThreads + threadIdx.x; i < values + rows; i += blocks * kThreads) {
        if (i < values) reinterpret_cast<uint4*>(b.arrays)[i] = from_host(arrays + i);
        else reinterpret_cast<uint4*>(b.settings.to)[i - values] = from_host(reinterpret_cast<const uint4*>(settings) + (i - values));
    }
}

/// Takes each row of the step before a token further. One block.
__device__ void advance(const StepBegin& b, uint32_t rows, uint32_t step) {
    for (uint32_t row = threadIdx.x; row < rows; row += kThreads) {
        const auto position = static_cast<uint32_t>(b.arrays[b.positions_at + row]) + 1;
        b.arrays[b.positions_at + row] = static_cast<int32_t>(position);
        b.arrays[b.lengths_at + row] = static_cast<int32_t>(position + 1);
        int32_t& slot = b.arrays[b.slots_at + row];
        if (position % b.block_tokens != 0) ++slot;
        else slot = b.blocks[static_cast<size_t>(row) * b.stride + position / b.block_tokens] * static_cast<int32_t>(b.block_tokens);
        ++*reinterpret_cast<uint64_t*>(b.settings.to + b.settings.head + row * b.settings.row + b.settings.position);
    }
    if (threadIdx.x == 0) *reinterpret_cast<uint32_t*>(b.settings.to + b.settings.step) = step;
}

/// What there may be any number of: the first ones are on their way before it is known how many there are. One block, whose
/// first threads ask for the counts: host memory gives few bytes at a time.
__device__ void copy_changes(const StepBegin& b, const std::byte* from, const std::byte* settings, uint32_t step) {
    __shared__ uint32_t counts[3];
    const auto* pairs = reinterpret_cast<const int2*>(from + b.patches_at);
    const bool early = threadIdx.x < StepBegin::kPatchesRead;
    const int2 mine = early ? __ldcv(pairs + threadIdx.x) : int2{};
    if (threadIdx.x == 0) {
        const uint2 header = __ldcv(reinterpret_cast<const uint2*>(from));
        counts[0] = header.x;
        counts[2] = header.y;
    }
    if (threadIdx.x == 32) counts[1] = __ldcv(reinterpret_cast<const uint32_t*>(settings + b.settings.edits_count));
    __syncthreads();
    const uint32_t patches = counts[0], edits = counts[1] * b.settings.edit / 8;
    if (early && threadIdx.x < patches) b.table[mine.x] = mine.y;
    for (uint32_t i = threadIdx.x + (early ? kThreads : 0); i < patches; i += kThreads) {
        const int2 patch = __ldcv(pairs + i);
        b.table[patch.x] = patch.y;
    }
    if (counts[2] > 0) {
        __syncthreads();  // blocks that rows go on to are in the table
        return advance(b, counts[2], step);
    }
    for (uint32_t i = threadIdx.x; i < edits; i += kThreads)
        reinterpret_cast<uint2*>(b.settings.to + b.settings.edits_at)[i] =
            __ldcv(reinterpret_cast<const uint2*>(settings + b.settings.edits_at) + i);
}

/// Grid: blocks for the embedding, `copies` that copy, and one for changes.
__global__ void __launch_bounds__(kThreads) begin_kernel(const __grid_constant__ StepBegin b, uint32_t copies) {
    const uint32_t step = *b.step, parity = step & 1;
    const std::byte* from = b.from[parity];
    const uint32_t lookups = (b.rows + kWarps - 1) / kWarps;
    if (blockIdx.x < lookups) return look_up(b, from, blockIdx.x);
    const uint32_t block = blockIdx.x - lookups;
    if (block < copies) return copy_input(b, from, b.settings.from[parity], block, copies);
    copy_changes(b, from, b.settings.from[parity], step);
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

cudaError_t begin_step(cudaStream_t stream, const StepBegin& begin) {
    if (begin.rows == 0 || begin.values % 4 != 0 || begin.hidden % 8 != 0 || begin.vocab == 0) return cudaErrorInvalidValue;
    const uint32_t lookups = (begin.rows + kWarps - 1) / kWarps;
    const uint32_t words = begin.values / 4 + (begin.settings.head + begin.samples * begin.settings.row) / 16;
    const uint32_t wanted = (words + kThreads - 1) / kThreads, copies = wanted < kCtasMax ? wanted : kCtasMax;
    begin_kernel<<<lookups + copies + 1, kThreads, 0, stream>>>(begin, copies);
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
