// Decode attention of 16 rows together with the product ahead of it, for the layers of Qwen3-0.6B: a block has a share of the columns of
// qkv, and of one sequence and kv head the context or a part of it. Its weights and the first of its KV are on their way before the rows of x
// are there, and between product and attention lies no more than the way of a number through L2 (slots.cuh). All blocks must run at once.
#include <array>

#include "backend/cuda/attention_decode_head.cuh"
#include "backend/cuda/attention_decode_slice.cuh"
#include "backend/cuda/attention_device.cuh"
#include "backend/cuda/attention_qkv.hpp"
#include "backend/cuda/attention_warpgroup.cuh"
#include "backend/cuda/gemm_bring.cuh"
#include "backend/cuda/gemm_device.cuh"
#include "backend/cuda/laid_rows.cuh"
#include "backend/cuda/linear_shared.hpp"
#include "backend/cuda/slots.cuh"

namespace baton::backend::cuda {

namespace {

using slots::publish;

constexpr uint32_t kRows = kQkvAttentionRows;
constexpr uint32_t kBlocks = 128;
constexpr uint32_t kWarps = 8;
constexpr uint32_t kThreads = kWarps * 32;
constexpr uint32_t kHidden = 1024, kHeads = 16, kKvHeads = 8, kDim = 128;
constexpr uint32_t kGroup = kHeads / kKvHeads;
constexpr uint32_t kQkv = (kHeads + 2 * kKvHeads) * kDim;
constexpr uint32_t kColumns = kQkv / kBlocks;  // of a block
constexpr uint32_t kUnit = 32;                 // elements of k that four lanes read at once
constexpr uint32_t kUnits = kHidden / kUnit / kWarps;
static_assert(kRows * kKvHeads == kBlocks && kColumns == 32 && kUnits == 4);
[[maybe_unused]] constexpr uint32_t kSplitsLog2Max = 4;
constexpr uint32_t kResultThreads = kGroup * kDim / 2;  // two elements each

// Shared memory: weights, and then the warps' sums; KV.
[[maybe_unused]] constexpr uint32_t kWeightsAt = 0;
constexpr uint32_t kRingAt = kColumns * kHidden * 2;
constexpr uint32_t kPart = 16 * kDim * 2;  // K, or V, of 16 tokens
constexpr uint32_t kParts = 4;             // of a warp,
[[maybe_unused]] constexpr int kPartsFirst = 2;  // of which so many are asked for before qkv's numbers have come
static_assert(kParts % 2 == 0, "V lies behind its K");
static_assert(kQkvAttentionAhead == kParts / 2 * 16 * kWarps);
constexpr uint32_t kQueriesAt = kRingAt + kWarps * kParts * kPart;
constexpr uint32_t kNewAt = kQueriesAt + kGroup * kDim * 2;  // k, then v, of the new token
constexpr uint32_t kMarksAt = kNewAt + 2 * kDim * 2;
constexpr uint32_t kBarrierAt = kMarksAt + kWarps * kGroup * 8;
constexpr uint32_t kShared = kBarrierAt + 8;

constexpr size_t kQkvBytes = size_t{kRows} * kQkv * 2;  // of slots, ahead of the partial results

struct Args {
    const void* weights;
    const float* norm;
    LaidRows x;
    LaidRows out;
    void* k;
    void* v;
    unsigned char* slots;  // [rows, columns of qkv]: of a sequence as many as it has parts
    unsigned char* partial;  // [blocks, threads of a result] of two elements, their sum and its top
    uint32_t splits_log2;
    const float* q_norm;
    const float* k_norm;
    const int32_t* kv_len;
    const int32_t* slots_new;
    const int32_t* blocks;
    const float2* rope;
    int64_t block_stride;
    uint32_t blocks_stride;
    uint32_t block_shift;
    float eps;
    float qk_eps;
    float scale_log2;
};

#if __CUDA_ARCH__ >= 900

/// What a thread knows of its place.
struct Place {
    uint32_t base;  ///< shared address
    uint32_t warp;
    uint32_t lane;
    uint32_t g;     ///< row of a tile
    uint32_t t;     ///< and its quarter of a unit
};
template <class T>
constexpr bool is_bf16 = std::is_same_v<T, __nv_bfloat16>;

__device__ __forceinline__ uint4 load_shared(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}
/// A lane's words of two neighbouring units of a row. Rows of odd number read them in the other order, so that two rows of a pitch of whole
/// lines lie in different banks.
__device__ __forceinline__ void load_pair(uint4 (&w)[2], uint32_t at, bool odd) {
    const uint4 a = load_shared(at + (odd ? 64 : 0));
    const uint4 b = load_shared(at + (odd ? 0 : 64));
    w[0] = {odd ? b.x : a.x, odd ? b.y : a.y, odd ? b.z : a.z, odd ? b.w : a.w};
    w[1] = {odd ? a.x : b.x, odd ? a.y : b.y, odd ? a.z : b.z, odd ? a.w : b.w};
}

/// A warp's sums of the block's columns over its part of k, and of the rows' squares. BF16 multiplies the norm's weight into x, FP16, whose
/// range x could leave, into the weights.
template <class T>
struct Sums {
    static constexpr uint32_t kTiles = kColumns / 8;
    static constexpr uint32_t kStride = kColumns + 8;             // floats: rows of a half warp lie in different banks
    static constexpr uint32_t kFloats = kRows * kStride + kRows;  // of a warp: the rows, then their squares
    static constexpr uint32_t kPitch = kHidden * 2;               // bytes of a row of weights

    float acc[kTiles][4] = {};
    float square[2][4] = {};
    uint4 factors[kUnits];

    /// The norm's weight of a lane's columns, as it lies.
    struct Norm {
        float4 parts[kUnits][2];
    };
    static __device__ __forceinline__ Norm ask_norm(const float* norm, const Place& p) {
        Norm asked;
#pragma unroll
        for (uint32_t u = 0; u < kUnits; ++u)
#pragma unroll
            for (uint32_t h = 0; h < 2; ++h) asked.parts[u][h] = dev::load_once_f32(norm + (p.warp * kUnits + u) * kUnit + p.t * 8 + h * 4);
        return asked;
    }
    __device__ __forceinline__ void take_norm(const Norm& asked) {
#pragma unroll
        for (uint32_t u = 0; u < kUnits; ++u) factors[u] = dev::pack8<T>(asked.parts[u][0], asked.parts[u][1]);
    }
    __device__ __forceinline__ void add(uint4 (&x)[kUnits][2], uint32_t weights, const Place& p) {
        const bool odd = (p.g & 1) != 0;
        const uint32_t lane_at = p.g * kPitch + p.warp * kUnits * (kUnit * 2) + p.t * 16;
#pragma unroll
        for (uint32_t pair = 0; pair < kUnits / 2; ++pair) {
#pragma unroll
            for (uint32_t c = 0; c < 2; ++c) {
                uint4& lo = x[2 * pair + c][0];
                uint4& hi = x[2 * pair + c][1];
                const uint32_t lo_left[2][4] = {{lo.x, 0, lo.y, 0}, {lo.z, 0, lo.w, 0}};
                const uint32_t hi_left[2][4] = {{0, hi.x, 0, hi.y}, {0, hi.z, 0, hi.w}};
                dev::mma<T>(square[0], lo_left[0], lo.x, lo.y);
                dev::mma<T>(square[1], hi_left[0], hi.x, hi.y);
                dev::mma<T>(square[0], lo_left[1], lo.z, lo.w);
                dev::mma<T>(square[1], hi_left[1], hi.z, hi.w);
                if constexpr (is_bf16<T>) lo = gemm::multiply8<T>(lo, factors[2 * pair + c]), hi = gemm::multiply8<T>(hi, factors[2 * pair + c]);
            }
#pragma unroll
            for (uint32_t j = 0; j < kTiles; ++j) {
                const uint32_t tile = weights + j * 8 * kPitch;
                uint4 w[2];
                load_pair(w, tile + lane_at + pair * 128, odd);
#pragma unroll
                for (uint32_t c = 0; c < 2; ++c) {
                    if constexpr (!is_bf16<T>) w[c] = gemm::multiply8<T>(w[c], factors[2 * pair + c]);
                    const uint4& lo = x[2 * pair + c][0];
                    const uint4& hi = x[2 * pair + c][1];
                    const uint32_t left[2][4] = {{lo.x, hi.x, lo.y, hi.y}, {lo.z, hi.z, lo.w, hi.w}};
                    dev::mma<T>(acc[j], left[0], w[c].x, w[c].y);
                    dev::mma<T>(acc[j], left[1], w[c].z, w[c].w);
                }
            }
        }
    }
    /// For all threads, behind a barrier.
    __device__ __forceinline__ void lay_out(unsigned char* at, const Place& p) const {
        float* mine = reinterpret_cast<float*>(at) + p.warp * kFloats;
        float* row = mine + p.g * kStride + p.t * 2;
#pragma unroll
        for (uint32_t j = 0; j < kTiles; ++j) {
            *reinterpret_cast<float2*>(row + j * 8) = {acc[j][0], acc[j][1]};
            *reinterpret_cast<float2*>(row + 8 * kStride + j * 8) = {acc[j][2], acc[j][3]};
        }
        if (p.t == p.g >> 1) {
            const bool high = (p.g & 1) != 0;
            mine[kRows * kStride + p.g] = high ? square[0][1] : square[0][0];
            mine[kRows * kStride + p.g + 8] = high ? square[1][3] : square[1][2];
        }
    }
    /// Columns `column` and the next of a row over all warps.
    static __device__ __forceinline__ float2 of(const unsigned char* at, uint32_t row, uint32_t column) {
        const float* from = reinterpret_cast<const float*>(at) + row * kStride + column;
        float2 y = {};
#pragma unroll
        for (uint32_t w = 0; w < kWarps; ++w) {
            const float2 v = *reinterpret_cast<const float2*>(from + w * kFloats);
            y.x += v.x, y.y += v.y;
        }
        return y;
    }
    /// The norm's factor of a row.
    static __device__ __forceinline__ float scale_of(const unsigned char* at, uint32_t row, float eps) {
        const float* from = reinterpret_cast<const float*>(at) + kRows * kStride + row;
        float total = 0;
#pragma unroll
        for (uint32_t w = 0; w < kWarps; ++w) total += from[w * kFloats];
        return rsqrtf(total * (1.0f / kHidden) + eps);
    }
};

/// The words of four neighbouring lanes as one.
__device__ __forceinline__ uint4 of_four(uint32_t word) {
    return {__shfl_sync(0xffffffffu, word, 0, 4), __shfl_sync(0xffffffffu, word, 1, 4), __shfl_sync(0xffffffffu, word, 2, 4),
            __shfl_sync(0xffffffffu, word, 3, 4)};
}

/// Elements of a result over what some threads or blocks have seen of a context: sums of weights and values, to the power of the highest weight.
struct Partial {
    float2 o = {};
    float sum = 0;
    float top = dev::minus_infinity();
    __device__ __forceinline__ void add(const Partial& other, float of_all) {
        const float factor = other.top == dev::minus_infinity() ? 0.0f : dev::exp2_fast(other.top - of_all);  // who has seen nothing
        o.x = fmaf(other.o.x, factor, o.x);
        o.y = fmaf(other.o.y, factor, o.y);
        sum = fmaf(other.sum, factor, sum);
    }
};

/// Attention of one sequence and kv head, or of a part of the context.
template <Elem E>
struct Context {
    using N = dev::Number<E>;
    using T = typename N::Type;

    const Args& a;
    const Place& p;
    uint32_t slot_row;  ///< row of Args::slots
    uint32_t sequence;
    uint32_t part;      ///< of the sequence's context
    uint32_t head;
    int length;
    int count;      ///< tiles of 16 tokens of this warp
    int ids;        ///< of a lane: the block of the warp's tile of that number
    uint32_t ring;
    uint64_t policy;
    const int32_t* table;

    __device__ __forceinline__ Context(const Args& args, const Place& place) : a(args), p(place) {
        slot_row = blockIdx.x / kKvHeads;
        sequence = slot_row >> a.splits_log2;
        part = slot_row & ((1u << a.splits_log2) - 1);
        head = blockIdx.x % kKvHeads;
        table = a.blocks + static_cast<int64_t>(sequence) * a.blocks_stride;
        const uint32_t at = static_cast<uint32_t>(first_of(static_cast<int>(p.lane))) >> a.block_shift;
        ids = at < a.blocks_stride ? dev::load_word(table + at) : 0;  // before it is known how many of them are its tiles'
        length = max(0, dev::load_word(a.kv_len + sequence));
        const int tiles = (length + 15) / 16;
        const int first = first_of(0) / 16, step = static_cast<int>(kWarps) << a.splits_log2;
        count = first < tiles ? (tiles - first + step - 1) / step : 0;
        ring = p.base + kRingAt + p.warp * kParts * kPart;
        policy = dev::read_once_policy();
    }
    __device__ __forceinline__ int first_of(int i) const {
        return (((i * static_cast<int>(kWarps) + static_cast<int>(p.warp)) << a.splits_log2) + static_cast<int>(part)) * 16;
    }
    /// Starts the copy of part j: K of tile j / 2, or V.
    __device__ __forceinline__ void fetch(int j) const {
        const int i = j >> 1;
        if (i < count) {
            const int first = first_of(i);
            const int readable = length - 1 - first;
            const int kept = __shfl_sync(0xffffffffu, ids, i & 31);
            const int block = i < 32 ? kept : (readable > 0 ? __ldg(table + (first >> a.block_shift)) : 0);
            const int piece = static_cast<int>(p.lane) % 16;
            const int row0 = static_cast<int>(p.lane) / 16;
            const T* from = static_cast<const T*>((j & 1) != 0 ? a.v : a.k) + static_cast<int64_t>(block) * a.block_stride +
                            ((head << a.block_shift) + (static_cast<uint32_t>(first) & ((1u << a.block_shift) - 1))) * kDim + piece * 8;
            const uint32_t to = ring + static_cast<uint32_t>(j % static_cast<int>(kParts)) * kPart;
#pragma unroll
            for (int r = 0; r < 16; r += 2) {
                const int row = r + row0;
                dev::copy16_of_stream(to + static_cast<uint32_t>(row * 256 + ((piece ^ (row & 7)) << 4)), from + row * static_cast<int>(kDim), row < readable, policy);
            }
        }
        dev::copy_commit();
    }
    __device__ __forceinline__ void fetch_parts(int begin, int end) const {
#pragma unroll 1
        for (int j = begin; j < end; ++j) fetch(j);
    }
    /// A row of the new token into its tile and the pool. Whole warps.
    __device__ __forceinline__ void put_new(unsigned char* shared, uint32_t tile, bool v, int row, void* pool, int slot) const {
        if (p.lane < 16) {
            const uint4 words = *reinterpret_cast<const uint4*>(shared + kNewAt + (v ? kDim * 2 : 0) + p.lane * 16);
            *reinterpret_cast<uint4*>(shared + (tile - p.base) + row * 256 + ((static_cast<int>(p.lane) ^ (row & 7)) << 4)) = words;
            if (slot >= 0)
                *reinterpret_cast<uint4*>(static_cast<T*>(pool) + static_cast<int64_t>(slot >> a.block_shift) * a.block_stride +
                                          ((head << a.block_shift) + (static_cast<uint32_t>(slot) & ((1u << a.block_shift) - 1))) * kDim + p.lane * 8) = words;
        }
        __syncwarp();
    }
    /// Queries, k and v of the new token: norm and rotation. Warp i takes row i of them.
    __device__ __forceinline__ void receive_rows(const float2 (&turns)[2], unsigned char* shared) const {
        if (p.warp >= kGroup + 2) return;
        const bool is_q = p.warp < kGroup;
        const bool is_v = p.warp == kGroup + 1;
        const uint32_t column = is_q ? (head * kGroup + p.warp) * kDim : (kHeads + (is_v ? kKvHeads : 0) + head) * kDim;
        HeadPiece<E, kDim> weight;
        const float* norm = is_q ? a.q_norm : a.k_norm;
        const bool normed = !is_v && norm != nullptr;
        if (normed) weight.load_weight(norm, static_cast<int>(p.lane));
        unsigned char* from = a.slots + (slot_row * kQkv + column + p.lane * 2) * 2;
        uint32_t low = slots::kAbsent, high = slots::kAbsent;
        while (low == slots::kAbsent || high == slots::kAbsent) low = slots::look_word(from), high = slots::look_word(from + kDim);
        *reinterpret_cast<uint32_t*>(from) = *reinterpret_cast<uint32_t*>(from + kDim) = slots::kAbsent;  // for the next launch
        HeadPiece<E, kDim> piece;
        piece.set_raw(low, high);
        if (normed) piece.norm(weight, a.qk_eps);
        if (!is_v) piece.turn(turns);
        if (is_q)
            piece.store(shared + kQueriesAt, static_cast<int>(p.warp), static_cast<int>(p.lane));
        else
            piece.store(shared + kNewAt + (is_v ? kDim * 2 : 0), 0, static_cast<int>(p.lane));
    }
    /// Over this warp's tiles; the first parts are on their way. Its state goes to the warp's ring.
    __device__ __forceinline__ void run(int slot, unsigned char* shared) const {
        uint32_t q[kDim / 16][2];
#pragma unroll
        for (uint32_t kk = 0; kk < kDim / 16; ++kk)
#pragma unroll
            for (uint32_t h = 0; h < 2; ++h)
                q[kk][h] = p.g < kGroup ? *reinterpret_cast<const uint32_t*>(shared + kQueriesAt + p.g * kDim * 2 + (((2 * kk + h) ^ p.g) << 4) + p.t * 4) : 0;
        DecodeState<kDim> state;
        state.clear();
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            const uint32_t k_at = ring + static_cast<uint32_t>(2 * i) % kParts * kPart;
            const uint32_t v_at = k_at + kPart;
            const int tokens = length - first_of(i);
            const bool has_new = tokens <= 16;
            dev::copy_wait<kParts - 1>();
            __syncwarp();
            if (has_new) put_new(shared, k_at, false, tokens - 1, a.k, slot);
            DecodeSlice<E, kDim, 16> slice(k_at, static_cast<int>(p.lane));
            float shrink[2];
            slice.weigh(state, shrink, q, tokens, a.scale_log2);
            __syncwarp();
            fetch(2 * i + static_cast<int>(kParts));
            dev::copy_wait<kParts - 1>();
            __syncwarp();
            if (has_new) put_new(shared, v_at, true, tokens - 1, a.v, slot);
            if (__any_sync(0xffffffffu, shrink[0] != 1.0f || shrink[1] != 1.0f)) state.scale(shrink);
            slice.add_values(state);
            __syncwarp();
            fetch(2 * i + static_cast<int>(kParts) + 1);
        }
        dev::copy_wait<0>();
        __syncwarp();
        float* mine = reinterpret_cast<float*>(shared + (ring - p.base));
        float2* marks = reinterpret_cast<float2*>(shared + kMarksAt);
#pragma unroll
        for (uint32_t h = 0; h < 2; ++h) {
            const float sum = dev::column_sum(state.sum[h]);
            if (p.t != 0) continue;
#pragma unroll
            for (uint32_t n = 0; n < kDim / 16; ++n) {
                mine[h * kDim + n * 16 + p.g] = state.o[n][h];
                mine[h * kDim + n * 16 + 8 + p.g] = state.o[n][2 + h];
            }
            if (p.lane == 0) marks[p.warp * kGroup + h] = make_float2(state.top[h], sum);
        }
    }
    /// Elements 2 · thread and the next of the block's two heads, over all warps.
    [[nodiscard]] __device__ __forceinline__ Partial of_warps(const unsigned char* shared) const {
        const uint32_t h = threadIdx.x / (kDim / 2), d = threadIdx.x % (kDim / 2) * 2;
        const float2* marks = reinterpret_cast<const float2*>(shared + kMarksAt) + h;
        float2 m[kWarps];
        Partial all;
#pragma unroll
        for (uint32_t w = 0; w < kWarps; ++w) m[w] = marks[w * kGroup], all.top = fmaxf(all.top, m[w].x);
#pragma unroll
        for (uint32_t w = 0; w < kWarps; ++w)
            all.add({*reinterpret_cast<const float2*>(shared + kRingAt + w * kParts * kPart + (h * kDim + d) * 4), m[w].y, m[w].x}, all.top);
        return all;
    }
    /// Its block's place among Args::partial.
    [[nodiscard]] __device__ __forceinline__ unsigned char* partial_of(uint32_t of_part) const {
        return a.partial + ((blockIdx.x + (of_part - part) * kKvHeads) * kResultThreads + threadIdx.x) * 16;
    }
    /// Over the other parts of the context as well, for the block that has the first.
    __device__ __forceinline__ void add_parts(Partial& all) const {
        const uint32_t others = (1u << a.splits_log2) - 1;
        constexpr uint32_t kMost = (1u << kSplitsLog2Max) - 1;
        uint4 v[kMost];
#pragma unroll
        for (uint32_t i = 0; i < kMost; ++i)
            if (i < others) v[i] = slots::look(partial_of(i + 1));
        bool missing;
        do {
            missing = false;
#pragma unroll
            for (uint32_t i = 0; i < kMost; ++i)
                if (i < others && !slots::has_come(v[i])) {
                    missing = true;
                    v[i] = slots::look(partial_of(i + 1));
                }
        } while (missing);
        Partial sum;
        sum.top = all.top;
#pragma unroll
        for (uint32_t i = 0; i < kMost; ++i)
            if (i < others) sum.top = fmaxf(sum.top, __uint_as_float(v[i].w));
        sum.add(all, sum.top);
#pragma unroll
        for (uint32_t i = 0; i < kMost; ++i) {
            if (i >= others) continue;
            sum.add({{__uint_as_float(v[i].x), __uint_as_float(v[i].y)}, __uint_as_float(v[i].z), __uint_as_float(v[i].w)}, sum.top);
            slots::forget(partial_of(i + 1));
        }
        all = sum;
    }
    /// What the block has to say of the result: whole rows by the blocks with the first part of a context; those with the others zero the rows
    /// that no sequence has.
    __device__ __forceinline__ void finish(const unsigned char* shared) const {
        uint32_t row = sequence;
        uint32_t word = 0;
        if (part != 0) row = (kRows >> a.splits_log2) + sequence * ((1u << a.splits_log2) - 1) + part - 1;
        if (length != 0) {
            Partial all = of_warps(shared);
            if (part != 0) {
                publish(partial_of(part), {__float_as_uint(all.o.x), __float_as_uint(all.o.y), __float_as_uint(all.sum), __float_as_uint(all.top)});
            } else {
                if (a.splits_log2 != 0) add_parts(all);
                word = N::pack(all.o.x / all.sum, all.o.y / all.sum);
            }
        }
        *reinterpret_cast<uint32_t*>(a.out.of(row, head * kGroup * kDim + threadIdx.x * 2)) = word;
    }
};

#endif

template <Elem E>
__global__ void __launch_bounds__(kThreads, 1) qkv_attention_kernel(const __grid_constant__ Args a) {
#if __CUDA_ARCH__ >= 900
    using N = dev::Number<E>;
    using T = typename N::Type;
    extern __shared__ __align__(1024) unsigned char shared[];
    const Place p = {dev::shared_address(shared), threadIdx.x / 32, threadIdx.x % 32, threadIdx.x % 32 / 4, threadIdx.x % 4};
    const uint32_t b = blockIdx.x;
    const uint32_t barrier = p.base + kBarrierAt;
    // Few numbers that are waited for are asked for ahead of weights and KV: behind them they take as long as those.
    Sums<T> sums;
    const auto norm = Sums<T>::ask_norm(a.norm, p);
    const Context<E> context(a, p);
    const int slot = dev::load_word(a.slots_new + context.sequence);
    if (threadIdx.x == 0) {
        dev::barrier_init(barrier, 1);
        dev::fence_for_products();
        dev::barrier_expect(barrier, kColumns * kHidden * 2);
    }
    __syncthreads();
    if (p.lane < kColumns / kWarps) {
        const uint32_t r = p.warp * (kColumns / kWarps) + p.lane;
        gemm::bring(p.base + kWeightsAt + r * kHidden * 2, static_cast<const T*>(a.weights) + size_t{b * kColumns + r} * kHidden, kHidden * 2, barrier);
    }
    __syncwarp();
    sums.take_norm(norm);
    float2 turns[2] = {};
    if (context.length > 0)
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) turns[i] = __ldg(a.rope + static_cast<int64_t>(context.length - 1) * (kDim / 2) + 2 * p.lane + i);
    dev::wait_for_earlier();

    uint4 x[kUnits][2];
    const unsigned char* from = a.x.of(p.g, p.warp * kUnits * kUnit + p.t * 8);
#pragma unroll
    for (uint32_t u = 0; u < kUnits; ++u)
#pragma unroll
        for (uint32_t h = 0; h < 2; ++h) x[u][h] = __ldcg(reinterpret_cast<const uint4*>(from + h * a.x.eight + u * a.x.unit));
    context.fetch_parts(0, kPartsFirst);
    dev::barrier_wait(barrier, 0);
    sums.add(x, p.base + kWeightsAt, p);
    __syncthreads();
    sums.lay_out(shared + kWeightsAt, p);
    __syncthreads();
    const uint32_t place = threadIdx.x / 16, pair = threadIdx.x % 16, row = place >> a.splits_log2;
    const float scale = sums.scale_of(shared + kWeightsAt, row, a.eps);
    const float2 y = sums.of(shared + kWeightsAt, row, pair * 2);
    const uint4 words = of_four(N::pack(y.x * scale, y.y * scale));
    if (p.t == 0) publish(a.slots + (place * kQkv + b * kColumns + pair * 2) * 2, words);
    dev::launch_dependents();
    context.receive_rows(turns, shared);
    context.fetch_parts(kPartsFirst, kParts);
    __syncthreads();
    context.run(slot, shared);
    __syncthreads();
    if (threadIdx.x < kResultThreads) context.finish(shared);
#else
    (void)a;
#endif
}

using Kernel = void (*)(Args);
Kernel kernel_of(Elem elem) { return elem == Elem::kBF16 ? qkv_attention_kernel<Elem::kBF16> : qkv_attention_kernel<Elem::kF16>; }

}  // namespace

size_t qkv_attention_slot_bytes() { return kQkvBytes + size_t{kBlocks} * kResultThreads * 16; }

cudaError_t qkv_attention_prepare(Elem elem, AtOnceLimits& limits) {
    const std::array<const void*, 1> all = {reinterpret_cast<const void*>(kernel_of(elem))};
    return prepare_at_once(all, limits);
}

bool qkv_attention_takes(const QkvAttention& part, const AtOnceLimits& limits) {
    const KvView& kv = part.attention.kv;
    const Matrix& qkv = part.qkv;
    return limits.shared_bytes >= kShared && limits.multiprocessors >= kBlocks && is_power_up_to(part.splits, kRows) && part.attention.sequences == kRows &&
           qkv.n == kQkv && qkv.k == kHidden && qkv.norm != nullptr && qkv.bias == nullptr && part.attention.heads == kHeads && kv.kv_heads == kKvHeads &&
           kv.head_dim == kDim && takes_pages(kv) && (part.rope.q_norm == nullptr) == (part.rope.k_norm == nullptr);
}

cudaError_t qkv_attention(const Launch& launch, const QkvAttention& part) {
    const AttentionArgs& attention = part.attention;
    const RopeAppend& rope = part.rope;
    const Args args = {part.qkv.w,
                       part.qkv.norm,
                       laid_rows(part.x, kHidden),
                       laid_rows({attention.out, true}, kHeads * kDim),
                       attention.kv.k,
                       attention.kv.v,
                       static_cast<unsigned char*>(part.slots),
                       static_cast<unsigned char*>(part.slots) + kQkvBytes,
                       log2_of(part.splits),
                       rope.q_norm,
                       rope.k_norm,
                       attention.kv_len,
                       rope.slots,
                       attention.blocks,
                       rope.rope,
                       attention.kv.block_stride,
                       attention.blocks_stride,
                       log2_of(attention.kv.block_tokens),
                       part.qkv.eps,
                       rope.eps,
                       attention.scale * 1.4426950408889634f};
    return start(launch, kernel_of(attention.elem), kBlocks, kThreads, kShared, 1, args);
}

}  // namespace baton::backend::cuda
