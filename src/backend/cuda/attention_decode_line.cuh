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
    LineShare share;
    const int* lengths;
    const int* before;
    LineSlice<kSlice> at_hand;  ///< this lane's slice among 32
    LineSlice<kSlice> behind;   ///< and among the next

    __device__ __forceinline__ uint32_t stage_at(int i) const {
        return base + static_cast<uint32_t>((warp * STAGES + (i & (STAGES - 1))) * Shape::kStageBytes);
    }
    /// Slices of this warp.
    __device__ __forceinline__ int own() const { return (share.count - warp + WARPS - 1) / WARPS; }

    /// Works out this warp's slices i … i + 31, as the next ones.
    __device__ __forceinline__ void look_up(int i) { behind.find(warp + WARPS * (i + lane), share, lengths, before, p); }

    /// Starts the copy of this warp's slice i, if there is one. Rows that are not in memory become zero. What was read is the first
    /// that L2 gives up: its place is needed for what the layers' kernels share, their instructions among it.
    __device__ __forceinline__ void fetch(int i) const {
        constexpr int kPieces = D / 8;
        constexpr int kStep = 32 / kPieces;
        const int what = __shfl_sync(0xffffffffu, at_hand.facts, i & 31);
        const int rows = what & 0xff;
        const int place = (what >> 8) & 0xff;
        const int head = what >> 16;
        const int piece = lane % kPieces;
        const int row0 = lane / kPieces;
        const uint64_t policy = dev::read_once_policy();
        const uint32_t to = stage_at(i);
#pragma unroll
        for (int j = 0; j < kLookups; ++j) {
            const int id = __shfl_sync(0xffffffffu, at_hand.ids[j], i & 31);
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
                at_hand = behind;
            if ((i & 31) == 8)
                look_up(i + 24);
            fetch(i);
        }
        dev::copy_commit();
    }

    static __device__ __forceinline__ uint32_t place_of(int row, int piece) { return DecodeSlice<E, D, kSlice>::place_of(row, piece); }

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
        DecodeSlice<E, D, kSlice> slice(stage, lane);
        float shrink[2];
        slice.weigh(a, shrink, q, tokens, p.scale_log2);
        a.scale(shrink);
        slice.add_values(a);
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
    work.lengths = lengths;
    work.before = before;
    const auto scan = [&] {
        scan_lengths<Shape::kThreads, kSlice>(p.kv_len, p.sequences, lengths, before, reinterpret_cast<int*>(shared + Shape::kScanAt));
        return DecodeShares(before[p.sequences] * p.kv_heads, static_cast<int>(gridDim.x));
    };
    DecodeShares shares;
    if (p.plan != nullptr) {
        using Plan = LinePlan<Shape::kThreads, kSlice>;
        Plan::read(p.plan + static_cast<int64_t>(blockIdx.x) * Plan::kInts, work.share, work.behind);
    } else {
        shares = scan();
        work.share = share_of<kSlice>(shares, lengths, before, p);
        work.look_up(0);
    }
    const int count = work.share.count;
    const DecodeWalk front = work.share.front;
    LinePart part{work.share.last, work.share.tail};
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; ++i)
        work.fetch_next(i);
    if (p.plan != nullptr)
        shares = scan();

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
    work.fetch_next(STAGES - 1);  // behind the rows, which are waited for first

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
            dev::copy_wait<STAGES - 1>();
            __syncwarp();  // all lanes' copies are there
            if (work.fused && part.at.length - 1 - first < kSlice)
                work.put_new_token(part.at, part.at.length - 1 - first, slot, shared + (work.stage_at(i) - work.base));
            work.add_slice(state, q, work.stage_at(i), part.at.length - first);
            __syncwarp();  // all have left the stage, which is filled again
            work.fetch_next(i + STAGES);
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
