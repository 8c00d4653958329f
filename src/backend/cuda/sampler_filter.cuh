#pragma once

#include "backend/cuda/sampler_scan.cuh"

/// The second and third kernel, for rows with top-k, top-p or min-p. The order of candidates
/// (larger logit first, of equals the lower id) is never made in full: a histogram over the
/// distance from the largest tells in which few bins top-k, top-p, min-p and the draw fall, only
/// their candidates are listed and sorted, and the sums of all bins before complete them.
namespace baton::backend::cuda::sampling {

constexpr uint32_t kWeighThreads = kScanThreads;
constexpr uint32_t kChooseThreads = 512;

/// Counts and weights of bins in shared memory; a weight is kept in two words since there is no
/// 64-bit add.
struct Histogram {
    uint32_t count[kBins];
    uint32_t low[kBins];
    uint32_t high[kBins];

    __device__ void clear() {
        for (uint32_t b = threadIdx.x; b < kBins; b += blockDim.x) count[b] = low[b] = high[b] = 0;
    }
    __device__ void add(uint32_t bin, uint32_t n, uint64_t mass) {
        atomicAdd(&count[bin], n);
        const uint32_t l = static_cast<uint32_t>(mass);
        uint32_t h = static_cast<uint32_t>(mass >> 32);
        if (l != 0 && atomicAdd(&low[bin], l) > ~l) ++h;
        if (h != 0) atomicAdd(&high[bin], h);
    }
    /// The warp's lanes with `in` add one candidate each. All lanes call.
    __device__ void add_warp(bool in, uint32_t bin, uint64_t mass, uint32_t lane) {
        const uint32_t mask = __ballot_sync(kAll, in);
        if (mask == 0) return;
        const uint32_t leader = static_cast<uint32_t>(__ffs(static_cast<int>(mask))) - 1;
        const uint32_t first = __shfl_sync(kAll, bin, static_cast<int>(leader));
        uint32_t n = 1;
        if (__popc(mask) > 4 && __all_sync(kAll, !in || bin == first)) {  // equal logits, mostly
            mass = warp_sum(in ? mass : 0);
            n = static_cast<uint32_t>(__popc(mask));
            in = lane == leader;
        }
        if (in) add(bin, n, mass);
    }
    __device__ uint64_t mass(uint32_t bin) const {
        return (static_cast<uint64_t>(high[bin]) << 32) | low[bin];
    }
};

/// A bin that a search found, with what lies before it and up to its end. `bin` is kBins where
/// nothing is that far down.
struct Found {
    uint32_t bin;
    uint64_t before;
    uint64_t incl;
};

/// A thread's bins: eight consecutive ones, with inclusive sums.
constexpr uint32_t kBinsEach = kBins / kWeighThreads;
struct Bins {
    uint32_t count_before, count[kBinsEach];
    uint64_t mass_before, mass[kBinsEach];
};

/// First bins at whose ends the count reaches `rank`, or the weight reaches `units_wanted[i]`. All
/// threads call.
__device__ inline Found find_rank(const Bins& bins, uint32_t rank, uint64_t total) {
    __shared__ Found found;
    __syncthreads();
    if (threadIdx.x == 0) found = {kBins, total, total};
    __syncthreads();
    if (bins.count_before < rank && rank <= bins.count[kBinsEach - 1]) {
        uint64_t before = bins.mass_before;
        bool done = false;
#pragma unroll
        for (uint32_t i = 0; i < kBinsEach; ++i) {
            if (!done && rank <= bins.count[i]) {
                found = {threadIdx.x * kBinsEach + i, before, bins.mass[i]};
                done = true;
            }
            before = bins.mass[i];
        }
    }
    __syncthreads();
    return found;
}
struct FoundPair {
    Found low, high;
};
__device__ __noinline__ FoundPair find_mass(const Bins& bins, uint64_t low, uint64_t high,
                                            uint64_t total) {
    __shared__ Found found[2];
    __syncthreads();
    if (threadIdx.x < 2) found[threadIdx.x] = {kBins, total, total};
    __syncthreads();
#pragma unroll
    for (uint32_t k = 0; k < 2; ++k) {
        const uint64_t want = k == 0 ? low : high;
        if (bins.mass_before >= want || want > bins.mass[kBinsEach - 1]) continue;
        uint64_t before = bins.mass_before;
        bool done = false;
#pragma unroll
        for (uint32_t i = 0; i < kBinsEach; ++i) {
            if (!done && want <= bins.mass[i]) {
                found[k] = {threadIdx.x * kBinsEach + i, before, bins.mass[i]};
                done = true;
            }
            before = bins.mass[i];
        }
    }
    __syncthreads();
    return {found[0], found[1]};
}
/// Weight before bin `low` and up to the end of bin `high`.
__device__ inline FoundPair look_up(const Bins& bins, uint32_t low, uint32_t high) {
    __shared__ Found found[2];
    __syncthreads();
    uint64_t before = bins.mass_before;
#pragma unroll
    for (uint32_t i = 0; i < kBinsEach; ++i) {
        const uint32_t bin = threadIdx.x * kBinsEach + i;
        if (bin == low) found[0] = {bin, before, bins.mass[i]};
        if (bin == high) found[1] = {bin, before, bins.mass[i]};
        before = bins.mass[i];
    }
    __syncthreads();
    return {found[0], found[1]};
}

/// Up to four ranges of bins.
struct Ranges {
    uint32_t first[4], last[4];
    uint32_t n = 0;
    __device__ void add(uint32_t from, uint32_t to) {
        if (from >= kBins) return;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i)
            if (i == n) {
                first[i] = from;
                last[i] = min(to, kBins - 1);
            }
        ++n;
    }
    __device__ bool has(uint32_t bin) const {
        bool in = false;
#pragma unroll
        for (uint32_t i = 0; i < 4; ++i) in = in || (i < n && first[i] <= bin && bin <= last[i]);
        return in;
    }
};

/// Which bins top-k, top-p, min-p and the draw can fall into. Each bound of what is kept is known
/// up to one bin's weight, so later ones are searched for from both ends.
__device__ __forceinline__ Ranges wanted_bins(const Row& row, const RowState& state,
                                              const Bins& bins, uint64_t total,
                                              uint64_t& mass_max) {
    Ranges ranges;
    mass_max = total;
    uint64_t kept_low = state.all, kept_high = state.all, low = total, high = total;
    if (row.top_k != 0) {
        const Found k = find_rank(bins, row.top_k, total);
        ranges.add(k.bin, k.bin);
        low = kept_low = k.before;
        high = kept_high = k.incl;
    }
    if (row.top_p < 1.0f) {
        const FoundPair p =
            find_mass(bins, top_p_units(row, kept_low), top_p_units(row, kept_high), total);
        ranges.add(p.low.bin, p.high.bin);
        low = min(low, p.low.before);
        high = min(high, p.high.incl);
    }
    if (row.min_p > 0.0f) {
        const float y = fmaxf(-logf(row.min_p), 0.0f);
        const float from = (y - 1e-4f - y * 1e-5f) * state.bins_per - 1.0f;
        const float to = (y + 1e-4f + y * 1e-5f) * state.bins_per + 1.0f;
        if (from < static_cast<float>(kBins)) {
            const uint32_t first = static_cast<uint32_t>(fmaxf(from, 0.0f));
            const uint32_t last = static_cast<uint32_t>(fminf(to, static_cast<float>(kBins - 1)));
            const FoundPair m = look_up(bins, first, last);
            if (m.low.before < high) {
                ranges.add(first, last);
                low = min(low, m.low.before);
                high = min(high, m.high.incl);
                mass_max = m.high.incl;
            }
        }
    }
    const uint64_t one = uint64_t{1} << 42;  // the first candidate always stays
    const FoundPair d = find_mass(bins, draw_unit(state.u, max(low, one)) + 1,
                                  draw_unit(state.u, max(high, one)) + 1, total);
    ranges.add(d.low.bin, d.high.bin);
    return ranges;
}

/// Sums up the row's histogram and decides what the last kernel lists. The last block of a row
/// calls.
__device__ inline void end_bins(const Args& a, const Row& row, uint32_t at) {
    __shared__ uint8_t mask[kWeighThreads];
    RowState& state = a.states[at];
    uint32_t* counts = a.bin_counts + static_cast<size_t>(at) * kBins + threadIdx.x * kBinsEach;
    uint64_t* masses = a.bin_masses + static_cast<size_t>(at) * kBins + threadIdx.x * kBinsEach;
    Bins bins;
    uint32_t count = 0;
    uint64_t mass = 0;
#pragma unroll
    for (uint32_t i = 0; i < kBinsEach; i += 2) {
        const uint2 n = __ldcg(reinterpret_cast<const uint2*>(counts + i));
        const ulonglong2 m = __ldcg(reinterpret_cast<const ulonglong2*>(masses + i));
        bins.count[i] = count += n.x;
        bins.count[i + 1] = count += n.y;
        bins.mass[i] = mass += m.x;
        bins.mass[i + 1] = mass += m.y;
    }
    const Prefix counted = block_exclusive(count), weighed = block_exclusive(mass);
    const uint32_t count_total = static_cast<uint32_t>(counted.total);
    const uint64_t mass_total = weighed.total;
    bins.count_before = static_cast<uint32_t>(counted.before);
    bins.mass_before = weighed.before;
#pragma unroll
    for (uint32_t i = 0; i < kBinsEach; ++i) {
        bins.count[i] += bins.count_before;
        bins.mass[i] += bins.mass_before;
        counts[i] = i == 0 ? bins.count_before : bins.count[i == 0 ? 0 : i - 1];
        masses[i] = i == 0 ? bins.mass_before : bins.mass[i == 0 ? 0 : i - 1];
    }
    uint64_t mass_max = 0;
    const Ranges ranges = wanted_bins(row, state, bins, mass_total, mass_max);
    uint32_t bits = 0, listed = 0, last = 0;
#pragma unroll
    for (uint32_t i = 0; i < kBinsEach; ++i) {
        const uint32_t bin = threadIdx.x * kBinsEach + i;
        if (!ranges.has(bin)) continue;
        bits |= 1u << i;
        listed += bins.count[i] - (i == 0 ? bins.count_before : bins.count[i == 0 ? 0 : i - 1]);
        last = bin;
    }
    mask[threadIdx.x] = static_cast<uint8_t>(bits);
    listed = static_cast<uint32_t>(block_sum(listed));
    last = static_cast<uint32_t>(block_max(last));
    if (threadIdx.x < kBins / 32) {
        uint32_t word = 0;
        for (uint32_t i = 0; i < 4; ++i)
            word |= static_cast<uint32_t>(mask[threadIdx.x * 4 + i]) << (8 * i);
        state.wanted[threadIdx.x] = word;
    }
    if (threadIdx.x != 0) return;
    state.bin_total = count_total;
    state.mass_total = mass_total;
    state.mass_max = mass_max;
    state.kept_bins = last;
    state.todo = listed <= a.list_max ? Todo::kSorting : Todo::kDescent;
}

/// Each block has its own part of the row's list: 2^shift places.
__device__ __forceinline__ uint32_t part_shift() {
    return 31 - static_cast<uint32_t>(__clz(static_cast<int>(kList / gridDim.x)));
}

/// Writes the block's candidates into its part, and how many there are; too many when they do not
/// fit.
__device__ __forceinline__ void publish(const ShortList& found, RowState& state, uint64_t* list) {
    const uint32_t shift = part_shift();
    const bool fits = found.count <= min(1u << shift, kShort);
    if (threadIdx.x == 0) state.found[blockIdx.x] = fits ? found.count : kShort + 1;
    if (!fits) return;
    for (uint32_t i = threadIdx.x; i < found.count; i += blockDim.x)
        list[(blockIdx.x << shift) + i] = found.key[i];
}

/// Sorts the candidates of all blocks into `sorted`, largest first, each by the number of those
/// before it. Returns how many they are; more than `most`: nothing is sorted.
__device__ __forceinline__ uint32_t sort_found(ShortList& found, const RowState& state,
                                               const uint64_t* list, uint32_t most,
                                               uint64_t* sorted) {
    __shared__ uint32_t begin[kBlocksMax];
    constexpr uint32_t kEach = kList / kWeighThreads;
    const uint32_t shift = part_shift();
    uint64_t key[kEach];
    bool has[kEach];
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
        const uint32_t at = i * kWeighThreads + threadIdx.x, part = at >> shift;
        const uint32_t n = part < gridDim.x ? __ldcg(&state.found[part]) : 0;
        key[i] = __ldcg(list + at);
        has[i] = (at & ((1u << shift) - 1u)) < n;
    }
    const Prefix parts =
        block_exclusive(threadIdx.x < gridDim.x ? __ldcg(&state.found[threadIdx.x]) : 0);
    const uint32_t all = static_cast<uint32_t>(parts.total);
    if (all > most) return all;
    if (threadIdx.x < gridDim.x) begin[threadIdx.x] = static_cast<uint32_t>(parts.before);
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < kEach; ++i) {
        const uint32_t at = i * kWeighThreads + threadIdx.x;
        if (has[i]) found.key[begin[at >> shift] + (at & ((1u << shift) - 1u))] = key[i];
    }
    rank_found(found, all, sorted);
    return all;
}

constexpr uint32_t kDense =
    96;  ///< candidates of a chunk from which on they are queued up, so that no lane idles

/// Puts those of sixteen of each lane's logits that `bits` names into `queue` [512]; returns how
/// many the warp has.
template <int kFrom>
__device__ __forceinline__ uint32_t queue_up(const float (&v)[kPerLane], uint32_t bits,
                                             uint32_t lane, float* queue) {
    const uint32_t mine = static_cast<uint32_t>(__popc(bits)), up_to = warp_inclusive(mine, lane);
    float* to = queue + (up_to - mine);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kPerLane / 2; ++i)
        if ((bits >> i & 1u) != 0) *to++ = v[kFrom + i];
    __syncwarp();
    return __shfl_sync(kAll, up_to, 31);
}

/// Grid: [CTAs a row, rows]. Rows with min-p alone get their chunks' weights anew and end here;
/// those with top-k or top-p get their histogram, and end here where few candidates are within
/// reach.
__global__ void __launch_bounds__(kWeighThreads, 3) weigh_kernel(const __grid_constant__ Args a) {
    static_assert(kBinsEach == 8);
    __shared__ Histogram histogram;
    __shared__ ShortList found;
    __shared__ union {
        uint64_t sorted[kShort];
        float queue[kScanWarps][kChunk / 2];
    } scratch;
    dev::launch_dependents();
    dev::wait_for_earlier();
    const uint32_t at = blockIdx.y, lane = threadIdx.x & 31;
    RowState& state = a.states[at];
    const Todo todo = state.todo;
    if (todo != Todo::kSums && todo != Todo::kHistogram) return;
    const Row& row = row_of(a, at);
    const float* logits = a.logits + static_cast<size_t>(at) * a.vocab;
    const size_t partial = static_cast<size_t>(at) * a.chunks;
    const float top = state.max, reach = state.reach, bins_per = state.bins_per,
                scale = state.scale, min_p = state.min_p;
    const bool penalties = state.penalties != 0, bins = todo == Todo::kHistogram;
    if (bins) histogram.clear();
    if (threadIdx.x == 0) found.count = 0;
    __syncthreads();
    uint32_t appended = 0;  // by this warp
#pragma unroll 1
    for (uint32_t chunk = blockIdx.x * kScanWarps + (threadIdx.x >> 5); chunk < a.chunks;
         chunk += gridDim.x * kScanWarps) {
        uint64_t sum = 0;
        if (distance(key_value(a.keys[partial + chunk]), top, scale) <= reach) {
            uint32_t bits = 0;
            {
                float v[kPerLane];
                load_chunk<Via::kOwnCache>(logits, a.vocab, chunk, lane, v);
                if (penalties) penalise_chunk(a, row, chunk, lane, v);
                bits = within_reach(v, top, scale, reach);
                const uint32_t hits = __reduce_add_sync(kAll, static_cast<uint32_t>(__popc(bits)));
                if (bins && hits > kDense) {
                    float* queue = scratch.queue[threadIdx.x >> 5];
#pragma unroll 1
                    for (int half = 0; half < 2; ++half) {
                        const uint32_t n = half == 0
                                               ? queue_up<0>(v, bits & 0xFFFFu, lane, queue)
                                               : queue_up<kPerLane / 2>(v, bits >> 16, lane, queue);
#pragma unroll 1
                        for (uint32_t first = 0; first < n; first += 32) {
                            const bool in = first + lane < n;
                            const float y = distance(in ? queue[first + lane] : top, top, scale);
                            histogram.add_warp(in, bin_of(y, bins_per), units_at(y), lane);
                        }
                    }
                    bits = 0;
                    if (lane == 0 && appended <= kShort)
                        atomicAdd(&found.count, kShort + 1);  // too many for the short list
                    appended = kShort + 1;
                }
            }
            // Those within reach are loaded again, one by one: mostly they are few.
#pragma unroll 1
            while (__any_sync(kAll, bits != 0)) {
                const bool in = bits != 0;
                const uint32_t id = id_of(chunk, lane, in ? __ffs(static_cast<int>(bits)) - 1 : 0);
                bits &= bits - 1;
                const float v = in ? load_one<Via::kOwnCache>(a, row, penalties, logits, id) : top;
                const float y = distance(v, top, scale), weight = weight_at(y);
                const uint64_t mass = units(weight);
                if (!bins) {
                    sum += in && weight >= min_p ? mass : 0;
                    continue;
                }
                histogram.add_warp(in, bin_of(y, bins_per), mass, lane);
                if (appended > kShort) continue;  // one too many tells that there are more
                const uint32_t mask = __ballot_sync(kAll, in),
                               n = static_cast<uint32_t>(__popc(mask));
                uint32_t to = 0;
                if (lane == 0) to = atomicAdd(&found.count, n);
                to = __shfl_sync(kAll, to, 0) +
                     static_cast<uint32_t>(__popc(mask & ((1u << lane) - 1u)));
                if (in && to < kShort) found.key[to] = make_key(ordered(v), id);
                appended += n;
            }
        }
        if (bins) continue;
        sum = warp_sum(sum);
        if (lane == 0) a.masses[partial + chunk] = sum;
    }
    __syncthreads();
    uint64_t* list = a.list + static_cast<size_t>(at) * kList;
    if (bins) {
        publish(found, state, list);
#pragma unroll 1
        for (uint32_t b = threadIdx.x; b < kBins; b += kWeighThreads)
            if (histogram.count[b] != 0) {
                atomicAdd(a.bin_counts + static_cast<size_t>(at) * kBins + b, histogram.count[b]);
                atomicAdd(reinterpret_cast<unsigned long long*>(
                              a.bin_masses + static_cast<size_t>(at) * kBins + b),
                          static_cast<unsigned long long>(histogram.mass(b)));
            }
    }
    if (!is_last_block(&state.tickets[1])) return;
    if (bins) {
        const uint32_t most = min(kShort, a.list_max),
                       n = sort_found(found, state, list, most, scratch.sorted);
        if (n > most) return end_bins(a, row, at);
        const Draw draw{top, scale, min_p, state.all, state.u};
        return finish_row(
            a, row, at, choose_listed<kWeighThreads, kShort>(row, draw, scratch.sorted, n, None{}));
    }
    Chunks chunks;
    chunks.per = (a.chunks + kScanThreads - 1) / kScanThreads;
    chunks.first = threadIdx.x * chunks.per;
#pragma unroll
    for (uint32_t i = 0; i < Chunks::kMost; ++i) {
        const bool mine = i < chunks.per && chunks.first + i < a.chunks;
        chunks.mass[i] = mine ? __ldcg(a.masses + partial + chunks.first + i) : 0;
        chunks.key[i] = mine ? a.keys[partial + chunks.first + i] : 0;
    }
    finish_row(a, row, at, draw_in_chunk(a, row, logits, draw_chunk(chunks, state.u), top, min_p));
}

/// Sorts the first `n` of kList keys, largest first; n is a power of two of at least 2.
__device__ inline void sort_list(uint64_t* list, uint32_t n) {
    for (uint32_t size = 2; size <= n; size <<= 1)
        for (uint32_t stride = size >> 1; stride > 0; stride >>= 1) {
            __syncthreads();
            for (uint32_t i = threadIdx.x; i < n / 2; i += kChooseThreads) {
                const uint32_t low = 2 * i - (i & (stride - 1)), high = low + stride;
                const uint64_t x = list[low], y = list[high];
                if ((x < y) == ((low & size) == 0)) {
                    list[low] = y;
                    list[high] = x;
                }
            }
        }
    __syncthreads();
}

}  // namespace baton::backend::cuda::sampling
