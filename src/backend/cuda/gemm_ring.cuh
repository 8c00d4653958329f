#pragma once

#include "backend/cuda/attention_warpgroup.cuh"
#include "backend/cuda/gemm_device.cuh"
#include "backend/cuda/gemm_wide.cuh"
#include "backend/cuda/linear_kernels.hpp"

/// The product of Linear for 17 rows and more on sm_90a. out tile [64 · MW rows of x, N rows of w] by wgmma with x as the left
/// operand, so that N may be what deals a matrix evenly over the multiprocessors. Two warps bring weights and x to shared memory
/// through the copy engine, in two rings of stages of 64 elements of k each: the weights' never waits for the kernel ahead.
/// With the norm fused four more warps scale each stage of x ahead of the products.
///
/// A cluster does one of two things, or both: its blocks share an operand, each bringing a part of it to all (`share`: with
/// MW = 1 neighbours along n share x, with MW = 2 neighbours along m share the weights), and they cut k into `splits` parts,
/// whose sums are added in order.
namespace baton::backend::cuda::gemm {

constexpr uint32_t kRingDepth = 64;      // elements of k a stage holds: rows of 128 bytes
constexpr uint32_t kRingWMost = 31;      // stages of weights
constexpr uint32_t kRingXMost = 16;

struct RingArgs : Operands {
    uint32_t k_tiles;
    uint32_t splits_log2;
    uint32_t share_log2;
    uint32_t m_tiles;
    uint32_t n_tiles;
    uint32_t units;     // what clusters do one after the other: tiles, or groups of them that share
    uint32_t band;      // units along m that follow each other before the next tile of n
    uint32_t w_stages;
    uint32_t x_stages;
    float eps;
    Out kind;
    Ahead ahead;
};

template <int MW, int N>
struct RingShape {
    static constexpr uint32_t kRows = 64 * MW;
    static constexpr uint32_t kConsumers = 128 * MW;
    static constexpr uint32_t kThreads = kConsumers + 64;
    /// With the norm fused as many more scale the rows of x, each stage of them while the products work on those before.
    static constexpr uint32_t kNormThreads = kThreads + kConsumers;
    static constexpr uint32_t kHeader = MW * 1024;  // bytes ahead of the rings: the barriers
    static constexpr uint32_t kStageW = N * 128;
    static constexpr uint32_t kStageX = kRows * 128;
    /// Of the sums' rows in shared memory: a warp's pairs of eight rows lie in different banks.
    static constexpr uint32_t kSumStride = (N + 31) / 32 * 32 + 8;
    static constexpr uint32_t kSumBytes = kRows * kSumStride * 4;
    static_assert(N % 16 == 0 && MW == 1);  // the header of MW == 1 has all barriers
};

/// Where a ring stands: its stage, and the parity of the turn it is in.
struct Turn {
    uint32_t stage = 0;
    uint32_t parity = 0;
    __device__ __forceinline__ void next(uint32_t stages) {
        if (++stage == stages) stage = 0, parity ^= 1;
    }
};

/// How far the weights of a block have been asked for.
struct RingWalk {
    uint32_t unit;
    uint32_t tile;  // of k
    Turn turn;
};

/// What L2 does with what copies bring. Weights are read once a step and are more than it holds: they are the first that it gives up.
__device__ __forceinline__ uint64_t weights_policy() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
    return policy;
}
/// Rows of x, which all blocks read while the weights stream past, are the last.
__device__ __forceinline__ uint64_t rows_policy() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ void ring_copy(uint32_t to, const CUtensorMap* map, uint32_t element, uint32_t row, uint32_t barrier) {
    dev::jitter();
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(to), "l"(map),
        "r"(barrier), "r"(element), "r"(row)
        : "memory");
}
__device__ __forceinline__ void ring_copy(uint32_t to, const CUtensorMap* map, uint32_t element, uint32_t row, uint32_t barrier, uint64_t policy) {
    dev::jitter();
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(element), "r"(row), "l"(policy)
        : "memory");
}
/// To the same place of every block in `mask`, and their barriers are told.
__device__ __forceinline__ void ring_copy_to_all(uint32_t to, const CUtensorMap* map, uint32_t element, uint32_t row, uint32_t barrier,
                                                 uint32_t mask) {
    dev::jitter();
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(element), "r"(row), "h"(static_cast<uint16_t>(mask))
        : "memory");
}
__device__ __forceinline__ void ring_copy_to_all(uint32_t to, const CUtensorMap* map, uint32_t element, uint32_t row, uint32_t barrier,
                                                 uint32_t mask, uint64_t policy) {
    dev::jitter();
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5, %6;" ::"r"(
            to),
        "l"(map), "r"(barrier), "r"(element), "r"(row), "h"(static_cast<uint16_t>(mask)), "l"(policy)
        : "memory");
}
/// Brings a map to where the copy engine reads it.
__device__ __forceinline__ void ring_prefetch(const CUtensorMap* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }
/// Not with release at the cluster's scope, which would wait for all of this block's writes to memory.
__device__ __forceinline__ void ring_arrive_at(uint32_t barrier_there) {
    dev::jitter();
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier_there) : "memory");
}
/// Copies from this block's shared memory to another block's, whose barrier counts the bytes.
__device__ __forceinline__ void ring_send(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier_there) {
    dev::jitter();
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "r"(from), "r"(bytes),
                 "r"(barrier_there)
                 : "memory");
}

/// Turns the four words of the four lanes of a quad over: word i of lane q becomes word q of lane i.
__device__ __forceinline__ void turn_quad(uint32_t (&w)[4], uint32_t q) {
    const bool odd = (q & 1) != 0;
    const bool high = (q & 2) != 0;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? w[i] : w[i + 1], 1);
        if (odd)
            w[i] = got;
        else
            w[i + 1] = got;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint32_t got = __shfl_xor_sync(0xffffffffu, high ? w[i] : w[i + 2], 2);
        if (high)
            w[i] = got;
        else
            w[i + 2] = got;
    }
}

/// What every warp of a block knows.
template <int MW, int N>
struct RingPlace {
    using S = RingShape<MW, N>;
    const RingArgs& a;
    uint32_t header;  // shared addresses
    uint32_t w_ring;
    uint32_t x_ring;
    uint32_t sums;    // [splits, rows each part finishes, kSumStride] f32: what the parts of k send each other; behind a row's sums its square
    uint32_t factors; // [tile1 - tile0, 64] T: the norm's weight; behind it [2, rows] f32: squares of the rows, of every other unit
    uint32_t mate;    // which of those that share
    uint32_t first;   // rank of the first of them
    uint32_t part;    // of k
    uint32_t tile0;   // its stages' worth of k
    uint32_t tile1;
    uint32_t unit0;
    uint32_t unit_step;

    __device__ RingPlace(const RingArgs& args, uint32_t shared_at) : a(args), header(shared_at) {
        w_ring = header + S::kHeader;
        x_ring = w_ring + a.w_stages * S::kStageW;
        sums = x_ring + a.x_stages * S::kStageX;
        factors = sums + (a.splits_log2 != 0 ? S::kSumBytes : 0);
        const uint32_t cluster_log2 = a.share_log2 + a.splits_log2;
        const uint32_t rank = blockIdx.x & ((1u << cluster_log2) - 1);
        mate = rank & ((1u << a.share_log2) - 1);
        first = rank - mate;
        part = rank >> a.share_log2;
        tile0 = part * a.k_tiles >> a.splits_log2;
        tile1 = (part + 1) * a.k_tiles >> a.splits_log2;
        unit0 = blockIdx.x >> cluster_log2;
        unit_step = gridDim.x >> cluster_log2;
    }
    [[nodiscard]] __device__ uint32_t w_full(uint32_t stage) const { return header + stage * 8; }
    [[nodiscard]] __device__ uint32_t w_empty(uint32_t stage) const { return header + 256 + stage * 8; }
    [[nodiscard]] __device__ uint32_t x_full(uint32_t stage) const { return header + 512 + stage * 8; }
    [[nodiscard]] __device__ uint32_t x_empty(uint32_t stage) const { return header + 640 + stage * 8; }
    [[nodiscard]] __device__ uint32_t x_ready(uint32_t stage) const { return header + 768 + stage * 8; }  // scaled
    /// Those that scale may be done with a whole unit before the last has read the squares of the one ahead.
    [[nodiscard]] __device__ uint32_t squares(uint32_t odd) const { return factors + (tile1 - tile0) * kRingDepth * 2 + odd * S::kRows * 4; }
    [[nodiscard]] __device__ uint32_t sums_full() const { return header + 248; }
    /// Rows of the tile that each part of k finishes, as a power of two.
    [[nodiscard]] __device__ uint32_t part_rows_log2() const { return (MW == 1 ? 6 : 7) - a.splits_log2; }
    /// How many of part `of`'s are within m.
    [[nodiscard]] __device__ uint32_t part_rows(uint32_t of) const {
        uint32_t mt = 0;
        uint32_t nt = 0;
        tile_of(unit0, mt, nt);
        const uint32_t row0 = mt * S::kRows + (of << part_rows_log2());
        return row0 < a.m ? min(a.m - row0, 1u << part_rows_log2()) : 0;
    }
    [[nodiscard]] __device__ uint32_t share() const { return 1u << a.share_log2; }
    [[nodiscard]] __device__ uint32_t share_mask() const { return ((1u << share()) - 1) << first; }

    /// The tile of this block in a unit.
    __device__ void tile_of(uint32_t unit, uint32_t& mt, uint32_t& nt) const {
        if constexpr (MW == 1) {
            mt = 0;
            nt = (unit << a.share_log2) + mate;
        } else {
            const uint32_t groups = (a.m_tiles + share() - 1) >> a.share_log2;
            const uint32_t per_band = a.band * a.n_tiles;
            const uint32_t band0 = unit / per_band * a.band;
            const uint32_t height = min(a.band, groups - band0);
            const uint32_t within = unit % per_band;
            mt = ((band0 + within % height) << a.share_log2) + mate;
            nt = within / height;
        }
    }
    /// First column of the result of a tile.
    [[nodiscard]] __device__ uint32_t column_of(uint32_t nt) const { return nt * (a.kind == Out::kSwiGlu ? N / 2 : N); }

    /// Up to `most` stages of weights from `at` on.
    __device__ void bring_w(const CUtensorMap* map, RingWalk& at, uint32_t most) const {
        constexpr bool kShared = MW == 2;
        const uint64_t policy = weights_policy();
        Turn& turn = at.turn;
        for (; at.unit < a.units; at.unit += unit_step, at.tile = tile0) {
            uint32_t mt = 0;
            uint32_t nt = 0;
            tile_of(at.unit, mt, nt);
            const uint32_t row0 = column_of(nt);
            const uint32_t row1 = row0 + (a.kind == Out::kSwiGlu ? a.columns : N / 2);
            for (; at.tile != tile1; ++at.tile) {
                if (most-- == 0) return;
                const uint32_t t = at.tile;
                dev::barrier_wait(w_empty(turn.stage), turn.parity ^ 1);
                dev::barrier_expect(w_full(turn.stage), S::kStageW);
                const uint32_t to = w_ring + turn.stage * S::kStageW;
                if (kShared && a.share_log2 != 0) {
                    ring_copy_to_all(to + mate * (S::kStageW / 2), map, t * kRingDepth, mate == 0 ? row0 : row1, w_full(turn.stage), share_mask(), policy);
                } else {
                    ring_copy(to, map, t * kRingDepth, row0, w_full(turn.stage), policy);
                    ring_copy(to + S::kStageW / 2, map, t * kRingDepth, row1, w_full(turn.stage), policy);
                }
                turn.next(a.w_stages);
            }
        }
        if (kShared && a.share_log2 != 0)  // what others tell this block's barriers must have come before it ends
            for (uint32_t s = 0; s < a.w_stages; ++s) {
                dev::barrier_wait(w_empty(turn.stage), turn.parity ^ 1);
                turn.next(a.w_stages);
            }
    }
    __device__ void bring_x(const CUtensorMap* map) const {
        constexpr bool kShared = MW == 1;
        const uint64_t policy = rows_policy();
        Turn turn;
        for (uint32_t unit = unit0; unit < a.units; unit += unit_step) {
            uint32_t mt = 0;
            uint32_t nt = 0;
            tile_of(unit, mt, nt);
            for (uint32_t t = tile0; t < tile1; ++t) {
                dev::barrier_wait(x_empty(turn.stage), turn.parity ^ 1);
                dev::barrier_expect(x_full(turn.stage), S::kStageX);
                const uint32_t to = x_ring + turn.stage * S::kStageX;
                if (kShared && a.share_log2 != 0) {
                    const uint32_t rows = S::kRows >> a.share_log2;
                    ring_copy_to_all(to + mate * rows * 128, map, t * kRingDepth, mate * rows, x_full(turn.stage), share_mask(), policy);
                } else {
                    ring_copy(to, map, t * kRingDepth, mt * S::kRows, x_full(turn.stage), policy);
                }
                turn.next(a.x_stages);
            }
        }
        if (kShared && a.share_log2 != 0)  // what others tell this block's barriers must have come before it ends
            for (uint32_t s = 0; s < a.x_stages; ++s) {
                dev::barrier_wait(x_empty(turn.stage), turn.parity ^ 1);
                turn.next(a.x_stages);
            }
    }
    /// This warp has read a stage. `shared`: of the operand that is shared.
    __device__ void release(uint32_t barrier, bool shared) const {
        const uint32_t lane = threadIdx.x & 31;
        if (shared && a.share_log2 != 0) {
            if (lane < share()) ring_arrive_at(dev::address_in(barrier, first + lane));
        } else if (lane == 0) {
            dev::barrier_arrive(barrier);
        }
    }
};

/// Two results that lie side by side: bias and SwiGLU.
template <class T>
__device__ __forceinline__ void finish2(const RingArgs& a, uint32_t column, float (&y)[2], float (&up)[2]) {
    if (a.bias != nullptr && column < a.columns) {
        const uint32_t* bias = reinterpret_cast<const uint32_t*>(static_cast<const T*>(a.bias) + column);
        const float2 b = Ops<T>::unpack_bits(*bias);
        y[0] += b.x, y[1] += b.y;
        if (a.kind == Out::kSwiGlu) {
            const float2 bu = Ops<T>::unpack_bits(bias[a.columns / 2]);
            up[0] += bu.x, up[1] += bu.y;
        }
    }
    if (a.kind == Out::kSwiGlu) y[0] = silu(y[0]) * up[0], y[1] = silu(y[1]) * up[1];
}

/// A warp's results from registers to memory: rows `row` and row + 8 of each lane, 16 bytes a lane where a quad's words fill it.
template <class T, int N, bool GATED>
__device__ __forceinline__ void ring_store(const RingArgs& a, float (&acc)[N / 2], uint32_t row, uint32_t column0, const float (&scale)[2]) {
    constexpr int kBlocks = GATED ? N / 16 : N / 8;  // of eight columns
    const uint32_t q = threadIdx.x & 3;
#pragma unroll
    for (int first = 0; first < kBlocks; first += 4) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const uint32_t at_row = row + static_cast<uint32_t>(half) * 8;
            const uint32_t column16 = column0 + static_cast<uint32_t>(first) * 8 + q * 8;
            const bool in = first + static_cast<int>(q) < kBlocks && at_row < a.m && column16 < a.columns;
            T* to = static_cast<T*>(a.out) + static_cast<size_t>(at_row) * a.columns + column16;
            uint32_t words[4] = {};
            if (!GATED && a.kind == Out::kAdd) {
                if (in) {
                    const uint4 old = __ldcg(reinterpret_cast<const uint4*>(to));
                    words[0] = old.x, words[1] = old.y, words[2] = old.z, words[3] = old.w;
                }
                turn_quad(words, q);
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                if (first + i >= kBlocks) break;
                const int e = (first + i) * 4 + half * 2;
                float y[2] = {acc[e] * scale[half], acc[e + 1] * scale[half]};
                float up[2] = {};
                if constexpr (GATED) up[0] = acc[e + N / 4] * scale[half], up[1] = acc[e + 1 + N / 4] * scale[half];
                const uint32_t column = column0 + static_cast<uint32_t>(first + i) * 8 + q * 2;
                finish2<T>(a, column, y, up);
                if (!GATED && a.kind == Out::kF32) {
                    if (at_row < a.m && column < a.columns)
                        *reinterpret_cast<float2*>(static_cast<float*>(a.out) + static_cast<size_t>(at_row) * a.columns + column) = {y[0], y[1]};
                    continue;
                }
                const float2 old = Ops<T>::unpack_bits(words[i]);
                words[i] = Ops<T>::pack(y[0] + old.x, y[1] + old.y);
            }
            if (!GATED && a.kind == Out::kF32) continue;
            turn_quad(words, q);
            if (in) *reinterpret_cast<uint4*>(to) = {words[0], words[1], words[2], words[3]};
        }
    }
}

/// Lays the sums of this block's part of k into its own shared memory, in the place of the rings, which are done with; the copy engine
/// takes each part's rows to the block that finishes them. (Stores to another block's memory go at 8 bytes a cycle.)
template <int MW, int N>
__device__ __forceinline__ void ring_exchange(const RingPlace<MW, N>& place, unsigned char* shared, float (&acc)[N / 2], uint32_t local, float square, bool normed) {
    using S = RingShape<MW, N>;
    const uint32_t lane = threadIdx.x & 31;
    float* own = reinterpret_cast<float*>(shared + S::kHeader);
    dev::named_sync(1, S::kConsumers);  // all warps' products have read the rings
#pragma unroll
    for (uint32_t half = 0; half < 2; ++half) {
        float* row = own + (local + half * 8) * S::kSumStride + (lane & 3) * 2;
#pragma unroll
        for (int j = 0; j < N / 8; ++j)
            *reinterpret_cast<float2*>(row + j * 8) = {acc[j * 4 + static_cast<int>(half) * 2], acc[j * 4 + static_cast<int>(half) * 2 + 1]};
    }
    if (normed && (lane & 1) == 0) own[(threadIdx.x >> 1) * S::kSumStride + N] = square;
    dev::fence_for_products();
    dev::named_sync(1, S::kConsumers);
    const uint32_t to = threadIdx.x;  // the part whose rows this thread sends off
    if (to >= 1u << place.a.splits_log2 || to == place.part) return;
    const uint32_t bytes = place.part_rows(to) * S::kSumStride * 4;
    const uint32_t rank = (to << place.a.share_log2) + place.mate;
    if (bytes != 0)
        ring_send(dev::address_in(place.sums + (place.part << place.part_rows_log2()) * S::kSumStride * 4, rank),
                  place.w_ring + (to << place.part_rows_log2()) * S::kSumStride * 4, bytes, dev::address_in(place.sums_full(), rank));
}

/// Eight results of a row from the sums of all parts of k, added in order.
template <class T, int MW, int N, bool GATED>
__device__ __forceinline__ void ring_gather(const RingPlace<MW, N>& place, const unsigned char* shared, uint32_t mt, uint32_t nt) {
    using S = RingShape<MW, N>;
    const RingArgs& a = place.a;
    constexpr uint32_t kGroups = GATED ? N / 16 : N / 8;
    const uint32_t log2 = place.part_rows_log2();
    const uint32_t row0 = mt * S::kRows + (place.part << log2);
    const uint32_t items = place.part_rows(place.part) * kGroups;
    const float* sums = reinterpret_cast<const float*>(shared + (place.sums - place.header));
    const float* own = reinterpret_cast<const float*>(shared + S::kHeader);
    const auto column_of = [&](uint32_t item) { return place.column_of(nt) + item % kGroups * 8; };
    const auto residual_of = [&](uint32_t item) {
        if (GATED || a.kind != Out::kAdd || item >= items || column_of(item) >= a.columns) return uint4{};
        return __ldcg(reinterpret_cast<const uint4*>(static_cast<const T*>(a.out) + static_cast<size_t>(row0 + item / kGroups) * a.columns + column_of(item)));
    };
    uint4 residual = residual_of(threadIdx.x);
    dev::barrier_wait(place.sums_full(), 0);
    __syncwarp();
    dev::cluster_arrive();  // the others' copies from their memory to this block's are done
    for (uint32_t item = threadIdx.x; item < items; item += S::kConsumers) {
        const uint32_t local = item / kGroups;
        const uint32_t column = column_of(item);
        if (item != threadIdx.x) residual = residual_of(item);
        if (column >= a.columns) continue;
        const uint32_t at_item = local * S::kSumStride + item % kGroups * 8;
        float y[8] = {};
        float up[8] = {};
        float square = 0;
#pragma unroll 4
        for (uint32_t p = 0; p < 1u << a.splits_log2; ++p) {
            const float* part = (p == place.part ? own : sums) + (p << log2) * S::kSumStride + at_item;
            const float4 lo = reinterpret_cast<const float4*>(part)[0];
            const float4 hi = reinterpret_cast<const float4*>(part)[1];
            y[0] += lo.x, y[1] += lo.y, y[2] += lo.z, y[3] += lo.w, y[4] += hi.x, y[5] += hi.y, y[6] += hi.z, y[7] += hi.w;
            if constexpr (GATED) {
                const float4 ulo = reinterpret_cast<const float4*>(part + N / 2)[0];
                const float4 uhi = reinterpret_cast<const float4*>(part + N / 2)[1];
                up[0] += ulo.x, up[1] += ulo.y, up[2] += ulo.z, up[3] += ulo.w, up[4] += uhi.x, up[5] += uhi.y, up[6] += uhi.z, up[7] += uhi.w;
            }
            if (a.norm != nullptr) square += part[N - item % kGroups * 8];
        }
        const float scale = a.norm != nullptr ? rsqrtf(square / static_cast<float>(a.k) + a.eps) : 1.0f;
        float old[8];
        unpack8<T>(residual, old);
#pragma unroll
        for (int i = 0; i < 8; i += 2) {
            float y2[2] = {y[i] * scale, y[i + 1] * scale};
            float up2[2] = {up[i] * scale, up[i + 1] * scale};
            finish2<T>(a, column + static_cast<uint32_t>(i), y2, up2);
            y[i] = y2[0] + old[i], y[i + 1] = y2[1] + old[i + 1];
        }
        const size_t at = static_cast<size_t>(row0 + local) * a.columns + column;
        if (!GATED && a.kind == Out::kF32) {
            float4* out = reinterpret_cast<float4*>(static_cast<float*>(a.out) + at);
            out[0] = {y[0], y[1], y[2], y[3]};
            out[1] = {y[4], y[5], y[6], y[7]};
        } else {
            *reinterpret_cast<uint4*>(static_cast<T*>(a.out) + at) = dev::pack8<T>(y);
        }
    }
}

/// The norm's weight of this block's part of k as T to shared memory, by as many threads as consume.
template <class T, int MW, int N>
__device__ __forceinline__ void ring_factors(const RingPlace<MW, N>& place, unsigned char* factors, uint32_t thread) {
    const uint32_t words = (place.tile1 - place.tile0) * (kRingDepth / 8);
    for (uint32_t i = thread; i < words; i += RingShape<MW, N>::kConsumers) {
        const uint32_t e = place.tile0 * kRingDepth + i * 8;
        float4 lo = {};
        float4 hi = {};
        if (e < place.a.k) {
            lo = __ldg(reinterpret_cast<const float4*>(place.a.norm + e));
            hi = __ldg(reinterpret_cast<const float4*>(place.a.norm + e) + 1);
        }
        reinterpret_cast<uint4*>(factors)[i] = dev::pack8<T>(lo, hi);
    }
    dev::named_sync(2, RingShape<MW, N>::kConsumers);
}

/// Half a row of one stage of x times the norm's weight, rounded to T, in place. Gives its squares.
template <class T>
__device__ __forceinline__ float ring_scale_x(unsigned char* x_stage, const unsigned char* factors, uint32_t thread) {
    const uint32_t row = thread >> 1;
    float sum = 0;
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
        const uint32_t word = (thread & 1) * 4 + i;
        uint4* at = reinterpret_cast<uint4*>(x_stage + row * 128 + ((word ^ (row & 7)) << 4));
        const uint4 v = *at;
        const uint4 g = reinterpret_cast<const uint4*>(factors)[word];
        *at = multiply8<T>(v, g);
        float f[8];
        unpack8<T>(v, f);
#pragma unroll
        for (float e : f) sum = fmaf(e, e, sum);
    }
    return sum;
}

/// The warps that scale: each stage of x as it comes, then the rows' squares.
template <class T, int MW, int N>
__device__ __forceinline__ void ring_scale(const RingPlace<MW, N>& place, unsigned char* shared) {
    using S = RingShape<MW, N>;
    const uint32_t thread = threadIdx.x - S::kThreads;
    unsigned char* factors = shared + (place.factors - place.header);
    ring_factors<T, MW, N>(place, factors, thread);
    float* squares = reinterpret_cast<float*>(shared + (place.squares(0) - place.header));
    Turn turn;
    uint32_t odd = 0;
    for (uint32_t unit = place.unit0; unit < place.a.units; unit += place.unit_step, odd ^= 1) {
        float square = 0;
#pragma unroll 1
        for (uint32_t t = 0; t < place.tile1 - place.tile0; ++t) {
            dev::barrier_wait(place.x_full(turn.stage), turn.parity);
            square += ring_scale_x<T>(shared + (place.x_ring - place.header) + turn.stage * S::kStageX, factors + t * 128, thread);
            dev::fence_for_products();
            __syncwarp();
            if ((thread & 31) == 0) dev::barrier_arrive(place.x_ready(turn.stage));
            turn.next(place.a.x_stages);
        }
        square += __shfl_xor_sync(0xffffffffu, square, 1);
        if ((thread & 1) == 0) squares[odd * S::kRows + (thread >> 1)] = square;
        dev::named_sync(3, 2 * S::kConsumers);
    }
}

/// One tile's sums over this block's part of k, and with a norm the square of row lane / 2 of the warp's.
template <class T, int MW, int N, bool NORM>
__device__ __forceinline__ float ring_sums(const RingPlace<MW, N>& place, unsigned char* shared, float (&acc)[N / 2], Turn& w_turn, Turn& x_turn,
                                           uint32_t group, uint32_t odd) {
    using S = RingShape<MW, N>;
    const RingArgs& a = place.a;
    // Operands by their low words, and those in a form that the compiler knows to be the same in all lanes.
    constexpr uint64_t kHigh = uint64_t{0x40000040} << 32;
    const auto low_of = [](uint32_t address) { return static_cast<uint32_t>(dev::uniform(static_cast<int>(static_cast<uint32_t>(dev::operand(address))))); };
    const uint32_t left_first = place.x_ring + group * 64 * 128;
    uint32_t left = low_of(left_first + x_turn.stage * S::kStageX);
    uint32_t right = low_of(place.w_ring + w_turn.stage * S::kStageW);
#pragma unroll
    for (float& v : acc) v = 0;
    uint32_t w_before = 0;
    uint32_t x_before = 0;
    const uint32_t count = place.tile1 - place.tile0;
#pragma unroll 1
    for (uint32_t t = 0; t < count; ++t) {
        dev::barrier_wait(place.w_full(w_turn.stage), w_turn.parity);
        dev::barrier_wait(NORM ? place.x_ready(x_turn.stage) : place.x_full(x_turn.stage), x_turn.parity);
        dev::products_fence();
#pragma unroll
        for (uint32_t step = 0; step < kRingDepth / 16; ++step) dev::wide_product<T, N>(acc, kHigh | (left + 2 * step), kHigh | (right + 2 * step));
        dev::products_commit();
        const uint32_t w_now = w_turn.stage;
        const uint32_t x_now = x_turn.stage;
        w_turn.next(a.w_stages);
        x_turn.next(a.x_stages);
        left = low_of(left_first + x_turn.stage * S::kStageX);
        right = low_of(place.w_ring + w_turn.stage * S::kStageW);
        if (t > 0) {
            dev::products_wait<1>();
            place.release(place.w_empty(w_before), MW == 2);
            place.release(place.x_empty(x_before), MW == 1);
        }
        w_before = w_now;
        x_before = x_now;
    }
    dev::products_wait<0>();
    dev::pin(acc);
    place.release(place.w_empty(w_before), MW == 2);
    place.release(place.x_empty(x_before), MW == 1);
    if (!NORM) return 0;
    dev::named_sync(3, 2 * S::kConsumers);
    return reinterpret_cast<const float*>(shared + (place.squares(odd) - place.header))[threadIdx.x >> 1];
}

template <class T, int MW, int N, bool NORM>
__device__ __forceinline__ void ring_consume(const RingPlace<MW, N>& place, unsigned char* shared) {
    using S = RingShape<MW, N>;
    const RingArgs& a = place.a;
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t warp = threadIdx.x >> 5;
    const uint32_t group = static_cast<uint32_t>(dev::uniform(static_cast<int>(threadIdx.x) / 128));
    fetch_ahead(a.ahead);
    if (a.splits_log2 + a.share_log2 != 0) dev::cluster_wait();  // all have started: they may be told and sent
    dev::wait_for_earlier();
    Turn w_turn;
    Turn x_turn;
    uint32_t odd = 0;
    for (uint32_t unit = place.unit0; unit < a.units; unit += place.unit_step, odd ^= 1) {
        uint32_t mt = 0;
        uint32_t nt = 0;
        place.tile_of(unit, mt, nt);
        float acc[N / 2];
        const float square = ring_sums<T, MW, N, NORM>(place, shared, acc, w_turn, x_turn, group, odd);
        const uint32_t local = (warp * 16) + (lane >> 2);  // of the block's rows: the warps of a group follow each other
        if (a.splits_log2 == 0) {
            float scale[2] = {1.0f, 1.0f};
            if (NORM) {
                scale[0] = rsqrtf(__shfl_sync(0xffffffffu, square, lane >> 2 << 1) / static_cast<float>(a.k) + a.eps);
                scale[1] = rsqrtf(__shfl_sync(0xffffffffu, square, (lane >> 2 << 1) + 16) / static_cast<float>(a.k) + a.eps);
            }
            if (a.kind == Out::kSwiGlu)
                ring_store<T, N, true>(a, acc, mt * S::kRows + local, place.column_of(nt), scale);
            else
                ring_store<T, N, false>(a, acc, mt * S::kRows + local, place.column_of(nt), scale);
            continue;
        }
        ring_exchange<MW, N>(place, shared, acc, local, square, NORM);
        if (a.kind == Out::kSwiGlu)
            ring_gather<T, MW, N, true>(place, shared, mt, nt);
        else
            ring_gather<T, MW, N, false>(place, shared, mt, nt);
    }
}

template <class T, int MW, int N, bool NORM>
__global__ void __launch_bounds__(NORM ? RingShape<MW, N>::kNormThreads : RingShape<MW, N>::kThreads, (MW == 1 && N <= (NORM ? 64 : 128) ? 2 : 1))
    ring_kernel(const __grid_constant__ RingArgs a, const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using S = RingShape<MW, N>;
    extern __shared__ __align__(1024) unsigned char shared[];
    dev::launch_dependents();
    const RingPlace<MW, N> place(a, dev::shared_address(shared));
    if (threadIdx.x == MW * 128) ring_prefetch(&w_map);
    if (threadIdx.x == MW * 128 + 32) ring_prefetch(&x_map);
    if (threadIdx.x == 0) {
        const int readers = static_cast<int>(S::kConsumers / 32);
        for (uint32_t s = 0; s < a.w_stages; ++s) {
            dev::barrier_init(place.w_full(s), 1);
            dev::barrier_init(place.w_empty(s), MW == 2 ? readers << a.share_log2 : readers);
        }
        for (uint32_t s = 0; s < a.x_stages; ++s) {
            dev::barrier_init(place.x_full(s), 1);
            dev::barrier_init(place.x_empty(s), MW == 1 ? readers << a.share_log2 : readers);
            if (NORM) dev::barrier_init(place.x_ready(s), readers);
        }
        if (a.splits_log2 != 0) {
            dev::barrier_init(place.sums_full(), 1);
            dev::barrier_expect(place.sums_full(), place.part_rows(place.part) * S::kSumStride * 4 * ((1u << a.splits_log2) - 1));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        dev::fence_for_products();
    }
    __syncthreads();
    const bool cluster = a.splits_log2 + a.share_log2 != 0;
    if (cluster) dev::cluster_arrive();
    const int warp = dev::uniform(static_cast<int>(threadIdx.x) / 32);
    if (warp == MW * 4) {
        const bool others = MW == 2 && a.share_log2 != 0;  // weights go to blocks that must have started
        if (others) dev::cluster_wait();
        // The first turn of the ring waits for nobody. The wait for the cluster comes before those for the consumers: racecheck holds
        // every warp of a block at it until all are there.
        RingWalk at = {place.unit0, place.tile0, {}};
        const uint32_t first = cluster && !others ? a.w_stages : ~0u;
        if ((threadIdx.x & 31) == 0) place.bring_w(&w_map, at, first);
        __syncwarp();
        if (cluster && !others) {
            dev::cluster_wait();
            if ((threadIdx.x & 31) == 0) place.bring_w(&w_map, at, ~0u);
            __syncwarp();
        }
        if (a.splits_log2 != 0) dev::cluster_arrive();
    } else if (warp == MW * 4 + 1) {
        if (cluster) dev::cluster_wait();
        if ((threadIdx.x & 31) == 0) {
            dev::wait_for_earlier();
            place.bring_x(&x_map);
        }
        __syncwarp();
        if (a.splits_log2 != 0) dev::cluster_arrive();
    } else if (warp < MW * 4) {
        ring_consume<T, MW, N, NORM>(place, shared);
    } else if constexpr (NORM) {
        if (cluster) dev::cluster_wait();
        ring_scale<T, MW, N>(place, shared);
        if (a.splits_log2 != 0) dev::cluster_arrive();
    }
    if (a.splits_log2 != 0) dev::cluster_wait();  // what this block sent has been read
#else
    (void)a, (void)w_map, (void)x_map;
#endif
}

}  // namespace baton::backend::cuda::gemm
