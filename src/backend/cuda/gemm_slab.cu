// Products for up to 32 rows of x by mma.sync with x as the left operand. A block's weights come to shared memory, through the copy
// engine, before the wait for the kernel ahead, so that few registers are taken and the blocks of two or three products fit on a
// multiprocessor at once. Rows of x go from memory straight into operands: what a block reads of them after the wait is what takes
// the time, so blocks are wide (x is read once for all of a block's columns), or a cluster cuts k. The order of k inside a product is
// free as long as both operands agree: each lane takes 16 contiguous bytes of a row.
#include <algorithm>
#include <array>

#include "backend/cuda/attention_warpgroup.cuh"
#include "backend/cuda/gemm_bring.cuh"
#include "backend/cuda/gemm_device.cuh"
#include "backend/cuda/linear_shared.hpp"
#include "backend/cuda/linear_slab.hpp"

namespace baton::backend::cuda {

namespace {

using dev::Ops;

constexpr uint32_t kUnit = 32;     // elements of k four lanes read at once
constexpr uint32_t kHeader = 128;  // bytes: the barriers of the weights and of the sums

struct Args : gemm::Operands {
    uint32_t splits_log2;
    uint32_t units;    // of k in all
    uint32_t slices;
    uint32_t pitch;    // bytes from a held row to the next: an odd multiple of 64, so that two rows lie in different banks
    uint32_t slab_at;  // offsets in shared memory: the weights, and afterwards the warps' sums
    uint32_t sums_at;  // what the blocks of a cluster send
    float eps;
    Out kind;
    bool late;         // see SlabConfig
    gemm::Ahead ahead;
};

__host__ __device__ constexpr uint32_t round_up(uint32_t v, uint32_t to) { return (v + to - 1) / to * to; }
/// Floats from a row of sums to the next; the place behind the last column is the row's square.
__host__ __device__ constexpr uint32_t sum_stride(uint32_t columns) { return round_up(columns, 32) + 8; }

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void send(uint32_t to, float2 v, uint32_t barrier_there) {
    dev::jitter();
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to), "f"(v.x), "f"(v.y),
                 "r"(barrier_there)
                 : "memory");
}

/// Two neighbouring results of a row, and what the epilogue reads ahead of the sums.
struct Pair {
    bool valid = false;
    uint32_t row = 0;     // of x
    uint32_t local = 0;   // of the rows in the sums
    uint32_t column = 0;  // of the block
    float2 bias = {};
    float2 bias_up = {};
    uint32_t residual = 0;
};

template <class T>
__device__ __forceinline__ void read_ahead(const Args& a, uint32_t column0, Pair& to) {
    if (!to.valid) return;
    if (a.bias != nullptr) {
        const T* bias = static_cast<const T*>(a.bias) + column0 + to.column;
        to.bias = {Ops<T>::to_float(bias[0]), Ops<T>::to_float(bias[1])};
        if (a.kind == Out::kSwiGlu) to.bias_up = {Ops<T>::to_float(bias[a.columns]), Ops<T>::to_float(bias[a.columns + 1])};
    }
    if (a.kind == Out::kAdd)
        to.residual = *reinterpret_cast<const uint32_t*>(static_cast<const T*>(a.out) + static_cast<size_t>(to.row) * a.columns + column0 + to.column);
}

/// Adds `parts` sums in order, `part_stride` floats apart, and stores the pair.
template <class T, int N>
__device__ __forceinline__ void finish_pair(const Args& a, const float* sums, uint32_t parts, uint32_t part_stride, uint32_t column0, const Pair& to) {
    if (!to.valid) return;
    const bool gated = a.kind == Out::kSwiGlu;
    const float* from = sums + to.local * sum_stride(N) + to.column;
    float2 y = {};
    float2 up = {};
    float square = 0;
#pragma unroll 4
    for (uint32_t p = 0; p < parts; ++p, from += part_stride) {
        const float2 v = *reinterpret_cast<const float2*>(from);
        y.x += v.x, y.y += v.y;
        if (gated) {
            const float2 u = *reinterpret_cast<const float2*>(from + N / 2);
            up.x += u.x, up.y += u.y;
        }
        if (a.norm != nullptr) square += from[N - to.column];
    }
    const float scale = a.norm != nullptr ? rsqrtf(square / static_cast<float>(a.k) + a.eps) : 1.0f;
    y = {y.x * scale + to.bias.x, y.y * scale + to.bias.y};
    const size_t at = static_cast<size_t>(to.row) * a.columns + column0 + to.column;
    if (a.kind == Out::kF32) {
        *reinterpret_cast<float2*>(static_cast<float*>(a.out) + at) = y;
        return;
    }
    if (gated) y = {gemm::silu(y.x) * (up.x * scale + to.bias_up.x), gemm::silu(y.y) * (up.y * scale + to.bias_up.y)};
    const float2 old = Ops<T>::unpack_bits(to.residual);
    *reinterpret_cast<uint32_t*>(static_cast<T*>(a.out) + at) = Ops<T>::pack(y.x + old.x, y.y + old.y);
}
#endif

/// MT tiles of 16 rows of x × NT tiles of 8 weight rows (with SwiGLU half gate, half up). BF16 multiplies a norm's weight into x, FP16,
/// whose range x could leave, into the weights.
template <class T, int MT, int NT>
__global__ void __launch_bounds__((MT == 1 && NT <= 2 ? 384 : 256), (MT == 1 ? 2 : 1)) slab_kernel(const __grid_constant__ Args a) {
#if __CUDA_ARCH__ >= 900
    constexpr uint32_t kPasses = 4;  // units of x a warp asks for at once
    constexpr long long kLate = 1500;  // cycles, see SlabConfig
    constexpr uint32_t N = NT * 8;
    constexpr uint32_t kRows = MT * 16;
    constexpr int kChains = MT * NT >= 4 ? 1 : 2;
    constexpr bool kScaleX = std::is_same_v<T, __nv_bfloat16>;
    extern __shared__ __align__(128) unsigned char shared[];
    dev::launch_dependents();
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t warp = threadIdx.x >> 5;
    const uint32_t g = lane >> 2;
    const uint32_t t = lane & 3;
    const bool gated = a.kind == Out::kSwiGlu;
    const bool normed = a.norm != nullptr;
    const uint32_t splits = 1u << a.splits_log2;
    const uint32_t rank = blockIdx.x & (splits - 1);
    const uint32_t per = gated ? N / 2 : N;  // columns of the result
    const uint32_t column0 = (blockIdx.x >> a.splits_log2) * per;
    const uint32_t unit0 = rank * a.units >> a.splits_log2;
    const uint32_t units = ((rank + 1) * a.units >> a.splits_log2) - unit0;
    const uint32_t base = dev::shared_address(shared);
    const uint32_t e0 = unit0 * kUnit;
    const uint32_t elements = min(a.k - e0, units * kUnit);
    const uint32_t own_rows = a.m > rank ? (a.m - rank + splits - 1) >> a.splits_log2 : 0;  // that this block finishes
    if (warp == 0) {
        const uint32_t held = min(per, a.columns - column0);
        if (lane == 0) {
            dev::barrier_init(base, 1);
            dev::barrier_init(base + 8, 1);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            dev::fence_for_products();
            dev::barrier_expect(base, held * (gated ? 2 : 1) * elements * 2);
            if (splits > 1) dev::barrier_expect(base + 8, own_rows * ((N / 2 + (normed ? 1 : 0)) * 8 << a.splits_log2));
        }
        __syncwarp();
        if (a.late)
            for (const long long began = clock64(); clock64() - began < kLate;) {
            }
#pragma unroll
        for (uint32_t first = 0; first < N; first += 32) {
            const uint32_t r = first + lane;
            const bool up = gated && r >= N / 2;
            const uint32_t within = up ? r - N / 2 : r;
            if (r >= N || within >= held) continue;
            const T* from = static_cast<const T*>(a.w) + static_cast<size_t>(column0 + within + (up ? a.columns : 0)) * a.k + e0;
            gemm::bring(base + a.slab_at + r * a.pitch, from, elements * 2, base);
        }
    }
    if (normed)  // the norm's weight as T
        for (uint32_t i = threadIdx.x; i < elements / 8; i += blockDim.x) {
            const float4* from = reinterpret_cast<const float4*>(a.norm + e0 + i * 8);
            reinterpret_cast<uint4*>(shared + kHeader)[i] = dev::pack8<T>(__ldg(from), __ldg(from + 1));
        }
    __syncthreads();
    if (splits > 1) dev::cluster_arrive();
    gemm::fetch_ahead(a.ahead);
    const uint32_t begin = warp * units / a.slices;
    const uint32_t end = (warp + 1) * units / a.slices;
    const uint32_t per_row = per / 2;  // pairs
    const auto pair_of = [&](uint32_t item) {
        Pair to;
        to.local = item / per_row;
        to.row = (to.local << a.splits_log2) + rank;
        to.column = item % per_row * 2;
        to.valid = to.local < own_rows && column0 + to.column < a.columns;
        return to;
    };
    const uint32_t items = own_rows * per_row;
    Pair first_pair = pair_of(threadIdx.x);
    dev::wait_for_earlier();

    float acc[MT][NT][kChains][4] = {};
    float square[MT][2][4] = {};  // of rows g in the first half's first two, of rows g + 8 in the second's last two
    const T* x_lane = static_cast<const T*>(a.x) + e0 + t * 8;
    const unsigned char* w_lane = shared + a.slab_at + g * a.pitch + t * 16;
    const unsigned char* norm_lane = shared + kHeader + t * 16;
    if (begin == end) read_ahead<T>(a, column0, first_pair);  // a warp without a part of k
    for (uint32_t first = begin; first < end; first += kPasses) {
        uint4 x[kPasses][MT][2];
#pragma unroll
        for (uint32_t c = 0; c < kPasses; ++c)
#pragma unroll
            for (int i = 0; i < MT; ++i)
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const uint32_t row = static_cast<uint32_t>(i * 16 + half * 8) + g;
                    const bool in = row < a.m && first + c < end && (first + c) * kUnit + t * 8 < elements;
                    x[c][i][half] = in ? __ldcg(reinterpret_cast<const uint4*>(x_lane + static_cast<size_t>(row) * a.k + (first + c) * kUnit)) : uint4{};
                }
        if (first == begin) {
            read_ahead<T>(a, column0, first_pair);
            dev::barrier_wait(base, 0);
        }
#pragma unroll
        for (uint32_t c = 0; c < kPasses; ++c) {
            if (first + c >= end) break;
            const bool in = (first + c) * kUnit + t * 8 < elements;
            const uint4 factors = normed && in ? *reinterpret_cast<const uint4*>(norm_lane + (first + c) * 64) : uint4{};
#pragma unroll
            for (int i = 0; i < MT; ++i) {
                uint4& lo = x[c][i][0];
                uint4& hi = x[c][i][1];
                if (!normed) continue;
                const uint32_t lo_left[2][4] = {{lo.x, 0, lo.y, 0}, {lo.z, 0, lo.w, 0}};
                const uint32_t hi_left[2][4] = {{0, hi.x, 0, hi.y}, {0, hi.z, 0, hi.w}};
                dev::mma<T>(square[i][0], lo_left[0], lo.x, lo.y);
                dev::mma<T>(square[i][1], hi_left[0], hi.x, hi.y);
                dev::mma<T>(square[i][0], lo_left[1], lo.z, lo.w);
                dev::mma<T>(square[i][1], hi_left[1], hi.z, hi.w);
                if constexpr (kScaleX) lo = gemm::multiply8<T>(lo, factors), hi = gemm::multiply8<T>(hi, factors);
            }
#pragma unroll
            for (int j = 0; j < NT; ++j) {
                uint4 w = in ? *reinterpret_cast<const uint4*>(w_lane + static_cast<uint32_t>(j) * 8 * a.pitch + (first + c) * 64) : uint4{};
                if (!kScaleX && normed) w = gemm::multiply8<T>(w, factors);
#pragma unroll
                for (int i = 0; i < MT; ++i) {
                    const uint4& lo = x[c][i][0];
                    const uint4& hi = x[c][i][1];
                    const uint32_t left[2][4] = {{lo.x, hi.x, lo.y, hi.y}, {lo.z, hi.z, lo.w, hi.w}};
                    dev::mma<T>(acc[i][j][0], left[0], w.x, w.y);
                    dev::mma<T>(acc[i][j][kChains - 1], left[1], w.z, w.w);
                }
            }
        }
    }
    __syncthreads();  // the warps' sums take the place of the weights
    constexpr uint32_t kStride = sum_stride(N);
    float* sums = reinterpret_cast<float*>(shared + a.slab_at);
#pragma unroll
    for (int i = 0; i < MT; ++i) {
        float* row = sums + (warp * kRows + static_cast<uint32_t>(i) * 16 + g) * kStride;
#pragma unroll
        for (int j = 0; j < NT; ++j) {
            float v[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) v[e] = kChains == 1 ? acc[i][j][0][e] : acc[i][j][0][e] + acc[i][j][kChains - 1][e];
            *reinterpret_cast<float2*>(row + j * 8 + t * 2) = {v[0], v[1]};
            *reinterpret_cast<float2*>(row + 8 * kStride + j * 8 + t * 2) = {v[2], v[3]};
        }
        if (normed && t == g >> 1) {
            const bool odd = (g & 1) != 0;
            *reinterpret_cast<float2*>(row + N) = {odd ? square[i][0][1] : square[i][0][0], 0};
            *reinterpret_cast<float2*>(row + 8 * kStride + N) = {odd ? square[i][1][3] : square[i][1][2], 0};
        }
    }
    __syncthreads();
    const float* ready = sums;
    uint32_t parts = a.slices;
    uint32_t part_stride = kRows * kStride;
    if (splits > 1) {
        dev::cluster_wait();  // all have started: they may be sent
        const uint32_t pairs = N / 2 + (normed ? 1 : 0);
        for (uint32_t item = threadIdx.x; item < a.m * pairs; item += blockDim.x) {
            const uint32_t row = item / pairs;
            const float* from = sums + row * kStride + item % pairs * 2;
            float2 v = {};
#pragma unroll 4
            for (uint32_t p = 0; p < a.slices; ++p, from += kRows * kStride) {
                const float2 more = *reinterpret_cast<const float2*>(from);
                v.x += more.x, v.y += more.y;
            }
            const uint32_t owner = row & (splits - 1);
            const uint32_t at = a.sums_at + ((rank * (kRows >> a.splits_log2) + (row >> a.splits_log2)) * kStride + item % pairs * 2) * 4;
            send(dev::address_in(base + at, owner), v, dev::address_in(base + 8, owner));
        }
        dev::barrier_wait(base + 8, 0);
        ready = reinterpret_cast<const float*>(shared + a.sums_at);
        parts = splits;
        part_stride = (kRows >> a.splits_log2) * kStride;
    }
    for (uint32_t item = threadIdx.x; item < items; item += blockDim.x) {
        if (item != threadIdx.x) {
            first_pair = pair_of(item);
            read_ahead<T>(a, column0, first_pair);
        }
        finish_pair<T, N>(a, ready, parts, part_stride, column0, first_pair);
    }
#else
    (void)a;
#endif
}

constexpr std::array<SlabShape, 7> kShapes = {{{1, 2, 12}, {1, 4, 8}, {1, 6, 8}, {1, 8, 8}, {2, 2, 8}, {2, 4, 8}, {2, 6, 8}}};

using Kernel = void (*)(Args);
template <class T>
constexpr std::array<Kernel, kShapes.size()> kernels() {
    return {slab_kernel<T, 1, 2>, slab_kernel<T, 1, 4>, slab_kernel<T, 1, 6>, slab_kernel<T, 1, 8>,
            slab_kernel<T, 2, 2>, slab_kernel<T, 2, 4>, slab_kernel<T, 2, 6>};
}
Kernel kernel_of(Elem elem, uint8_t variant) {
    return elem == Elem::kBF16 ? kernels<__nv_bfloat16>()[variant] : kernels<__half>()[variant];
}

/// Where everything lies in shared memory.
struct Places {
    uint32_t units = 0;
    uint32_t pitch = 0;
    uint32_t slab_at = 0;
    uint32_t sums_at = 0;
    uint32_t bytes = 0;
};
Places places_of(const Matrix& matrix, SlabConfig config) {
    const SlabShape& shape = kShapes[config.variant];
    const uint32_t rows = shape.w_tiles * 8u;
    const uint32_t x_rows = shape.x_tiles * 16u;
    const uint32_t stride = sum_stride(rows) * 4;
    Places p;
    p.units = (matrix.k + kUnit - 1) / kUnit;
    const uint32_t most = (p.units + config.splits - 1) / config.splits;
    p.pitch = most * 64 + (most % 2 == 0 ? 64 : 0);
    p.slab_at = kHeader + (matrix.norm != nullptr ? most * 64 : 0);
    p.sums_at = p.slab_at + std::max(rows * p.pitch, config.slices * x_rows * stride);
    p.bytes = p.sums_at + (config.splits > 1 ? x_rows * stride : 0);
    return p;
}

}  // namespace

std::span<const SlabShape> slab_shapes() { return kShapes; }

uint32_t slab_bytes(const Matrix& matrix, SlabConfig config) { return places_of(matrix, config).bytes; }

cudaError_t slab_prepare(Elem elem, uint32_t& shared_most) {
    std::array<const void*, kShapes.size()> all = {};
    for (uint8_t v = 0; v < all.size(); ++v) all[v] = reinterpret_cast<const void*>(kernel_of(elem, v));
    return allow_shared_of_sm90(all, shared_most);
}

bool slab_takes(const Product& product, SlabConfig config, uint32_t shared_most) {
    if (config.variant >= kShapes.size() || shared_most == 0) return false;
    const SlabShape& shape = kShapes[config.variant];
    const Matrix& matrix = product.matrix;
    if (config.slices == 0 || config.slices > shape.warps_max || (config.splits != 1 && config.splits != 2 && config.splits != 4)) return false;
    if (product.m == 0 || product.m > shape.x_tiles * 16u || matrix.n == 0 || matrix.k == 0 || matrix.k % 8 != 0) return false;
    if (matrix.out == Out::kSwiGlu && shape.w_tiles % 2 != 0) return false;
    if (result_columns(matrix) % 2 != 0 || (matrix.k + kUnit - 1) / kUnit < config.splits) return false;
    return slab_bytes(matrix, config) <= shared_most;
}

cudaError_t slab(const Launch& launch, const Product& product, SlabConfig config) {
    if (config.variant >= kShapes.size()) return cudaErrorInvalidValue;
    const Matrix& matrix = product.matrix;
    const Places p = places_of(matrix, config);
    const uint32_t per = kShapes[config.variant].w_tiles * (matrix.out == Out::kSwiGlu ? 4u : 8u);
    const uint32_t blocks = (result_columns(matrix) + per - 1) / per * config.splits;
    const Args args = {gemm::operands_of(product), log2_of(config.splits), p.units, config.slices, p.pitch, p.slab_at, p.sums_at,
                       matrix.eps, matrix.out, config.late, gemm::deal_ahead(matrix.ahead, matrix.ahead_bytes, blocks)};
    return start(launch, kernel_of(product.elem, config.variant), blocks, 32u * config.slices, p.bytes, config.splits, args);
}

}  // namespace baton::backend::cuda
