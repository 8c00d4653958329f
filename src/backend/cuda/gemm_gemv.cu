// Matrix-vector products for one or two rows of x. A warp takes a few weight rows; its loads are in flight before the wait
// for the kernel ahead, so that the start of one product overlaps the end of the one before.
#include <array>

#include "backend/cuda/gemm_device.cuh"
#include "backend/cuda/linear_kernels.hpp"
#include "backend/cuda/linear_shared.hpp"

namespace baton::backend::cuda {

namespace {

using dev::Ops;

constexpr uint32_t kWarps = 8;
constexpr uint32_t kChunk = 256;  // elements of k a warp's lanes read at once, 8 each

struct Args : gemm::Operands {
    uint32_t k_warps_log2;
    float eps;
    Out kind;
    gemm::Ahead ahead;
};

/// A result of the warp: which column and row, and what the epilogue reads beforehand.
struct Result {
    bool valid = false;
    uint32_t column = 0;
    uint32_t row = 0;
    float bias = 0;
    float bias_up = 0;
    float residual = 0;
};

/// Blocks a multiprocessor should hold: enough that those of the next product fit beside the current ones.
template <int M, int R, int C>
constexpr int kBlocksMin = M == 1 ? (R * C <= 4 ? 4 : (R * C <= 8 ? 3 : 2)) : 2;

/// R weight rows (with SwiGLU half gate, half up) × C chunks a warp, M rows of x. Threads [8 warps]; the `1 << k_warps_log2`
/// warps of a group cut k; a block does 8 / that many groups.
template <class T, int M, int R, int C>
__global__ void __launch_bounds__(kWarps * 32, (kBlocksMin<M, R, C>)) gemv_kernel(const Args a) {
    __shared__ float parts[kWarps][R * M + M];
    dev::launch_dependents();
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t warp = threadIdx.x >> 5;
    const uint32_t slices = 1u << a.k_warps_log2;
    const uint32_t slice = warp & (slices - 1);
    const bool gated = a.kind == Out::kSwiGlu;
    const uint32_t per_warp = gated ? R / 2 : R;
    const uint32_t column0 = (blockIdx.x * (kWarps >> a.k_warps_log2) + (warp >> a.k_warps_log2)) * per_warp;
    const uint32_t chunks = (a.k + kChunk - 1) / kChunk;
    const uint32_t per_slice = (chunks + slices - 1) >> a.k_warps_log2;
    const uint32_t begin = slice * per_slice;
    const uint32_t end = min(begin + per_slice, chunks);

    const T* rows[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const bool up = gated && r >= R / 2;
        const uint32_t row = up ? a.columns + column0 + static_cast<uint32_t>(r - R / 2) : column0 + static_cast<uint32_t>(r);
        rows[r] = static_cast<const T*>(a.w) + static_cast<size_t>(min(row, a.n - 1)) * a.k + lane * 8;
    }
    uint4 w[R][C];
    const auto fetch = [&](uint32_t first) {
#pragma unroll
        for (int c = 0; c < C; ++c) {
            const uint32_t chunk = first + static_cast<uint32_t>(c);
            const bool in = chunk < end && chunk * kChunk + lane * 8 < a.k;
#pragma unroll
            for (int r = 0; r < R; ++r) w[r][c] = in ? dev::load_once(rows[r] + chunk * kChunk) : uint4{};
        }
    };
    // The norm's weight goes into the weights ahead of the wait, rounded to T.
    const auto apply_norm = [&](uint32_t first) {
        uint4 g[C];
#pragma unroll
        for (int c = 0; c < C; ++c) {
            const uint32_t e = (first + static_cast<uint32_t>(c)) * kChunk + lane * 8;
            float4 lo = {};
            float4 hi = {};
            if (first + static_cast<uint32_t>(c) < end && e < a.k) {
                lo = __ldg(reinterpret_cast<const float4*>(a.norm + e));
                hi = __ldg(reinterpret_cast<const float4*>(a.norm + e) + 1);
            }
            g[c] = dev::pack8<T>(lo, hi);
        }
#pragma unroll
        for (int c = 0; c < C; ++c)
#pragma unroll
            for (int r = 0; r < R; ++r)
                w[r][c] = {gemm::multiply2<T>(w[r][c].x, g[c].x), gemm::multiply2<T>(w[r][c].y, g[c].y),
                           gemm::multiply2<T>(w[r][c].z, g[c].z), gemm::multiply2<T>(w[r][c].w, g[c].w)};
    };
    fetch(begin);
    Result result;
    if (slice == 0 && lane < per_warp * M) {
        result.row = lane % M;
        result.column = column0 + lane / M;
        result.valid = result.row < a.m && result.column < a.columns;
        if (result.valid && a.bias != nullptr) {
            const T* bias = static_cast<const T*>(a.bias);
            result.bias = Ops<T>::to_float(bias[result.column]);
            if (gated) result.bias_up = Ops<T>::to_float(bias[a.columns + result.column]);
        }
    }
    if (a.norm != nullptr) apply_norm(begin);
    gemm::fetch_ahead(a.ahead);
    dev::wait_for_earlier();
    if (result.valid && a.kind == Out::kAdd)
        result.residual = Ops<T>::to_float(
            static_cast<const T*>(a.out)[static_cast<size_t>(result.row) * a.columns + result.column]);

    float acc[R][M] = {};
    float squares[M] = {};
    for (uint32_t first = begin; first < end; first += C) {
        uint4 x[M][C];
#pragma unroll
        for (int c = 0; c < C; ++c) {
            const uint32_t e = (first + static_cast<uint32_t>(c)) * kChunk + lane * 8;
            const bool in = first + static_cast<uint32_t>(c) < end && e < a.k;
#pragma unroll
            for (int i = 0; i < M; ++i)
                x[i][c] = in && static_cast<uint32_t>(i) < a.m
                              ? *reinterpret_cast<const uint4*>(static_cast<const T*>(a.x) + static_cast<size_t>(i) * a.k + e)
                              : uint4{};
        }
#pragma unroll
        for (int c = 0; c < C; ++c) {
            float xf[M][8];
#pragma unroll
            for (int i = 0; i < M; ++i) {
                gemm::unpack8<T>(x[i][c], xf[i]);
                if (a.norm != nullptr) {
#pragma unroll
                    for (int t = 0; t < 8; ++t) squares[i] = fmaf(xf[i][t], xf[i][t], squares[i]);
                }
            }
#pragma unroll
            for (int r = 0; r < R; ++r) {
                float wf[8];
                gemm::unpack8<T>(w[r][c], wf);
#pragma unroll
                for (int i = 0; i < M; ++i)
#pragma unroll
                    for (int t = 0; t < 8; ++t) acc[r][i] = fmaf(wf[t], xf[i][t], acc[r][i]);
            }
        }
        if (first + C < end) {
            fetch(first + C);
            if (a.norm != nullptr) apply_norm(first + C);
        }
    }
#pragma unroll
    for (int i = 0; i < M; ++i) {
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const float sum = dev::warp_sum(acc[r][i]);
            if (lane == 0) parts[warp][r * M + i] = sum;
        }
        if (a.norm != nullptr) {
            const float sum = dev::warp_sum(squares[i]);
            if (lane == 0) parts[warp][R * M + i] = sum;
        }
    }
    if (slices > 1)
        __syncthreads();
    else
        __syncwarp();
    if (!result.valid) return;
    float y = 0;
    float up = 0;
    float square = 0;
#pragma unroll 2
    for (uint32_t s = 0; s < slices; ++s) {
        y += parts[warp + s][lane];
        if (gated) up += parts[warp + s][(lane / M + R / 2) * M + lane % M];
        if (a.norm != nullptr) square += parts[warp + s][R * M + lane % M];
    }
    if (a.norm != nullptr) {
        const float scale = rsqrtf(square / static_cast<float>(a.k) + a.eps);
        y *= scale;
        up *= scale;
    }
    gemm::finish<T>(a, result, y, up);
}

constexpr std::array<GemvShape, 8> kShapes = {
    {{4, 4, 1}, {2, 2, 1}, {4, 2, 1}, {2, 3, 1}, {4, 3, 1}, {2, 2, 2}, {4, 2, 2}, {2, 3, 2}}};

using Kernel = void (*)(Args);
template <class T>
constexpr std::array<Kernel, kShapes.size()> kernels() {
    return {gemv_kernel<T, 1, 4, 4>, gemv_kernel<T, 1, 2, 2>, gemv_kernel<T, 1, 4, 2>, gemv_kernel<T, 1, 2, 3>,
            gemv_kernel<T, 1, 4, 3>, gemv_kernel<T, 2, 2, 2>, gemv_kernel<T, 2, 4, 2>, gemv_kernel<T, 2, 2, 3>};
}

}  // namespace

std::span<const GemvShape> gemv_shapes() { return kShapes; }

bool gemv_takes(const Product& product, GemvConfig config) {
    if (config.variant >= kShapes.size()) return false;
    const GemvShape& shape = kShapes[config.variant];
    const bool power = config.k_warps == 1 || config.k_warps == 2 || config.k_warps == 4 || config.k_warps == 8;
    if (!power || product.m == 0 || product.m > shape.m_max) return false;
    if (product.matrix.out == Out::kSwiGlu && (shape.rows % 2 != 0 || product.matrix.n % 2 != 0)) return false;
    return product.matrix.n > 0 && product.matrix.k > 0 && product.matrix.k % 8 == 0;
}

cudaError_t gemv(const Launch& launch, const Product& product, GemvConfig config) {
    if (!gemv_takes(product, config)) return cudaErrorInvalidValue;
    const Matrix& matrix = product.matrix;
    const GemvShape& shape = kShapes[config.variant];
    Args args = {gemm::operands_of(product), log2_of(config.k_warps), matrix.eps, matrix.out, {}};
    const uint32_t per_warp = matrix.out == Out::kSwiGlu ? shape.rows / 2u : shape.rows;
    const uint32_t per_block = per_warp * (kWarps / config.k_warps);
    const uint32_t blocks = (args.columns + per_block - 1) / per_block;
    args.ahead = gemm::deal_ahead(matrix.ahead, matrix.ahead_bytes, blocks);
    const auto kernel = product.elem == Elem::kBF16 ? kernels<__nv_bfloat16>()[config.variant] : kernels<__half>()[config.variant];
    return start(launch, kernel, blocks, kWarps * 32, 0, 1, args);
}

}  // namespace baton::backend::cuda
