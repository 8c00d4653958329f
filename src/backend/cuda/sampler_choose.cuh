#pragma once

#include "backend/cuda/sampler_device.cuh"

/// The token from a list of candidates: put in order, then top-k, top-p, min-p and the draw by sums
/// over the list.
namespace baton::backend::cuda::sampling {

/// What the candidates' weights and the draw follow from.
struct Draw {
    float max;
    float scale;
    float min_p;
    uint64_t all;  ///< weight of all candidates of the vocabulary
    double u;
};

__device__ __forceinline__ uint32_t bin_of(float y, float bins_per) {
    return min(static_cast<uint32_t>(y * bins_per), kBins - 1);
}

/// A few candidates, collected by one block in shared memory; `count` may run over.
struct ShortList {
    alignas(16) uint64_t key[kShort + 2];
    uint32_t count;
};

/// Sorts `n` found candidates into `sorted`, largest first, each by the number of those before it.
/// One block; all call.
__device__ __forceinline__ void rank_found(ShortList& found, uint32_t n, uint64_t* sorted) {
    if (threadIdx.x < 2) found.key[n + threadIdx.x] = 0;
    __syncthreads();
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
        const uint64_t mine = found.key[i];
        uint32_t rank = 0;
#pragma unroll 4
        for (uint32_t j = 0; j < n; j += 2) {
            const ulonglong2 two = *reinterpret_cast<const ulonglong2*>(found.key + j);
            rank += (two.x > mine ? 1 : 0) + (two.y > mine ? 1 : 0);
        }
        sorted[rank] = mine;
    }
    __syncthreads();
}

/// What lies between listed candidates: with None they are all there are within reach, with a
/// RowState's bins all of the wanted bins, and the sums of the bins complete them.
struct None {
    static constexpr bool kAllListed = true;
};
struct FromBins {
    static constexpr bool kAllListed = false;
    const uint32_t* counts;  ///< exclusive sums
    const uint64_t* masses;
    float bins_per;
    uint64_t mass_total;
    uint64_t mass_max;
};

/// The token, from `n` sorted candidates, at most kMost. One block of kThreads.
template <uint32_t kThreads, uint32_t kMost, class Between>
__device__ __forceinline__ uint32_t choose_listed(const Row& row, const Draw& draw,
                                                  const uint64_t* list, uint32_t n,
                                                  const Between& between) {
    constexpr uint32_t kEach = kMost / kThreads;
    __shared__ uint64_t kept;
    __shared__ uint64_t cut;
    __shared__ uint32_t drawn;
    // Rank and weight of all candidates up to each one, also of those not listed.
    uint32_t rank[kEach], rank_sum = 0;
    uint64_t up_to[kEach], w[kEach], sum = 0;
    float weight[kEach];
    const uint32_t first = threadIdx.x * kEach;
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
        const uint32_t j = first + i;
        w[i] = 0;
        weight[i] = 0;
        if (j < n) {
            const float y = distance(key_value(list[j]), draw.max, draw.scale);
            weight[i] = weight_at(y);
            w[i] = units(weight[i]);
            ++rank_sum;
            sum += w[i];
            if constexpr (!Between::kAllListed) {
                const uint32_t bin = bin_of(y, between.bins_per);
                const uint32_t earlier =
                    j == 0 ? kBins
                           : bin_of(distance(key_value(list[j - 1]), draw.max, draw.scale),
                                    between.bins_per);
                if (bin != earlier) {  // what lies between the two bins
                    rank_sum += between.counts[bin] - (j == 0 ? 0 : between.counts[earlier + 1]);
                    sum += between.masses[bin] - (j == 0 ? 0 : between.masses[earlier + 1]);
                }
            }
        }
        rank[i] = rank_sum;
        up_to[i] = sum;
    }
    const uint32_t rank_before = static_cast<uint32_t>(block_exclusive(rank_sum).before);
    const Prefix before = block_exclusive(sum);
    if (threadIdx.x == 0) {
        uint64_t total = before.total;
        cut = total;
        if constexpr (!Between::kAllListed) {
            total = between.mass_total;
            cut = between.mass_max;
        }
        kept = row.top_k == 0 ? draw.all : total;
        drawn = key_id(list[0]);
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
        rank[i] += rank_before;
        up_to[i] += before.before;
        if (first + i < n && rank[i] == row.top_k) {
            kept = up_to[i];
            cut = min(cut, kept);
        }
    }
    __syncthreads();
    const uint64_t want = row.top_p < 1.0f ? top_p_units(row, kept) : ~uint64_t{0};
    uint64_t mine = ~uint64_t{0};
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
        if (first + i >= n) continue;
        if (up_to[i] - w[i] < want && want <= up_to[i]) mine = min(mine, up_to[i]);
        if (rank[i] > 1 && weight[i] < draw.min_p) mine = min(mine, up_to[i] - w[i]);
    }
    const uint64_t least = ~block_max(~mine);
    const uint64_t unit = draw_unit(draw.u, min(cut, least));
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i)
        if (first + i < n && up_to[i] - w[i] <= unit && unit < up_to[i])
            drawn = key_id(list[first + i]);
    __syncthreads();
    return drawn;
}

}  // namespace baton::backend::cuda::sampling
