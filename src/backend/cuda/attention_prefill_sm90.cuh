#pragma once

#include <cuda.h>

#include <cstdint>

#include "backend/cuda/attention_prefill.cuh"
#include "backend/cuda/attention_prefill.hpp"
#include "backend/cuda/attention_warpgroup.cuh"

/// Paged prefill attention for sm_90a: asynchronous warpgroup products, pages through the tensor copy engine.
///
/// One thread block a multiprocessor walks over tiles of 128 rows (packed as in attention_prefill.cuh), or of 64 where there
/// are few. A producer warp brings K and V in tiles of 128 tokens into rings of two stages; two warpgroups, or one, take 64
/// rows each. A warpgroup starts the scores of a tile together with the weighted sum of the tile before and does the softmax
/// meanwhile; two take turns in starting products, so that one's softmax lies under the other's products. The order of accumulation over
/// positions is as fixed as in the portable kernel (its bits differ from that kernel's): ascending tiles, and tiles beyond
/// a row's last position change nothing.
namespace baton::backend::cuda {

template <Elem E>
struct PrefillParams90 {
    PrefillParams<E> base;
    CUtensorMap k;
    CUtensorMap v;
    int tiles;  ///< no more than so many (row tile, kv head) pairs
};

template <int D, int GROUPS>
struct PrefillShape90 {
    static constexpr int kThreads = 128 + GROUPS * 128;
    static constexpr int kRows = GROUPS * 64;
    static constexpr int kTokens = 128;
    static constexpr int kStages = 2;
    static constexpr int kQBytes = kRows * D * 2;
    static constexpr int kTileBytes = kTokens * D * 2;
    static constexpr int kHalf = kTokens * 128;  ///< a tile's part of 64 columns
    static constexpr int kQHalf = kRows * 128;
    static constexpr int kKAt = kQBytes;
    static constexpr int kVAt = kKAt + kStages * kTileBytes;
    static constexpr int kBarriersAt = kVAt + kStages * kTileBytes;
    static constexpr size_t kShared = kBarriersAt + 64;
};

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

/// Barriers of the rings: [full K, full V, empty K, empty V][stage].
template <int D>
struct Rings90 {
    uint32_t base;
    __device__ __forceinline__ uint32_t full(bool v, uint32_t n) const { return base + (v ? 16 : 0) + (n & 1) * 8; }
    __device__ __forceinline__ uint32_t empty(bool v, uint32_t n) const { return base + 32 + (v ? 16 : 0) + (n & 1) * 8; }
    /// Parity of the phase that use `n` of a stage completes.
    static __device__ __forceinline__ uint32_t phase(uint32_t n) { return (n >> 1) & 1; }
};

/// Number of the r-th piece of work of this block: back and forth, so that long and short ones even out.
__device__ __forceinline__ int work_number(int round) {
    const int n = static_cast<int>(gridDim.x);
    const int b = static_cast<int>(blockIdx.x);
    return round * n + ((round & 1) != 0 ? n - 1 - b : b);
}

/// What a tile of rows asks of the context.
struct Span90 {
    int past;   ///< row i sees positions below past + i
    int tiles;  ///< of tokens
    int whole;  ///< tiles that need no mask
};
template <int ROWS, int TOKENS>
__device__ __forceinline__ Span90 span_of(const PrefillTile& t, int length, int group) {
    Span90 s;
    s.past = length - t.rows + 1;
    const int first_row = t.tile * ROWS / group;
    const int last_row = min(t.rows - 1, (t.tile * ROWS + ROWS - 1) / group);
    s.tiles = (max(1, s.past + last_row) + TOKENS - 1) / TOKENS;
    s.whole = max(1, s.past + first_row) / TOKENS;
    return s;
}

/// One warp: brings all tiles of all work of this block.
template <Elem E, int D, int GROUPS>
__device__ __forceinline__ void produce(const PrefillParams90<E>& p, uint32_t shared, const Rings90<D>& rings) {
    using Shape = PrefillShape90<D, GROUPS>;
    const PrefillParams<E>& b = p.base;
    const int lane = static_cast<int>(threadIdx.x) & 31;
    const int page_rows = 1 << b.block_shift;
    uint32_t n = 0;  // tiles brought so far
    for (int round = 0; round * static_cast<int>(gridDim.x) < p.tiles; ++round) {
        const int number = work_number(round);
        const int kv_head = number % b.kv_heads;
        const PrefillTile t = find_tile(b, Shape::kRows, number / b.kv_heads);
        if (t.sequence < 0)
            break;  // tiles of later rounds lie further on
        const int length = __ldg(b.kv_len + t.sequence);
        if (length <= 0)
            continue;
        const Span90 span = span_of<Shape::kRows, Shape::kTokens>(t, length, b.group);
        const int32_t* table = b.blocks + static_cast<int64_t>(t.sequence) * b.blocks_stride;
        auto page_of = [&](int tile) {
            const int token = tile * Shape::kTokens + lane * page_rows;
            return lane * page_rows < Shape::kTokens && token < length && tile < span.tiles ? __ldg(table + (token >> b.block_shift)) : -1;
        };
        int page = page_of(0);
        for (int tile = 0; tile < span.tiles; ++tile, ++n) {
            const int next = page_of(tile + 1);
            const uint32_t bytes = static_cast<uint32_t>(__popc(__ballot_sync(0xffffffffu, page >= 0)) * page_rows * D * 2);
#pragma unroll
            for (int v = 0; v < 2; ++v) {
                // The first use of each stage finds it empty.
                dev::barrier_wait(rings.empty(v != 0, n), Rings90<D>::phase(n) ^ 1);
                const uint32_t full = rings.full(v != 0, n);
                if (lane == 0)
                    dev::barrier_expect(full, bytes);
                __syncwarp();
                if (page >= 0) {
                    const uint32_t to = shared + static_cast<uint32_t>((v != 0 ? Shape::kVAt : Shape::kKAt) +
                                                                       static_cast<int>(n & 1) * Shape::kTileBytes + lane * page_rows * 128);
#pragma unroll
                    for (int half = 0; half < D / 64; ++half)
                        dev::copy_box(to + static_cast<uint32_t>(half * Shape::kHalf), v != 0 ? &p.v : &p.k, half * 64, kv_head, page,
                                      full);
                }
            }
            page = next;
        }
    }
}

/// A warpgroup's 64 rows of one tile.
template <Elem E, int D, int GROUPS>
struct Consumer90 {
    using N = dev::Number<E>;
    using T = typename N::Type;
    using Shape = PrefillShape90<D, GROUPS>;
    static constexpr int kTokens = Shape::kTokens;

    const PrefillParams90<E>& p;
    unsigned char* shared;
    uint32_t base;     ///< shared memory's address
    Rings90<D> rings;
    int group_index;   ///< of the warpgroup
    int thread;        ///< of the warpgroup
    int lane;

    __device__ __forceinline__ void together() const { dev::named_sync(1 + group_index, 128); }
    /// Place of piece (16 bytes) `piece` of row `m` in the query tile.
    __device__ __forceinline__ static int q_place(int m, int piece) {
        return (piece / 8) * Shape::kQHalf + m * 128 + (((piece % 8) ^ (m & 7)) << 4);
    }

    __device__ __forceinline__ void load_queries(const PrefillTile& t, int kv_head) const {
        constexpr int kPieces = D / 8;
        constexpr int kEach = 64 * kPieces / 128;
        uint4 words[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const int m = group_index * 64 + (i * 128 + thread) / kPieces;
            const int packed = t.tile * Shape::kRows + m;
            const int row = packed / p.base.group;
            const int head = kv_head * p.base.group + packed - row * p.base.group;
            words[i] = row < t.rows
                           ? *reinterpret_cast<const uint4*>(p.base.q + (static_cast<int64_t>(t.row0 + row) * p.base.heads + head) * D +
                                                             (thread % kPieces) * 8)
                           : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int i = 0; i < kEach; ++i)
            *reinterpret_cast<uint4*>(shared + q_place(group_index * 64 + (i * 128 + thread) / kPieces, thread % kPieces)) = words[i];
        dev::fence_for_products();
        together();
    }

    __device__ __forceinline__ void start_scores(float (&s)[kTokens / 2], uint32_t n) const {
        const uint32_t q = base + static_cast<uint32_t>(group_index * 64 * 128);
        const uint32_t k = base + static_cast<uint32_t>(Shape::kKAt + static_cast<int>(n & 1) * Shape::kTileBytes);
#pragma unroll
        for (int kk = 0; kk < D / 16; ++kk) {
            const auto step = static_cast<uint32_t>(kk % 4 * 32);
            dev::Product<T, kTokens>::from_shared(s, dev::operand(q + static_cast<uint32_t>(kk / 4 * Shape::kQHalf) + step),
                                                  dev::operand(k + static_cast<uint32_t>(kk / 4 * Shape::kHalf) + step), kk > 0);
        }
        dev::products_commit();
    }
    __device__ __forceinline__ void start_sum(float (&o)[D / 2], const uint32_t (&w)[kTokens / 16][4], uint32_t n, bool add) const {
        const uint32_t v = base + static_cast<uint32_t>(Shape::kVAt + static_cast<int>(n & 1) * Shape::kTileBytes);
#pragma unroll
        for (int kt = 0; kt < kTokens / 16; ++kt)
            dev::Product<T, D>::from_registers(o, w[kt], dev::operand(v + static_cast<uint32_t>(kt * 16 * 128), Shape::kHalf),
                                               kt > 0 || add);
        dev::products_commit();
    }

    /// Scores become weights relative to the largest so far; `shrink` is what earlier weights are to be multiplied by.
    __device__ __forceinline__ void softmax(float (&s)[kTokens / 2], float (&top)[2], float (&sum)[2], float (&shrink)[2]) const {
        float high[2] = {top[0], top[1]};
#pragma unroll
        for (int n = 0; n < kTokens / 8; ++n) {
            high[0] = fmaxf(high[0], fmaxf(s[4 * n], s[4 * n + 1]));
            high[1] = fmaxf(high[1], fmaxf(s[4 * n + 2], s[4 * n + 3]));
        }
        float minus[2];
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            high[h] = dev::quad_max(high[h]);
            shrink[h] = dev::exp2_fast(__fmul_rn(__fadd_rn(top[h], -high[h]), p.base.scale_log2));
            minus[h] = -__fmul_rn(high[h], p.base.scale_log2);
            top[h] = high[h];
            sum[h] = __fmul_rn(sum[h], shrink[h]);
        }
#pragma unroll
        for (int i = 0; i < kTokens / 2; ++i) {
            s[i] = dev::exp2_fast(__fmaf_rn(s[i], p.base.scale_log2, minus[(i >> 1) & 1]));
            sum[(i >> 1) & 1] = __fadd_rn(sum[(i >> 1) & 1], s[i]);
        }
    }
    __device__ __forceinline__ void narrow(const float (&s)[kTokens / 2], uint32_t (&w)[kTokens / 16][4]) const {
#pragma unroll
        for (int i = 0; i < kTokens / 4; ++i)
            w[i / 4][i % 4] = N::pack(s[2 * i], s[2 * i + 1]);
    }
    /// Hides positions at a row's limit and beyond in tile `tile`.
    __device__ __forceinline__ void mask(float (&s)[kTokens / 2], const int (&limit)[2], int tile) const {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int end = limit[h] - tile * kTokens - (lane % 4) * 2;
#pragma unroll
            for (int n = 0; n < kTokens / 8; ++n) {
                s[4 * n + 2 * h] = n * 8 < end ? s[4 * n + 2 * h] : dev::minus_infinity();
                s[4 * n + 2 * h + 1] = n * 8 + 1 < end ? s[4 * n + 2 * h + 1] : dev::minus_infinity();
            }
        }
    }
    /// Rows of V beyond the context hold whatever the block held; a weight of zero does not hide an infinity.
    __device__ __forceinline__ void clear_values(int from, uint32_t n) const {
        unsigned char* v = shared + Shape::kVAt + static_cast<int>(n & 1) * Shape::kTileBytes;
        for (int i = from * 8 + thread; i < kTokens * 8; i += 128)
#pragma unroll
            for (int half = 0; half < D / 64; ++half)
                *reinterpret_cast<uint4*>(v + half * Shape::kHalf + i * 16) = make_uint4(0, 0, 0, 0);
        dev::fence_for_products();
        together();
    }

    __device__ __forceinline__ void leave(bool v, uint32_t n) const {
        if (lane == 0)
            dev::barrier_arrive(rings.empty(v, n));
    }

    /// One tile of scores while the sum of the tile before runs.
    template <bool MASK>
    __device__ __forceinline__ void next_tile(float (&s)[kTokens / 2], float (&o)[D / 2], uint32_t (&w)[kTokens / 16][4], float (&top)[2],
                                              float (&sum)[2], const int (&limit)[2], int tile, uint32_t n, bool take_turns) const {
        float shrink[2];
        dev::barrier_wait(rings.full(false, n), Rings90<D>::phase(n));
        if (GROUPS == 2 && take_turns)
            dev::named_sync(3 + group_index, 256);
        dev::pin(s);
        dev::pin(o);
        dev::products_fence();
        start_scores(s, n);
        dev::barrier_wait(rings.full(true, n - 1), Rings90<D>::phase(n - 1));
        dev::products_fence();
        start_sum(o, w, n - 1, tile > 1);
        if (GROUPS == 2 && take_turns)
            dev::named_arrive(4 - group_index, 256);
        dev::products_wait<1>();
        dev::pin(s);
        leave(false, n);
        if (MASK)
            mask(s, limit, tile);
        softmax(s, top, sum, shrink);
        dev::products_wait<0>();
        dev::pin(o);
        leave(true, n - 1);
#pragma unroll
        for (int i = 0; i < D / 2; ++i)
            o[i] = __fmul_rn(o[i], shrink[(i >> 1) & 1]);
        narrow(s, w);
    }

    /// All of a tile: `n` counts the tiles of tokens this block has used so far.
    __device__ __forceinline__ void attend(const PrefillTile& t, int kv_head, int length, const Span90& span, uint32_t& n, bool take_turns) const {
        float s[kTokens / 2];
        float o[D / 2];
        uint32_t w[kTokens / 16][4];
        float top[2] = {dev::minus_infinity(), dev::minus_infinity()};
        float sum[2] = {0.0f, 0.0f};
        int limit[2];
        const int m0 = group_index * 64 + thread / 32 * 16 + lane / 4;
#pragma unroll
        for (int h = 0; h < 2; ++h)
            limit[h] = max(1, span.past + min((t.tile * Shape::kRows + m0 + h * 8) / p.base.group, t.rows - 1));
#pragma unroll
        for (int i = 0; i < D / 2; ++i)
            o[i] = 0.0f;

        dev::barrier_wait(rings.full(false, n), Rings90<D>::phase(n));
        dev::pin(s);
        dev::products_fence();
        start_scores(s, n);
        dev::products_wait<0>();
        dev::pin(s);
        leave(false, n);
        mask(s, limit, 0);
        float shrink[2];
        softmax(s, top, sum, shrink);
        narrow(s, w);
        ++n;
        int tile = 1;
        for (; tile < span.whole && tile < span.tiles; ++tile, ++n)
            next_tile<false>(s, o, w, top, sum, limit, tile, n, take_turns);
        for (; tile < span.tiles; ++tile, ++n)
            next_tile<true>(s, o, w, top, sum, limit, tile, n, take_turns);
        dev::barrier_wait(rings.full(true, n - 1), Rings90<D>::phase(n - 1));
        if (length < span.tiles * kTokens)
            clear_values(length - (span.tiles - 1) * kTokens, n - 1);
        dev::pin(o);
        dev::products_fence();
        start_sum(o, w, n - 1, span.tiles > 1);
        dev::products_wait<0>();
        dev::pin(o);
        leave(true, n - 1);
        write(t, kv_head, o, sum);
    }

    /// Through the warpgroup's own rows of the query tile, so that 16-byte pieces are written.
    __device__ __forceinline__ void write(const PrefillTile& t, int kv_head, const float (&o)[D / 2], const float (&sum)[2]) const {
        together();  // the scores of all four warps have been read from these rows
        const int m0 = group_index * 64 + thread / 32 * 16;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float inverse = __frcp_rn(dev::quad_sum(sum[h]));
            const int m = m0 + h * 8 + lane / 4;
#pragma unroll
            for (int c = 0; c < D / 8; ++c)
                *reinterpret_cast<uint32_t*>(shared + q_place(m, c) + (lane % 4) * 4) =
                    N::pack(o[4 * c + 2 * h] * inverse, o[4 * c + 2 * h + 1] * inverse);
        }
        __syncwarp();
        constexpr int kPieces = D / 8;
#pragma unroll 4
        for (int i = lane; i < 16 * kPieces; i += 32) {
            const int m = m0 + i / kPieces;
            const int packed = t.tile * Shape::kRows + m;
            const int row = packed / p.base.group;
            if (row >= t.rows)
                continue;
            const int head = kv_head * p.base.group + packed - row * p.base.group;
            *reinterpret_cast<uint4*>(p.base.out + (static_cast<int64_t>(t.row0 + row) * p.base.heads + head) * D + (i % kPieces) * 8) =
                *reinterpret_cast<const uint4*>(shared + q_place(m, i % kPieces));
        }
        together();  // before the next queries overwrite them
    }

    /// Tiles whose rows all belong to the other warpgroup.
    __device__ __forceinline__ void pass(const Span90& span, uint32_t& n) const {
        for (int tile = 0; tile < span.tiles; ++tile, ++n)
            for (const bool v : {false, true}) {
                dev::barrier_wait(rings.full(v, n), Rings90<D>::phase(n));
                leave(v, n);
            }
    }

    __device__ __forceinline__ void run() const {
        uint32_t n = 0;
        for (int round = 0; round * static_cast<int>(gridDim.x) < p.tiles; ++round) {
            const int number = work_number(round);
            const int kv_head = number % p.base.kv_heads;
            PrefillTile t = find_tile(p.base, Shape::kRows, number / p.base.kv_heads);
            t.sequence = dev::uniform(t.sequence);
            t.tile = dev::uniform(t.tile);
            t.rows = dev::uniform(t.rows);
            if (t.sequence < 0)
                break;
            const int length = dev::uniform(__ldg(p.base.kv_len + t.sequence));
            if (length <= 0) {
                if (group_index == 0)
                    write_zero_rows<E, D, Shape::kRows, 128>(p.base, t, kv_head, thread);
                continue;
            }
            const Span90 span = span_of<Shape::kRows, kTokens>(t, length, p.base.group);
            const int packed_rows = t.rows * p.base.group - t.tile * Shape::kRows;
            if (group_index * 64 >= packed_rows) {
                pass(span, n);
                continue;
            }
            load_queries(t, kv_head);
            attend(t, kv_head, length, span, n, packed_rows > 64);
        }
    }
};
#endif

template <Elem E, int D, int GROUPS>
__global__ void __launch_bounds__(128 + GROUPS * 128, 1) prefill_kernel_90(const __grid_constant__ PrefillParams90<E> p) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using Shape = PrefillShape90<D, GROUPS>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = dev::shared_address(shared);
    const Rings90<D> rings{base + Shape::kBarriersAt};
    dev::launch_dependents();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < 4; ++i) {
            dev::barrier_init(rings.base + i * 8, 1);       // full: the producer, and the bytes
            dev::barrier_init(rings.base + 32 + i * 8, 4 * GROUPS);  // empty: each warp of the warpgroups
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        dev::fence_for_products();
    }
    dev::wait_for_earlier();
    __syncthreads();
    const int warpgroup = dev::uniform(static_cast<int>(threadIdx.x) / 128);
    if (warpgroup == 0) {
        if (GROUPS == 2)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x < 32)
            produce<E, D, GROUPS>(p, base, rings);
    } else {
        if (GROUPS == 2)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        const int index = warpgroup - 1;
        if (GROUPS == 2 && index == 1)
            dev::named_arrive(3, 256);  // the first turn is the other's
        const Consumer90<E, D, GROUPS> consumer{p, shared, base, rings, index, static_cast<int>(threadIdx.x) % 128,
                                                static_cast<int>(threadIdx.x) % 32};
        consumer.run();
    }
#else
    (void)p;
#endif
}

/// Describes one layer's K or V pages to the copy engine: boxes of 64 elements of so many tokens of a head's page.
cudaError_t describe_pages(CUtensorMap& map, Elem elem, const void* pages, const KvView& kv, uint32_t box_tokens);

template <Elem E, int D, int GROUPS>
cudaError_t launch_prefill_90(const Launch& launch, const PrefillAttention& a, int multiprocessors) {
    using Shape = PrefillShape90<D, GROUPS>;
    PrefillParams90<E> p{};
    p.base = prefill_params<E>(a);
    p.tiles = static_cast<int>(prefill_grid(a, Shape::kRows));
    cudaError_t error = describe_pages(p.k, E, a.base.kv.k, a.base.kv, a.base.kv.block_tokens);
    if (error == cudaSuccess)
        error = describe_pages(p.v, E, a.base.kv.v, a.base.kv, a.base.kv.block_tokens);
    if (error != cudaSuccess)
        return error;
    const int grid = p.tiles < multiprocessors ? p.tiles : multiprocessors;
    return launch_kernel<prefill_kernel_90<E, D, GROUPS>>(launch, static_cast<unsigned>(grid), Shape::kThreads, Shape::kShared, p);
}

}  // namespace baton::backend::cuda
