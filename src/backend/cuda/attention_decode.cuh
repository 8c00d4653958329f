#pragma once

#include <cstdint>

#include "backend/cuda/attention.hpp"
#include "backend/cuda/attention_decode_parts.cuh"
#include "backend/cuda/attention_decode_walk.cuh"
#include "backend/cuda/attention_device.cuh"

/// Split-KV paged decode attention, one query row a sequence.
///
/// The contexts of all (sequence, kv head) pairs, cut into tiles of kTile tokens, form one line; thread block b of the grid
/// takes an equal, contiguous part of it, whatever the lengths are. So no block works longer than another by more than a
/// tile, and a captured grid serves any lengths. A context that lies in one block is finished there. Of one that several
/// blocks share, each writes its part (output, largest score, sum) to the workspace, and the block with the context's last
/// tile puts the parts together, after everything else it has to do. It knows a word to be written by its being
/// other than zero (a zero is written as minus zero), so neither fences nor counters are needed, and it leaves zeros behind.
/// It waits only for blocks of lower numbers, which were started before it, and those wait at most for still lower ones: that
/// ends however few blocks are resident.
///
/// Within a tile each warp owns kSlice tokens, with its own ring of stages in shared memory and its own running maximum,
/// sum and output: in the loop over the context no barrier joins the warps. Products run on the tensor cores: the heads of
/// the group are the first rows of a 16-row tile.
///
/// Reading ahead of the dependency wait (`early`). The kernel may start while earlier kernels of the stream still run. What
/// it reads before the wait must have been complete before that: lengths, block tables and slots, which a copy in front of
/// the step's first kernel wrote, and the K and V rows of all positions but the last, which earlier steps wrote. A step's first
/// kernel is not launched before those are complete, because a copy or a graph's start, which know no programmatic
/// edge, lies between two steps; every kernel after it starts after it. Within the step this layer's rows of older
/// positions are written by nobody: the one row that this step adds is written by this very kernel, after the wait, and
/// no block reads it from memory (the one that needs it has it in shared memory). The workspace is touched only
/// after the wait. A caller for whom this does not hold leaves `early` false.
namespace baton::backend::cuda {

template <Elem E>
struct DecodeParams {
    using T = typename dev::Number<E>::Type;
    const T* q;
    T* k;
    T* v;
    T* out;
    int64_t block_stride;
    const int32_t* kv_len;
    const int32_t* blocks;
    int blocks_stride;
    int block_shift;
    int sequences;
    int heads;
    int kv_heads;
    int group;
    float scale_log2;  ///< scale · log2(e)
    float* parts;      ///< [grid, 2, 8, D] outputs of parts, not divided by their sums
    float2* marks;     ///< [grid, 2, 8] largest score · scale_log2 and sum of each part; parts and marks are 0 between launches
    bool early;
    int l2_tiles;      ///< with `early`: tiles beyond the stages that are brought into the L2 cache ahead, at most 32
    // Where the kernel norms, rotates and appends by itself.
    const T* qkv;
    const float* q_norm;
    const float* k_norm;
    float eps;
    const float2* rope;
    const int32_t* slots;
};

template <int D, int WARPS, int STAGES>
struct DecodeShape {
    static constexpr int kThreads = WARPS * 32;
    static constexpr int kSlice = 2048 / D;         ///< tokens: 16 or 32
    static constexpr int kTile = WARPS * kSlice;
    static constexpr int kRowBytes = D * 2;
    static constexpr int kHalf = kSlice * kRowBytes;  ///< K of a slice, then V of it: 4 KiB each
    static constexpr int kStageBytes = 2 * kHalf;
    static constexpr int kRingBytes = WARPS * STAGES * kStageBytes;
    static constexpr int kQBytes = 8 * kRowBytes;
    static constexpr int kPad = D + 8;              ///< floats from one head's outputs to the next when warps are joined
    static constexpr int kRawBytes = 10 * kRowBytes;  ///< a context's queries, k and v as they come
    // After the ring: queries, the new token's k and v, two rooms for rows to come, marks of the warps, sums for the scan, then
    // lengths.
    static constexpr int kNewAt = kRingBytes + kQBytes;
    static constexpr int kRawAt = kNewAt + 2 * kRowBytes;
    static constexpr int kMarksAt = kRawAt + 2 * kRawBytes;
    static constexpr int kScanAt = kMarksAt + WARPS * 8 * 8;
    static constexpr int kTableAt = kScanAt + 64;
    static constexpr size_t shared(uint32_t sequences) { return kTableAt + (2 * static_cast<size_t>(sequences) + 1) * 4; }
    static_assert(8 * kPad * 4 <= kStageBytes);
};

/// The state of a warp's part of one context.
template <int D>
struct DecodeState {
    float o[D / 8][4];
    float top;  ///< largest score · scale_log2 of row lane / 4
    float sum;  ///< this lane's share
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int n = 0; n < D / 8; ++n)
#pragma unroll
            for (int c = 0; c < 4; ++c)
                o[n][c] = 0.0f;
        top = dev::minus_infinity();
        sum = 0.0f;
    }
};

template <Elem E, int D, int WARPS, int STAGES>
struct Decode {
    using N = dev::Number<E>;
    using T = typename N::Type;
    using Shape = DecodeShape<D, WARPS, STAGES>;
    static constexpr int kLookups = Shape::kSlice / 16;

    const DecodeParams<E>& p;
    unsigned char* shared;
    int warp;
    int lane;
    bool fused;
    uint32_t ring;   ///< shared address of this warp's stages

    /// Block numbers of the warp's slice, -1 where nothing is to be read.
    __device__ __forceinline__ void look_up(int (&ids)[kLookups], const DecodeWalk& w) const {
        const int readable = w.length - (fused ? 1 : 0);
#pragma unroll
        for (int j = 0; j < kLookups; ++j) {
            const int token = w.tile * Shape::kTile + warp * Shape::kSlice + 16 * j;
            ids[j] = token < readable ? __ldg(p.blocks + static_cast<int64_t>(w.sequence) * p.blocks_stride + (token >> p.block_shift))
                                      : -1;
        }
    }

    /// Starts the copy of the warp's slice into a stage. Rows that are not in memory become zero.
    __device__ __forceinline__ void fetch(const int (&ids)[kLookups], const DecodeWalk& w, int stage) const {
        constexpr int kPieces = D / 8;
        constexpr int kStep = 32 / kPieces;
        const int piece = lane % kPieces;
        const int row0 = lane / kPieces;
        const int readable = w.length - (fused ? 1 : 0);
        const uint32_t to = ring + static_cast<uint32_t>(stage * Shape::kStageBytes);
#pragma unroll
        for (int j = 0; j < kLookups; ++j) {
            const int first = w.tile * Shape::kTile + warp * Shape::kSlice + 16 * j;
            const int64_t page = static_cast<int64_t>(max(ids[j], 0)) * p.block_stride +
                                 ((w.head << p.block_shift) + (first & ((1 << p.block_shift) - 1))) * D + piece * 8;
#pragma unroll
            for (int i = 0; i < 16; i += kStep) {
                const int row = 16 * j + i + row0;
                const uint32_t place = static_cast<uint32_t>(row * Shape::kRowBytes + ((piece ^ (row & 7)) << 4));
                dev::copy16(to + place, p.k + page + (i + row0) * D, first + i + row0 < readable);
            }
#pragma unroll
            for (int i = 0; i < 16; i += kStep) {
                const int row = 16 * j + i + row0;
                const uint32_t place = static_cast<uint32_t>(row * Shape::kRowBytes + ((piece ^ (row & 7)) << 4));
                dev::copy16(to + Shape::kHalf + place, p.v + page + (i + row0) * D, first + i + row0 < readable);
            }
        }
    }

    /// Brings the warp's slices of tiles begin … begin + count - 1 into the L2 cache; each lane sees to one tile.
    __device__ __forceinline__ void warm(int begin, int count, const int* lengths, const int* before) const {
        if (lane >= count)
            return;
        const DecodeWalk w = walk_to<Shape::kTile>(begin + lane, lengths, before, p.sequences, p.kv_heads);
        int ids[kLookups];
        look_up(ids, w);
#pragma unroll
        for (int j = 0; j < kLookups; ++j) {
            if (ids[j] < 0)
                continue;
            const int first = w.tile * Shape::kTile + warp * Shape::kSlice + 16 * j;
            const int64_t page = static_cast<int64_t>(ids[j]) * p.block_stride +
                                 ((w.head << p.block_shift) + (first & ((1 << p.block_shift) - 1))) * D;
            dev::prefetch_l2(p.k + page, 16 * Shape::kRowBytes);
            dev::prefetch_l2(p.v + page, 16 * Shape::kRowBytes);
        }
    }

    /// What norm, rotation and append need besides the rows: the weights, and of a sequence its turns and its new slot.
    struct Constants {
        HeadPiece<E, D> q_norm;
        HeadPiece<E, D> k_norm;
        float2 turns[D / 64];
        int slot = -1;
    };
    __device__ __forceinline__ void load_norms(Constants& c) const {
        if (fused && p.q_norm != nullptr) {
            c.q_norm.load_weight(p.q_norm, lane);
            c.k_norm.load_weight(p.k_norm, lane);
        }
    }
    __device__ __forceinline__ void load_constants(Constants& c, const DecodeWalk& w) const {
        if (!fused)
            return;
        const float2* row = p.rope + static_cast<int64_t>(w.length - 1) * (D / 2);
#pragma unroll
        for (int i = 0; i < D / 64; ++i)
            c.turns[i] = __ldg(row + D / 64 * lane + i);
        c.slot = __ldg(p.slots + w.sequence);
    }
    /// First of a context's query rows in memory; its new k and v lie further on in the same row of qkv.
    __device__ __forceinline__ const T* queries_of(const DecodeWalk& w) const {
        const int heads = fused ? p.heads + 2 * p.kv_heads : p.heads;
        return (fused ? p.qkv : p.q) + (static_cast<int64_t>(w.sequence) * heads + w.head * p.group) * D;
    }
    /// Elements from a context's first query row to row i of its queries, k and v.
    __device__ __forceinline__ int row_offset(const DecodeWalk& w, int i) const {
        if (i < p.group)
            return i * D;
        return (p.heads - w.head * p.group + (i == p.group ? 0 : p.kv_heads) + w.head) * D;
    }
    /// Starts copies of a context's rows into a room; they end with the next stage's.
    __device__ __forceinline__ void fetch_rows(const DecodeWalk& w, int room) const {
        const T* from = queries_of(w);
        const uint32_t to = dev::shared_address(shared + Shape::kRawAt + room * Shape::kRawBytes);
        const int vectors = p.group + (fused ? 2 : 0);
        for (int i = static_cast<int>(threadIdx.x); i < vectors * (D / 8); i += Shape::kThreads) {
            const int row = i / (D / 8);
            const int piece = i % (D / 8);
            dev::copy16(to + static_cast<uint32_t>(row * Shape::kRowBytes + piece * 16), from + row_offset(w, row) + piece * 8, true);
        }
    }

    /// Queries of the context, from memory (room < 0) or from a room, into the query tile and from there into fragments; with
    /// `fused` also the new token's k and v, where this block has the context's last tile. All threads.
    __device__ __forceinline__ void begin(const DecodeWalk& w, bool has_last, int room, const Constants& constants,
                                          uint32_t (&q)[D / 16][2]) const {
        unsigned char* tile = shared + Shape::kRingBytes;
        const T* rows = reinterpret_cast<const T*>(shared + Shape::kRawAt + room * Shape::kRawBytes);
        if (room < 0)
            rows = queries_of(w);
        else
            __syncthreads();  // all threads' copies are there
        if (fused) {
            const int vectors = p.group + (has_last ? 2 : 0);
            for (int i = warp; i < vectors; i += WARPS) {
                const bool is_q = i < p.group;
                const bool is_v = i == p.group + 1;
                HeadPiece<E, D> piece;
                piece.load(rows + (room < 0 ? row_offset(w, i) : i * D), lane);
                if (!is_v) {
                    if (p.q_norm != nullptr && is_q)
                        piece.norm(constants.q_norm, p.eps);
                    else if (p.q_norm != nullptr)
                        piece.norm(constants.k_norm, p.eps);
                    piece.turn(constants.turns);
                }
                if (is_q)
                    piece.store(tile, i, lane);
                else
                    piece.store(shared + Shape::kNewAt + (is_v ? Shape::kRowBytes : 0), 0, lane);
            }
        } else {
            for (int i = static_cast<int>(threadIdx.x); i < p.group * (D / 8); i += Shape::kThreads) {
                const int r = i / (D / 8);
                const int piece = i % (D / 8);
                *reinterpret_cast<uint4*>(tile + r * Shape::kRowBytes + ((piece ^ (r & 7)) << 4)) =
                    *reinterpret_cast<const uint4*>(rows + i * 8);
            }
        }
        __syncthreads();
        const uint32_t at = dev::shared_address(tile) + static_cast<uint32_t>((lane & 7) * Shape::kRowBytes);
#pragma unroll
        for (int kk = 0; kk < D / 16; kk += 2) {
            uint32_t r[4];
            dev::load_matrices(r, at + static_cast<uint32_t>(((2 * kk + lane / 8) ^ (lane & 7)) << 4));
            q[kk][0] = r[0];
            q[kk][1] = r[1];
            q[kk + 1][0] = r[2];
            q[kk + 1][1] = r[3];
        }
    }

    /// The new token's rows: into the stage of the slice that has its place, and into the pool. One warp.
    __device__ __forceinline__ void put_new_token(const DecodeWalk& w, int row, int slot, unsigned char* stage) const {
        const int half = lane / 16;  // k by the first 16 lanes, v by the others
        const int64_t to = static_cast<int64_t>(slot >> p.block_shift) * p.block_stride +
                           ((w.head << p.block_shift) + (slot & ((1 << p.block_shift) - 1))) * D;
        for (int piece = lane % 16; piece < D / 8; piece += 16) {
            const uint4 words =
                *reinterpret_cast<const uint4*>(shared + Shape::kNewAt + half * Shape::kRowBytes + piece * 16);
            *reinterpret_cast<uint4*>(stage + half * Shape::kHalf + row * Shape::kRowBytes + ((piece ^ (row & 7)) << 4)) = words;
            if (slot >= 0)
                *reinterpret_cast<uint4*>((half == 0 ? p.k : p.v) + to + piece * 8) = words;
        }
        __syncwarp();
    }

    /// One slice of at least one token: scores, softmax, weighted sum.
    __device__ __forceinline__ void add_slice(DecodeState<D>& a, const uint32_t (&q)[D / 16][2], uint32_t stage, int tokens) const {
        const int turn = lane & 7;
        const uint32_t k_at = stage + static_cast<uint32_t>((turn + (lane >> 4) * 8) * Shape::kRowBytes +
                                                            ((((lane >> 3) & 1) ^ turn) << 4));
        const uint32_t v_at = stage + Shape::kHalf +
                              static_cast<uint32_t>((turn + ((lane >> 3) & 1) * 8) * Shape::kRowBytes + (((lane >> 4) ^ turn) << 4));
        float s[Shape::kSlice / 8][4];
#pragma unroll
        for (int n = 0; n < Shape::kSlice / 8; ++n)
#pragma unroll
            for (int c = 0; c < 4; ++c)
                s[n][c] = 0.0f;
#pragma unroll
        for (int kk = 0; kk < D / 16; ++kk)
#pragma unroll
            for (int n = 0; n < Shape::kSlice / 16; ++n) {
                uint32_t b[4];
                dev::load_matrices(b, (k_at + static_cast<uint32_t>(n * 16 * Shape::kRowBytes)) ^ static_cast<uint32_t>(kk * 32));
                N::mma(s[2 * n], q[kk][0], 0u, q[kk][1], 0u, b[0], b[1]);
                N::mma(s[2 * n + 1], q[kk][0], 0u, q[kk][1], 0u, b[2], b[3]);
            }
        float high = dev::minus_infinity();
#pragma unroll
        for (int n = 0; n < Shape::kSlice / 8; ++n)
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const int token = n * 8 + (lane % 4) * 2 + c;
                s[n][c] = token < tokens ? s[n][c] * p.scale_log2 : dev::minus_infinity();
                high = fmaxf(high, s[n][c]);
            }
        high = fmaxf(a.top, dev::quad_max(high));
        const float shrink = dev::exp2_fast(a.top - high);
        a.top = high;
        uint32_t weights[Shape::kSlice / 8];
        float sum = 0;
#pragma unroll
        for (int n = 0; n < Shape::kSlice / 8; ++n) {
            const float x = dev::exp2_fast(s[n][0] - high);
            const float y = dev::exp2_fast(s[n][1] - high);
            sum += x + y;
            weights[n] = N::pack(x, y);
        }
        a.sum = a.sum * shrink + sum;
        if (__any_sync(0xffffffffu, shrink != 1.0f)) {
#pragma unroll
            for (int n = 0; n < D / 8; ++n) {
                a.o[n][0] *= shrink;
                a.o[n][1] *= shrink;
            }
        }
#pragma unroll
        for (int kt = 0; kt < Shape::kSlice / 16; ++kt)
#pragma unroll
            for (int n = 0; n < D / 16; ++n) {
                uint32_t b[4];
                dev::load_matrices_transposed(
                    b, (v_at + static_cast<uint32_t>(kt * 16 * Shape::kRowBytes)) ^ static_cast<uint32_t>(n * 32));
                N::mma(a.o[2 * n], weights[2 * kt], 0u, weights[2 * kt + 1], 0u, b[0], b[1]);
                N::mma(a.o[2 * n + 1], weights[2 * kt], 0u, weights[2 * kt + 1], 0u, b[2], b[3]);
            }
    }

    /// Joins the warps' states through their stage `stage`; writes the output, or the part. All threads; ends with a barrier.
    __device__ __forceinline__ void end(DecodeState<D>& a, const DecodeWalk& w, int first_tile, int stage, const DecodeShares& shares,
                                        const int* before) const {
        float* mine = reinterpret_cast<float*>(shared + (warp * STAGES + stage) * Shape::kStageBytes);
        float2* marks = reinterpret_cast<float2*>(shared + Shape::kMarksAt);
        const int head = lane / 4;
        const float sum = dev::quad_sum(a.sum);
        if (head < p.group) {
#pragma unroll
            for (int n = 0; n < D / 8; ++n)
                *reinterpret_cast<float2*>(mine + head * Shape::kPad + n * 8 + (lane % 4) * 2) = make_float2(a.o[n][0], a.o[n][1]);
            if (lane % 4 == 0)
                marks[warp * 8 + head] = make_float2(a.top, sum);
        }
        __syncthreads();
        const bool complete = first_tile == 0 && w.tile == w.tiles - 1;
        const int slot = slot_of(w, static_cast<int>(blockIdx.x), shares, before);
        for (int i = static_cast<int>(threadIdx.x); i < p.group * D; i += Shape::kThreads) {
            const int h = i / D;
            const int d = i % D;
            float top = dev::minus_infinity();
#pragma unroll
            for (int x = 0; x < WARPS; ++x)
                top = fmaxf(top, marks[x * 8 + h].x);
            float all = 0;
            float out = 0;
#pragma unroll
            for (int x = 0; x < WARPS; ++x) {
                const float2 m = marks[x * 8 + h];
                const float factor = dev::exp2_fast(m.x - top);
                all = fmaf(m.y, factor, all);
                out = fmaf(reinterpret_cast<const float*>(shared + (x * STAGES + stage) * Shape::kStageBytes)[h * Shape::kPad + d],
                           factor, out);
            }
            if (complete) {
                p.out[(static_cast<int64_t>(w.sequence) * p.heads + w.head * p.group + h) * D + d] = N::from_float(out / all);
            } else {
                store_relaxed(p.parts + (static_cast<int64_t>(slot) * 8 + h) * D + d, not_zero(out));
                if (d == 0)
                    store_relaxed(p.marks + slot * 8 + h, make_float2(not_zero(top), not_zero(all)));
            }
        }
        __syncthreads();
    }

    /// Where on the line a context begins.
    __device__ __forceinline__ int line_of(const DecodeWalk& w, const int* before) const {
        return before[w.sequence] * p.kv_heads + w.head * w.tiles;
    }
    /// Place in the workspace of a block's part of a context: 1 for one that begins inside the block's share, 0 else.
    __device__ __forceinline__ int slot_of(const DecodeWalk& w, int block, const DecodeShares& shares, const int* before) const {
        return 2 * block + (shares.begin(block) < line_of(w, before) ? 1 : 0);
    }

    /// Waits for all parts of a context that ends in this block, puts them together and clears them.
    __device__ __forceinline__ void join_parts(const DecodeWalk& w, const DecodeShares& shares, const int* before) const {
        const int first = shares.owner(line_of(w, before));
        const int last = static_cast<int>(blockIdx.x);
        const int first_slot = slot_of(w, first, shares, before);
        constexpr int kBatch = 8;
        for (int i = static_cast<int>(threadIdx.x); i < p.group * D; i += Shape::kThreads) {
            const int h = i / D;
            const int d = i % D;
            float top = dev::minus_infinity();
            float all = 0;
            float out = 0;
            for (int b0 = first; b0 <= last; b0 += kBatch) {
                float2 m[kBatch];
                float o[kBatch];
                bool ready;
                do {
                    ready = true;
#pragma unroll
                    for (int x = 0; x < kBatch; ++x) {
                        const int b = b0 + x;
                        const int slot = b == first ? first_slot : 2 * b;
                        m[x] = make_float2(dev::minus_infinity(), -0.0f);
                        o[x] = -0.0f;
                        if (b <= last) {
                            m[x] = load_relaxed(p.marks + slot * 8 + h);
                            o[x] = load_relaxed(p.parts + (static_cast<int64_t>(slot) * 8 + h) * D + d);
                        }
                    }
#pragma unroll
                    for (int x = 0; x < kBatch; ++x)
                        ready = ready && is_written(m[x].x) && is_written(m[x].y) && is_written(o[x]);
                } while (!ready);
                float high = top;
#pragma unroll
                for (int x = 0; x < kBatch; ++x)
                    high = fmaxf(high, m[x].x);
                const float shrink = dev::exp2_fast(top - high);
                all *= shrink;
                out *= shrink;
                top = high;
#pragma unroll
                for (int x = 0; x < kBatch; ++x) {
                    const float factor = dev::exp2_fast(m[x].x - high);
                    all = fmaf(m[x].y, factor, all);
                    out = fmaf(o[x], factor, out);
                }
            }
            p.out[(static_cast<int64_t>(w.sequence) * p.heads + w.head * p.group + h) * D + d] = N::from_float(out / all);
        }
        __syncthreads();  // the marks have been read by all
        for (int b = first; b <= last; ++b) {
            const int slot = b == first ? first_slot : 2 * b;
            for (int i = static_cast<int>(threadIdx.x); i < p.group * D; i += Shape::kThreads)
                p.parts[static_cast<int64_t>(slot) * 8 * D + i] = 0.0f;
            if (static_cast<int>(threadIdx.x) < p.group)
                p.marks[slot * 8 + static_cast<int>(threadIdx.x)] = make_float2(0.0f, 0.0f);
        }
    }
};

template <Elem E, int D, int WARPS, int STAGES, int PER_SM>
__global__ void __launch_bounds__(WARPS * 32, PER_SM) decode_kernel(DecodeParams<E> p) {
    using Shape = DecodeShape<D, WARPS, STAGES>;
    using Work = Decode<E, D, WARPS, STAGES>;
    extern __shared__ __align__(1024) unsigned char shared[];
    dev::launch_dependents();
    if (!p.early)
        dev::wait_for_earlier();

    int* lengths = reinterpret_cast<int*>(shared + Shape::kTableAt);
    int* before = lengths + p.sequences;
    scan_lengths<Shape::kThreads, Shape::kTile>(p.kv_len, p.sequences, lengths, before,
                                                reinterpret_cast<int*>(shared + Shape::kScanAt));
    const int total = before[p.sequences] * p.kv_heads;
    const DecodeShares shares(total, static_cast<int>(gridDim.x));
    const int begin = shares.begin(static_cast<int>(blockIdx.x));
    const int count = shares.begin(static_cast<int>(blockIdx.x) + 1) - begin;

    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const Work work{p, shared, warp, lane, p.qkv != nullptr,
                    dev::shared_address(shared) + static_cast<uint32_t>(warp * STAGES * Shape::kStageBytes)};
    DecodeWalk now{};
    DecodeWalk ahead{};
    int ids[Work::kLookups];
    if (count > 0) {
        now = walk_to<Shape::kTile>(begin, lengths, before, p.sequences, p.kv_heads);
        ahead = now;
        work.look_up(ids, ahead);
    }
    auto fetch_next = [&](int i) {
        if (i < count) {
            work.fetch(ids, ahead, i % STAGES);
            step<Shape::kTile>(ahead, lengths, p.sequences, p.kv_heads);
            if (i + 1 < count)
                work.look_up(ids, ahead);
        }
        dev::copy_commit();
    };
#pragma unroll
    for (int i = 0; i < STAGES - 1; ++i)
        fetch_next(i);
    typename Work::Constants constants;
    work.load_norms(constants);
    if (count > 0)
        work.load_constants(constants, now);
    if (p.early) {
        work.warm(begin + STAGES - 1, min(p.l2_tiles, count - (STAGES - 1)), lengths, before);
        dev::wait_for_earlier();
    }

    for (int s = static_cast<int>(blockIdx.x); s < p.sequences; s += static_cast<int>(gridDim.x))
        if (lengths[s] == 0)
            for (int i = static_cast<int>(threadIdx.x); i < p.heads * D / 8; i += Shape::kThreads)
                reinterpret_cast<uint4*>(p.out + static_cast<int64_t>(s) * p.heads * D)[i] = make_uint4(0, 0, 0, 0);

    uint32_t q[D / 16][2];
    DecodeState<D> state;
    int first_tile = -1;
    int contexts = 0;
    int rows_since = 0;  // the stage whose copies end with those of the rows of the next context
    bool join = false;
    const DecodeWalk joined = now;
    typename Work::Constants coming = constants;
    for (int i = 0; i < count; ++i) {
        if (first_tile < 0) {
            first_tile = now.tile;
            if (contexts > 0) {  // its rows were fetched with a stage
                if (STAGES > 2 && i < rows_since)
                    dev::copy_wait<0>();
                else
                    dev::copy_wait<STAGES - 2>();
            }
            constants.slot = coming.slot;
#pragma unroll
            for (int x = 0; x < D / 64; ++x)
                constants.turns[x] = coming.turns[x];
            work.begin(now, now.tiles - now.tile <= count - i, contexts == 0 ? -1 : contexts & 1, constants, q);
            state.clear();
            ++contexts;
            if (now.tiles - now.tile < count - i) {
                const DecodeWalk next = next_context<Shape::kTile>(now, lengths, p.sequences, p.kv_heads);
                work.fetch_rows(next, contexts & 1);
                work.load_constants(coming, next);
                rows_since = i + STAGES - 1;
            }
        }
        dev::copy_wait<STAGES - 2>();
        __syncwarp();  // all lanes' copies are there, and all have left the stage that is filled next
        fetch_next(i + STAGES - 1);
        const int first = now.tile * Shape::kTile + warp * Shape::kSlice;
        const int stage = i % STAGES;
        if (first < now.length) {
            if (work.fused && now.length - 1 - first < Shape::kSlice)
                work.put_new_token(now, now.length - 1 - first, constants.slot, shared + (warp * STAGES + stage) * Shape::kStageBytes);
            work.add_slice(state, q, work.ring + static_cast<uint32_t>(stage * Shape::kStageBytes), now.length - first);
        }
        if (now.tile == now.tiles - 1 || i == count - 1) {
            work.end(state, now, first_tile, stage, shares, before);
            join = join || (first_tile > 0 && now.tile == now.tiles - 1);
            first_tile = -1;
        }
        step<Shape::kTile>(now, lengths, p.sequences, p.kv_heads);
    }
    if (join)
        work.join_parts(joined, shares, before);
}

template <Elem E>
DecodeParams<E> decode_params(const DecodeAttention& a, int l2_tiles) {
    using T = typename dev::Number<E>::Type;
    DecodeParams<E> p{};
    p.q = static_cast<const T*>(a.q);
    p.k = static_cast<T*>(a.base.kv.k);
    p.v = static_cast<T*>(a.base.kv.v);
    p.out = static_cast<T*>(a.base.out);
    p.block_stride = a.base.kv.block_stride;
    p.kv_len = a.base.kv_len;
    p.blocks = a.base.blocks;
    p.blocks_stride = static_cast<int>(a.base.blocks_stride);
    p.block_shift = __builtin_ctz(a.base.kv.block_tokens);
    p.sequences = static_cast<int>(a.base.sequences);
    p.heads = static_cast<int>(a.base.heads);
    p.kv_heads = static_cast<int>(a.base.kv.kv_heads);
    p.group = static_cast<int>(a.base.heads / a.base.kv.kv_heads);
    p.scale_log2 = a.base.scale * 1.4426950408889634f;
    // The parts first, then their marks: as decode_workspace_bytes adds them up.
    auto* bytes = static_cast<unsigned char*>(a.workspace);
    p.parts = reinterpret_cast<float*>(bytes);
    bytes += static_cast<size_t>(a.splits) * 2 * 8 * a.base.kv.head_dim * sizeof(float);
    p.marks = reinterpret_cast<float2*>(bytes);
    if (a.fused != nullptr) {
        p.early = a.early;
        p.l2_tiles = l2_tiles;
        p.qkv = static_cast<const T*>(a.fused->qkv);
        p.q_norm = a.fused->q_norm;
        p.k_norm = a.fused->k_norm;
        p.eps = a.fused->eps;
        p.rope = a.fused->rope;
        p.slots = a.fused->slots;
    }
    return p;
}

template <Elem E, int D, int WARPS, int STAGES, int PER_SM, int L2_TILES = 2>
cudaError_t launch_decode(const Launch& launch, const DecodeAttention& a) {
    using Shape = DecodeShape<D, WARPS, STAGES>;
    return launch_kernel(launch, decode_kernel<E, D, WARPS, STAGES, PER_SM>, a.splits, Shape::kThreads,
                         Shape::shared(a.base.sequences), decode_params<E>(a, L2_TILES));
}

}  // namespace baton::backend::cuda
