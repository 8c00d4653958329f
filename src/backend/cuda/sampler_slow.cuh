#pragma once

#include "backend/cuda/sampler_filter.cuh"

/// Rows whose bins hold too many candidates to be listed: a flat or a much tied distribution. One
/// block descends through the logits' bits, eleven at a time. The same sums as over a list, so the
/// same token.
namespace baton::backend::cuda::sampling {

/// A logit in the order of candidates, with what lies before its first bearer.
struct Place {
    uint32_t order = 0;  ///< ordered bits
    uint32_t rank = 0;   ///< candidates before
    uint64_t mass = 0;   ///< their weight
};

/// Calls `use(v, y, in, chunk)` for each logit within reach that `wants(v)`, a warp's lanes
/// together, each with its own
/// (`in`) or none.
template <class Wants, class Use>
__device__ __forceinline__ void for_each_candidate(const Args& a, const Row& row, uint32_t at,
                                                   const RowState& state, const Wants& wants,
                                                   const Use& use) {
    const float* logits = a.logits + static_cast<size_t>(at) * a.vocab;
    const uint32_t lane = threadIdx.x & 31;
    const float top = state.max, scale = state.scale, reach = state.reach;
    const bool penalties = state.penalties != 0;
#pragma unroll 1
    for (uint32_t chunk = threadIdx.x >> 5; chunk < a.chunks; chunk += kChooseThreads / 32) {
        if (!(distance(key_value(a.keys[static_cast<size_t>(at) * a.chunks + chunk]), top, scale) <=
              reach))
            continue;
        uint32_t bits = 0;
        {
            float v[kPerLane];
            load_chunk<Via::kOwnCache>(logits, a.vocab, chunk, lane, v);
            if (penalties) penalise_chunk(a, row, chunk, lane, v);
#pragma unroll
            for (int i = 0; i < kPerLane; ++i)
                bits |= (distance(v[i], top, scale) <= reach && wants(v[i]) ? 1u : 0u) << i;
        }
#pragma unroll 1
        while (__any_sync(kAll, bits != 0)) {
            const bool in = bits != 0;
            const uint32_t id = id_of(chunk, lane, in ? __ffs(static_cast<int>(bits)) - 1 : 0);
            bits &= bits - 1;
            const float v = in ? load_one<Via::kOwnCache>(a, row, penalties, logits, id) : top;
            use(v, distance(v, top, scale), in, chunk);
        }
    }
}

/// The logit at whose bearers the rank (where `by_rank`) or the weight reaches `want`. There must
/// be one.
__device__ __noinline__ Place descend(const Args& a, const Row& row, uint32_t at,
                                      const RowState& state, Histogram& histogram, bool by_rank,
                                      uint64_t want) {
    __shared__ Place place;
    constexpr uint32_t kEach = kBins / kChooseThreads;
    const uint32_t lane = threadIdx.x & 31;
    Place found;
    uint32_t prefix = 0;
    for (int level = 0; level < 3; ++level) {
        const int shift = level == 0 ? 21 : level == 1 ? 10 : 0;
        const int width = level == 2 ? 10 : 11;
        __syncthreads();
        histogram.clear();
        __syncthreads();
        for_each_candidate(
            a, row, at, state,
            [&](float v) { return level == 0 || ~ordered(v) >> (shift + width) == prefix; },
            [&](float v, float y, bool in, uint32_t) {
                histogram.add_warp(in, (~ordered(v) >> shift) & ((1u << width) - 1u), units_at(y),
                                   lane);
            });
        __syncthreads();
        uint32_t count[kEach], count_sum = 0;
        uint64_t mass[kEach], mass_sum = 0;
#pragma unroll
        for (uint32_t i = 0; i < kEach; ++i) {
            count_sum += count[i] = histogram.count[threadIdx.x * kEach + i];
            mass_sum += mass[i] = histogram.mass(threadIdx.x * kEach + i);
        }
        uint32_t rank = found.rank + static_cast<uint32_t>(block_exclusive(count_sum).before);
        uint64_t before = found.mass + block_exclusive(mass_sum).before;
#pragma unroll
        for (uint32_t i = 0; i < kEach; ++i) {
            const uint64_t reached = by_rank ? rank : before,
                           next = by_rank ? rank + count[i] : before + mass[i];
            if (reached < want && want <= next) place = {threadIdx.x * kEach + i, rank, before};
            rank += count[i];
            before += mass[i];
        }
        __syncthreads();
        found = place;
        prefix = (prefix << width) | found.order;
    }
    found.order = ~prefix;
    return found;
}

/// Id of the `n`-th (from 1) bearer of a logit, lowest id first.
__device__ __noinline__ uint32_t nth_bearer(const Args& a, const Row& row, uint32_t at,
                                            const RowState& state, uint32_t order, uint32_t n) {
    constexpr uint32_t kEach = kVocabMax / kChunk / kChooseThreads;
    constexpr uint32_t kIds = kChunk / kChooseThreads;
    __shared__ uint32_t bearers[kVocabMax / kChunk];
    __shared__ uint32_t chunk;
    __shared__ uint32_t left;
    __shared__ uint32_t id;
    for (uint32_t c = threadIdx.x; c < kVocabMax / kChunk; c += kChooseThreads) bearers[c] = 0;
    if (threadIdx.x == 0) chunk = left = id = 0;
    __syncthreads();
    for_each_candidate(
        a, row, at, state, [&](float v) { return ordered(v) == order; },
        [&](float, float, bool in, uint32_t c) {
            const uint32_t mask = __ballot_sync(kAll, in);
            if ((threadIdx.x & 31) == 0) bearers[c] += static_cast<uint32_t>(__popc(mask));
        });
    __syncthreads();
    uint32_t sum = 0;
    for (uint32_t i = 0; i < kEach; ++i) sum += bearers[threadIdx.x * kEach + i];
    uint32_t before = static_cast<uint32_t>(block_exclusive(sum).before);
    for (uint32_t i = 0; i < kEach; ++i) {
        const uint32_t here = bearers[threadIdx.x * kEach + i];
        if (before < n && n <= before + here) {
            chunk = threadIdx.x * kEach + i;
            left = n - before;
        }
        before += here;
    }
    __syncthreads();
    const float* logits = a.logits + static_cast<size_t>(at) * a.vocab;
    const uint32_t first = chunk * kChunk + threadIdx.x * kIds;
    bool is[kIds];
    sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < kIds; ++i) {
        is[i] = first + i < a.vocab && ordered(load_one<Via::kOwnCache>(
                                           a, row, row.penalties != 0, logits, first + i)) == order;
        sum += is[i] ? 1 : 0;
    }
    before = static_cast<uint32_t>(block_exclusive(sum).before);
#pragma unroll
    for (uint32_t i = 0; i < kIds; ++i) {
        before += is[i] ? 1 : 0;
        if (is[i] && before == left) id = first + i;
    }
    __syncthreads();
    return id;
}

/// The row's token. One block.
__device__ __noinline__ uint32_t choose_slowly(const Args& a, const Row& row, const RowState& state,
                                               uint32_t at, Histogram& histogram) {
    const auto units_of = [&](uint32_t order) {
        return units_at(distance(from_ordered(order), state.max, row.scale));
    };
    uint64_t kept = state.all, total = state.mass_total;
    if (row.top_k != 0) {
        kept = total;
        if (row.top_k <= state.bin_total) {
            const Place k = descend(a, row, at, state, histogram, true, row.top_k);
            kept = total = k.mass + (row.top_k - k.rank) * units_of(k.order);
        }
    }
    if (row.top_p < 1.0f) {
        const uint64_t want = top_p_units(row, kept);
        if (want <= state.mass_total) {
            const Place p = descend(a, row, at, state, histogram, false, want);
            const uint64_t each = units_of(p.order);
            total = min(total, p.mass + (want - p.mass + each - 1) / each * each);
        }
    }
    if (row.min_p > 0.0f) {
        uint64_t sum = 0;
        for_each_candidate(
            a, row, at, state, [](float) { return true; },
            [&](float, float y, bool in, uint32_t) {
                const float weight = weight_at(y);
                if (in && (weight >= row.min_p || y == 0.0f)) sum += units(weight);
            });
        total = min(total, block_sum(sum));
    }
    const uint64_t unit = draw_unit(state.u, total);
    const Place d = descend(a, row, at, state, histogram, false, unit + 1);
    const uint64_t each = units_of(d.order);
    return nth_bearer(a, row, at, state, d.order,
                      static_cast<uint32_t>((unit - d.mass) / each) + 1);
}

/// Grid: [CTAs a row, rows]. Lists the wanted candidates; the last block of a row sorts them and
/// draws.
__global__ void __launch_bounds__(kChooseThreads, 1) choose_kernel(const __grid_constant__ Args a) {
    __shared__ union Scratch {
        Histogram histogram;
        uint64_t list[kList];
        __device__ Scratch() {}
    } scratch;
    __shared__ uint32_t wanted[kBins / 32];
    dev::launch_dependents();
    dev::wait_for_earlier();
    const uint32_t at = blockIdx.y, lane = threadIdx.x & 31;
    if (at == 0 && blockIdx.x == 0 && threadIdx.x == 0) count_step(a);
    RowState& state = a.states[at];
    const Todo todo = state.todo;
    if (todo != Todo::kSorting && todo != Todo::kDescent) return;
    if (todo == Todo::kDescent && blockIdx.x != 0) return;
    const Row& row = row_of(a, at);
    if (todo == Todo::kDescent)
        return finish_row(a, row, at, choose_slowly(a, row, state, at, scratch.histogram));
    const float* logits = a.logits + static_cast<size_t>(at) * a.vocab;
    const size_t partial = static_cast<size_t>(at) * a.chunks;
    const float top = state.max, reach = state.reach, bins_per = state.bins_per,
                scale = state.scale;
    const bool penalties = state.penalties != 0;
    const uint32_t last_bin = state.kept_bins;
    // No bin beyond the last wanted one is looked at.
    const float far = fminf(reach, static_cast<float>(last_bin + 1) / bins_per * 1.0001f);
    uint64_t* list = a.list + static_cast<size_t>(at) * kList;
    if (threadIdx.x < kBins / 32) wanted[threadIdx.x] = state.wanted[threadIdx.x];
    __syncthreads();
    constexpr uint32_t kWarps = kChooseThreads / 32;
#pragma unroll 1
    for (uint32_t chunk = blockIdx.x * kWarps + (threadIdx.x >> 5); chunk < a.chunks;
         chunk += gridDim.x * kWarps) {
        const float nearest = distance(key_value(a.keys[partial + chunk]), top, scale);
        if (!(nearest <= far)) continue;
        uint32_t bits = 0;
        {
            float v[kPerLane];
            load_chunk<Via::kOwnCache>(logits, a.vocab, chunk, lane, v);
            if (penalties) penalise_chunk(a, row, chunk, lane, v);
            bits = within_reach(v, top, scale, far);
        }
#pragma unroll 1
        for (uint32_t left = bits; left != 0; left &= left - 1) {
            const int i = __ffs(static_cast<int>(left)) - 1;
            const float v =
                load_one<Via::kOwnCache>(a, row, penalties, logits, id_of(chunk, lane, i));
            const uint32_t bin = bin_of(distance(v, top, scale), bins_per);
            if ((wanted[bin >> 5] >> (bin & 31) & 1u) == 0) bits &= ~(1u << i);
        }
        const uint32_t mine = static_cast<uint32_t>(__popc(bits));
        const uint32_t up_to = warp_inclusive(mine, lane);
        uint32_t base = 0;
        if (lane == 31 && up_to != 0) base = atomicAdd(&state.listed, up_to);
        uint32_t to = __shfl_sync(kAll, base, 31) + up_to - mine;
#pragma unroll 1
        for (; bits != 0 && to < kList; bits &= bits - 1, ++to) {
            const uint32_t id = id_of(chunk, lane, __ffs(static_cast<int>(bits)) - 1);
            list[to] =
                make_key(ordered(load_one<Via::kOwnCache>(a, row, penalties, logits, id)), id);
        }
    }
    if (!is_last_block(&state.tickets[2])) return;
    const uint32_t n = min(__ldcg(&state.listed), kList);
    uint32_t power = 2;
    while (power < n) power <<= 1;
    for (uint32_t i = threadIdx.x; i < power; i += kChooseThreads)
        scratch.list[i] = i < n ? __ldcg(list + i) : 0;
    sort_list(scratch.list, power);
    if (threadIdx.x == 0) state.listed = 0;
    const Draw draw{top, scale, state.min_p, state.all, state.u};
    const FromBins bins{a.bin_counts + static_cast<size_t>(at) * kBins,
                        a.bin_masses + static_cast<size_t>(at) * kBins, bins_per, state.mass_total,
                        state.mass_max};
    finish_row(a, row, at, choose_listed<kChooseThreads, kList>(row, draw, scratch.list, n, bins));
}

}  // namespace baton::backend::cuda::sampling
