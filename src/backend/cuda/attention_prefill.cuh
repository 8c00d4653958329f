#pragma once

#include <cstdint>

#include "backend/cuda/attention.hpp"
#include "backend/cuda/attention_device.cuh"

/// Paged prefill attention for any GPU with mma.sync and cp.async (sm_80 and later).
///
/// A thread block takes kRows consecutive rows of the matrix [rows · group, head_dim] that one sequence's queries of one
/// kv head make up (row r, head g of the group → r · group + g), so that a few tokens fill the tensor cores' tiles too, and
/// walks the context in tiles of kTokens from position 0. Each warp owns 16 · MT of the rows and keeps their outputs in
/// registers. Whatever the chunk, batch or WARPS and MT are, a row sees the same tiles in the same order through the same
/// instructions; tiles beyond its last position change nothing (their weights are exactly 0, the rescaling exactly 1): so
/// its bits depend on its own sequence alone.
namespace baton::backend::cuda {

template <Elem E>
struct PrefillParams {
    using T = typename dev::Number<E>::Type;
    const T* q;
    const T* k;
    const T* v;
    T* out;
    int64_t block_stride;
    const int32_t* kv_len;
    const int32_t* blocks;
    const int32_t* row_begin;
    int blocks_stride;
    int block_shift;
    int sequences;
    int heads;
    int kv_heads;
    int group;
    float scale_log2;  ///< scale · log2(e)
    bool last_only;    ///< a sequence's last row is all there is to do of it
};

/// One thread block's part of the work.
struct PrefillTile {
    int sequence = -1;
    int tile = 0;   ///< of the sequence's rows · group
    int row0 = 0;   ///< first row of the sequence
    int rows = 0;
};

/// Finds tile `rank` of all sequences' tiles of `tile_rows` rows. Each warp looks by itself. The last tiles of a sequence
/// have the longest contexts and come first.
template <Elem E>
__device__ __forceinline__ PrefillTile find_tile(const PrefillParams<E>& p, int tile_rows, int rank) {
    const int lane = static_cast<int>(threadIdx.x) & 31;
    int before = 0;
    for (int base = 0; base < p.sequences; base += 32) {
        const int s = base + lane;
        int begin = s < p.sequences ? __ldg(p.row_begin + s) : 0;
        int rows = s < p.sequences ? __ldg(p.row_begin + s + 1) - begin : 0;
        if (p.last_only && rows > 1) {
            begin += rows - 1;
            rows = 1;
        }
        const int tiles = (rows * p.group + tile_rows - 1) / tile_rows;
        int sum = tiles;
#pragma unroll
        for (int o = 1; o < 32; o <<= 1) {
            const int other = __shfl_up_sync(0xffffffffu, sum, o);
            sum += lane >= o ? other : 0;
        }
        const unsigned past = __ballot_sync(0xffffffffu, before + sum > rank);
        if (past != 0) {
            const int owner = __ffs(static_cast<int>(past)) - 1;
            PrefillTile found;
            found.sequence = base + owner;
            found.row0 = __shfl_sync(0xffffffffu, begin, owner);
            found.rows = __shfl_sync(0xffffffffu, rows, owner);
            const int end = before + __shfl_sync(0xffffffffu, sum, owner);
            found.tile = end - 1 - rank;
            return found;
        }
        before += __shfl_sync(0xffffffffu, sum, 31);
    }
    return {};
}

/// Sizes of a variant. Rows of shared tiles are head_dim numbers; 16-byte piece c of row r lies at c ^ (r & 7).
template <int D, int WARPS, int MT, int TOKENS>
struct PrefillShape {
    static constexpr int kThreads = WARPS * 32;
    static constexpr int kRows = WARPS * 16 * MT;
    static constexpr int kRowBytes = D * 2;
    static constexpr int kPieces = D / 8;
    static constexpr int kQBytes = kRows * kRowBytes;
    static constexpr int kTileBytes = TOKENS * kRowBytes;
    static constexpr int kStages = 2;
    static constexpr size_t kShared = kQBytes + static_cast<size_t>(kStages) * 2 * kTileBytes;
    static constexpr int kLookups = TOKENS / 16;  ///< block numbers of a tile: one for each 16 tokens
};

/// Writes zeros for a sequence without context.
template <Elem E, int D, int ROWS, int THREADS>
__device__ __forceinline__ void write_zero_rows(const PrefillParams<E>& p, const PrefillTile& t, int kv_head, int thread) {
    for (int i = thread; i < ROWS * (D / 8); i += THREADS) {
        const int packed = t.tile * ROWS + i / (D / 8);
        const int row = packed / p.group;
        if (row >= t.rows)
            continue;
        const int head = kv_head * p.group + packed - row * p.group;
        auto* to = p.out + (static_cast<int64_t>(t.row0 + row) * p.heads + head) * D + (i % (D / 8)) * 8;
        *reinterpret_cast<uint4*>(to) = make_uint4(0, 0, 0, 0);
    }
}

/// Numbers of the blocks that hold the next tile, 16 tokens each; -1 beyond the context.
template <int LOOKUPS>
__device__ __forceinline__ void look_up(int (&ids)[LOOKUPS], const int32_t* table, int block_shift, int token0, int length) {
#pragma unroll
    for (int j = 0; j < LOOKUPS; ++j) {
        const int token = token0 + 16 * j;
        ids[j] = token < length ? __ldg(table + (token >> block_shift)) : -1;
    }
}

/// Starts the copy of one tile of K or V; tokens at `length` and beyond become zero.
template <Elem E, int D, int THREADS, int TOKENS>
__device__ __forceinline__ void fetch_tile(uint32_t to, const typename dev::Number<E>::Type* pages, const int (&ids)[TOKENS / 16],
                                           int64_t block_stride, int block_mask, int head_offset, int token0, int length) {
    constexpr int kPieces = D / 8;
    constexpr int kStep = THREADS / kPieces;  // rows that one pass of all threads copies
    static_assert(kStep <= 16 && 16 % kStep == 0);
    const int piece = static_cast<int>(threadIdx.x) % kPieces;
    const int row0 = static_cast<int>(threadIdx.x) / kPieces;
#pragma unroll
    for (int j = 0; j < TOKENS / 16; ++j) {
        const int first = token0 + 16 * j;
        const auto* page = pages + static_cast<int64_t>(ids[j] < 0 ? 0 : ids[j]) * block_stride + head_offset +
                           (first & block_mask) * D + piece * 8;
#pragma unroll
        for (int i = 0; i < 16; i += kStep) {
            const int row = i + row0;
            const uint32_t place = static_cast<uint32_t>((16 * j + row) * (D * 2) + ((piece ^ (row & 7)) << 4));
            dev::copy16_of_line(to + place, page + row * D, first + row < length);
        }
    }
}

template <Elem E, int D, int WARPS, int MT, int TOKENS>
__global__ void __launch_bounds__(WARPS * 32, WARPS >= 8 ? 1 : 2) prefill_kernel(PrefillParams<E> p) {
    using N = dev::Number<E>;
    using T = typename N::Type;
    using Shape = PrefillShape<D, WARPS, MT, TOKENS>;
    constexpr int kThreads = Shape::kThreads;
    extern __shared__ __align__(1024) unsigned char shared[];
    dev::launch_dependents();
    dev::wait_for_earlier();

    const int kv_head = static_cast<int>(blockIdx.x) % p.kv_heads;
    const PrefillTile t = find_tile(p, Shape::kRows, static_cast<int>(blockIdx.x) / p.kv_heads);
    if (t.sequence < 0)
        return;
    const int length = __ldg(p.kv_len + t.sequence);
    if (length <= 0) {
        write_zero_rows<E, D, Shape::kRows, kThreads>(p, t, kv_head, static_cast<int>(threadIdx.x));
        return;
    }
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const uint32_t sq = dev::shared_address(shared);
    const uint32_t skv = sq + Shape::kQBytes;

    // Queries. Rows past the end become zero and are never written.
    for (int i = static_cast<int>(threadIdx.x); i < Shape::kRows * Shape::kPieces; i += kThreads) {
        const int m = i / Shape::kPieces;
        const int piece = i % Shape::kPieces;
        const int packed = t.tile * Shape::kRows + m;
        const int row = packed / p.group;
        const bool there = row < t.rows;
        const int head = kv_head * p.group + packed - row * p.group;
        const auto* from = p.q + (static_cast<int64_t>(t.row0 + (there ? row : 0)) * p.heads + head) * D + piece * 8;
        dev::copy16_of_line(sq + static_cast<uint32_t>(m * Shape::kRowBytes + ((piece ^ (m & 7)) << 4)), from, there);
    }

    // Positions a row sees end at its limit; the tiles before `whole` need no mask.
    const int past = length - t.rows + 1;
    const int first_row = t.tile * Shape::kRows / p.group;
    const int last_row = min(t.rows - 1, (t.tile * Shape::kRows + Shape::kRows - 1) / p.group);
    const int tiles = (max(1, past + last_row) + TOKENS - 1) / TOKENS;
    const int whole = max(1, past + first_row) / TOKENS;
    const int m0 = warp * 16 * MT;
    const bool active = t.tile * Shape::kRows + m0 < t.rows * p.group;
    const int32_t* table = p.blocks + static_cast<int64_t>(t.sequence) * p.blocks_stride;
    const int block_mask = (1 << p.block_shift) - 1;
    const int head_offset = (kv_head << p.block_shift) * D;
    int ids[Shape::kLookups];
    look_up(ids, table, p.block_shift, 0, length);
    auto fetch = [&](int tile) {
        const uint32_t to = skv + static_cast<uint32_t>((tile & 1) * 2 * Shape::kTileBytes);
        fetch_tile<E, D, kThreads, TOKENS>(to, p.k, ids, p.block_stride, block_mask, head_offset, tile * TOKENS, length);
        fetch_tile<E, D, kThreads, TOKENS>(to + Shape::kTileBytes, p.v, ids, p.block_stride, block_mask, head_offset,
                                           tile * TOKENS, length);
        look_up(ids, table, p.block_shift, (tile + 1) * TOKENS, length);
    };
    fetch(0);
    dev::copy_commit();

    float o[MT][D / 8][4];
    float top[MT][2];
    float sum[MT][2];
#pragma unroll
    for (int mt = 0; mt < MT; ++mt) {
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
#pragma unroll
            for (int c = 0; c < 4; ++c)
                o[mt][n][c] = 0.0f;
        top[mt][0] = top[mt][1] = dev::minus_infinity();
        sum[mt][0] = sum[mt][1] = 0.0f;
    }

    // Places in shared memory that this lane reads for ldmatrix; the piece is turned by exclusive-or afterwards.
    const int turn = lane & 7;
    const uint32_t q_at = sq + static_cast<uint32_t>((m0 + turn + ((lane >> 3) & 1) * 8) * Shape::kRowBytes +
                                                     (((lane >> 4) ^ turn) << 4));
    const uint32_t k_at = static_cast<uint32_t>((turn + (lane >> 4) * 8) * Shape::kRowBytes + ((((lane >> 3) & 1) ^ turn) << 4));
    const uint32_t v_at = static_cast<uint32_t>((turn + ((lane >> 3) & 1) * 8) * Shape::kRowBytes + (((lane >> 4) ^ turn) << 4));

    for (int tile = 0; tile < tiles; ++tile) {
        dev::copy_wait<0>();
        __syncthreads();  // the tile is there for all, and all have left the other stage
        if (tile + 1 < tiles)
            fetch(tile + 1);
        dev::copy_commit();
        if (!active)
            continue;
        const uint32_t sk = skv + static_cast<uint32_t>((tile & 1) * 2 * Shape::kTileBytes) + k_at;
        const uint32_t sv = skv + static_cast<uint32_t>((tile & 1) * 2 * Shape::kTileBytes + Shape::kTileBytes) + v_at;

        float s[MT][TOKENS / 8][4];
#pragma unroll
        for (int mt = 0; mt < MT; ++mt)
#pragma unroll
            for (int n = 0; n < TOKENS / 8; ++n)
#pragma unroll
                for (int c = 0; c < 4; ++c)
                    s[mt][n][c] = 0.0f;
#pragma unroll
        for (int kk = 0; kk < D / 16; ++kk) {
            uint32_t a[MT][4];
#pragma unroll
            for (int mt = 0; mt < MT; ++mt)
                dev::load_matrices(a[mt], (q_at + static_cast<uint32_t>(mt * 16 * Shape::kRowBytes)) ^ static_cast<uint32_t>(kk * 32));
#pragma unroll
            for (int n = 0; n < TOKENS / 16; ++n) {
                uint32_t b[4];
                dev::load_matrices(b, (sk + static_cast<uint32_t>(n * 16 * Shape::kRowBytes)) ^ static_cast<uint32_t>(kk * 32));
#pragma unroll
                for (int mt = 0; mt < MT; ++mt) {
                    dev::mma<T>(s[mt][2 * n], a[mt], b[0], b[1]);
                    dev::mma<T>(s[mt][2 * n + 1], a[mt], b[2], b[3]);
                }
            }
        }
        if (tile >= whole) {
#pragma unroll
            for (int mt = 0; mt < MT; ++mt)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const int packed = t.tile * Shape::kRows + m0 + mt * 16 + h * 8 + lane / 4;
                    const int limit = max(1, past + min(packed / p.group, t.rows - 1)) - tile * TOKENS - (lane % 4) * 2;
#pragma unroll
                    for (int n = 0; n < TOKENS / 8; ++n) {
                        s[mt][n][2 * h] = n * 8 < limit ? s[mt][n][2 * h] : dev::minus_infinity();
                        s[mt][n][2 * h + 1] = n * 8 + 1 < limit ? s[mt][n][2 * h + 1] : dev::minus_infinity();
                    }
                }
        }

        uint32_t weights[MT][TOKENS / 16][4];
#pragma unroll
        for (int mt = 0; mt < MT; ++mt) {
            float high[2] = {top[mt][0], top[mt][1]};
#pragma unroll
            for (int n = 0; n < TOKENS / 8; ++n) {
                high[0] = fmaxf(high[0], fmaxf(s[mt][n][0], s[mt][n][1]));
                high[1] = fmaxf(high[1], fmaxf(s[mt][n][2], s[mt][n][3]));
            }
            float minus[2];
            float shrink[2];
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                high[h] = dev::quad_max(high[h]);
                shrink[h] = dev::exp2_fast(__fmul_rn(__fadd_rn(top[mt][h], -high[h]), p.scale_log2));
                minus[h] = -__fmul_rn(high[h], p.scale_log2);
                top[mt][h] = high[h];
                sum[mt][h] = __fmul_rn(sum[mt][h], shrink[h]);
            }
#pragma unroll
            for (int n = 0; n < TOKENS / 8; ++n) {
#pragma unroll
                for (int c = 0; c < 4; ++c) {
                    s[mt][n][c] = dev::exp2_fast(__fmaf_rn(s[mt][n][c], p.scale_log2, minus[c >> 1]));
                    sum[mt][c >> 1] = __fadd_rn(sum[mt][c >> 1], s[mt][n][c]);
                }
                weights[mt][n / 2][(n & 1) * 2] = N::pack(s[mt][n][0], s[mt][n][1]);
                weights[mt][n / 2][(n & 1) * 2 + 1] = N::pack(s[mt][n][2], s[mt][n][3]);
            }
#pragma unroll
            for (int n = 0; n < D / 8; ++n)
#pragma unroll
                for (int c = 0; c < 4; ++c)
                    o[mt][n][c] = __fmul_rn(o[mt][n][c], shrink[c >> 1]);
        }

#pragma unroll
        for (int kt = 0; kt < TOKENS / 16; ++kt)
#pragma unroll
            for (int n = 0; n < D / 16; ++n) {
                uint32_t b[4];
                dev::load_matrices_transposed(
                    b, (sv + static_cast<uint32_t>(kt * 16 * Shape::kRowBytes)) ^ static_cast<uint32_t>(n * 32));
#pragma unroll
                for (int mt = 0; mt < MT; ++mt) {
                    const uint32_t(&w)[4] = weights[mt][kt];
                    dev::mma<T>(o[mt][2 * n], w, b[0], b[1]);
                    dev::mma<T>(o[mt][2 * n + 1], w, b[2], b[3]);
                }
            }
    }

    // Through the warp's own rows of the query tile, so that 16-byte pieces are written.
    if (!active)
        return;
    __syncwarp();  // all lanes have read the queries
#pragma unroll
    for (int mt = 0; mt < MT; ++mt)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float inverse = __frcp_rn(dev::quad_sum(sum[mt][h]));
            const int m = m0 + mt * 16 + h * 8 + lane / 4;
            unsigned char* row = shared + m * Shape::kRowBytes + (lane % 4) * 4;
#pragma unroll
            for (int n = 0; n < D / 8; ++n)
                *reinterpret_cast<uint32_t*>(row + ((n ^ (m & 7)) << 4)) =
                    N::pack(o[mt][n][2 * h] * inverse, o[mt][n][2 * h + 1] * inverse);
        }
    __syncwarp();
#pragma unroll 4
    for (int i = lane; i < 16 * MT * Shape::kPieces; i += 32) {
        const int m = m0 + i / Shape::kPieces;
        const int piece = i % Shape::kPieces;
        const int packed = t.tile * Shape::kRows + m;
        const int row = packed / p.group;
        if (row >= t.rows)
            continue;
        const int head = kv_head * p.group + packed - row * p.group;
        auto* to = p.out + (static_cast<int64_t>(t.row0 + row) * p.heads + head) * D + piece * 8;
        *reinterpret_cast<uint4*>(to) =
            *reinterpret_cast<const uint4*>(shared + m * Shape::kRowBytes + ((piece ^ (m & 7)) << 4));
    }
}

/// Whether there is a kernel for these shapes.
inline bool prefill_takes(const PrefillAttention& a) {
    const KvView& kv = a.base.kv;
    return takes_pages(kv) && a.base.heads > 0 && a.base.heads % kv.kv_heads == 0 && (kv.head_dim == 64 || kv.head_dim == 128);
}

template <Elem E>
PrefillParams<E> prefill_params(const PrefillAttention& a) {
    using T = typename dev::Number<E>::Type;
    PrefillParams<E> p{};
    p.q = static_cast<const T*>(a.q);
    p.k = static_cast<const T*>(a.base.kv.k);
    p.v = static_cast<const T*>(a.base.kv.v);
    p.out = static_cast<T*>(a.base.out);
    p.block_stride = a.base.kv.block_stride;
    p.kv_len = a.base.kv_len;
    p.blocks = a.base.blocks;
    p.row_begin = a.row_begin;
    p.blocks_stride = static_cast<int>(a.base.blocks_stride);
    p.block_shift = __builtin_ctz(a.base.kv.block_tokens);
    p.sequences = static_cast<int>(a.base.sequences);
    p.heads = static_cast<int>(a.base.heads);
    p.kv_heads = static_cast<int>(a.base.kv.kv_heads);
    p.group = static_cast<int>(a.base.heads / a.base.kv.kv_heads);
    p.scale_log2 = a.base.scale * 1.4426950408889634f;
    p.last_only = a.last_only;
    return p;
}

/// Thread blocks that cover any division of `rows` among the sequences.
inline unsigned prefill_grid(const PrefillAttention& a, unsigned tile_rows) {
    const unsigned group = a.base.heads / a.base.kv.kv_heads;
    const unsigned sequences = a.base.sequences < a.rows ? a.base.sequences : a.rows;
    return (a.rows * group / tile_rows + sequences) * a.base.kv.kv_heads;
}

template <Elem E, int D, int WARPS, int MT, int TOKENS>
cudaError_t launch_prefill(const Launch& launch, const PrefillAttention& a) {
    using Shape = PrefillShape<D, WARPS, MT, TOKENS>;
    return launch_kernel<prefill_kernel<E, D, WARPS, MT, TOKENS>>(launch, prefill_grid(a, Shape::kRows), Shape::kThreads,
                                                                  Shape::kShared, prefill_params<E>(a));
}

}  // namespace baton::backend::cuda
