#pragma once

#include "backend/cuda/sampler_choose.cuh"

/// The first kernel: one look at every logit. It applies edits, finds each chunk's best and sums,
/// and ends greedy rows and draws from all; rows with top-k, top-p or min-p get the bounds that
/// keep the next kernels' work small.
namespace baton::backend::cuda::sampling {

constexpr uint32_t kScanThreads = 256;
constexpr uint32_t kScanWarps = kScanThreads / 32;

/// Applies the edits whose ids lie in [begin, end) and keeps what they replace.
__device__ inline void apply_edits(const Args& a, const Row& row, float* logits, uint32_t begin,
                                   uint32_t end) {
    const Edit* edits = edits_of(a);
    __syncthreads();  // raw logits have been read
    for (uint32_t e = threadIdx.x; e < row.edits; e += blockDim.x) {
        const Edit edit = edits[row.edit_first + e];
        const uint32_t id = static_cast<uint32_t>(edit.id);
        if (id < begin || id >= end) continue;
        const float raw = logits[id];
        a.raw_saved[row.edit_first + e] = raw;
        logits[id] = without_nan(__fadd_rn(without_nan(raw), edit.bias));
    }
    __syncthreads();
}

/// Puts raw values back into a lane's part of a chunk, where edits replaced them. The whole warp
/// calls.
__device__ inline void undo_edits(const Args& a, const Row& row, uint32_t chunk, uint32_t lane,
                                  float (&v)[kPerLane]) {
    const Edit* edits = edits_of(a);
    for (uint32_t first = 0; first < row.edits; first += 32) {
        const uint32_t e = first + lane;
        const uint32_t id =
            e < row.edits ? static_cast<uint32_t>(edits[row.edit_first + e].id) : kAll;
        const bool here = e < row.edits && id / kChunk == chunk;
        const float raw = here ? __ldcg(a.raw_saved + row.edit_first + e) : 0.0f;
        for (uint32_t mask = __ballot_sync(kAll, here); mask != 0; mask &= mask - 1) {
            const int source = __ffs(static_cast<int>(mask)) - 1;
            const uint32_t its_id = __shfl_sync(kAll, id, source);
            const float its_raw = without_nan(__shfl_sync(kAll, raw, source));
#pragma unroll
            for (int i = 0; i < kPerLane; ++i)
                if (id_of(chunk, lane, i) == its_id) v[i] = its_raw;
        }
    }
}

/// Appends the chunk's raw logits with keys of at least `bar`, at most `n` of them, best first, to
/// `found`.
__device__ inline void extract_top(const float (&v)[kPerLane], uint32_t chunk, uint32_t lane,
                                   uint64_t bar, uint32_t n, uint64_t* found, uint32_t* count) {
    uint32_t taken = 0;
    for (uint32_t k = 0; k < n; ++k) {
        uint64_t mine = 0;
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) {
            const uint64_t key = make_key(ordered(without_nan(v[i])), id_of(chunk, lane, i));
            if ((taken >> i & 1u) == 0 && key > mine) mine = key;
        }
        const uint32_t order = __reduce_max_sync(kAll, static_cast<uint32_t>(mine >> 32));
        const bool leads = static_cast<uint32_t>(mine >> 32) == order;
        const uint32_t low = __reduce_max_sync(kAll, leads ? static_cast<uint32_t>(mine) : 0u);
        const uint64_t best = (static_cast<uint64_t>(order) << 32) | low;
        if (best < bar) return;
        if (mine == best) {
            found[atomicAdd(count, 1u)] = best;
#pragma unroll
            for (int i = 0; i < kPerLane; ++i)
                if (id_of(chunk, lane, i) == key_id(best)) taken |= 1u << i;
        }
    }
}

/// The `row.top` largest raw logits and their logprobs. Only chunks among whose bests they can be
/// are looked at again.
__device__ __noinline__ void list_top(const Args& a, const Row& row, uint32_t at,
                                      const float* logits) {
    __shared__ uint64_t bests[kVocabMax / kChunk];
    __shared__ uint32_t chosen[kTopMax];
    __shared__ uint64_t found[kTopMax * kTopMax];
    __shared__ uint64_t bar;
    __shared__ uint32_t count;
    const uint32_t n = min(static_cast<uint32_t>(row.top), a.vocab);
    const uint32_t chunks = min(n, a.chunks);
    const uint64_t* keys = a.raw_keys + static_cast<size_t>(at) * a.chunks;
    for (uint32_t c = threadIdx.x; c < a.chunks; c += kScanThreads) bests[c] = __ldcg(keys + c);
    if (threadIdx.x == 0) count = 0;
    if (threadIdx.x == 0) bar = 0;
    __syncthreads();
    for (uint32_t c = threadIdx.x; c < a.chunks; c += kScanThreads) {
        uint32_t better = 0;
        for (uint32_t other = 0; other < a.chunks; ++other)
            better += bests[other] > bests[c] ? 1 : 0;
        if (better < chunks) chosen[better] = c;
        if (better + 1 == n) bar = bests[c];
    }
    __syncthreads();
    const uint32_t lane = threadIdx.x & 31;
    for (uint32_t k = threadIdx.x >> 5; k < chunks; k += kScanWarps) {
        float v[kPerLane];
        load_chunk<Via::kSharedCache>(logits, a.vocab, chosen[k], lane, v);
        if (row.edits != 0) undo_edits(a, row, chosen[k], lane, v);
        extract_top(v, chosen[k], lane, bar, min(n, a.vocab - chosen[k] * kChunk), found, &count);
    }
    __syncthreads();
    const RowState& state = a.states[at];
    const bool finite = isfinite(state.raw_max);
    Top& top = a.tops[result_of(a, at)];
    for (uint32_t i = threadIdx.x; i < count; i += kScanThreads) {
        uint32_t rank = 0;
        for (uint32_t j = 0; j < count; ++j) rank += found[j] > found[i] ? 1 : 0;
        if (rank >= n) continue;
        const float value = key_value(found[i]);
        top.id[rank] = static_cast<int32_t>(key_id(found[i]));
        top.logprob[rank] =
            !finite ? (value == state.raw_max && value > 0 ? 0.0f : kLogprobMin)
                    : fmaxf(static_cast<float>(static_cast<double>(value) - state.raw_log),
                            kLogprobMin);
    }
    if (threadIdx.x == 0) top.count = n;
    __syncthreads();
}

/// Largest raw logit and log of the sum of exp, for logprobs.
__device__ __noinline__ void sum_raw(const Args& a, uint32_t at) {
    const uint64_t* keys = a.raw_keys + static_cast<size_t>(at) * a.chunks;
    const float* sums = a.raw_sums + static_cast<size_t>(at) * a.chunks;
    uint64_t best = 0;
    for (uint32_t c = threadIdx.x; c < a.chunks; c += kScanThreads)
        best = max(best, __ldcg(keys + c));
    const float top = key_value(block_max(best));
    double sum = 0;
    if (isfinite(top))
        for (uint32_t c = threadIdx.x; c < a.chunks; c += kScanThreads) {
            const float value = key_value(__ldcg(keys + c));
            sum += static_cast<double>(__ldcg(sums + c)) *
                   static_cast<double>(weight_at(distance(value, top, 1.0f)));
        }
    sum = block_sum_double(sum);
    if (threadIdx.x == 0) {
        a.states[at].raw_max = top;
        a.states[at].raw_log = static_cast<double>(top) + log(sum);
    }
    __syncthreads();
}

/// What a thread of the last block holds of its chunks: consecutive ones, `per` a thread.
struct Chunks {
    static constexpr uint32_t kMost = kVocabMax / kChunk / kScanThreads;
    uint32_t per, first;
    uint64_t key[kMost];
    uint64_t mass[kMost];
};

/// The chunk and the unit in it that the row's draw hits, by the chunks' weights.
struct Hit {
    uint32_t chunk;
    uint64_t unit;
    uint64_t key;  ///< of the chunk's best
};
__device__ __noinline__ Hit draw_chunk(const Chunks& chunks, double u) {
    __shared__ Hit hit;
    uint64_t mine = 0;
#pragma unroll
    for (uint32_t i = 0; i < Chunks::kMost; ++i) mine += chunks.mass[i];
    const Prefix sum = block_exclusive(mine);
    const uint64_t unit = draw_unit(u, sum.total);
    if (threadIdx.x == 0) hit = {0, 0, chunks.key[0]};
    __syncthreads();
    if (sum.before <= unit && unit < sum.before + mine) {
        uint64_t before = sum.before;
#pragma unroll
        for (uint32_t i = 0; i < Chunks::kMost; ++i) {
            if (before <= unit && unit < before + chunks.mass[i])
                hit = {chunks.first + i, unit - before, chunks.key[i]};
            before += chunks.mass[i];
        }
    }
    __syncthreads();
    return hit;
}

/// The id that the unit hits in a chunk, in the order of ids. Weights below `bar` count for
/// nothing. Rounding may leave a crumb: then the last id that can be drawn.
__device__ __noinline__ uint32_t draw_in_chunk(const Args& a, const Row& row, const float* logits,
                                               const Hit& hit, float max, float bar) {
    static_assert(kScanThreads * 4 == kChunk);
    __shared__ uint32_t drawn;
    const uint32_t first = hit.chunk * kChunk + threadIdx.x * 4;
    uint64_t w[4], mine = 0;
    uint32_t last = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
        w[i] = 0;
        if (first + i < a.vocab) {
            const float y =
                distance(load_one<Via::kSharedCache>(a, row, row.penalties != 0, logits, first + i),
                         max, row.scale);
            const float weight = weight_at(y);
            if (y <= kReachMax && weight >= bar) w[i] = units(weight);
        }
        mine += w[i];
        if (w[i] != 0) last = first + i + 1;
    }
    if (threadIdx.x == 0) drawn = kAll;
    uint64_t before = block_exclusive(mine).before;
    if (before <= hit.unit && hit.unit < before + mine) {
        uint32_t at = first;
#pragma unroll
        for (uint32_t i = 0; i < 3; ++i) {
            before += w[i];
            if (hit.unit >= before) at = first + i + 1;
        }
        drawn = at;
    }
    __syncthreads();
    if (drawn != kAll) return drawn;
    const uint32_t crumb = static_cast<uint32_t>(block_max(last));
    return crumb != 0 ? crumb - 1 : key_id(hit.key);
}

/// How far from the largest logit a row's candidates can lie, and in how many chunks, where those
/// are few.
struct Reach {
    float distance;
    uint32_t few;  ///< 0: many
};

/// Bounds what top-k, top-p and min-p can keep. The chunks' bests bound it from below: as many of
/// them as top-k keeps, or as weigh what top-p wants, lie before whatever is left out. `first` gets
/// the chunks with the largest bests.
__device__ __noinline__ Reach reach_of(const Args& a, const Row& row, const Chunks& chunks,
                                       float max, uint64_t all, uint32_t* first) {
    __shared__ uint64_t bests[kVocabMax / kChunk];
    __shared__ float distances[kEarly];
    __shared__ Reach reach;
#pragma unroll
    for (uint32_t i = 0; i < Chunks::kMost; ++i)
        if (i < chunks.per && chunks.first + i < a.chunks) bests[chunks.first + i] = chunks.key[i];
    if (threadIdx.x < kEarly) distances[threadIdx.x] = kReachMax;
    if (threadIdx.x == 0) reach = {kReachMax, 0};
    __syncthreads();
    for (uint32_t c = threadIdx.x; c < a.chunks; c += kScanThreads) {
        uint32_t better = 0;
#pragma unroll 8
        for (uint32_t other = 0; other < a.chunks; ++other)
            better += bests[other] > bests[c] ? 1 : 0;
        const float y = distance(key_value(bests[c]), max, row.scale);
        if (better < kEarly) {
            first[better] = c;
            distances[better] = y;
        }
        if (better + 1 == row.top_k) reach = {y, row.top_k <= kEarly ? row.top_k : 0};
    }
    __syncthreads();
    if (row.top_k != 0) return {fminf(reach.distance, kReachMax), reach.few};
    if (row.top_p < 1.0f) {
        const uint64_t want = top_p_units(row, all);
        const uint64_t mine =
            threadIdx.x < min(kEarly, a.chunks) ? units_at(distances[threadIdx.x]) : 0;
        const uint64_t before = block_exclusive(mine).before;
        if (before < want && want <= before + mine)
            reach = {distances[threadIdx.x], threadIdx.x + 1};
        __syncthreads();
        if (reach.few == 0 && threadIdx.x == 0) {
            // What lies beyond weighs less than top-p leaves out, even if it were the whole
            // vocabulary.
            const float spare =
                0.9f * (1.0f - fmaxf(row.top_p, 0.0f)) * static_cast<float>(all) * 0x1.0p-42f;
            reach.distance = logf(static_cast<float>(a.vocab) / spare) + 0.01f;
        }
        __syncthreads();
    }
    float r = reach.distance;
    if (row.min_p > 0.0f) r = fminf(r, 0.01f - logf(row.min_p));
    return {fminf(fmaxf(r, 0.0f), kReachMax), reach.few};
}

/// The token of a row that can keep nothing but what lies in the `first` few chunks. kAll where
/// more candidates are within reach than are put in order at once. The last block of a row calls.
__device__ __noinline__ uint32_t choose_early(const Args& a, const Row& row, const float* logits,
                                              const uint32_t* first, const Reach& reach,
                                              const Draw& draw) {
    __shared__ ShortList found;
    __shared__ uint64_t sorted[kShort];
    const uint32_t lane = threadIdx.x & 31;
    if (threadIdx.x == 0) found.count = 0;
    __syncthreads();
#pragma unroll 1
    for (uint32_t k = threadIdx.x >> 5; k < reach.few; k += kScanWarps) {
        const uint32_t chunk = first[k];
        float v[kPerLane];
        load_chunk<Via::kSharedCache>(logits, a.vocab, chunk, lane, v);
        if (row.penalties != 0) penalise_chunk(a, row, chunk, lane, v);
#pragma unroll 1
        for (uint32_t bits = within_reach(v, draw.max, draw.scale, reach.distance); bits != 0;
             bits &= bits - 1) {
            const int at = __ffs(static_cast<int>(bits)) - 1;
            float one = v[0];
#pragma unroll
            for (int i = 1; i < kPerLane; ++i) one = i == at ? v[i] : one;
            const uint32_t to = atomicAdd(&found.count, 1u);
            if (to < kShort) found.key[to] = make_key(ordered(one), id_of(chunk, lane, at));
        }
    }
    __syncthreads();
    const uint32_t n = found.count;
    if (n > min(kShort, a.list_max)) return kAll;
    rank_found(found, n, sorted);
    return choose_listed<kScanThreads, kShort>(row, draw, sorted, n, None{});
}

/// Ends the row or prepares what is left to do. The last block of a row calls.
__device__ __forceinline__ void end_scan(const Args& a, const Row& row, uint32_t at, float* logits,
                                         bool sums) {
    const uint64_t* keys = a.keys + static_cast<size_t>(at) * a.chunks;
    const float* chunk_sums = a.sums + static_cast<size_t>(at) * a.chunks;
    Chunks chunks;
    chunks.per = (a.chunks + kScanThreads - 1) / kScanThreads;
    chunks.first = threadIdx.x * chunks.per;
    float sum[Chunks::kMost];
    uint64_t best = 0;
#pragma unroll
    for (uint32_t i = 0; i < Chunks::kMost; ++i) {
        const uint32_t c = chunks.first + i;
        const bool mine = i < chunks.per && c < a.chunks;
        chunks.key[i] = mine ? __ldcg(keys + c) : 0;
        sum[i] = mine && sums ? __ldcg(chunk_sums + c) : 0.0f;
        best = max(best, chunks.key[i]);
    }
    const double u = row.mode == Mode::kGreedy
                         ? 0.0
                         : uniform(row.seed, row.position);  // while the keys are on their way
    best = block_max(best);
    const float top = key_value(best);
    if (row.top >= 0) {
        const bool known = a.states[at].raw_known != 0;
        __syncthreads();
        if (!known) sum_raw(a, at);
        else if (threadIdx.x == 0) a.states[at].raw_known = 0;
        __syncthreads();
    }
    if (row.top > 0) list_top(a, row, at, logits);
    uint64_t all = 0;
#pragma unroll
    for (uint32_t i = 0; i < Chunks::kMost; ++i) {
        const float y = distance(key_value(chunks.key[i]), top, row.scale);
        chunks.mass[i] = sums && sum[i] > 0.0f && y <= 87.0f
                             ? __double2ull_rn(static_cast<double>(sum[i]) *
                                               static_cast<double>(weight_at(y)) * 0x1.0p42)
                             : 0;
        all += chunks.mass[i];
    }
    uint32_t id = key_id(best);
    // An infinite maximum has no distribution to draw from.
    if (row.mode != Mode::kGreedy && isfinite(top)) {
        if (row.mode != Mode::kDraw) {
            all = block_sum(all);
            __shared__ uint32_t first[kEarly];
            const Reach reach = reach_of(a, row, chunks, top, all, first);
            if (reach.few != 0 && row.mode == Mode::kOrdered) {
                id = choose_early(a, row, logits, first, reach,
                                  Draw{top, row.scale, row.min_p, all, u});
                if (id != kAll) return finish_row(a, row, at, id);
            }
            if (threadIdx.x != 0) return;
            RowState& state = a.states[at];
            state.max = top;
            state.all = all;
            state.u = u;
            state.reach = reach.distance;
            state.bins_per = static_cast<float>(kBins) / fmaxf(reach.distance, 1e-6f);
            state.scale = row.scale;
            state.min_p = row.min_p;
            state.penalties = row.penalties;
            state.todo = row.mode == Mode::kBar ? Todo::kSums : Todo::kHistogram;
            return;
        }
        id = draw_in_chunk(a, row, logits, draw_chunk(chunks, u), top, 0.0f);
    }
    finish_row(a, row, at, id);
}

/// Grid: [CTAs a row, rows]. Each warp looks at one chunk.
__global__ void __launch_bounds__(kScanThreads, 4)
    scan_kernel(const __grid_constant__ Args a) {
    dev::launch_dependents();
    dev::wait_for_earlier();
    const uint32_t at = blockIdx.y, lane = threadIdx.x & 31;
    const uint32_t chunk = blockIdx.x * kScanWarps + (threadIdx.x >> 5);
    if (a.ends && at == 0 && blockIdx.x == 0 && threadIdx.x == 0) count_step(a);
    float* logits = a.logits + static_cast<size_t>(at) * a.vocab;
    const Row& row = row_of(a, at);
    // Logits and settings are on their way at the same time, whatever the settings are.
    const uint4 header = load_now(a.upload), first = load_now(&row), second = load_now(&row.scale);
    float v[kPerLane];
    if (chunk < a.chunks) load_chunk<Via::kSharedCache>(logits, a.vocab, chunk, lane, v);
    if (at >= header.x) {
        if (blockIdx.x == 0 && threadIdx.x == 0) a.states[at].todo = Todo::kNothing;
        return;
    }
    const Mode mode = static_cast<Mode>(first.x);
    const bool logprobs = static_cast<int>(first.y) >= 0;
    const uint32_t edits = first.z, penalties = first.w;
    const float scale = __uint_as_float(second.x);
    const size_t partial = static_cast<size_t>(at) * a.chunks + chunk;
    if (mode == Mode::kOrdered)
        for (uint32_t b = blockIdx.x * kScanThreads + threadIdx.x; b < kBins;
             b += gridDim.x * kScanThreads) {
            a.bin_counts[static_cast<size_t>(at) * kBins + b] = 0;
            a.bin_masses[static_cast<size_t>(at) * kBins + b] = 0;
        }
    const bool sums = mode == Mode::kDraw || (mode == Mode::kOrdered && second.y == 0);
    // First the raw logits where logprobs are wanted, then the adjusted ones.
#pragma unroll 1
    for (bool raw = logprobs;; raw = false) {
        if (!raw && edits != 0) {
            apply_edits(a, row, logits, blockIdx.x * kScanWarps * kChunk,
                        (blockIdx.x + 1) * kScanWarps * kChunk);
            if (chunk < a.chunks) load_chunk<Via::kSharedCache>(logits, a.vocab, chunk, lane, v);
        }
        if (chunk < a.chunks) {
            if (!raw && penalties != 0) penalise_chunk(a, row, chunk, lane, v);
            const uint64_t key = best_of(v, chunk, lane);
            const float sum = raw || sums ? sum_of(v, key_value(key), raw ? 1.0f : scale) : 0.0f;
            if (lane == 0) {
                (raw ? a.raw_keys : a.keys)[partial] = key;
                if (raw || sums) (raw ? a.raw_sums : a.sums)[partial] = sum;
            }
        }
        if (!raw) break;
    }
    if (is_last_block(&a.states[at].tickets[0])) end_scan(a, row, at, logits, sums);
}

}  // namespace baton::backend::cuda::sampling
