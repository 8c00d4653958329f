#pragma once

#include <cstdint>

#include "backend/cuda/attention_decode.cuh"

/// Decode attention by thread blocks that share all contexts evenly, whatever their lengths; part of attention_decode.cuh.
///
/// The line is dealt out in slices of kSlice tokens: block b has an equal, contiguous part of them, and slice i of that part
/// is that of warp i % WARPS, whatever context it belongs to. So all blocks and all warps read the same number of bytes, up to
/// a slice. A warp works out 32 of its slices at once, one in each lane, with their block numbers.
///
/// A block begins with its last context, where that goes on in the next block, and hands its part in early. The block that has a
/// context's end puts the parts together: it waits for blocks ahead of it alone, which the device starts before it.
namespace baton::backend::cuda {

template <int D, int WARPS, int STAGES, int SIZE>
struct LineShape {
    static constexpr int kThreads = WARPS * 32;
    static constexpr int kSlice = SIZE * 2048 / D;  ///< tokens
    static constexpr int kLookups = kSlice / 16;
    static constexpr int kRowBytes = D * 2;
    static constexpr int kHalf = kSlice * kRowBytes;  ///< K of a slice, then V of it
    static constexpr int kStageBytes = 2 * kHalf;
    static constexpr int kPad = D + 4;              ///< floats from one head's outputs to the next when warps are joined
    static constexpr int kQAt = WARPS * STAGES * kStageBytes;
    static constexpr int kNewAt = kQAt + 8 * kRowBytes;  ///< the new token's k and v
    static constexpr int kMarksAt = kNewAt + 2 * kRowBytes;
    static constexpr int kScanAt = kMarksAt + WARPS * 8 * 8;
    static constexpr int kOutAt = kScanAt + 128;    ///< outputs of the warps: [WARPS, group, kPad] floats; then lengths and sums
    static constexpr __host__ __device__ int table_at(int group) { return kOutAt + WARPS * group * kPad * 4; }
    static constexpr size_t shared(uint32_t sequences, uint32_t group) {
        return static_cast<size_t>(table_at(static_cast<int>(group))) + (2 * sequences + 1) * 4;
    }
};

/// A lane's place for all.
__device__ __forceinline__ DecodeWalk of_lane(const DecodeWalk& w, int lane) {
    return {__shfl_sync(0xffffffffu, w.sequence, lane), __shfl_sync(0xffffffffu, w.head, lane), __shfl_sync(0xffffffffu, w.tile, lane),
            __shfl_sync(0xffffffffu, w.tiles, lane), __shfl_sync(0xffffffffu, w.length, lane)};
}

/// The part of a context that a block has.
struct LinePart {
    DecodeWalk at;  ///< its first slice
    int slices;
};

template <Elem E, int D, int WARPS, int STAGES, int SIZE>
struct Line {
    using N = dev::Number<E>;
    using T = typename N::Type;
    using Shape = LineShape<D, WARPS, STAGES, SIZE>;
    static constexpr int kSlice = Shape::kSlice;
    static constexpr int kLookups = Shape::kLookups;
    static_assert((STAGES & (STAGES - 1)) == 0);

    const DecodeParams<E>& p;
    unsigned char* shared;
    uint32_t base;     ///< shared memory's address
    int warp;
    int lane;
    bool fused;
    // The block's share: slices [begin, begin + count) of the line, in the order tail, then the rest.
    int begin;
    int count;
    int tail;          ///< slices of the last context
    const int* lengths;
    const int* before;
    // Of this lane's slice among the 32 at hand: block numbers, and head · 2^16 + place in its block · 2^8 + rows in memory. Then of the
    // next 32.
    int ids[kLookups];
    int facts;
    int next_ids[kLookups];
    int next_facts;

    __device__ __forceinline__ uint32_t stage_at(int i) const {
        return base + static_cast<uint32_t>((warp * STAGES + (i & (STAGES - 1))) * Shape::kStageBytes);
    }
    /// Slices of this warp.
    __device__ __forceinline__ int own() const { return (count - warp + WARPS - 1) / WARPS; }

    /// Works out this warp's slices i … i + 31, as the next ones.
    __device__ __forceinline__ void look_up(int i) {
        const int r = warp + WARPS * (i + lane);
        next_facts = 0;
        if (r >= count)
            return;
        const DecodeWalk w = walk_to<kSlice>(begin + (r < tail ? count - tail + r : r - tail), lengths, before, p.sequences, p.kv_heads);
        const int first = w.tile * kSlice;
        const int rows = min(w.length - (fused ? 1 : 0) - first, kSlice);
        const int32_t* table = p.blocks + static_cast<int64_t>(w.sequence) * p.blocks_stride;
#pragma unroll
        for (int j = 0; j < kLookups; ++j)
            next_ids[j] = rows > 16 * j ? __ldg(table + ((first + 16 * j) >> p.block_shift)) : 0;
        next_facts = (w.head << 16) | ((first & ((1 << p.block_shift) - 1)) << 8) | max(rows, 0);
    }
    __device__ __forceinline__ void take_next() {
        facts = next_facts;
#pragma unroll
        for (int j = 0; j < kLookups; ++j)
            ids[j] = next_ids[j];
    }

    /// Starts the copy of this warp's slice i, if there is one. Rows that are not in memory become zero. What was read is the first
    /// that L2 gives up: its place is needed for what the layers' kernels share, their instructions among it.
    __device__ __forceinline__ void fetch(int i) const {
        constexpr int kPieces = D / 8;
        constexpr int kStep = 32 / kPieces;
        const int what = __shfl_sync(0xffffffffu, facts, i & 31);
        const int rows = what & 0xff;
        const int place = (what >> 8) & 0xff;
        const int head = what >> 16;
        const int piece = lane % kPieces;
        const int row0 = lane / kPieces;
        const uint64_t policy = dev::read_once_policy();
        const uint32_t to = stage_at(i);
#pragma unroll
        for (int j = 0; j < kLookups; ++j) {
            const int id = __shfl_sync(0xffffffffu, ids[j], i & 31);
            const int64_t page = static_cast<int64_t>(id) * p.block_stride +
                                 ((head << p.block_shift) + ((place + 16 * j) & ((1 << p.block_shift) - 1)) + row0) * D + piece * 8;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const T* from = (half == 0 ? p.k : p.v) + page;
#pragma unroll
                for (int k = 0; k < 16; k += kStep)
                    dev::copy16_of_stream(to + static_cast<uint32_t>(half * Shape::kHalf) + place_of(16 * j + k + row0, piece), from + k * D,
                                          16 * j + k + row0 < rows, policy);
            }
        }
    }
    /// The same, with the look-ups of those to come.
    __device__ __forceinline__ void fetch_next(int i) {
        if (i < own()) {
            if ((i & 31) == 0)
                take_next();
            if ((i & 31) == 8)
                look_up(i + 24);
            fetch(i);
        }
        dev::copy_commit();
    }

    /// Word (16 bytes) `piece` of row `row` of K, or V, of a stage.
    static __device__ __forceinline__ uint32_t place_of(int row, int piece) {
        return static_cast<uint32_t>(row * Shape::kRowBytes + ((piece ^ (row & 7)) << 4));
    }

    /// The new token's rows: into the stage of the slice that has its place, and into the pool.
    __device__ __forceinline__ void put_new_token(const DecodeWalk& w, int row, int slot, unsigned char* stage) const {
        const int half = lane / 16;  // k by the first 16 lanes, v by the others
        const int64_t to = static_cast<int64_t>(slot >> p.block_shift) * p.block_stride +
                           ((w.head << p.block_shift) + (slot & ((1 << p.block_shift) - 1))) * D;
        if (const int piece = lane % 16; piece < D / 8) {
            const uint4 words = *reinterpret_cast<const uint4*>(shared + Shape::kNewAt + half * Shape::kRowBytes + piece * 16);
            *reinterpret_cast<uint4*>(stage + half * Shape::kHalf + place_of(row, piece)) = words;
            if (slot >= 0)
                *reinterpret_cast<uint4*>((half == 0 ? p.k : p.v) + to + piece * 8) = words;
        }
        __syncwarp();
    }

    /// One slice of at least one token: scores, softmax, weighted sum.
    __device__ __forceinline__ void add_slice(DecodeState<D>& a, const uint32_t (&q)[D / 16][2], uint32_t stage, int tokens) const {
        constexpr int kTiles = kSlice / 16;
        const int turn = lane & 7;
        const uint32_t k_at = stage + place_of(turn + ((lane >> 3) & 1) * 8, lane >> 4);
        const uint32_t v_at = stage + Shape::kHalf + place_of(turn + (lane >> 4) * 8, (lane >> 3) & 1);
        const auto at = [](uint32_t from, int t, int n) {  // of sixteen tokens t and sixteen columns n
            return (from + static_cast<uint32_t>(t * 16 * Shape::kRowBytes)) ^ static_cast<uint32_t>(n * 32);
        };
        float s[kTiles][4];
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
            float part[2][4] = {};  // two chains of products take half the time of one
#pragma unroll
            for (int kk = 0; kk < D / 16; ++kk) {
                uint32_t k[4];
                dev::load_matrices(k, at(k_at, t, kk));
                dev::mma<T>(part[kk & 1], k, q[kk][0], q[kk][1]);
            }
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const bool seen = t * 16 + (c >> 1) * 8 + lane / 4 < tokens;
                s[t][c] = seen ? (part[0][c] + part[1][c]) * p.scale_log2 : dev::minus_infinity();
            }
        }
        float shrink[2];
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
#pragma unroll
        for (int n = 0; n < D / 16; ++n)
#pragma unroll
            for (int c = 0; c < 4; ++c)
                a.o[n][c] *= shrink[c & 1];
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
            const uint32_t w0 = dev::transpose_matrix(N::pack(s[t][0], s[t][1]));
            const uint32_t w1 = dev::transpose_matrix(N::pack(s[t][2], s[t][3]));
#pragma unroll
            for (int n = 0; n < D / 16; ++n) {
                uint32_t v[4];
                dev::load_matrices_transposed(v, at(v_at, t, n));
                dev::mma<T>(a.o[n], v, w0, w1);
            }
        }
    }

    /// What of a context's rows a warp turns into queries, k and v: raw, with the sequence's turns and its new slot.
    static constexpr int kRowsEach = (10 + WARPS - 1) / WARPS;
    struct Rows {
        uint32_t raw[kRowsEach][2];
        float2 turns[D / 64];
        int slot;
    };
    __device__ __forceinline__ void load_turns(Rows& r, const DecodeWalk& w) const {
        if (!fused)
            return;
#pragma unroll
        for (int i = 0; i < D / 64; ++i)
            r.turns[i] = __ldg(p.rope + static_cast<int64_t>(w.length - 1) * (D / 2) + D / 64 * lane + i);
        r.slot = __ldg(p.slots + w.sequence);
    }
    __device__ __forceinline__ void load_rows(Rows& r, const DecodeWalk& w) const {
        const int heads = fused ? p.heads + 2 * p.kv_heads : p.heads;
        const T* rows = (fused ? p.qkv : p.q) + static_cast<int64_t>(w.sequence) * heads * D;
#pragma unroll
        for (int j = 0; j < kRowsEach; ++j) {
            const int i = warp + WARPS * j;
            const int head = i < p.group ? w.head * p.group + i : p.heads + w.head + (i == p.group ? 0 : p.kv_heads);
            if (i < p.group + (fused ? 2 : 0))
                HeadPiece<E, D>::load_raw(r.raw[j], rows + head * D, lane);
        }
    }

    /// Queries of the context into the query tile and from there into fragments; with `fused` also the new token's k and v.
    __device__ __forceinline__ void begin_context(const Rows& r, const HeadPiece<E, D>& q_norm, const HeadPiece<E, D>& k_norm,
                                                  uint32_t (&q)[D / 16][2]) const {
        unsigned char* tile = shared + Shape::kQAt;
#pragma unroll 1
        for (int i = warp; i < p.group + (fused ? 2 : 0); i += WARPS) {
            const bool is_q = i < p.group;
            HeadPiece<E, D> piece;
            uint32_t raw[2] = {r.raw[0][0], r.raw[0][1]};
#pragma unroll
            for (int j = 1; j < kRowsEach; ++j)
                if (i >= WARPS * j) {
                    raw[0] = r.raw[j][0];
                    raw[1] = r.raw[j][1];
                }
            piece.set_raw(raw[0], raw[1]);
            if (fused && i <= p.group) {
                if (p.q_norm != nullptr) {
                    HeadPiece<E, D> weight;
#pragma unroll
                    for (int x = 0; x < HeadPiece<E, D>::kEach; ++x) {
                        weight.low[x] = is_q ? q_norm.low[x] : k_norm.low[x];
                        weight.high[x] = is_q ? q_norm.high[x] : k_norm.high[x];
                    }
                    piece.norm(weight, p.eps);
                }
                piece.turn(r.turns);
            }
            piece.store(is_q ? tile : shared + Shape::kNewAt + (i == p.group ? 0 : Shape::kRowBytes), is_q ? i : 0, lane);
        }
        __syncthreads();
        const uint32_t at = base + Shape::kQAt + static_cast<uint32_t>((lane & 7) * Shape::kRowBytes);
#pragma unroll
        for (int kk = 0; kk < D / 16; kk += 2) {
            uint32_t m[4];
            dev::load_matrices(m, at + static_cast<uint32_t>(((2 * kk + lane / 8) ^ (lane & 7)) << 4));
            q[kk][0] = m[0];
            q[kk][1] = m[1];
            q[kk + 1][0] = m[2];
            q[kk + 1][1] = m[3];
        }
    }

    /// Joins the warps' states; writes the output, or hands in the block's part, or puts it together with those of the blocks ahead.
    __device__ __forceinline__ void end_context(const DecodeState<D>& a, const LinePart& part, const DecodeShares& shares) const {
        float* outs = reinterpret_cast<float*>(shared + Shape::kOutAt);
        float2* marks = reinterpret_cast<float2*>(shared + Shape::kMarksAt);
        float* mine = outs + warp * p.group * Shape::kPad;
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int head = (lane % 4) * 2 + h;
            const float sum = dev::column_sum(a.sum[h]);
            if (head >= p.group)
                continue;
#pragma unroll
            for (int n = 0; n < D / 16; ++n) {
                mine[head * Shape::kPad + n * 16 + lane / 4] = a.o[n][h];
                mine[head * Shape::kPad + n * 16 + 8 + lane / 4] = a.o[n][2 + h];
            }
            if (lane < 4)
                marks[warp * 8 + head] = make_float2(a.top[h], sum);
        }
        const DecodeWalk& w = part.at;
        const int line = before[w.sequence] * p.kv_heads + w.head * w.tiles;  // where the context begins
        const int block = static_cast<int>(blockIdx.x);
        const bool to_end = w.tile + part.slices == w.tiles;
        const int first = to_end && w.tile == 0 ? block : shares.owner(line);
        // A block's part of a context that begins inside its share lies behind that of its first one.
        const auto slot_of = [&](int b) { return 2 * b + (b == first && shares.begin(b) < line ? 1 : 0); };
        int* arrived = p.arrived + w.sequence * p.kv_heads + w.head;
        if (to_end && first < block)
            while (dev::load_acquire(arrived) != block - first) {
            }
        __syncthreads();
#pragma unroll 1
        for (int i = 2 * static_cast<int>(threadIdx.x); i < p.group * D; i += 2 * Shape::kThreads) {
            const int h = i / D;
            const int d = i % D;
            float2 m[WARPS];
            float top = dev::minus_infinity();
#pragma unroll
            for (int x = 0; x < WARPS; ++x) {
                m[x] = marks[x * 8 + h];
                top = fmaxf(top, m[x].x);
            }
            float all = 0;
            float2 out{};
#pragma unroll
            for (int x = 0; x < WARPS; ++x)
                add_part(top, all, out, m[x], *reinterpret_cast<const float2*>(outs + (x * p.group + h) * Shape::kPad + d), top);
            if (!to_end) {
                const int64_t slot = slot_of(block) * 8 + h;
                __stcg(reinterpret_cast<float2*>(p.parts + slot * D + d), out);
                if (d == 0)
                    __stcg(p.marks + slot, make_float2(top, all));
                continue;
            }
#pragma unroll 2
            for (int b = first; b < block; ++b) {
                const int64_t slot = slot_of(b) * 8 + h;
                const float2 mark = __ldcg(p.marks + slot);
                add_part(top, all, out, mark, __ldcg(reinterpret_cast<const float2*>(p.parts + slot * D + d)), fmaxf(top, mark.x));
            }
            const float inverse = 1.0f / all;
            *reinterpret_cast<uint32_t*>(p.out + (static_cast<int64_t>(w.sequence) * p.heads + w.head * p.group) * D + i) =
                N::pack(out.x * inverse, out.y * inverse);
        }
        if (to_end && first == block)
            return;
        __syncthreads();
        if (threadIdx.x != 0)
            return;
        if (to_end) {
            *arrived = 0;
        } else {
            __threadfence();
            atomicAdd(arrived, 1);
        }
    }
    /// Adds a part with its largest score and sum to the sums so far, whose largest score was `top` and becomes `high`.
    static __device__ __forceinline__ void add_part(float& top, float& all, float2& out, float2 mark, float2 o, float high) {
        const float shrink = dev::exp2_fast(top - high);
        const float factor = dev::exp2_fast(mark.x - high);
        all = fmaf(mark.y, factor, all * shrink);
        out.x = fmaf(o.x, factor, out.x * shrink);
        out.y = fmaf(o.y, factor, out.y * shrink);
        top = high;
    }
};

/// A block's work. The next kernel is let in after the wait.
template <Elem E, int D, int WARPS, int STAGES, int SIZE>
__device__ __forceinline__ void run_line(const DecodeParams<E>& p, unsigned char* shared) {
    using Work = Line<E, D, WARPS, STAGES, SIZE>;
    using Shape = typename Work::Shape;
    constexpr int kSlice = Shape::kSlice;
    Work work{p, shared, dev::shared_address(shared), static_cast<int>(threadIdx.x) / 32, static_cast<int>(threadIdx.x) % 32,
              p.qkv != nullptr};
    int* lengths = reinterpret_cast<int*>(shared + Shape::table_at(p.group));
    int* before = lengths + p.sequences;
    scan_lengths<Shape::kThreads, kSlice>(p.kv_len, p.sequences, lengths, before, reinterpret_cast<int*>(shared + Shape::kScanAt));
    const DecodeShares shares(before[p.sequences] * p.kv_heads, static_cast<int>(gridDim.x));
    work.begin = shares.begin(static_cast<int>(blockIdx.x));
    work.count = shares.begin(static_cast<int>(blockIdx.x) + 1) - work.begin;
    work.lengths = lengths;
    work.before = before;
    const int count = work.count;
    LinePart part{};
    DecodeWalk front{};  // where the share begins
    if (count > 0) {
        const DecodeWalk edge = walk_to<kSlice>(work.lane == 0 ? work.begin : work.begin + count - 1, lengths, before, p.sequences, p.kv_heads);
        front = of_lane(edge, 0);
        part.at = of_lane(edge, 1);
        work.tail = min(count, part.at.tile + 1);
        part.at.tile -= work.tail - 1;
        part.slices = work.tail;
        work.look_up(0);
    }
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; ++i)
        work.fetch_next(i);

    typename Work::Rows rows{};
    HeadPiece<E, D> q_norm{};
    HeadPiece<E, D> k_norm{};
    if (work.fused && p.q_norm != nullptr) {
        q_norm.load_weight(p.q_norm, work.lane);
        k_norm.load_weight(p.k_norm, work.lane);
    }
    if (count > 0)
        work.load_turns(rows, part.at);
    // Heads that the group lacks: their columns are never written, but should hold numbers.
#pragma unroll 1
    for (int i = p.group * Shape::kRowBytes / 16 + static_cast<int>(threadIdx.x); i < 8 * Shape::kRowBytes / 16; i += Shape::kThreads)
        reinterpret_cast<uint4*>(shared + Shape::kQAt)[i] = make_uint4(0, 0, 0, 0);
    if (p.early)
        dev::wait_for_earlier();
    dev::launch_dependents();
    if (count > 0)
        work.load_rows(rows, part.at);

    uint32_t q[D / 16][2];
    DecodeState<D> state;
    int done = 0;  // slices of the block in the contexts before
    int i = 0;     // this warp's slices so far
#pragma unroll 1
    while (done < count) {
        work.begin_context(rows, q_norm, k_norm, q);
        const int slot = rows.slot;
        // The next context, and its rows, which are there when this one ends.
        LinePart next{};
        const int left = count - done - part.slices;
        if (left > 0) {
            next.at = done == 0 ? front : next_context<kSlice>(part.at, lengths, p.sequences, p.kv_heads);
            next.slices = min(left, next.at.tiles - next.at.tile);
            work.load_turns(rows, next.at);
            work.load_rows(rows, next.at);
        }
        state.clear();
        const int end = done + part.slices;
#pragma unroll 1
        for (int r = work.warp + i * WARPS; r < end; r += WARPS) {
            const int first = (part.at.tile + r - done) * kSlice;
            dev::copy_wait<STAGES - 2>();
            __syncwarp();  // all lanes' copies are there, and all have left the stage that is filled next
            work.fetch_next(i + STAGES - 1);
            if (work.fused && part.at.length - 1 - first < kSlice)
                work.put_new_token(part.at, part.at.length - 1 - first, slot, shared + (work.stage_at(i) - work.base));
            work.add_slice(state, q, work.stage_at(i), part.at.length - first);
            ++i;
        }
        work.end_context(state, part, shares);
        done = end;
        part = next;
    }
#pragma unroll 1
    for (int s = static_cast<int>(blockIdx.x); s < p.sequences; s += static_cast<int>(gridDim.x))
        if (lengths[s] == 0)
#pragma unroll 1
            for (int k = static_cast<int>(threadIdx.x); k < p.heads * D / 8; k += Shape::kThreads)
                reinterpret_cast<uint4*>(p.out + static_cast<int64_t>(s) * p.heads * D)[k] = make_uint4(0, 0, 0, 0);
}

}  // namespace baton::backend::cuda
