// Products for up to 16 rows of x on the tensor cores, with weights going from memory straight into the registers that
// mma.sync takes as its left operand: no shared memory, no unpacking, and the loads are in flight before the wait for the
// kernel ahead. The order of k inside a product is free as long as both operands agree on it, so each lane simply loads
// 16 contiguous bytes of a row: four elements for one mma.sync, four for the next.
#include <array>

#include "backend/cuda/gemm_device.cuh"
#include "backend/cuda/linear_kernels.hpp"

namespace baton::backend::cuda {

namespace {

using dev::Ops;

constexpr uint32_t kWarps = 16;  // of a block, at most
constexpr uint32_t kUnit = 32;  // elements of k four lanes load at once
constexpr uint32_t kNormMax = 8192;  // elements of a norm's weight that fit into shared memory

struct Args : gemm::Operands {
    uint32_t slices;     // warps of a block that share a tile's k
    uint32_t per_slice;  // units of k each takes
    uint32_t inverse;    // of slices, 16 bits after the point, rounded up
    uint32_t tiles;      // tiles of a block
    float eps;
    Out kind;
    gemm::Ahead ahead;
};

/// v *= g, eight elements, rounded to T.
template <class T>
__device__ __forceinline__ void scale8(uint4& v, const float* g) {
    const uint4 factors = dev::pack8<T>(reinterpret_cast<const float4*>(g)[0], reinterpret_cast<const float4*>(g)[1]);
    v = gemm::multiply8<T>(v, factors);
}

/// One result: where it goes, and what the epilogue reads ahead of the sums.
struct Result {
    bool valid = false;
    uint32_t tile = 0;  // of the block
    uint32_t r = 0;     // row of the tile
    uint32_t row = 0;   // of x
    uint32_t column = 0;
    float bias = 0;
    float bias_up = 0;
    float residual = 0;
};

/// Constant, so it may be read ahead of the wait.
template <class T>
__device__ __forceinline__ void read_bias(const Args& a, Result& to) {
    if (!to.valid || a.bias == nullptr) return;
    const T* bias = static_cast<const T*>(a.bias) + to.column;
    to.bias = Ops<T>::to_float(bias[0]);
    if (a.kind == Out::kSwiGlu) to.bias_up = Ops<T>::to_float(bias[a.columns]);
}
template <class T>
__device__ __forceinline__ void read_residual(const Args& a, Result& to) {
    if (to.valid && a.kind == Out::kAdd)
        to.residual = Ops<T>::to_float(static_cast<const T*>(a.out)[static_cast<size_t>(to.row) * a.columns + to.column]);
}

/// A warp: one tile of 16 weight rows (with SwiGLU 8 gate rows and their 8 up rows) × C units of k a pass, NT · 8 rows of x.
/// HALF: a tile of 8 weight rows, whose units of k go in pairs, one as the upper and one as the lower half of the left
/// operand; up to 4 rows of x, once for either half. A norm's weight is multiplied into the weights ahead of the wait, its
/// scale comes from the products of x with itself.
template <class T, int C, int NT, bool HALF>
__global__ void __launch_bounds__(kWarps * 32, 1) direct_kernel(const Args a) {
    constexpr int kColumns = 8 * NT;
    constexpr int kChains = NT == 1 ? 4 : 2;
    __shared__ float parts[kWarps][16][kColumns + 1];
    __shared__ float squares[kWarps][kColumns];
    extern __shared__ __align__(16) float norm[];  // [k], of a matrix with one
    dev::launch_dependents();
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t warp = threadIdx.x >> 5;
    const uint32_t g = lane >> 2;
    const uint32_t t = lane & 3;
    const uint32_t block_tile = warp * a.inverse >> 16;
    const uint32_t slice = warp - block_tile * a.slices;
    const uint32_t tile = blockIdx.x * a.tiles + block_tile;
    const bool gated = a.kind == Out::kSwiGlu;
    constexpr uint32_t kStep = HALF ? 2 * kUnit : kUnit;  // elements of k a unit advances
    const uint32_t units = (a.k + kStep - 1) / kStep;
    const uint32_t begin = slice * a.per_slice;
    const uint32_t end = min(begin + a.per_slice, units);

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
            lo[c] = in ? dev::load_once(lo_row + unit * kStep) : uint4{};
            hi[c] = in_hi ? dev::load_once(hi_row + unit * kStep) : uint4{};
        }
    };
    const auto apply_norm = [&](uint32_t first) {
#pragma unroll
        for (int c = 0; c < C; ++c) {
            const uint32_t unit = first + static_cast<uint32_t>(c);
            const uint32_t e = unit * kStep + t * 8;
            if (unit >= end || e >= a.k) continue;
            scale8<T>(lo[c], norm + e);
            if constexpr (!HALF)
                scale8<T>(hi[c], norm + e);
            else if (e + kUnit < a.k)
                scale8<T>(hi[c], norm + e + kUnit);
        }
    };
    fetch(begin);
    if (a.norm != nullptr)
        for (uint32_t e = threadIdx.x * 4; e < a.k; e += blockDim.x * 4) dev::copy16(dev::shared_address(norm + e), a.norm + e, true);
    dev::copy_commit();

    const uint32_t rows_log2 = HALF || gated ? 3 : 4;
    constexpr uint32_t kRowsOfX = HALF ? 4 : kColumns;
    const uint32_t items = (a.tiles * kRowsOfX) << rows_log2;
    const auto result_of = [&](uint32_t item) {
        Result to;
        to.r = item & ((1u << rows_log2) - 1);
        to.row = (item >> rows_log2) % kRowsOfX;
        to.tile = (item >> rows_log2) / kRowsOfX;
        to.column = ((blockIdx.x * a.tiles + to.tile) << rows_log2) + to.r;
        to.valid = item < items && to.row < a.m && to.column < a.columns;
        return to;
    };
    Result first_result = result_of(threadIdx.x);
    read_bias<T>(a, first_result);
    if (a.norm != nullptr) {
        dev::copy_wait<0>();
        __syncthreads();
        apply_norm(begin);
    }
    gemm::fetch_ahead(a.ahead);
    dev::wait_for_earlier();
    read_residual<T>(a, first_result);

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
                    dev::mma<T>(acc[j][(2 * c + h) % kChains], left[h], right[h][0], right[h][1]);
                    if (a.norm != nullptr) {
                        const uint32_t itself[4] = {right[h][0], 0, right[h][1], 0};
                        dev::mma<T>(square[j], itself, right[h][0], right[h][1]);
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
        Result to = first_result;
        if (item != threadIdx.x) {
            to = result_of(item);
            read_bias<T>(a, to);
            read_residual<T>(a, to);
        }
        if (!to.valid) continue;
        float y = 0;
        float up = 0;
        float sum = 0;
#pragma unroll 4
        for (uint32_t s = 0; s < a.slices; ++s) {
            const uint32_t from = to.tile * a.slices + s;
            y += parts[from][to.r][to.row];
            if constexpr (HALF) y += parts[from][to.r + 8][to.row + 4];
            if (gated) up += parts[from][to.r + 8][to.row];
            sum += squares[from][to.row];
            if constexpr (HALF) sum += squares[from][to.row + 4];
        }
        if (a.norm != nullptr) {
            const float scale = rsqrtf(sum / static_cast<float>(a.k) + a.eps);
            y *= scale;
            up *= scale;
        }
        gemm::finish<T>(a, to, y, up);
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
    if (matrix.norm != nullptr && matrix.k > kNormMax) return false;
    if (matrix.out == Out::kSwiGlu && (shape.half || matrix.n % 2 != 0)) return false;
    return matrix.n > 0 && matrix.k > 0 && matrix.k % 8 == 0;
}

cudaError_t direct(const Launch& launch, const Product& product, DirectConfig config) {
    if (!direct_takes(product, config)) return cudaErrorInvalidValue;
    const Matrix& matrix = product.matrix;
    const DirectShape& shape = kShapes[config.variant];
    const uint32_t step = shape.half ? 2 * kUnit : kUnit;
    const uint32_t units = (matrix.k + step - 1) / step;
    const uint32_t per_slice = (units + config.slices - 1u) / config.slices;
    Args args = {gemm::operands_of(product), config.slices, per_slice, 65535u / config.slices + 1, config.tiles,
                 matrix.eps, matrix.out, {}};
    const uint32_t per_tile = shape.half || matrix.out == Out::kSwiGlu ? 8 : 16;
    const uint32_t per_block = per_tile * config.tiles;
    const uint32_t blocks = (args.columns + per_block - 1) / per_block;
    args.ahead = gemm::deal_ahead(matrix.ahead, matrix.ahead_bytes, blocks);
    const auto kernel = product.elem == Elem::kBF16 ? kernels<__nv_bfloat16>()[config.variant] : kernels<__half>()[config.variant];
    const size_t shared = matrix.norm != nullptr ? size_t{matrix.k} * sizeof(float) : 0;
    return start(launch, kernel, blocks, 32u * config.slices * config.tiles, shared, 1, args);
}

}  // namespace baton::backend::cuda
