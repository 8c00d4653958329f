#pragma once

#include <cstdint>

#include "backend/cuda/attention_device.cuh"

/// What decode attention does with one slice of a context; part of attention_decode.cuh. Products run on the tensor cores, turned so
/// that the heads of the group are the 8 columns.
namespace baton::backend::cuda {

/// The state of a warp's part of one context. A lane holds columns 2 · (lane % 4) and the next of each tile: two heads.
template <int D>
struct DecodeState {
    float o[D / 16][4];
    float top[2];  ///< largest score · scale_log2 of each head
    float sum[2];  ///< this lane's share
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < D / 16; ++n)
#pragma unroll
            for (int c = 0; c < 4; ++c)
                o[n][c] = 0.0f;
        top[0] = top[1] = dev::minus_infinity();
        sum[0] = sum[1] = 0.0f;
    }
    __device__ __forceinline__ void scale(const float (&shrink)[2]) {
#pragma unroll
        for (int n = 0; n < D / 16; ++n)
#pragma unroll
            for (int c = 0; c < 4; ++c)
                o[n][c] *= shrink[c & 1];
    }
};

/// SLICE tokens that lie in a stage of shared memory: K, then V, a token a row.
template <Elem E, int D, int SLICE>
struct DecodeSlice {
    using N = dev::Number<E>;
    using T = typename N::Type;
    static constexpr int kRowBytes = D * 2;
    static constexpr int kTiles = SLICE / 16;

    int lane;
    uint32_t k_at;
    uint32_t v_at;
    float s[kTiles][4];  ///< scores, then weights

    /// Word (16 bytes) `piece` of row `row` of K, or V, of a stage.
    static __device__ __forceinline__ uint32_t place_of(int row, int piece) {
        return static_cast<uint32_t>(row * kRowBytes + ((piece ^ (row & 7)) << 4));
    }
    /// Of sixteen tokens t and sixteen columns n.
    static __device__ __forceinline__ uint32_t tile_at(uint32_t from, int t, int n) {
        return (from + static_cast<uint32_t>(t * 16 * kRowBytes)) ^ static_cast<uint32_t>(n * 32);
    }
    __device__ __forceinline__ DecodeSlice(uint32_t stage, int of_lane)
        : lane(of_lane), k_at(stage + place_of((of_lane & 7) + ((of_lane >> 3) & 1) * 8, of_lane >> 4)),
          v_at(stage + SLICE * kRowBytes + place_of((of_lane & 7) + (of_lane >> 4) * 8, (of_lane >> 3) & 1)) {}

    /// Weights of the first `tokens` of the slice, at least one, and into the state's largest score and sum; its outputs are to be
    /// scaled by `shrink`.
    __device__ __forceinline__ void weigh(DecodeState<D>& a, float (&shrink)[2], const uint32_t (&q)[D / 16][2], int tokens, float scale_log2) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
            float part[2][4] = {};  // two chains of products take half the time of one
#pragma unroll
            for (int kk = 0; kk < D / 16; ++kk) {
                uint32_t k[4];
                dev::load_matrices(k, tile_at(k_at, t, kk));
                dev::mma<T>(part[kk & 1], k, q[kk][0], q[kk][1]);
            }
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const bool seen = t * 16 + (c >> 1) * 8 + lane / 4 < tokens;
                s[t][c] = seen ? (part[0][c] + part[1][c]) * scale_log2 : dev::minus_infinity();
            }
        }
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            float high = fmaxf(s[0][h], s[0][2 + h]);
#pragma unroll
            for (int t = 1; t < kTiles; ++t)
                high = fmaxf(high, fmaxf(s[t][h], s[t][2 + h]));
            high = fmaxf(a.top[h], dev::column_max(high));
            shrink[h] = dev::exp2_fast(a.top[h] - high);
            a.top[h] = high;
            float sum = 0;
#pragma unroll
            for (int t = 0; t < kTiles; ++t) {
                s[t][h] = dev::exp2_fast(s[t][h] - high);
                s[t][2 + h] = dev::exp2_fast(s[t][2 + h] - high);
                sum += s[t][h] + s[t][2 + h];
            }
            a.sum[h] = a.sum[h] * shrink[h] + sum;
        }
    }
    /// Adds the slice's values by their weights.
    __device__ __forceinline__ void add_values(DecodeState<D>& a) const {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
            const uint32_t w0 = dev::transpose_matrix(N::pack(s[t][0], s[t][1]));
            const uint32_t w1 = dev::transpose_matrix(N::pack(s[t][2], s[t][3]));
#pragma unroll
            for (int n = 0; n < D / 16; ++n) {
                uint32_t v[4];
                dev::load_matrices_transposed(v, tile_at(v_at, t, n));
                dev::mma<T>(a.o[n], v, w0, w1);
            }
        }
    }
};

}  // namespace baton::backend::cuda
