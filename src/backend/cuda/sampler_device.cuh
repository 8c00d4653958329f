#pragma once

#include <cstdint>

#include "backend/cuda/element.cuh"
#include "backend/cuda/ptx.cuh"
#include "backend/cuda/sampler_kernels.hpp"

/// Device pieces of the sampler: weights, loading a chunk, sums over a block. All sums that decide
/// a token are of integers (weights in units of 2^-42) or have one fixed order, so that neither the
/// batch nor the GPU changes a token.
namespace baton::backend::cuda::sampling {

constexpr uint32_t kAll = 0xFFFFFFFFu;  ///< all lanes of a warp
constexpr int kPerLane = kChunk / 32;
constexpr float kReachMax = 30.0f;  ///< beyond, a weight is below half a unit
constexpr float kLogprobMin = -9999.0f;

using dev::minus_infinity;
using dev::warp_sum;

__device__ __forceinline__ const Row& row_of(const Args& a, uint32_t at) {
    return reinterpret_cast<const Row*>(a.upload + kRowsAt)[at];
}
__device__ __forceinline__ const Edit* edits_of(const Args& a) {
    return reinterpret_cast<const Edit*>(a.upload + a.edits_at);
}
/// Number of the step that is sampled.
__device__ __forceinline__ uint32_t step_of(const Args& a) {
    return reinterpret_cast<const Header*>(a.upload)->step;
}
/// The step's last kernel says that it has ended. Read by nothing that is under way: the next step's first kernel begins when
/// this one has ended. One thread.
__device__ __forceinline__ void count_step(const Args& a) {
    if (a.step != nullptr) ++*a.step;
}
/// Where a row's result goes.
__device__ __forceinline__ size_t result_of(const Args& a, uint32_t at) {
    return static_cast<size_t>(step_of(a) & 1) * a.rows_max + at;
}

/// NaN counts as minus infinity.
__device__ __forceinline__ float without_nan(float v) {
    return v == v ? v : minus_infinity();
}

/// Bits that compare as the numbers do; both zeros are one.
__device__ __forceinline__ uint32_t ordered(float v) {
    const uint32_t bits = __float_as_uint(__fadd_rn(v, 0.0f));
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float from_ordered(uint32_t o) {
    return __uint_as_float((o & 0x80000000u) != 0 ? o & 0x7FFFFFFFu : ~o);
}
/// Larger is better: the larger logit, of equals the lower id.
__device__ __forceinline__ uint64_t make_key(uint32_t order, uint32_t id) {
    return (static_cast<uint64_t>(order) << 32) | (~id & 0xFFFFFFFFu);
}
__device__ __forceinline__ float key_value(uint64_t key) {
    return from_ordered(static_cast<uint32_t>(key >> 32));
}
__device__ __forceinline__ uint32_t key_id(uint64_t key) {
    return ~static_cast<uint32_t>(key);
}

/// exp of x in [-87, 0]: x = n·ln 2 + r, polynomial in r, scaled by 2^n (Cephes' expf). The
/// operations are written out so that every GPU gives the same bits.
__device__ __forceinline__ float exp_nonpositive(float x) {
    const float shifted = __fmaf_rn(x, 1.44269504088896341f, 12582912.0f);
    const float n = __fsub_rn(shifted, 12582912.0f);
    float r = __fmaf_rn(n, -0.693359375f, x);
    r = __fmaf_rn(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = __fmaf_rn(p, r, 1.3981999507e-3f);
    p = __fmaf_rn(p, r, 8.3334519073e-3f);
    p = __fmaf_rn(p, r, 4.1665795894e-2f);
    p = __fmaf_rn(p, r, 1.6666665459e-1f);
    p = __fmaf_rn(p, r, 5.0000001201e-1f);
    p = __fadd_rn(__fmaf_rn(p, __fmul_rn(r, r), r), 1.0f);
    return __int_as_float(__float_as_int(p) + (__float_as_int(shifted) << 23));
}
/// How far below the largest, in units of the temperature. Falls as v rises, also in its rounding.
__device__ __forceinline__ float distance(float v, float max, float scale) {
    return __fmul_rn(__fsub_rn(max, v), scale);
}
/// exp of minus a distance ≥ 0; NaN and what is far away give a weight that counts for nothing.
__device__ __forceinline__ float weight_at(float y) {
    return exp_nonpositive(-fminf(y, 87.0f));
}
/// A weight in units of 2^-42.
__device__ __forceinline__ uint64_t units(float weight) {
    return __float2ull_rn(weight * 4398046511104.0f);
}
__device__ __forceinline__ uint64_t units_at(float y) {
    return y <= kReachMax ? units(weight_at(y)) : 0;
}

/// Repetition, frequency and presence penalty, as the CPU rounds them.
__device__ __forceinline__ float penalise(float v, uint32_t count, const Row& row) {
    if (count == 0) return v;
    if (row.repetition != 1.0f)
        v = v > 0.0f ? __fdiv_rn(v, row.repetition) : __fmul_rn(v, row.repetition);
    const uint32_t n = count & (kInPrompt - 1u);
    if (n != 0)
        v = __fsub_rn(v, __fadd_rn(__fmul_rn(row.frequency, static_cast<float>(n)), row.presence));
    return without_nan(v);
}

/// Id of element `i` of a lane's part of a chunk: eight vectors of four, 512 bytes apart.
__device__ __forceinline__ uint32_t id_of(uint32_t chunk, uint32_t lane, int i) {
    return chunk * kChunk + static_cast<uint32_t>(i >> 2) * 128 + lane * 4 +
           static_cast<uint32_t>(i & 3);
}

/// A load that may hit the multiprocessor's own cache, or only the one that all share: for what
/// other blocks of this kernel may have written.
enum class Via { kOwnCache, kSharedCache };
template <Via kVia, class T>
__device__ __forceinline__ T load(const T* from) {
    if constexpr (kVia == Via::kSharedCache) return __ldcg(from);
    return *from;
}

/// Loads four words here and now: the compiler would wait with it until after a branch on something
/// else.
__device__ __forceinline__ uint4 load_now(const void* from) {
    uint4 v;
#if defined(__CUDA_ARCH__)
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
#else
    v = *static_cast<const uint4*>(from);
#endif
    return v;
}

/// Loads a lane's part of a chunk of raw (or edited) logits; minus infinity beyond the vocabulary.
/// NaN stays: maxima pass it over, and no distance from it is within reach.
template <Via kVia>
__device__ __forceinline__ void load_chunk(const float* logits, uint32_t vocab, uint32_t chunk,
                                           uint32_t lane, float (&v)[kPerLane]) {
    const float* from = logits + chunk * kChunk + lane * 4;
    if ((chunk + 1) * kChunk <= vocab && (reinterpret_cast<uintptr_t>(logits) & 15) == 0) {
#pragma unroll
        for (int j = 0; j < kPerLane / 4; ++j) {
            const float4 q = load<kVia>(reinterpret_cast<const float4*>(from + j * 128));
            v[j * 4] = q.x;
            v[j * 4 + 1] = q.y;
            v[j * 4 + 2] = q.z;
            v[j * 4 + 3] = q.w;
        }
    } else {
        const int left = static_cast<int>(vocab - chunk * kChunk) - static_cast<int>(lane * 4);
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) {
            const int at = (i >> 2) * 128 + (i & 3);
            v[i] = at < left ? load<kVia>(from + at) : minus_infinity();
        }
    }
}

/// The row of counts of a row with penalties.
__device__ __forceinline__ const uint16_t* counts_of(const Args& a, const Row& row) {
    return a.counts + static_cast<size_t>(row.state) * a.count_stride;
}

/// Applies penalties to a lane's part of a chunk. Few ids have a count, so they are visited one by
/// one: code that does all 32 in a row is slower to fetch than to run.
__device__ __forceinline__ void penalise_chunk(const Args& a, const Row& row, uint32_t chunk,
                                               uint32_t lane, float (&v)[kPerLane]) {
    const uint16_t* counts = counts_of(a, row) + chunk * kChunk;
    uint32_t counted = 0;
#pragma unroll
    for (int j = 0; j < kPerLane / 4; ++j) {
        const ushort4 c = *reinterpret_cast<const ushort4*>(counts + j * 128 + lane * 4);
        counted |= (c.x != 0 ? 1u : 0u) << (j * 4) | (c.y != 0 ? 2u : 0u) << (j * 4) |
                   (c.z != 0 ? 4u : 0u) << (j * 4) | (c.w != 0 ? 8u : 0u) << (j * 4);
    }
#pragma unroll 1
    for (; counted != 0; counted &= counted - 1) {
        const int at = __ffs(static_cast<int>(counted)) - 1;
        float one = v[0];
#pragma unroll
        for (int i = 1; i < kPerLane; ++i) one = i == at ? v[i] : one;
        one = penalise(one, counts[(at >> 2) * 128 + static_cast<int>(lane) * 4 + (at & 3)], row);
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) v[i] = i == at ? one : v[i];
    }
}

/// The adjusted logit of one id.
template <Via kVia>
__device__ __forceinline__ float load_one(const Args& a, const Row& row, bool penalties,
                                          const float* logits, uint32_t id) {
    const float v = without_nan(load<kVia>(logits + id));
    return penalties ? penalise(v, counts_of(a, row)[id], row) : v;
}

/// The lane's logits of a chunk within reach of the largest, as bits.
__device__ __forceinline__ uint32_t within_reach(const float (&v)[kPerLane], float max, float scale,
                                                 float reach) {
    uint32_t bits = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) bits |= (distance(v[i], max, scale) <= reach ? 1u : 0u) << i;
    return bits;
}

/// The key of a chunk's best; every lane gets it.
__device__ __forceinline__ uint64_t best_of(const float (&v)[kPerLane], uint32_t chunk,
                                            uint32_t lane) {
    float top = minus_infinity();
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) top = fmaxf(top, v[i]);
    const uint32_t order = __reduce_max_sync(kAll, ordered(top));
    top = from_ordered(order);
    uint32_t id = kAll;
#pragma unroll
    for (int i = kPerLane - 1; i >= 0; --i)
        if (v[i] == top) id = id_of(chunk, lane, i);
    if (top == minus_infinity()) id = chunk * kChunk;  // NaN counts as that
    return make_key(order, __reduce_min_sync(kAll, id));
}

/// Σ exp((v − top) · scale) over a chunk; 0 where `top` is infinite. Fixed order.
__device__ __forceinline__ float sum_of(const float (&v)[kPerLane], float top, float scale) {
    if (!isfinite(top)) return 0.0f;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) sum = __fadd_rn(sum, weight_at(distance(v[i], top, scale)));
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) sum = __fadd_rn(sum, __shfl_xor_sync(kAll, sum, o));
    return sum;
}

template <class T>
__device__ __forceinline__ T warp_inclusive(T v, uint32_t lane) {
#pragma unroll
    for (uint32_t o = 1; o < 32; o <<= 1) {
        const T below = __shfl_up_sync(kAll, v, o);
        if (lane >= o) v += below;
    }
    return v;
}

/// Exclusive prefix sum over a block of up to 1024 threads, in the threads' order. `total` gets the
/// sum. All threads call. Not inline, as the code of these kernels must stay small: their data is,
/// and fetching code is most of their time.
struct Prefix {
    uint64_t before, total;
};
__device__ __noinline__ Prefix block_exclusive(uint64_t v) {
    __shared__ uint64_t part[33];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const uint64_t within = warp_inclusive(v, lane);
    __syncthreads();  // whoever still reads `part` of the last call
    if (lane == 31) part[warp] = within;
    __syncthreads();
    if (warp == 0) {
        const uint64_t mine = lane < warps ? part[lane] : 0;
        const uint64_t up_to = warp_inclusive(mine, lane);
        part[lane] = up_to - mine;
        if (lane == 31) part[32] = up_to;
    }
    __syncthreads();
    return {part[warp] + within - v, part[32]};
}
__device__ __forceinline__ uint64_t block_sum(uint64_t v) {
    return block_exclusive(v).total;
}
/// Largest over the block. All threads call; all get it.
__device__ __noinline__ uint64_t block_max(uint64_t v) {
    __shared__ uint64_t part[33];
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    const auto warp_max = [](uint64_t x) {
#pragma unroll
        for (int o = 16; o > 0; o >>= 1) {
            const uint64_t other = __shfl_xor_sync(kAll, x, o);
            x = other > x ? other : x;
        }
        return x;
    };
    v = warp_max(v);
    __syncthreads();
    if (lane == 0) part[warp] = v;
    __syncthreads();
    if (warp == 0) {
        const uint64_t all = warp_max(lane < warps ? part[lane] : 0);
        if (lane == 0) part[32] = all;
    }
    __syncthreads();
    return part[32];
}

/// Sum over the block, in one order. All threads call; all get it.
__device__ inline double block_sum_double(double v) {
    __shared__ double part[33];
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(kAll, v, o);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) part[threadIdx.x >> 5] = v;
    __syncthreads();
    v = 0;
    for (uint32_t warp = 0; warp < blockDim.x >> 5; ++warp) v += part[warp];
    return v;
}

/// True in every thread of the last of the grid's x blocks that calls it for this row; what the
/// others wrote is visible then.
__device__ inline bool is_last_block(uint32_t* ticket) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicAdd(ticket, 1u) == gridDim.x - 1;
        if (last) {
            *ticket = 0;
            __threadfence();
        }
    }
    __syncthreads();
    return last;
}

/// u in [0, 1) of Philox 4x32-10 keyed by seed and position: sched::uniform.
__device__ __noinline__ double uniform(uint64_t seed, uint64_t position) {
    uint32_t c0 = static_cast<uint32_t>(position), c1 = static_cast<uint32_t>(position >> 32),
             c2 = 0, c3 = 0;
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll 1
    for (int round = 0; round < 10; ++round) {
        const uint32_t hi0 = __umulhi(0xD2511F53u, c0), lo0 = 0xD2511F53u * c0;
        const uint32_t hi1 = __umulhi(0xCD9E8D57u, c2), lo1 = 0xCD9E8D57u * c2;
        c0 = hi1 ^ c1 ^ k0;
        c1 = lo1;
        c2 = hi0 ^ c3 ^ k1;
        c3 = lo0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return static_cast<double>((static_cast<uint64_t>(c0) << 21) | (c1 >> 11)) * 0x1.0p-53;
}
/// The unit of `total` that the number `u` hits: below total.
__device__ __forceinline__ uint64_t draw_unit(double u, uint64_t total) {
    const uint64_t unit = __double2ull_rd(u * __ull2double_rn(total));
    return unit < total ? unit : total - 1;
}
/// The weight top-p wants of `kept`, at least the first candidate's.
__device__ inline uint64_t top_p_units(const Row& row, uint64_t kept) {
    const double want = ceil(static_cast<double>(row.top_p) * __ull2double_rn(kept));
    return want >= 1.0 ? __double2ull_rn(want) : 1;
}

/// Writes eight bytes that the host may be waiting for, as one.
__device__ __forceinline__ void store_for_host(void* to, uint32_t low, uint32_t high) {
    const uint64_t both = static_cast<uint64_t>(high) << 32 | low;
#if defined(__CUDA_ARCH__)
    asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(to), "l"(both) : "memory");
#else
    *static_cast<uint64_t*>(to) = both;
#endif
}

/// The logprob of the row's token. All threads of one block call; the first has it.
__device__ __noinline__ float logprob_of(const Args& a, const Row& row, uint32_t at, uint32_t id) {
    __shared__ float raw;
    if (threadIdx.x == 0) raw = __ldcg(a.logits + static_cast<size_t>(at) * a.vocab + id);
    __syncthreads();
    const Edit* edits = edits_of(a);
    for (uint32_t e = threadIdx.x; e < row.edits; e += blockDim.x)
        if (edits[row.edit_first + e].id == static_cast<int32_t>(id))
            raw = __ldcg(a.raw_saved + row.edit_first + e);
    __syncthreads();
    const float value = without_nan(raw);
    const RowState& state = a.states[at];
    return !isfinite(state.raw_max)
               ? (value == state.raw_max && value > 0 ? 0.0f : kLogprobMin)
               : fmaxf(static_cast<float>(static_cast<double>(value) - state.raw_log), kLogprobMin);
}

/// Hands the row's token over. All threads of one block call, after every reader of the row's
/// counts.
__device__ __noinline__ void finish_row(const Args& a, const Row& row, uint32_t at, uint32_t id) {
    const float logprob = row.top < 0 ? 0.0f : logprob_of(a, row, at, id);
    if (threadIdx.x != 0) return;
    a.last[row.state] = static_cast<int32_t>(id);
    a.states[at].todo = Todo::kNothing;
    if (row.penalties != 0) {
        uint16_t& count = a.counts[static_cast<size_t>(row.state) * a.count_stride + id];
        if ((count & (kInPrompt - 1u)) != kInPrompt - 1u) ++count;
    }
    Head& head = a.heads[result_of(a, at)];
    if (row.top >= 0) {
        head.logprob = logprob;
        __threadfence_system();  // the likeliest tokens, where wanted, and this come first
    }
    store_for_host(&head, id, step_of(a));
}

}  // namespace baton::backend::cuda::sampling
