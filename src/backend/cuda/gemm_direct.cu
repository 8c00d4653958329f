// Products for up to 16 rows of x on the tensor cores, with weights going from memory straight into the registers that
// mma.sync takes as its left operand: no shared memory, no unpacking, and the loads are in flight before the wait for the
// kernel ahead. The order of k inside a product is free as long as both operands agree on it, so each lane simply loads
// 16 contiguous bytes of a row: four elements for one mma.sync, four for the next.
#include <array>

#include "backend/cuda/gemm_device.cuh"
#include "backend/cuda/linear_kernels.hpp"

namespace baton::backend::cuda {

namespace {

using gemm::Ops;

constexpr uint32_t kWarps = 8;  // of a block, at most
constexpr uint32_t kUnit = 32;  // elements of k four lanes load at once

struct Args {
    const void* w;
    const void* bias;
    const float* norm;
    const void* x;
    void* out;
    uint32_t n;
    uint32_t k;
    uint32_t m;
    uint32_t columns;
    uint32_t slices;  // warps of a block that share a tile's k
    uint32_t tiles;   // tiles of a block
    float eps;
    Out kind;
};

/// v *= g, eight elements, rounded to T.
template <class T>
__device__ __forceinline__ void scale8(uint4& v, const float* g) {
    using Pair = std::conditional_t<std::is_same_v<T, __half>, __half2, __nv_bfloat162>;
    const float4 lo = __ldg(reinterpret_cast<const float4*>(g));
    const float4 hi = __ldg(reinterpret_cast<const float4*>(g) + 1);
    const uint32_t factors[4] = {Ops<T>::pack(lo.x, lo.y), Ops<T>::pack(lo.z, lo.w), Ops<T>::pack(hi.x, hi.y), Ops<T>::pack(hi.z, hi.w)};
    uint32_t* words = &v.x;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const Pair product = __hmul2(*reinterpret_cast<const Pair*>(&words[i]), *reinterpret_cast<const Pair*>(&factors[i]));
        words[i] = *reinterpret_cast<const uint32_t*>(&product);
    }
}

/// One result: where it goes, and what the epilogue reads ahead of the sums.
struct Result {
    bool valid = false;
    uint32_t tile = 0;  // of the block
    uint32_t r = 0;     // row of the tile
    uint32_t i = 0;     // row of x
    uint32_t column = 0;
};

template <class T>
__device__ __forceinline__ void finish(const Args& a, const Result& to, float y, float up, float residual) {
    const T* bias = static_cast<const T*>(a.bias);
    if (bias != nullptr) y += Ops<T>::to_float(bias[to.column]);
    const size_t at = static_cast<size_t>(to.i) * a.columns + to.column;
    if (a.kind == Out::kF32) {
        static_cast<float*>(a.out)[at] = y;
        return;
    }
    if (a.kind == Out::kSwiGlu) {
        if (bias != nullptr) up += Ops<T>::to_float(bias[a.columns + to.column]);
        y = gemm::silu(y) * up;
    }
    static_cast<T*>(a.out)[at] = Ops<T>::from_float(y + residual);
}

/// A warp: one tile of 16 weight rows (with SwiGLU 8 gate rows and their 8 up rows) × C units of k a pass, NT · 8 rows of x.
/// HALF: a tile of 8 weight rows, whose units of k go in pairs, one as the upper and one as the lower half of the left
/// operand; up to 4 rows of x, once for either half. A norm's weight is multiplied into the weights ahead of the wait, its
/// scale comes from the products of x with itself.
template <class T, int C, int NT, bool HALF>
__global__ void __launch_bounds__(kWarps * 32, 2) direct_kernel(const Args a) {
    constexpr int kColumns = 8 * NT;
    constexpr int kChains = NT == 1 ? 4 : 2;
    __shared__ float parts[kWarps][16][kColumns + 1];
    __shared__ float squares[kWarps][kColumns];
    gemm::launch_dependents();
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t warp = threadIdx.x >> 5;
    const uint32_t g = lane >> 2;
    const uint32_t t = lane & 3;
    const uint32_t slice = warp % a.slices;
    const uint32_t tile = blockIdx.x * a.tiles + warp / a.slices;
    const bool gated = a.kind == Out::kSwiGlu;
    constexpr uint32_t kStep = HALF ? 2 * kUnit : kUnit;  // elements of k a unit advances
    const uint32_t units = (a.k + kStep - 1) / kStep;
    const uint32_t per_slice = (units + a.slices - 1) / a.slices;
    const uint32_t begin = slice * per_slice;
    const uint32_t end = min(begin + per_slice, units);

    const uint32_t row_lo = tile * (HALF || gated ? 8 : 16) + g;
    const uint32_t row_hi = HALF ? row_lo : (gated ? a.columns + row_lo : row_lo + 8);
    const T* lo_row = static_cast<const T*>(a.w) + static_cast<size_t>(min(row_lo, a.n - 1)) * a.k + t * 8;
    const T* hi_row = static_cast<const T*>(a.w) + static_cast<size_t>(min(row_hi, a.n - 1)) * a.k + t * 8 + (HALF ? kUnit : 0);
    uint4 lo[C];
    uint4 hi[C];
    const auto fetch = [&](uint32_t first) {
#pragma unroll
        for (int c = 0; c < C; ++c) {
            const uint32_t unit = first + static_cast<uint32_t>(c);
            const uint32_t e = unit * kStep + t * 8;
            const bool in = unit < end && e < a.k;
            const bool in_hi = HALF ? unit < end && e + kUnit < a.k : in;
            lo[c] = in ? gemm::load_weights(lo_row + unit * kStep) : uint4{};
            hi[c] = in_hi ? gemm::load_weights(hi_row + unit * kStep) : uint4{};
        }
    };
    const auto apply_norm = [&](uint32_t first) {
#pragma unroll
        for (int c = 0; c < C; ++c) {
            const uint32_t unit = first + static_cast<uint32_t>(c);
            const uint32_t e = unit * kStep + t * 8;
            if (unit >= end || e >= a.k) continue;
            scale8<T>(lo[c], a.norm + e);
            if constexpr (!HALF)
                scale8<T>(hi[c], a.norm + e);
            else if (e + kUnit < a.k)
                scale8<T>(hi[c], a.norm + e + kUnit);
        }
    };
    fetch(begin);
    if (a.norm != nullptr) apply_norm(begin);

    const uint32_t rows_out = HALF || gated ? 8 : 16;
    constexpr uint32_t kRowsOfX = HALF ? 4 : kColumns;
    const uint32_t items = a.tiles * rows_out * kRowsOfX;
    const auto result_of = [&](uint32_t item) {
        Result to;
        to.r = item % rows_out;
        to.i = item / rows_out % kRowsOfX;
        to.tile = item / rows_out / kRowsOfX;
        to.column = (blockIdx.x * a.tiles + to.tile) * rows_out + to.r;
        to.valid = item < items && to.i < a.m && to.column < a.columns;
        return to;
    };
    const Result first_result = result_of(threadIdx.x);
    gemm::wait_prerequisites();

    float acc[NT][kChains][4] = {};
    float square[NT][4] = {};
    const uint32_t x_shift = HALF ? (g >> 2) * kUnit + t * 8 : t * 8;
    for (uint32_t first = begin; first < end;) {
        uint4 x[C][NT];
#pragma unroll
        for (int c = 0; c < C; ++c)
#pragma unroll
            for (int j = 0; j < NT; ++j) {
                const uint32_t unit = first + static_cast<uint32_t>(c);
                const uint32_t e = unit * kStep + x_shift;
                const uint32_t row = HALF ? (g & 3) : static_cast<uint32_t>(j) * 8 + g;
                const bool in = row < a.m && unit < end && e < a.k;
                x[c][j] = in ? *reinterpret_cast<const uint4*>(static_cast<const T*>(a.x) + static_cast<size_t>(row) * a.k + e) : uint4{};
            }
#pragma unroll
        for (int c = 0; c < C; ++c) {
            const uint32_t left[2][4] = {{lo[c].x, hi[c].x, lo[c].y, hi[c].y}, {lo[c].z, hi[c].z, lo[c].w, hi[c].w}};
#pragma unroll
            for (int j = 0; j < NT; ++j) {
                const uint32_t right[2][2] = {{x[c][j].x, x[c][j].y}, {x[c][j].z, x[c][j].w}};
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    gemm::mma<T>(acc[j][(2 * c + h) % kChains], left[h], right[h]);
                    if (a.norm != nullptr) {
                        const uint32_t itself[4] = {right[h][0], 0, right[h][1], 0};
                        gemm::mma<T>(square[j], itself, right[h]);
                    }
                }
            }
        }
        first += C;
        if (first < end) {
            fetch(first);
            if (a.norm != nullptr) apply_norm(first);
        }
    }
    float residual = 0;
    if (first_result.valid && a.kind == Out::kAdd)
        residual = Ops<T>::to_float(static_cast<const T*>(a.out)[static_cast<size_t>(first_result.i) * a.columns + first_result.column]);
#pragma unroll
    for (int j = 0; j < NT; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            float sum = acc[j][0][e];
#pragma unroll
            for (int chain = 1; chain < kChains; ++chain) sum += acc[j][chain][e];
            parts[warp][g + (e >= 2 ? 8 : 0)][j * 8 + t * 2 + (e & 1)] = sum;
        }
        if (t == g >> 1) squares[warp][j * 8 + g] = (g & 1) != 0 ? square[j][1] : square[j][0];
    }
    __syncthreads();
    for (uint32_t item = threadIdx.x; item < items; item += blockDim.x) {
        const Result to = item == threadIdx.x ? first_result : result_of(item);
        if (!to.valid) continue;
        float y = 0;
        float up = 0;
        float sum = 0;
        for (uint32_t s = 0; s < a.slices; ++s) {
            const uint32_t from = to.tile * a.slices + s;
            y += parts[from][to.r][to.i];
            if constexpr (HALF) y += parts[from][to.r + 8][to.i + 4];
            if (gated) up += parts[from][to.r + 8][to.i];
            sum += squares[from][to.i];
            if constexpr (HALF) sum += squares[from][to.i + 4];
        }
        if (a.norm != nullptr) {
            const float scale = rsqrtf(sum / static_cast<float>(a.k) + a.eps);
            y *= scale;
            up *= scale;
        }
        if (item != threadIdx.x && a.kind == Out::kAdd)
            residual = Ops<T>::to_float(static_cast<const T*>(a.out)[static_cast<size_t>(to.i) * a.columns + to.column]);
        finish<T>(a, to, y, up, residual);
    }
}

constexpr std::array<DirectShape, 5> kShapes = {{{8, 4, true}, {4, 4, true}, {8, 8, false}, {4, 8, false}, {4, 16, false}}};

using Kernel = void (*)(Args);
template <class T>
constexpr std::array<Kernel, kShapes.size()> kernels() {
    return {direct_kernel<T, 8, 1, true>, direct_kernel<T, 4, 1, true>, direct_kernel<T, 8, 1, false>,
            direct_kernel<T, 4, 1, false>, direct_kernel<T, 4, 2, false>};
}

}  // namespace

std::span<const DirectShape> direct_shapes() { return kShapes; }

bool direct_takes(const Product& product, DirectConfig config) {
    if (config.variant >= kShapes.size() || config.slices == 0 || config.tiles == 0) return false;
    const DirectShape& shape = kShapes[config.variant];
    const Matrix& matrix = product.matrix;
    if (config.slices * config.tiles > static_cast<int>(kWarps) || product.m == 0 || product.m > shape.m_max) return false;
    if (matrix.out == Out::kSwiGlu && (shape.half || matrix.n % 2 != 0)) return false;
    return matrix.n > 0 && matrix.k > 0 && matrix.k % 8 == 0;
}

cudaError_t direct(const Launch& launch, const Product& product, DirectConfig config) {
    if (!direct_takes(product, config)) return cudaErrorInvalidValue;
    const Matrix& matrix = product.matrix;
    const DirectShape& shape = kShapes[config.variant];
    const Args args = {matrix.w, matrix.bias, matrix.norm, product.x, product.out, matrix.n, matrix.k, product.m,
                       result_columns(matrix), config.slices, config.tiles, matrix.eps, matrix.out};
    const uint32_t per_tile = shape.half || matrix.out == Out::kSwiGlu ? 8 : 16;
    const uint32_t per_block = per_tile * config.tiles;
    const uint32_t blocks = (args.columns + per_block - 1) / per_block;
    const auto kernel = product.elem == Elem::kBF16 ? kernels<__nv_bfloat16>()[config.variant] : kernels<__half>()[config.variant];
    return gemm::start(launch, kernel, blocks, 32u * config.slices * config.tiles, 0, 1, args);
}

}  // namespace baton::backend::cuda
