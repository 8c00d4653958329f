#pragma once

#include <cstdint>

/// The line of tiles (here the slices of attention_decode_line.cuh) that decode attention deals to its thread blocks: all contexts,
/// one kv head after the other, sequence after sequence.
namespace baton::backend::cuda {

/// A place on the line of tiles.
struct DecodeWalk {
    int sequence;
    int head;    ///< kv head
    int tile;    ///< of the context
    int tiles;   ///< the context has
    int length;
};

/// What shares are worked out from.
struct DecodeLengths {
    const int32_t* kv_len;
    const int32_t* blocks;
    int blocks_stride;
    int block_shift;
    int sequences;
    int kv_heads;
    int unread;  ///< tokens at a context's end that are not read from memory: the new one, where the kernel appends it itself
};

/// Even division of `total` tiles among `grid` blocks: the first `more` take one more than `each`.
struct DecodeShares {
    int each = 1;
    int more = 0;
    DecodeShares() = default;
    __device__ DecodeShares(int total, int grid) : each(total / grid), more(total - total / grid * grid) {}
    __device__ int begin(int block) const { return block * each + min(block, more); }
    __device__ int owner(int tile) const {
        const int edge = more * (each + 1);
        return tile < edge ? tile / (each + 1) : more + (tile - edge) / each;
    }
};

/// Lengths and the running sum of tiles of all sequences into shared memory.
template <int THREADS, int TILE>
__device__ __forceinline__ void scan_lengths(const int32_t* kv_len, int sequences, int* lengths, int* before, int* scratch) {
    const int t = static_cast<int>(threadIdx.x);
    const int lane = t & 31;
    int carry = 0;
#pragma unroll 1
    for (int base = 0; base < sequences; base += THREADS) {
        const int s = base + t;
        const int length = s < sequences ? max(0, __ldg(kv_len + s)) : 0;
        int sum = (length + TILE - 1) / TILE;
#pragma unroll
        for (int o = 1; o < 32; o <<= 1) {
            const int other = __shfl_up_sync(0xffffffffu, sum, o);
            sum += lane >= o ? other : 0;
        }
        if (lane == 31)
            scratch[t / 32] = sum;
        __syncthreads();
        int total = 0;
#pragma unroll
        for (int w = 0; w < THREADS / 32; ++w) {
            if (w < t / 32)
                sum += scratch[w];
            total += scratch[w];
        }
        if (s < sequences) {
            lengths[s] = length;
            before[s + 1] = carry + sum;
        }
        carry += total;
        __syncthreads();
    }
    if (t == 0)
        before[0] = 0;
    __syncthreads();
}

template <int TILE>
__device__ __forceinline__ DecodeWalk walk_to(int tile, const int* lengths, const int* before, int sequences, int kv_heads) {
    int low = 0;
    int high = sequences;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (before[middle] * kv_heads <= tile)
            low = middle;
        else
            high = middle;
    }
    DecodeWalk w;
    w.sequence = low;
    w.length = lengths[low];
    w.tiles = (w.length + TILE - 1) / TILE;
    const int rest = tile - before[low] * kv_heads;
    w.head = rest / w.tiles;
    w.tile = rest - w.head * w.tiles;
    return w;
}

template <int TILE>
__device__ __forceinline__ void step(DecodeWalk& w, const int* lengths, int sequences, int kv_heads) {
    if (++w.tile < w.tiles)
        return;
    w.tile = 0;
    if (++w.head < kv_heads)
        return;
    w.head = 0;
    do
        ++w.sequence;
    while (w.sequence < sequences && lengths[w.sequence] == 0);
    w.length = w.sequence < sequences ? lengths[w.sequence] : 0;
    w.tiles = (w.length + TILE - 1) / TILE;
}

/// The context after w's, at its first tile; sequence = sequences at the end.
template <int TILE>
__device__ __forceinline__ DecodeWalk next_context(DecodeWalk w, const int* lengths, int sequences, int kv_heads) {
    w.tile = w.tiles - 1;
    step<TILE>(w, lengths, sequences, kv_heads);
    return w;
}

/// A lane's place for all.
__device__ __forceinline__ DecodeWalk of_lane(const DecodeWalk& w, int lane) {
    return {__shfl_sync(0xffffffffu, w.sequence, lane), __shfl_sync(0xffffffffu, w.head, lane), __shfl_sync(0xffffffffu, w.tile, lane),
            __shfl_sync(0xffffffffu, w.tiles, lane), __shfl_sync(0xffffffffu, w.length, lane)};
}

/// A block's share of the line: slices [begin, begin + count), in the order tail, then the rest.
struct LineShare {
    int begin;
    int count;
    int tail;          ///< slices of its last context
    DecodeWalk last;   ///< the first of them
    DecodeWalk front;  ///< where the share begins
};
/// Whole warps.
template <int SLICE>
__device__ __forceinline__ LineShare share_of(const DecodeShares& shares, const int* lengths, const int* before, const DecodeLengths& p) {
    LineShare s{};
    s.begin = shares.begin(static_cast<int>(blockIdx.x));
    s.count = shares.begin(static_cast<int>(blockIdx.x) + 1) - s.begin;
    if (s.count == 0)
        return s;
    const bool first = (threadIdx.x & 31) == 0;
    const DecodeWalk edge = walk_to<SLICE>(first ? s.begin : s.begin + s.count - 1, lengths, before, p.sequences, p.kv_heads);
    s.front = of_lane(edge, 0);
    s.last = of_lane(edge, 1);
    s.tail = min(s.count, s.last.tile + 1);
    s.last.tile -= s.tail - 1;
    return s;
}

/// A slice as it is read: block numbers, and head · 2^16 + place in its block · 2^8 + rows in memory.
template <int SLICE>
struct LineSlice {
    static constexpr int kLookups = SLICE / 16;
    int ids[kLookups];
    int facts;

    /// Slice r of a share, in its order; nothing behind its end.
    __device__ __forceinline__ void find(int r, const LineShare& share, const int* lengths, const int* before, const DecodeLengths& p) {
#pragma unroll
        for (int j = 0; j < kLookups; ++j)
            ids[j] = 0;
        facts = 0;
        if (r >= share.count)
            return;
        const DecodeWalk w =
            walk_to<SLICE>(share.begin + (r < share.tail ? share.count - share.tail + r : r - share.tail), lengths, before, p.sequences, p.kv_heads);
        const int first = w.tile * SLICE;
        const int rows = min(w.length - p.unread - first, SLICE);
        const int32_t* table = p.blocks + static_cast<int64_t>(w.sequence) * p.blocks_stride;
#pragma unroll
        for (int j = 0; j < kLookups; ++j)
            ids[j] = rows > 16 * j ? __ldg(table + ((first + 16 * j) >> p.block_shift)) : 0;
        facts = (w.head << 16) | ((first & ((1 << p.block_shift) - 1)) << 8) | max(rows, 0);
    }
};

/// What a plan holds of a block: its share, and of each thread the first slice that it looks up.
template <int THREADS, int SLICE>
struct LinePlan {
    static constexpr int kHead = 16;  ///< ints
    static_assert(sizeof(LineShare) <= kHead * sizeof(int));
    static constexpr int kInts = kHead + THREADS * (SLICE / 16 + 1);

    static __device__ __forceinline__ void write(int* plan, const LineShare& share, const LineSlice<SLICE>& slice) {
        int* mine = plan + kHead + threadIdx.x;
#pragma unroll
        for (int j = 0; j < SLICE / 16; ++j)
            mine[j * THREADS] = slice.ids[j];
        mine[SLICE / 16 * THREADS] = slice.facts;
        if (threadIdx.x == 0)
            *reinterpret_cast<LineShare*>(plan) = share;
    }
    static __device__ __forceinline__ void read(const int* plan, LineShare& share, LineSlice<SLICE>& slice) {
        const int* mine = plan + kHead + threadIdx.x;
#pragma unroll
        for (int j = 0; j < SLICE / 16; ++j)
            slice.ids[j] = __ldg(mine + j * THREADS);
        slice.facts = __ldg(mine + SLICE / 16 * THREADS);
        int4 words[kHead / 4];
#pragma unroll
        for (int i = 0; i < kHead / 4; ++i)
            words[i] = __ldg(reinterpret_cast<const int4*>(plan) + i);
        const auto walk = [](int a, int b, int c, int d, int e) { return DecodeWalk{a, b, c, d, e}; };
        share.begin = words[0].x;
        share.count = words[0].y;
        share.tail = words[0].z;
        share.last = walk(words[0].w, words[1].x, words[1].y, words[1].z, words[1].w);
        share.front = walk(words[2].x, words[2].y, words[2].z, words[2].w, words[3].x);
    }
};

}  // namespace baton::backend::cuda
