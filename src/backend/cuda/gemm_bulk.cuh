#pragma once

#include "backend/cuda/gemm_ring.cuh"

/// The product of Linear for many rows on sm_90a: bound by the tensor cores, and in long runs by the power they may draw, so that
/// every byte that is moved once less counts. A block stays and walks over tiles of 128 rows of x × N weight rows. One thread brings
/// both operands through the copy engine, stages of 64 elements of k in a ring; blocks of a cluster bring them for each other. Two
/// warpgroups have 64 rows each. The second begins a little after the first and stays behind, so that the results of one are stored
/// under the products of the other.
///
/// With SwiGLU a tile's weights are N / 2 gate rows and the up rows that belong to them, so that a thread has both sums of a result.
namespace baton::backend::cuda::gemm {

struct BulkArgs : Operands {
    uint32_t k_tiles;
    uint32_t share_m_log2;  // blocks of a cluster along m
    uint32_t share_n_log2;  // and along n
    uint32_t groups_m;      // clusters along m
    uint32_t groups_n;
    uint32_t band;
    Out kind;
};

template <int N>
struct BulkShape {
    static constexpr uint32_t kRows = 128;
    static constexpr uint32_t kConsumers = 256;
    static constexpr uint32_t kThreads = kConsumers + 128;
    static constexpr uint32_t kHeader = 1024;  // bytes ahead of the ring: the barriers
    static constexpr uint32_t kStageX = kRows * 128;
    static constexpr uint32_t kStageW = N * 128;
    static constexpr uint32_t kStage = kStageX + kStageW;
    static constexpr uint32_t kStages = N >= 224 ? 4 : (N == 64 ? 8 : 6);
    static constexpr uint32_t kBuffers = 2;  // of a warp, for 16 rows of 64 results
    static constexpr uint32_t kBuffer = 16 * 128;
    static constexpr uint32_t kShared = kHeader + kStages * kStage + kBuffers * kBuffer * (kConsumers / 32);
    static_assert(N % 32 == 0 && N <= 256 && kShared <= 232448);
};

/// What every warp of a block knows.
template <int N>
struct BulkPlace {
    using S = BulkShape<N>;
    const BulkArgs& a;
    uint32_t header;  // shared addresses
    uint32_t ring;
    uint32_t mate_m;  // which along m of the cluster
    uint32_t mate_n;
    uint32_t unit0;
    uint32_t unit_step;

    __device__ BulkPlace(const BulkArgs& args, uint32_t shared_at) : a(args), header(shared_at), ring(shared_at + S::kHeader) {
        const uint32_t cluster_log2 = a.share_m_log2 + a.share_n_log2;
        const uint32_t rank = blockIdx.x & ((1u << cluster_log2) - 1);
        mate_m = rank & ((1u << a.share_m_log2) - 1);
        mate_n = rank >> a.share_m_log2;
        unit0 = blockIdx.x >> cluster_log2;
        unit_step = gridDim.x >> cluster_log2;
    }
    [[nodiscard]] __device__ uint32_t full(uint32_t stage) const { return header + stage * 8; }
    [[nodiscard]] __device__ uint32_t empty(uint32_t stage) const { return header + 64 + stage * 8; }
    [[nodiscard]] __device__ uint32_t units() const { return a.groups_m * a.groups_n; }
    [[nodiscard]] __device__ bool cluster() const { return a.share_m_log2 + a.share_n_log2 != 0; }
    /// Blocks that bring something for this one, itself included: as many as it brings something for.
    [[nodiscard]] __device__ uint32_t friends() const { return (1u << a.share_m_log2) + (1u << a.share_n_log2) - 1; }

    /// The tile of this block in a unit; it may lie outside.
    __device__ void tile_of(uint32_t unit, uint32_t& mt, uint32_t& nt) const {
        const uint32_t per_band = a.band * a.groups_n;
        const uint32_t band0 = unit / per_band * a.band;
        const uint32_t height = min(a.band, a.groups_m - band0);
        const uint32_t within = unit % per_band;
        mt = ((band0 + within % height) << a.share_m_log2) + mate_m;
        nt = ((within / height) << a.share_n_log2) + mate_n;
    }
    /// First column of the result of a tile.
    [[nodiscard]] __device__ uint32_t column_of(uint32_t nt) const { return nt * (a.kind == Out::kSwiGlu ? N / 2 : N); }

    /// This block's part of the weights of a stage, to all that share them.
    __device__ void bring_w(const CUtensorMap* map, uint32_t stage, uint32_t element, uint32_t column) const {
        const uint32_t to = ring + stage * S::kStage + S::kStageX;
        const uint32_t second = a.kind == Out::kSwiGlu ? a.columns : N / 2;  // rows from the first half's to the second's
        if (a.share_m_log2 == 0) {
            ring_copy(to, map, element, column, full(stage));
            ring_copy(to + S::kStageW / 2, map, element, column + second, full(stage));
            return;
        }
        const uint32_t rows = N >> a.share_m_log2;
        const uint32_t at = mate_m * rows;
        const uint32_t row = column + (at < N / 2 ? at : at - N / 2 + second);
        const uint32_t mask = ((1u << (1u << a.share_m_log2)) - 1) << (mate_n << a.share_m_log2);
        ring_copy_to_all(to + at * 128, map, element, row, full(stage), mask);
    }
    /// The same of the rows of x.
    __device__ void bring_x(const CUtensorMap* map, uint32_t stage, uint32_t element, uint32_t row) const {
        const uint32_t to = ring + stage * S::kStage;
        if (a.share_n_log2 == 0) {
            ring_copy(to, map, element, row, full(stage));
            return;
        }
        const uint32_t at = mate_n * (S::kRows / 2);
        const uint32_t mask = (1u | 1u << (1u << a.share_m_log2)) << mate_m;
        ring_copy_to_all(to + at * 128, map, element, row + at, full(stage), mask);
    }
    /// One thread: all stages of all tiles of this block.
    __device__ void produce(const CUtensorMap* w_map, const CUtensorMap* x_map) const {
        Turn turn;
        // The weights of the first stages do not wait for the kernel ahead.
        uint32_t ahead = min(S::kStages, a.k_tiles);
        uint32_t mt = 0;
        uint32_t nt = 0;
        tile_of(unit0, mt, nt);
        for (uint32_t t = 0; t < ahead; ++t) {
            dev::barrier_expect(full(t), S::kStage);
            bring_w(w_map, t, t * kRingDepth, column_of(nt));
        }
        dev::wait_for_earlier();
        for (uint32_t unit = unit0; unit < units(); unit += unit_step) {
            tile_of(unit, mt, nt);
            const uint32_t column = column_of(nt);
            for (uint32_t t = 0; t < a.k_tiles; ++t) {
                if (ahead > 0) {
                    --ahead;
                } else {
                    dev::barrier_wait(empty(turn.stage), turn.parity ^ 1);
                    dev::barrier_expect(full(turn.stage), S::kStage);
                    bring_w(w_map, turn.stage, t * kRingDepth, column);
                }
                bring_x(x_map, turn.stage, t * kRingDepth, mt * S::kRows);
                turn.next(S::kStages);
            }
        }
        if (cluster())  // what others tell this block's barriers must have come before it ends
            for (uint32_t s = 0; s < S::kStages; ++s) {
                dev::barrier_wait(empty(turn.stage), turn.parity ^ 1);
                turn.next(S::kStages);
            }
    }
    /// This warp has read a stage: all that brought a part of it may bring the next.
    __device__ void release(uint32_t stage) const {
        const uint32_t lane = threadIdx.x & 31;
        if (!cluster()) {
            if (lane == 0) dev::barrier_arrive(empty(stage));
            return;
        }
        const uint32_t blocks = 1u << (a.share_m_log2 + a.share_n_log2);
        const bool same_m = (lane & ((1u << a.share_m_log2) - 1)) == mate_m;
        const bool same_n = lane >> a.share_m_log2 == mate_n;
        if (lane < blocks && (same_m || same_n)) ring_arrive_at(dev::address_in(empty(stage), lane));
    }
};

/// silu(gate) · up.
__device__ __forceinline__ float bulk_gated(float gate, float up) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + dev::exp2_fast(-1.4426950408889634f * gate)));
    return gate * y * up;
}
__device__ __forceinline__ void store_matrices(uint32_t address, const uint32_t (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
__device__ __forceinline__ void bulk_copy_out(const CUtensorMap* map, uint32_t from, uint32_t column, uint32_t row) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map), "r"(from), "r"(column), "r"(row)
                 : "memory");
}
__device__ __forceinline__ void bulk_copies_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Waits until all but the latest PENDING copies out have read their shared memory.
template <int PENDING>
__device__ __forceinline__ void bulk_copies_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

/// Adds the bias to the sums. (They cannot begin with it: then ptxas waits after every product.)
template <class T, int N>
__device__ __forceinline__ void bulk_bias(const BulkArgs& a, float (&acc)[N / 2], uint32_t column0) {
    const bool gated = a.kind == Out::kSwiGlu;
#pragma unroll
    for (int block = 0; block < N / 8; ++block) {
        const bool up = gated && block >= N / 16;
        const uint32_t column = column0 + static_cast<uint32_t>(up ? block - N / 16 : block) * 8 + (threadIdx.x & 3) * 2;
        float2 b = {};
        if (column < a.columns) b = Ops<T>::unpack_bits(__ldg(reinterpret_cast<const uint32_t*>(static_cast<const T*>(a.bias) + column + (up ? a.columns : 0))));
        acc[block * 4] += b.x, acc[block * 4 + 2] += b.x;
        acc[block * 4 + 1] += b.y, acc[block * 4 + 3] += b.y;
    }
}

/// What the results of a warp's 16 rows are added to: 64 columns of them, 16 bytes a lane, as turn_quad makes fragments of.
template <class T>
__device__ __forceinline__ void bulk_before(const BulkArgs& a, uint4 (&before)[4], uint32_t row, uint32_t column0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const uint32_t at_row = row + ((threadIdx.x & 31) >> 2) + static_cast<uint32_t>(i & 1) * 8;
        const uint32_t column = column0 + static_cast<uint32_t>(i >> 1) * 32 + (threadIdx.x & 3) * 8;
        before[i] = at_row < a.m && column < a.columns
                        ? __ldcg(reinterpret_cast<const uint4*>(static_cast<const T*>(a.out) + static_cast<size_t>(at_row) * a.columns + column))
                        : uint4{};
    }
}

/// A warp's results from registers through shared memory to the copy engine, 64 columns at a time. `row` is the first of its 16. The code
/// runs once a tile and so mostly misses the instruction cache: it must be short.
template <class T, int N, Out KIND>
__device__ __forceinline__ void bulk_store(const BulkPlace<N>& place, const CUtensorMap* map, const float (&acc)[N / 2], uint32_t row, uint32_t column0) {
    using S = BulkShape<N>;
    const BulkArgs& a = place.a;
    constexpr bool kGated = KIND == Out::kSwiGlu;
    constexpr int kColumns = kGated ? N / 2 : N;
    constexpr int kChunks = kColumns / 64;
    static_assert(KIND != Out::kAdd || kColumns % 64 == 0);
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t buffers = place.ring + S::kStages * S::kStage + (threadIdx.x >> 5) * S::kBuffers * S::kBuffer;
    const uint32_t to_row = lane & 15;  // a lane's address: row and, of two blocks of eight columns, which
    const uint32_t to = buffers + to_row * 128;
    uint4 before[4] = {};
    if (KIND == Out::kAdd) bulk_before<T>(a, before, row, column0);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
        const uint32_t buffer = static_cast<uint32_t>(chunk) % S::kBuffers * S::kBuffer;
        uint4 next[4] = {};
        if (KIND == Out::kAdd && chunk + 1 < kChunks) bulk_before<T>(a, next, row, column0 + static_cast<uint32_t>(chunk + 1) * 64);
        if (lane == 0) bulk_copies_read<kChunks % S::kBuffers == 0 ? S::kBuffers - 1 : 0>();
        __syncwarp();
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // of 32 columns
            uint32_t low[4] = {before[half * 2].x, before[half * 2].y, before[half * 2].z, before[half * 2].w};
            uint32_t high[4] = {before[half * 2 + 1].x, before[half * 2 + 1].y, before[half * 2 + 1].z, before[half * 2 + 1].w};
            if (KIND == Out::kAdd) turn_quad(low, lane & 3), turn_quad(high, lane & 3);
#pragma unroll
            for (int pair = 0; pair < 2; ++pair) {
                uint32_t words[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const int block = chunk * 8 + half * 4 + pair * 2 + (i >> 1);
                    const int e = block * 4 + (i & 1) * 2;
                    if constexpr (kGated) {
                        words[i] = Ops<T>::pack(bulk_gated(acc[e], acc[e + N / 4]), bulk_gated(acc[e + 1], acc[e + 1 + N / 4]));
                    } else if constexpr (KIND == Out::kAdd) {
                        const float2 old = Ops<T>::unpack_bits((i & 1) == 0 ? low[pair * 2 + (i >> 1)] : high[pair * 2 + (i >> 1)]);
                        words[i] = Ops<T>::pack(acc[e] + old.x, acc[e + 1] + old.y);
                    } else {
                        words[i] = Ops<T>::pack(acc[e], acc[e + 1]);
                    }
                }
                const uint32_t word = static_cast<uint32_t>(half * 4 + pair * 2) + (lane >> 4);
                store_matrices(to + buffer + ((word ^ (to_row & 7)) << 4), words);
            }
        }
        dev::fence_for_products();
        __syncwarp();
        const uint32_t column = column0 + static_cast<uint32_t>(chunk) * 64;
        if (lane == 0) {
            if (row < a.m && column < a.columns) bulk_copy_out(map, buffers + buffer, column, row);
            bulk_copies_commit();  // of none as well: what is waited for is counted
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) before[i] = next[i];
    }
    // What is left of the columns, straight to memory.
#pragma unroll
    for (int block = kChunks * 8; block < kColumns / 8; ++block)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int e = block * 4 + half * 2;
            uint32_t word;
            if constexpr (kGated)
                word = Ops<T>::pack(bulk_gated(acc[e], acc[e + N / 4]), bulk_gated(acc[e + 1], acc[e + 1 + N / 4]));
            else
                word = Ops<T>::pack(acc[e], acc[e + 1]);
            const uint32_t at_row = row + (lane >> 2) + static_cast<uint32_t>(half) * 8;
            const uint32_t column = column0 + static_cast<uint32_t>(block) * 8 + (lane & 3) * 2;
            if (at_row < a.m && column < a.columns) *reinterpret_cast<uint32_t*>(static_cast<T*>(a.out) + static_cast<size_t>(at_row) * a.columns + column) = word;
        }
}

/// The same as f32, straight to memory.
template <int N>
__device__ __forceinline__ void bulk_store_f32(const BulkArgs& a, const float (&acc)[N / 2], uint32_t row0, uint32_t column0) {
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
        const uint32_t row = row0 + ((threadIdx.x & 31) >> 2) + static_cast<uint32_t>(i & 1) * 8;
        const uint32_t column = column0 + static_cast<uint32_t>(i >> 1) * 8 + (threadIdx.x & 3) * 2;
        if (row < a.m && column < a.columns)
            *reinterpret_cast<float2*>(static_cast<float*>(a.out) + static_cast<size_t>(row) * a.columns + column) = {acc[i * 2], acc[i * 2 + 1]};
    }
}

/// A warpgroup's 64 rows of every tile of this block.
template <class T, int N>
__device__ __forceinline__ void bulk_consume(const BulkPlace<N>& place, const CUtensorMap* out_map, int group) {
    using S = BulkShape<N>;
    const BulkArgs& a = place.a;
    // Operands by their low words, in a form that the compiler knows to be the same in all lanes.
    constexpr uint64_t kHigh = uint64_t{0x40000040} << 32;
    const auto low_of = [](uint32_t address) { return static_cast<uint32_t>(dev::uniform(static_cast<int>(static_cast<uint32_t>(dev::operand(address))))); };
    const uint32_t left0 = low_of(place.ring + static_cast<uint32_t>(group) * 64 * 128);
    const uint32_t right0 = low_of(place.ring + S::kStageX);
    constexpr int kTurns = 1;  // named barrier: the second warpgroup's start
    bool begun = false;
    if (group == 1) dev::named_sync(kTurns, S::kConsumers);
    dev::wait_for_earlier();
    Turn turn;
    for (uint32_t unit = place.unit0; unit < place.units(); unit += place.unit_step) {
        uint32_t mt = 0;
        uint32_t nt = 0;
        place.tile_of(unit, mt, nt);
        const uint32_t row = mt * S::kRows + (threadIdx.x >> 5) * 16;
        const uint32_t column = place.column_of(nt);
        float acc[N / 2];
#pragma unroll
        for (float& v : acc) v = 0;
        uint32_t before = 0;
#pragma unroll 1
        for (uint32_t t = 0; t < a.k_tiles; ++t) {
            dev::barrier_wait(place.full(turn.stage), turn.parity);
            dev::products_fence();
            const uint32_t at = turn.stage * (S::kStage / 16);
#pragma unroll
            for (uint32_t step = 0; step < kRingDepth / 16; ++step)
                dev::wide_product<T, N>(acc, kHigh | (left0 + at + 2 * step), kHigh | (right0 + at + 2 * step));
            dev::products_commit();
            if (t > 0) {
                dev::products_wait<1>();
                place.release(before);
            }
            before = turn.stage;
            turn.next(S::kStages);
            if (group == 0 && !begun) {
                begun = true;
                dev::named_arrive(kTurns, S::kConsumers);
            }
        }
        dev::products_wait<0>();
        dev::pin(acc);
        place.release(before);
        if (a.bias != nullptr) bulk_bias<T, N>(a, acc, column);
        if (a.kind == Out::kSwiGlu)
            bulk_store<T, N, Out::kSwiGlu>(place, out_map, acc, row, column);
        else if (a.kind == Out::kStore)
            bulk_store<T, N, Out::kStore>(place, out_map, acc, row, column);
        else if constexpr (N % 64 == 0) {
            if (a.kind == Out::kAdd)
                bulk_store<T, N, Out::kAdd>(place, out_map, acc, row, column);
            else
                bulk_store_f32<N>(a, acc, row, column);
        }
    }
    if ((threadIdx.x & 31) == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

template <class T, int N>
__global__ void __launch_bounds__(BulkShape<N>::kThreads, 1)
    bulk_kernel(const __grid_constant__ BulkArgs a, const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
                const __grid_constant__ CUtensorMap out_map) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using S = BulkShape<N>;
    extern __shared__ __align__(1024) unsigned char shared[];
    dev::launch_dependents();
    const BulkPlace<N> place(a, dev::shared_address(shared));
    if (threadIdx.x == 0) {
        ring_prefetch(&w_map);
        ring_prefetch(&x_map);
        if (a.kind != Out::kF32) ring_prefetch(&out_map);
        for (uint32_t s = 0; s < S::kStages; ++s) {
            dev::barrier_init(place.full(s), 1);
            dev::barrier_init(place.empty(s), static_cast<int>(S::kConsumers / 32 * place.friends()));
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        dev::fence_for_products();
    }
    __syncthreads();
    if (place.cluster()) {
        dev::cluster_arrive();
        dev::cluster_wait();
    }
    const int group = dev::uniform(static_cast<int>(threadIdx.x) / 128);
    if (group == 2) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == S::kConsumers) place.produce(&w_map, &x_map);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        bulk_consume<T, N>(place, &out_map, group);
    }
#else
    (void)a, (void)w_map, (void)x_map, (void)out_map;
#endif
}

}  // namespace baton::backend::cuda::gemm
