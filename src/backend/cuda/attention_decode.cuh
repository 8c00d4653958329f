#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cuda/attention.hpp"
#include "backend/cuda/attention_decode_head.cuh"
#include "backend/cuda/attention_decode_slice.cuh"
#include "backend/cuda/attention_decode_walk.cuh"
#include "backend/cuda/attention_device.cuh"

/// Split-KV paged decode attention, one query row a sequence.
///
/// The contexts of all (sequence, kv head) pairs, cut into slices of a few tokens, form one line; thread block b of the grid
/// takes an equal, contiguous part of it, whatever the lengths are (attention_decode_line.cuh), so that a captured grid serves any
/// lengths. A context that lies in one block is finished there. Of one that several blocks share, each but the last writes its
/// part (output, largest score, sum) to the workspace, and the last puts the parts together.
///
/// For few contexts the launch has a block or a cluster of blocks for each (attention_decode_cluster.cuh). Where the lengths are
/// even enough those then take a context each, which is quicker to begin and to end.
///
/// Within a tile each warp owns kSlice tokens, with its own ring of stages in shared memory and its own running maximum,
/// sum and output: in the loop over the context no barrier joins the warps. Products run on the tensor cores, turned so that
/// the heads of the group are the 8 columns: scores are K · Qᵀ [tokens, heads], the output is Vᵀ · weights [head_dim, heads].
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
struct DecodeParams : DecodeLengths {
    using T = typename dev::Number<E>::Type;
    const T* q;
    T* k;
    T* v;
    T* out;
    int64_t block_stride;
    int heads;
    int group;
    float scale_log2;  ///< scale · log2(e)
    float* parts;      ///< [grid, 2, 8, D] outputs of parts, not divided by their sums
    float2* marks;     ///< [grid, 2, 8] largest score · scale_log2 and sum of each part
    int* arrived;      ///< [sequences, kv_heads] parts written so far; 0 between launches
    const int* plan;   ///< LinePlan of each block, or null
    int cluster;       ///< blocks for each context; 0: the line of tiles alone
    bool early;
    // Where the kernel norms, rotates and appends by itself.
    const T* qkv;
    const float* q_norm;
    const float* k_norm;
    float eps;
    const float2* rope;
    const int32_t* slots;
};

constexpr uint32_t kDecodeSequencesMax = 1024;  ///< their lengths lie in shared memory
constexpr uint32_t kDecodeContextsMax = 16384;   ///< sequences · kv_heads: the counters of the workspace

/// SIZE · 4 KiB of K, and as much of V, are a slice.
template <int D, int WARPS, int STAGES, int SIZE>
struct DecodeShape {
    static constexpr int kThreads = WARPS * 32;
    static constexpr int kSlice = SIZE * 2048 / D;  ///< tokens
    static constexpr int kTile = WARPS * kSlice;
    static constexpr int kRowBytes = D * 2;
    static constexpr int kHalf = kSlice * kRowBytes;  ///< K of a slice, then V of it
    static constexpr int kStageBytes = 2 * kHalf;
    static constexpr int kRingBytes = WARPS * STAGES * kStageBytes;
    static constexpr int kQBytes = 8 * kRowBytes;
    static constexpr int kPad = D + 4;              ///< floats from one head's outputs to the next when warps are joined
    // After the ring: queries, the new token's k and v, marks of the warps; then, of a cluster's blocks, a barrier, marks
    // [cluster, 8] and parts [cluster, group, D].
    static constexpr int kNewAt = kRingBytes + kQBytes;
    static constexpr int kMarksAt = kNewAt + 2 * kRowBytes;
    static constexpr int kClusterAt = kMarksAt + WARPS * 8 * 8;
    static constexpr int kClusterMarks = 16;
    static constexpr size_t shared(uint32_t cluster, uint32_t group) {
        const auto end = static_cast<size_t>(kClusterAt);
        return cluster > 1 ? end + kClusterMarks + cluster * (8 * sizeof(float2) + group * D * sizeof(float)) : end;
    }
    static_assert(8 * kPad * 4 <= kStageBytes);
};

template <Elem E, int D, int WARPS, int STAGES, int SIZE>
struct Decode {
    using N = dev::Number<E>;
    using T = typename N::Type;
    using Shape = DecodeShape<D, WARPS, STAGES, SIZE>;
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

    /// Starts the copy of the warp's slice into a stage. Rows that are not in memory become zero. What was read is the first that
    /// L2 gives up: its place is needed for what the layers' kernels share, their instructions among it.
    __device__ __forceinline__ void fetch(const int (&ids)[kLookups], const DecodeWalk& w, int stage) const {
        constexpr int kPieces = D / 8;
        constexpr int kStep = 32 / kPieces;
        const int piece = lane % kPieces;
        const int row0 = lane / kPieces;
        const int readable = w.length - (fused ? 1 : 0);
        const uint32_t to = ring + static_cast<uint32_t>(stage * Shape::kStageBytes);
        const auto copy = [&](uint32_t place, const T* from, bool there) { dev::copy16_of_stream(place, from, there, dev::read_once_policy()); };
#pragma unroll
        for (int j = 0; j < kLookups; ++j) {
            const int first = w.tile * Shape::kTile + warp * Shape::kSlice + 16 * j;
            const int64_t page = static_cast<int64_t>(max(ids[j], 0)) * p.block_stride +
                                 ((w.head << p.block_shift) + (first & ((1 << p.block_shift) - 1))) * D + piece * 8;
#pragma unroll
            for (int i = 0; i < 16; i += kStep) {
                const int row = 16 * j + i + row0;
                const uint32_t place = static_cast<uint32_t>(row * Shape::kRowBytes + ((piece ^ (row & 7)) << 4));
                copy(to + place, p.k + page + (i + row0) * D, first + i + row0 < readable);
            }
#pragma unroll
            for (int i = 0; i < 16; i += kStep) {
                const int row = 16 * j + i + row0;
                const uint32_t place = static_cast<uint32_t>(row * Shape::kRowBytes + ((piece ^ (row & 7)) << 4));
                copy(to + Shape::kHalf + place, p.v + page + (i + row0) * D, first + i + row0 < readable);
            }
        }
    }

    __device__ __forceinline__ const float2* turns_of(const DecodeWalk& w) const {
        return p.rope + static_cast<int64_t>(w.length - 1) * (D / 2);
    }
    /// What norm, rotation and append need besides the rows: the weights, and of a sequence its turns and its new slot.
    struct Constants {
        HeadPiece<E, D> q_norm;
        HeadPiece<E, D> k_norm;
        float2 turns[D / 64];
        int slot;
    };
    __device__ __forceinline__ void load_constants(Constants& c, const DecodeWalk& w) const {
        if (!fused)
            return;
        if (p.q_norm != nullptr) {
            c.q_norm.load_weight(p.q_norm, lane);
            c.k_norm.load_weight(p.k_norm, lane);
        }
#pragma unroll
        for (int i = 0; i < D / 64; ++i)
            c.turns[i] = __ldg(turns_of(w) + D / 64 * lane + i);
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
    /// Queries of the context into the query tile and from there into fragments; with `fused` also the new token's k and v, where
    /// this block has the context's last tile. All threads.
    __device__ __forceinline__ void begin(const DecodeWalk& w, bool has_last, const Constants& constants, uint32_t (&q)[D / 16][2]) const {
        unsigned char* tile = shared + Shape::kRingBytes;
        const T* rows = queries_of(w);
        if (fused) {
            const int vectors = p.group + (has_last ? 2 : 0);
            for (int i = warp; i < vectors; i += WARPS) {
                const bool is_q = i < p.group;
                const bool is_v = i == p.group + 1;
                HeadPiece<E, D> piece;
                piece.load(rows + row_offset(w, i), lane);
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
        DecodeSlice<E, D, Shape::kSlice> slice(stage, lane);
        float shrink[2];
        slice.weigh(a, shrink, q, tokens, p.scale_log2);
        if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f))
            a.scale(shrink);
        slice.add_values(a);
    }

    /// This warp's slice of tile `w`, which lies in a stage, its new token included.
    __device__ __forceinline__ void add_tile(DecodeState<D>& a, const uint32_t (&q)[D / 16][2], const DecodeWalk& w, int stage, int slot) const {
        const int first = w.tile * Shape::kTile + warp * Shape::kSlice;
        if (first >= w.length)
            return;
        if (fused && w.length - 1 - first < Shape::kSlice)
            put_new_token(w, w.length - 1 - first, slot, shared + (warp * STAGES + stage) * Shape::kStageBytes);
        add_slice(a, q, ring + static_cast<uint32_t>(stage * Shape::kStageBytes), w.length - first);
    }

    /// Heads that the group lacks: their columns are never written, but should hold numbers.
    __device__ __forceinline__ void clear_missing_heads() const {
        for (int i = p.group * Shape::kRowBytes / 16 + static_cast<int>(threadIdx.x); i < Shape::kQBytes / 16; i += Shape::kThreads)
            reinterpret_cast<uint4*>(shared + Shape::kRingBytes)[i] = make_uint4(0, 0, 0, 0);
    }

    /// The warps' states into their stage `stage`, for all to read. All threads; ends with a barrier.
    __device__ __forceinline__ void lay_out(DecodeState<D>& a, int stage) const {
        __syncwarp();  // all lanes have read the stage that the outputs go to
        float* mine = reinterpret_cast<float*>(shared + (warp * STAGES + stage) * Shape::kStageBytes);
        float2* marks = reinterpret_cast<float2*>(shared + Shape::kMarksAt);
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
        __syncthreads();
    }
    /// Elements d and d + 1 of head h over all warps, not divided by the sum; `mark` their largest score and sum.
    __device__ __forceinline__ float2 over_warps(int h, int d, int stage, float2& mark) const {
        const float2* marks = reinterpret_cast<const float2*>(shared + Shape::kMarksAt);
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
        for (int x = 0; x < WARPS; ++x) {
            const float factor = dev::exp2_fast(m[x].x - top);
            const float2 o = *reinterpret_cast<const float2*>(shared + (x * STAGES + stage) * Shape::kStageBytes +
                                                              (h * Shape::kPad + d) * 4);
            all = fmaf(m[x].y, factor, all);
            out.x = fmaf(o.x, factor, out.x);
            out.y = fmaf(o.y, factor, out.y);
        }
        mark = make_float2(top, all);
        return out;
    }
    /// Writes two elements of an output row, divided by their sum.
    __device__ __forceinline__ void put(int sequence, int head, int element, float2 out, float all) const {
        *reinterpret_cast<uint32_t*>(p.out + (static_cast<int64_t>(sequence) * p.heads + head * p.group) * D + element) =
            N::pack(out.x / all, out.y / all);
    }

};

}  // namespace baton::backend::cuda

#include "backend/cuda/attention_decode_cluster.cuh"
#include "backend/cuda/attention_decode_line.cuh"

namespace baton::backend::cuda {

/// run_line as a function of its own, so that what surrounds the call keeps its registers.
template <Elem E, int D, int WARPS, int STAGES, int SIZE>
__device__ __noinline__ void run_line_apart(const DecodeParams<E>& p, unsigned char* shared) {
    run_line<E, D, WARPS, STAGES, SIZE>(p, shared);
}

/// Blocks for each context.
template <Elem E, int D, int WARPS, int STAGES, int SIZE, int PER_SM>
__global__ void __launch_bounds__(WARPS * 32, PER_SM) contexts_kernel(const __grid_constant__ DecodeParams<E> p) {
    using Shape = DecodeShape<D, WARPS, STAGES, SIZE>;
    extern __shared__ __align__(1024) unsigned char shared[];
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const Decode<E, D, WARPS, STAGES, SIZE> work{p, shared, warp, static_cast<int>(threadIdx.x) % 32, p.qkv != nullptr,
                                                 dev::shared_address(shared) + static_cast<uint32_t>(warp * STAGES * Shape::kStageBytes)};
    ClusterDecode<E, D, WARPS, STAGES, SIZE> cluster{work};
    cluster.announce();
    if (!p.early)
        dev::wait_for_earlier();
    if (cluster.takes()) {
        cluster.run();
        return;
    }
    __syncthreads();  // the cluster's barrier was made where tables will lie
    if constexpr (PER_SM > 1)
        run_line_apart<E, D, WARPS, STAGES, SIZE>(p, shared);
    else
        run_line<E, D, WARPS, STAGES, SIZE>(p, shared);
}

/// Blocks that share all contexts: a kernel of its own, as code that lies between what is used makes it slower.
template <Elem E, int D, int WARPS, int STAGES, int SIZE, int PER_SM>
__global__ void __maxnreg__(160) line_kernel(DecodeParams<E> p) {
    extern __shared__ __align__(1024) unsigned char shared[];
    if (!p.early)
        dev::wait_for_earlier();
    run_line<E, D, WARPS, STAGES, SIZE>(p, shared);
}

struct PlanParams : DecodeLengths {
    int* plan;
};
/// A block for each of those that will share the contexts.
template <int WARPS, int SLICE>
__global__ void __launch_bounds__(WARPS * 32) plan_kernel(PlanParams p) {
    extern __shared__ int tables[];
    constexpr int kThreads = WARPS * 32;
    dev::wait_for_earlier();
    int* lengths = tables + 32;
    int* before = lengths + p.sequences;
    scan_lengths<kThreads, SLICE>(p.kv_len, p.sequences, lengths, before, tables);
    const DecodeShares shares(before[p.sequences] * p.kv_heads, static_cast<int>(gridDim.x));
    const LineShare share = share_of<SLICE>(shares, lengths, before, p);
    LineSlice<SLICE> slice;
    slice.find(static_cast<int>(threadIdx.x) / 32 + WARPS * (static_cast<int>(threadIdx.x) & 31), share, lengths, before, p);
    using Plan = LinePlan<kThreads, SLICE>;
    Plan::write(p.plan + static_cast<int64_t>(blockIdx.x) * Plan::kInts, share, slice);
}

template <Elem E>
DecodeParams<E> decode_params(const DecodeAttention& a) {
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
    // The counters, which must be zero, lie at the same place for every batch and grid that uses this memory.
    auto* bytes = static_cast<unsigned char*>(a.workspace);
    p.arrived = reinterpret_cast<int*>(bytes);
    bytes += kDecodeContextsMax * sizeof(int);
    p.marks = reinterpret_cast<float2*>(bytes);
    bytes += static_cast<size_t>(a.splits) * 2 * 8 * sizeof(float2);
    p.parts = reinterpret_cast<float*>(bytes);
    bytes += static_cast<size_t>(a.splits) * 2 * 8 * a.base.kv.head_dim * sizeof(float);
    p.plan = reinterpret_cast<const int*>(bytes);
    p.unread = a.fused != nullptr ? 1 : 0;
    if (a.fused != nullptr) {
        p.early = a.early;
        p.qkv = static_cast<const T*>(a.fused->qkv);
        p.q_norm = a.fused->q_norm;
        p.k_norm = a.fused->k_norm;
        p.eps = a.fused->eps;
        p.rope = a.fused->rope;
        p.slots = a.fused->slots;
    }
    return p;
}

/// Blocks of a cluster: where `splits` is a few times the number of contexts, a cluster for each; one where it is that number.
inline uint32_t decode_cluster(const DecodeAttention& a, bool clusters) {
    const uint32_t contexts = a.base.sequences * a.base.kv.kv_heads;
    for (const uint32_t size : {8u, 4u, 2u})
        if (clusters && contexts * size == a.splits)
            return size;
    return contexts == a.splits ? 1 : 0;
}

/// Bytes of shared memory of a block.
template <int D, int WARPS, int STAGES, int SIZE>
size_t decode_shared(const DecodeAttention& a, uint32_t cluster) {
    const uint32_t group = a.base.heads / a.base.kv.kv_heads;
    const size_t line = LineShape<D, WARPS, STAGES, SIZE>::shared(a.base.sequences, group);
    return cluster > 0 ? std::max(line, DecodeShape<D, WARPS, STAGES, SIZE>::shared(cluster, group)) : line;
}

/// `clusters`: whether the device has them.
template <Elem E, int D, int WARPS, int STAGES, int SIZE, int PER_SM>
cudaError_t launch_decode(const Launch& launch, const DecodeAttention& a, bool clusters) {
    using Shape = DecodeShape<D, WARPS, STAGES, SIZE>;
    const uint32_t cluster = decode_cluster(a, clusters);
    DecodeParams<E> p = decode_params<E>(a);
    p.cluster = static_cast<int>(cluster);
    if (!a.planned || cluster > 0)
        p.plan = nullptr;
    const size_t shared = decode_shared<D, WARPS, STAGES, SIZE>(a, cluster);
    if (cluster > 0)
        return launch_kernel<contexts_kernel<E, D, WARPS, STAGES, SIZE, PER_SM>>(launch, a.splits, Shape::kThreads, shared, p, cluster);
    return launch_kernel<line_kernel<E, D, WARPS, STAGES, SIZE, PER_SM>>(launch, a.splits, Shape::kThreads, shared, p);
}

template <Elem E, int D, int WARPS, int SIZE>
cudaError_t launch_plan(const Launch& launch, const DecodeAttention& a, bool clusters) {
    if (decode_cluster(a, clusters) > 0)
        return cudaSuccess;
    const DecodeParams<E> decode = decode_params<E>(a);
    PlanParams p{decode, const_cast<int*>(decode.plan)};
    const size_t shared = (32 + 2 * static_cast<size_t>(a.base.sequences) + 1) * sizeof(int);
    return launch_kernel<plan_kernel<WARPS, SIZE * 2048 / D>>(launch, a.splits, WARPS * 32, shared, p);
}

}  // namespace baton::backend::cuda
