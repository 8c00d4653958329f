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

/// Even division of `total` tiles among `grid` blocks: the first `more` take one more than `each`.
struct DecodeShares {
    int each;
    int more;
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

}  // namespace baton::backend::cuda
