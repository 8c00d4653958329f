#pragma once

#include "backend/cuda/gemm_device.cuh"
#include "backend/cuda/linear_kernels.hpp"
#include "backend/cuda/wgmma.cuh"

/// The tensor-core product of Linear. outᵀ tile [rows of w, rows of x] by wgmma (sm_90a) or mma.sync m16n8k16 with the
/// weights as the left operand, so that few rows of x waste little. A ring of `ST` stages of 64 elements of k is filled by cp.async; what holds
/// weights is filled before the wait for the kernel ahead.
///
/// Numerics: each result is one chain of f32 additions over k in steps of 16 per part of k, and the parts are added in
/// order. That depends on `splits` alone: not on the tile, the place in it, m, or whether the parts are blocks of a cluster.
namespace baton::backend::cuda::gemm {

constexpr uint32_t kDepth = 64;             // elements of k a stage holds
constexpr uint32_t kRowBytes = kDepth * 2;  // 8 words of 16 bytes, placed at word ^ (row & 7): no bank conflicts
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
constexpr bool kWarpgroups = true;  // wgmma in place of ldmatrix and mma.sync
#else
constexpr bool kWarpgroups = false;
#endif

struct TileArgs : Operands {
    uint32_t k_tiles;
    uint32_t splits;
    uint32_t splits_log2;
    uint32_t cluster;  // 1, or splits
    uint32_t m_tiles;
    uint32_t n_tiles;
    uint32_t band;     // tiles of m that follow each other before the next tile of n
    float eps;
    Out kind;
    Ahead ahead;
};

/// Geometry of one instantiation: BM weight rows × BN rows of x, WM × WN warps (with wgmma BM / 16 × 1), ST stages;
/// TOTALS: can do several parts of k in one block.
template <class T, int BM, int BN, int WM, int WN, int ST, bool TOTALS>
struct Tile {
    static constexpr int kThreads = WM * WN * 32;
    static constexpr int kWarpsM = kWarpgroups ? BM / 16 : WM;
    static constexpr int kWarpsN = kWarpgroups ? 1 : WN;
    static constexpr int kTM = BM / kWarpsM / 16;
    static constexpr int kTN = BN / kWarpsN / 8;
    static constexpr int kStageW = BM * static_cast<int>(kRowBytes);
    static constexpr int kStageX = BN * static_cast<int>(kRowBytes);
    static constexpr int kPartStride = BM + 4;
    static constexpr bool kNorms = BN <= 64;  // has the norm fused
    static constexpr int kSquaresBytes = kNorms ? 1024 : 0;
    static constexpr int kSquareGroups = (BN / 8 + WM * WN - 1) / (WM * WN);  // of 8 rows of x, each warp's share
    static_assert((BM == 64 || BM == 128) && BM / 16 == WM * WN && BM % (WM * 16) == 0 && BN % (WN * 8) == 0 && (kTN == 1 || kTN % 2 == 0));

    /// Without the norm's weight, which follows.
    static __host__ __device__ constexpr size_t shared_bytes() {
        const size_t ring = static_cast<size_t>(ST) * (kStageW + kStageX);
        const size_t part = static_cast<size_t>(BN) * kPartStride * 4;
        return kSquaresBytes + (ring > part ? ring : part);
    }
};

/// Which weight row local row `r` of tile `nt` is. With SwiGLU every 16 rows are 8 gate rows and their 8 up rows, so that
/// one thread's accumulators hold both.
template <int BM>
__device__ __forceinline__ uint32_t weight_row(const TileArgs& a, uint32_t nt, uint32_t r) {
    if (a.kind != Out::kSwiGlu) return nt * BM + r;
    const uint32_t column = nt * (BM / 2) + r / 16 * 8 + (r & 7);
    if (column >= a.columns) return a.n;
    return (r & 8) != 0 ? a.columns + column : column;
}

/// Eight results of one row: bias, SwiGLU, residual and the store.
template <class T>
__device__ __forceinline__ void store8(const TileArgs& a, uint32_t row, uint32_t column, float (&y)[8], float (&up)[8],
                                       bool early, const uint4& residual) {
    const uint32_t count = min(8u, a.columns - column);
    if (a.bias != nullptr) {
        const T* bias = static_cast<const T*>(a.bias) + column;
#pragma unroll
        for (uint32_t i = 0; i < 8; ++i) {
            if (i >= count) break;
            y[i] += Ops<T>::to_float(bias[i]);
            if (a.kind == Out::kSwiGlu) up[i] += Ops<T>::to_float(bias[a.columns + i]);
        }
    }
    if (a.kind == Out::kSwiGlu) {
#pragma unroll
        for (int i = 0; i < 8; ++i) y[i] = silu(y[i]) * up[i];
    }
    const size_t at = static_cast<size_t>(row) * a.columns + column;
    const bool whole = a.columns % 8 == 0;
    if (a.kind == Out::kF32) {
        float* out = static_cast<float*>(a.out) + at;
        if (whole) {
            reinterpret_cast<float4*>(out)[0] = {y[0], y[1], y[2], y[3]};
            reinterpret_cast<float4*>(out)[1] = {y[4], y[5], y[6], y[7]};
        } else {
#pragma unroll
            for (uint32_t i = 0; i < 8; ++i)
                if (i < count) out[i] = y[i];
        }
        return;
    }
    T* out = static_cast<T*>(a.out) + at;
    if (whole) {
        if (a.kind == Out::kAdd) {
            float old[8];
            unpack8<T>(early ? residual : *reinterpret_cast<const uint4*>(out), old);
#pragma unroll
            for (int i = 0; i < 8; ++i) y[i] += old[i];
        }
        *reinterpret_cast<uint4*>(out) = dev::pack8<T>(y);
        return;
    }
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) {
        if (i >= count) break;
        out[i] = Ops<T>::from_float(a.kind == Out::kAdd ? y[i] + Ops<T>::to_float(out[i]) : y[i]);
    }
}

/// One 16-byte word in shared memory *= eight weights of the norm, rounded to T.
template <class T>
__device__ __forceinline__ void scale_word(unsigned char* at, const uint32_t (&factors)[4]) {
    uint4 v = *reinterpret_cast<const uint4*>(at);
    v = {multiply2<T>(v.x, factors[0]), multiply2<T>(v.y, factors[1]), multiply2<T>(v.z, factors[2]), multiply2<T>(v.w, factors[3])};
    *reinterpret_cast<uint4*>(at) = v;
}

/// sums += one stage of this warp's groups of 8 rows of x times themselves: the diagonal holds the rows' squares.
template <class T, class G, int BN, int WARPS>
__device__ __forceinline__ void square_step(float (&sums)[G::kSquareGroups][4], uint32_t x_at, uint32_t warp, uint32_t lane) {
#pragma unroll
    for (int i = 0; i < G::kSquareGroups; ++i) {
        const uint32_t group = warp + static_cast<uint32_t>(i * WARPS);
        if (group >= BN / 8) break;
#pragma unroll
        for (uint32_t step = 0; step < kDepth / 16; ++step) {
            uint32_t b[2];
            dev::load_matrices(b, x_at + (group * 8 + (lane & 7)) * kRowBytes + (((step * 2 + ((lane >> 3) & 1)) ^ (lane & 7)) << 4));
            const uint32_t a[4] = {b[0], 0, b[1], 0};
            dev::mma<T>(sums[i], a, b[0], b[1]);
        }
    }
}

/// acc += one stage of 64 elements of k by mma.sync. `w_at` and `x_at` are where this lane's rows start.
template <class T, class G>
__device__ __forceinline__ void tile_step(float (&acc)[G::kTM][G::kTN][4], uint32_t w_at, uint32_t w_word, uint32_t x_at,
                                          uint32_t x_word, uint32_t flip) {
#pragma unroll
    for (uint32_t step = 0; step < kDepth / 16; ++step) {
        uint32_t af[G::kTM][4];
        uint32_t bf[G::kTN][2];
        const uint32_t x_step = x_at + (((step * 2 + x_word) ^ flip) << 4);
#pragma unroll
        for (int i = 0; i < G::kTM; ++i)
            dev::load_matrices(af[i], w_at + static_cast<uint32_t>(i) * 16 * kRowBytes + (((step * 2 + w_word) ^ flip) << 4));
        if constexpr (G::kTN == 1) {
            dev::load_matrices(bf[0], x_step);
        } else {
#pragma unroll
            for (int j = 0; j < G::kTN; j += 2) {
                uint32_t both[4];
                dev::load_matrices(both, x_step + static_cast<uint32_t>(j) * 8 * kRowBytes);
                bf[j][0] = both[0], bf[j][1] = both[1], bf[j + 1][0] = both[2], bf[j + 1][1] = both[3];
            }
        }
#pragma unroll
        for (int i = 0; i < G::kTM; ++i)
#pragma unroll
            for (int j = 0; j < G::kTN; ++j) dev::mma<T>(acc[i][j], af[i], bf[j][0], bf[j][1]);
    }
}

/// d += one product of a warpgroup over 16 elements of k; 256 columns as two of 128.
template <class T, int N>
__device__ __forceinline__ void wgmma(float (&d)[N / 8][4], uint64_t w, uint64_t x) {
    if constexpr (N <= 128) {
        dev::Product<T, N>::from_shared(reinterpret_cast<float(&)[N / 2]>(d), w, x);
    } else {
        static_assert(N == 256);
        auto& halves = reinterpret_cast<float(&)[2][64]>(d);
        dev::Product<T, 128>::from_shared(halves[0], w, x);
        dev::Product<T, 128>::from_shared(halves[1], w, x + (128 * kRowBytes >> 4));
    }
}
/// Keeps the compiler from touching results before the wait ahead of this.
template <int N>
__device__ __forceinline__ void settle(float (&d)[N][4]) {
#pragma unroll
    for (int j = 0; j < N; ++j) dev::pin(d[j]);
}

template <class T, int BM, int BN, int WM, int WN, int ST, bool TOTALS>
__global__ void __launch_bounds__(WM* WN * 32, (BN >= 128 ? 1 : 2)) tile_kernel(const TileArgs a) {
    using G = Tile<T, BM, BN, WM, WN, ST, TOTALS>;
    extern __shared__ __align__(1024) unsigned char shared[];
    dev::launch_dependents();
    const uint32_t thread = threadIdx.x;
    const uint32_t lane = thread & 31;
    const uint32_t warp = thread >> 5;
    const uint32_t rank = blockIdx.x & (a.cluster - 1);
    const uint32_t unit = a.cluster > 1 ? blockIdx.x >> a.splits_log2 : blockIdx.x;
    uint32_t mt = 0;
    uint32_t nt = unit;
    if (a.m_tiles > 1) {
        const uint32_t per_band = a.band * a.n_tiles;
        const uint32_t band0 = unit / per_band * a.band;
        const uint32_t height = min(a.band, a.m_tiles - band0);
        const uint32_t within = unit % per_band;
        mt = band0 + within % height;
        nt = within / height;
    }
    const uint32_t k_tiles = a.k_tiles;
    const uint32_t tile0 = a.cluster > 1 ? rank * k_tiles >> a.splits_log2 : 0;
    const uint32_t tile1 = a.cluster > 1 ? (rank + 1) * k_tiles >> a.splits_log2 : k_tiles;
    const uint32_t count = tile1 - tile0;
    const uint32_t row0 = mt * BN;

    float* squares = reinterpret_cast<float*>(shared);
    unsigned char* ring = shared + G::kSquaresBytes;
    const uint32_t ring_at = dev::shared_address(ring);
    const uint32_t x_ring_at = ring_at + ST * G::kStageW;
    const bool normed = G::kNorms && a.norm != nullptr;
    float* norm = reinterpret_cast<float*>(shared + G::shared_bytes());  // of this block's part of k

    // Each thread copies the same word of a few rows, the rows kThreads / 8 apart.
    constexpr int kCopyW = BM * 8 / G::kThreads;
    constexpr int kCopyX = (BN * 8 + G::kThreads - 1) / G::kThreads;
    static_assert(BM * 8 % G::kThreads == 0 && G::kThreads / 8 % 8 == 0);
    const uint32_t word = thread & 7;
    const uint32_t copy_row = thread >> 3;
    const uint32_t copy_at = copy_row * kRowBytes + ((word ^ (copy_row & 7)) << 4);
    uint32_t w_row[kCopyW];
#pragma unroll
    for (int i = 0; i < kCopyW; ++i)
        w_row[i] = weight_row<BM>(a, nt, copy_row + static_cast<uint32_t>(i * (G::kThreads / 8)));
    const auto copy_w = [&](uint32_t tile, uint32_t stage) {
        const uint32_t e = tile * kDepth + word * 8;
#pragma unroll
        for (int i = 0; i < kCopyW; ++i) {
            const bool in = w_row[i] < a.n && e < a.k;
            const T* src = static_cast<const T*>(a.w) + (in ? static_cast<size_t>(w_row[i]) * a.k + e : 0);
            dev::copy16(ring_at + stage * G::kStageW + copy_at + static_cast<uint32_t>(i * (G::kThreads / 8)) * kRowBytes, src, in);
        }
    };
    const auto copy_x = [&](uint32_t tile, uint32_t stage) {
        const uint32_t e = tile * kDepth + word * 8;
#pragma unroll
        for (int i = 0; i < kCopyX; ++i) {
            const uint32_t local = copy_row + static_cast<uint32_t>(i * (G::kThreads / 8));
            const uint32_t row = row0 + local;
            const bool in = row < a.m && e < a.k;
            const T* src = static_cast<const T*>(a.x) + (in ? static_cast<size_t>(row) * a.k + e : 0);
            if (BN * 8 % G::kThreads == 0 || local < BN)
                dev::copy16(x_ring_at + stage * G::kStageX + copy_at + static_cast<uint32_t>(i * (G::kThreads / 8)) * kRowBytes, src,
                            in);
        }
    };

    // The norm's weight goes into the words of w that this thread copied, once they are in.
    const auto scale_w = [&](uint32_t tile, uint32_t stage) {
        if (tile * kDepth + word * 8 >= a.k) return;
        const float4* g = reinterpret_cast<const float4*>(norm + (tile - tile0) * kDepth + word * 8);
        const float4 lo = g[0];
        const float4 hi = g[1];
        const uint32_t factors[4] = {Ops<T>::pack(lo.x, lo.y), Ops<T>::pack(lo.z, lo.w), Ops<T>::pack(hi.x, hi.y), Ops<T>::pack(hi.z, hi.w)};
#pragma unroll
        for (int i = 0; i < kCopyW; ++i)
            scale_word<T>(ring + stage * G::kStageW + copy_at + static_cast<uint32_t>(i * (G::kThreads / 8)) * kRowBytes, factors);
    };

    // Weights of the first ST tiles, a group each; then x, likewise. Each turn of the loop below commits one more, the
    // first an empty one, so tile t is in when ST - 1 later groups are out, or ST - 2 from t = ST on.
#pragma unroll
    for (uint32_t s = 0; s < ST; ++s) {
        if (s < count) copy_w(tile0 + s, s);
        dev::copy_commit();
    }
    if (normed) {
        const uint32_t first = tile0 * kDepth;
        const uint32_t last = min(a.k, tile1 * kDepth);
        for (uint32_t e = first + thread * 4; e < last; e += G::kThreads * 4)
            dev::copy16(dev::shared_address(norm + (e - first)), a.norm + e, true);
        dev::copy_commit();
        dev::copy_wait<0>();
        __syncthreads();
        for (uint32_t s = 0; s < ST && s < count; ++s) scale_w(tile0 + s, s);
    }
    fetch_ahead(a.ahead);
    dev::wait_for_earlier();
#pragma unroll
    for (uint32_t s = 0; s < ST; ++s) {
        if (s < count) copy_x(tile0 + s, s);
        dev::copy_commit();
    }
    // The results this thread finishes: groups of eight columns of a row, dealt over the cluster.
    const bool gated = a.kind == Out::kSwiGlu;
    const uint32_t groups_log2 = (BM == 64 ? 3 : 4) - (gated ? 1 : 0);
    const uint32_t group_mask = (1u << groups_log2) - 1;
    const uint32_t items = min(static_cast<uint32_t>(BN), a.m - row0) << groups_log2;
    const uint32_t column0 = nt * (gated ? BM / 2 : BM);
    const uint32_t item0 = rank * G::kThreads + thread;
    uint4 residual = {};
    const bool early = a.kind == Out::kAdd && a.columns % 8 == 0 && BN < 128;
    if (early && item0 < items && column0 + (item0 & group_mask) * 8 < a.columns)
        residual = __ldcg(reinterpret_cast<const uint4*>(static_cast<const T*>(a.out) +
                                                         static_cast<size_t>(row0 + (item0 >> groups_log2)) * a.columns + column0 +
                                                         (item0 & group_mask) * 8));

    const uint32_t wm = warp % G::kWarpsM;
    const uint32_t wn = warp / G::kWarpsM;
    const uint32_t a_row = wm * (BM / G::kWarpsM) + (lane & 15);
    const uint32_t a_at = a_row * kRowBytes;
    const uint32_t a_word = lane >> 4;
    const uint32_t b_row = wn * (BN / G::kWarpsN) + (lane & 7) + (G::kTN == 1 ? 0 : ((lane >> 4) << 3));
    const uint32_t b_word = (lane >> 3) & 1;
    const uint32_t flip = lane & 7;
    float acc[G::kTM][G::kTN][4] = {};
    float square[G::kSquareGroups][4] = {};
    float total[TOTALS ? G::kTM : 1][TOTALS ? G::kTN : 1][4] = {};
    uint32_t part = 1;  // parts of k begun, where the block does several
    uint32_t part_end = TOTALS && a.cluster == 1 ? k_tiles >> a.splits_log2 : k_tiles;

    uint32_t stage = 0;
    for (uint32_t t = 0; t < count; ++t) {
        if (t < ST)
            dev::copy_wait<ST - 1>();
        else
            dev::copy_wait<ST - 2>();
        if (normed && t >= ST) scale_w(tile0 + t, stage);
        if constexpr (kWarpgroups) {
            dev::fence_for_products();
            dev::products_wait<0>();  // the tile before: its stage is free once all have passed the barrier
        }
        __syncthreads();
        // The stage of the tile before is free now; the first ST tiles are on their way already.
        if (t > 0 && t + ST - 1 < count) {
            const uint32_t free_stage = stage == 0 ? ST - 1 : stage - 1;
            copy_w(tile0 + t + ST - 1, free_stage);
            copy_x(tile0 + t + ST - 1, free_stage);
        }
        dev::copy_commit();
        const uint32_t w_at = ring_at + stage * G::kStageW;
        const uint32_t x_at = x_ring_at + stage * G::kStageX;
        if constexpr (kWarpgroups) {
            const uint64_t left = dev::operand(w_at + warp / 4 * 64 * kRowBytes);
            const uint64_t right = dev::operand(x_at);
            dev::products_fence();
#pragma unroll
            for (uint64_t step = 0; step < kDepth / 16; ++step) wgmma<T, BN>(acc[0], left + 2 * step, right + 2 * step);
            dev::products_commit();
        } else {
            tile_step<T, G>(acc, w_at + a_at, a_word, x_at + b_row * kRowBytes, b_word, flip);
        }
        if constexpr (G::kNorms)
            if (normed) square_step<T, G, BN, WM * WN>(square, x_at, warp, lane);
        if constexpr (TOTALS) {
            if (tile0 + t + 1 == part_end && a.splits > 1 && a.cluster == 1) {
                if constexpr (kWarpgroups) {
                    dev::products_wait<0>();
                    settle(acc[0]);
                }
#pragma unroll
                for (int i = 0; i < G::kTM; ++i)
#pragma unroll
                    for (int j = 0; j < G::kTN; ++j)
#pragma unroll
                        for (int e = 0; e < 4; ++e) {
                            total[i][j][e] = part == 1 ? acc[i][j][e] : total[i][j][e] + acc[i][j][e];
                            acc[i][j][e] = 0;
                        }
                ++part;
                part_end = part * k_tiles >> a.splits_log2;
            }
        }
        stage = stage + 1 == ST ? 0 : stage + 1;
    }
    dev::copy_wait<0>();
    if constexpr (kWarpgroups) {
        dev::products_wait<0>();
        settle(acc[0]);
    }
    __syncthreads();

    // Sums to shared memory as [row of x][row of w], over what the ring held.
    float* sums = reinterpret_cast<float*>(ring);
    const bool from_total = TOTALS && a.splits > 1 && a.cluster == 1;
#pragma unroll
    for (int i = 0; i < G::kTM; ++i)
#pragma unroll
        for (int j = 0; j < G::kTN; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const uint32_t n_at = wm * (BM / G::kWarpsM) + static_cast<uint32_t>(i) * 16 + (lane >> 2) + (e >= 2 ? 8 : 0);
                const uint32_t m_at = wn * (BN / G::kWarpsN) + static_cast<uint32_t>(j) * 8 + (lane & 3) * 2 + (e & 1);
                float v = acc[i][j][e];
                if constexpr (TOTALS) v = from_total ? total[i][j][e] : v;
                sums[m_at * G::kPartStride + n_at] = v;
            }
    if constexpr (G::kNorms)
        if (normed && (lane & 3) == lane >> 3)
#pragma unroll
            for (int i = 0; i < G::kSquareGroups; ++i) {
                const uint32_t group = warp + static_cast<uint32_t>(i * WM * WN);
                if (group < BN / 8) squares[group * 8 + (lane >> 2)] = (lane & 4) != 0 ? square[i][1] : square[i][0];
            }
    if (a.cluster > 1)
        dev::cluster_sync();
    else
        __syncthreads();

    for (uint32_t item = item0; item < items; item += a.cluster * G::kThreads) {
        const uint32_t row = item >> groups_log2;
        const uint32_t group = item & group_mask;
        const uint32_t column = column0 + group * 8;
        if (column >= a.columns) continue;
        const uint32_t at = row * G::kPartStride + group * (gated ? 16 : 8);
        float y[8];
        float up[8] = {};
        float sum = 0;
        if (a.cluster == 1) {
            const float4* from = reinterpret_cast<const float4*>(sums + at);
            const float4 lo = from[0];
            const float4 hi = from[1];
            y[0] = lo.x, y[1] = lo.y, y[2] = lo.z, y[3] = lo.w, y[4] = hi.x, y[5] = hi.y, y[6] = hi.z, y[7] = hi.w;
            if (gated) {
                const float4 ulo = from[2];
                const float4 uhi = from[3];
                up[0] = ulo.x, up[1] = ulo.y, up[2] = ulo.z, up[3] = ulo.w;
                up[4] = uhi.x, up[5] = uhi.y, up[6] = uhi.z, up[7] = uhi.w;
            }
            if (normed) sum = squares[row];
        } else {
            // Four blocks' sums at once, added in order.
#pragma unroll
            for (float& v : y) v = 0;
            for (uint32_t first = 0; first < a.cluster; first += 4) {
                float4 v[4][4] = {};
                float squared[4] = {};
#pragma unroll
                for (uint32_t r = 0; r < 4; ++r) {
                    if (first + r >= a.cluster) break;
                    const uint32_t from = dev::address_in(ring_at + at * 4, first + r);
                    v[r][0] = dev::load4_in_cluster(from);
                    v[r][1] = dev::load4_in_cluster(from + 16);
                    if (gated) {
                        v[r][2] = dev::load4_in_cluster(from + 32);
                        v[r][3] = dev::load4_in_cluster(from + 48);
                    }
                    if (normed) squared[r] = dev::load_in_cluster(dev::address_in(dev::shared_address(squares + row), first + r));
                }
#pragma unroll
                for (uint32_t r = 0; r < 4; ++r) {
                    if (first + r >= a.cluster) break;
                    const bool begins = first + r == 0;
                    const float values[16] = {v[r][0].x, v[r][0].y, v[r][0].z, v[r][0].w, v[r][1].x, v[r][1].y, v[r][1].z, v[r][1].w,
                                              v[r][2].x, v[r][2].y, v[r][2].z, v[r][2].w, v[r][3].x, v[r][3].y, v[r][3].z, v[r][3].w};
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        y[i] = begins ? values[i] : y[i] + values[i];
                        up[i] = begins ? values[8 + i] : up[i] + values[8 + i];
                    }
                    sum += squared[r];
                }
            }
        }
        if (normed) {
            const float scale = rsqrtf(sum / static_cast<float>(a.k) + a.eps);
#pragma unroll
            for (int i = 0; i < 8; ++i) y[i] *= scale, up[i] *= scale;
        }
        store8<T>(a, row0 + row, column, y, up, early && item == item0, residual);
    }
    if (a.cluster > 1) dev::cluster_sync();  // no block may end while another reads its sums
}

}  // namespace baton::backend::cuda::gemm
