// Matrix-vector products whose weights wait in shared memory. A warp takes a few whole rows of weights, which the copy engine
// brings before the wait for the kernel ahead. Few registers and no more shared memory than the weights need: the blocks of two
// or three products fit on a multiprocessor at once, so that memory is read without a pause while each waits for its turn.
#include <array>

#include "backend/cuda/attention_warpgroup.cuh"
#include "backend/cuda/gemm_bring.cuh"
#include "backend/cuda/gemm_device.cuh"
#include "backend/cuda/linear_held.hpp"
#include "backend/cuda/linear_shared.hpp"

namespace baton::backend::cuda {

namespace {

using dev::Ops;

constexpr uint32_t kWarps = 8;
constexpr uint32_t kChunk = 256;       // elements of k a warp's lanes read at once, 8 each
constexpr uint32_t kHeader = 128;      // bytes ahead of the weights: a barrier a warp

struct Args : gemm::Operands {
    float eps;
    Out kind;
    gemm::Ahead ahead;
};

#if __CUDA_ARCH__ >= 900
#endif

/// R rows a warp (with SwiGLU half gate, half up) of up to C chunks each.
template <class T, int R, int C>
__global__ void __launch_bounds__(kWarps * 32, (R * C <= 16 ? 3 : 2)) held_kernel(const __grid_constant__ Args a) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(128) unsigned char shared[];
    dev::launch_dependents();
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t warp = threadIdx.x >> 5;
    const bool gated = a.kind == Out::kSwiGlu;
    const uint32_t per_warp = gated ? R / 2 : R;
    const uint32_t column0 = (blockIdx.x * kWarps + warp) * per_warp;
    const uint32_t row_bytes = a.k * 2;
    const unsigned char* held = shared + kHeader + warp * R * row_bytes;
    const uint32_t barrier = dev::shared_address(shared) + warp * 8;
    if (lane == 0) {
        dev::barrier_init(barrier, 1);
        dev::fence_for_products();  // the copy engine sees the barrier
        const uint32_t rows = column0 < a.columns ? min(per_warp, a.columns - column0) : 0;
        dev::barrier_expect(barrier, rows * row_bytes * (gated ? 2 : 1));
        if (rows != 0) {
            const unsigned char* w = static_cast<const unsigned char*>(a.w) + static_cast<size_t>(column0) * row_bytes;
            gemm::bring(dev::shared_address(held), w, rows * row_bytes, barrier);
            if (gated)
                gemm::bring(dev::shared_address(held) + per_warp * row_bytes, w + static_cast<size_t>(a.columns) * row_bytes, rows * row_bytes, barrier);
        }
    }
    __syncwarp();
    // What the epilogue reads: one result a lane.
    const uint32_t column = column0 + lane;
    const bool valid = lane < per_warp && column < a.columns;
    float bias = 0;
    float bias_up = 0;
    if (valid && a.bias != nullptr) {
        bias = Ops<T>::to_float(static_cast<const T*>(a.bias)[column]);
        if (gated) bias_up = Ops<T>::to_float(static_cast<const T*>(a.bias)[a.columns + column]);
    }
    constexpr bool kNormAhead = C <= 4;  // else it would take too many registers
    float4 g[kNormAhead ? C : 1][2];
    if (kNormAhead && a.norm != nullptr) {
#pragma unroll
        for (int c = 0; c < C; ++c) {
            const uint32_t e = static_cast<uint32_t>(c) * kChunk + lane * 8;
            if (e < a.k) {
                g[c][0] = __ldg(reinterpret_cast<const float4*>(a.norm + e));
                g[c][1] = __ldg(reinterpret_cast<const float4*>(a.norm + e) + 1);
            }
        }
    }
    gemm::fetch_ahead(a.ahead);
    dev::wait_for_earlier();
    uint4 x[C];
#pragma unroll
    for (int c = 0; c < C; ++c) {
        const uint32_t e = static_cast<uint32_t>(c) * kChunk + lane * 8;
        x[c] = e < a.k ? *reinterpret_cast<const uint4*>(static_cast<const T*>(a.x) + e) : uint4{};
    }
    float residual = 0;
    if (valid && a.kind == Out::kAdd) residual = Ops<T>::to_float(static_cast<const T*>(a.out)[column]);
    dev::barrier_wait(barrier, 0);
    float acc[R] = {};
    float square = 0;
#pragma unroll
    for (int c = 0; c < C; ++c) {
        const uint32_t e = static_cast<uint32_t>(c) * kChunk + lane * 8;
        if (e >= a.k) break;
        float xf[8];
        gemm::unpack8<T>(x[c], xf);
        if (a.norm != nullptr) {
#pragma unroll
            for (float v : xf) square = fmaf(v, v, square);
            const float4 lo = kNormAhead ? g[kNormAhead ? c : 0][0] : __ldg(reinterpret_cast<const float4*>(a.norm + e));
            const float4 hi = kNormAhead ? g[kNormAhead ? c : 0][1] : __ldg(reinterpret_cast<const float4*>(a.norm + e) + 1);
            xf[0] *= lo.x, xf[1] *= lo.y, xf[2] *= lo.z, xf[3] *= lo.w;
            xf[4] *= hi.x, xf[5] *= hi.y, xf[6] *= hi.z, xf[7] *= hi.w;
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
            float wf[8];
            gemm::unpack8<T>(*reinterpret_cast<const uint4*>(held + static_cast<uint32_t>(r) * row_bytes + e * 2), wf);
#pragma unroll
            for (int t = 0; t < 8; ++t) acc[r] = fmaf(wf[t], xf[t], acc[r]);
        }
    }
    float y = 0;
    float up = 0;
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const float sum = dev::warp_sum(acc[r]);
        if (lane == static_cast<uint32_t>(r)) y = sum;
        if (R > 1 && gated && lane + R / 2 == static_cast<uint32_t>(r)) up = sum;
    }
    if (a.norm != nullptr) {
        const float scale = rsqrtf(dev::warp_sum(square) / static_cast<float>(a.k) + a.eps);
        y *= scale;
        up *= scale;
    }
    if (!valid) return;
    y += bias;
    if (a.kind == Out::kF32) {
        static_cast<float*>(a.out)[column] = y;
        return;
    }
    if (gated) y = gemm::silu(y) * (up + bias_up);
    static_cast<T*>(a.out)[column] = Ops<T>::from_float(y + residual);
#else
    (void)a;
#endif
}

constexpr std::array<HeldShape, 4> kShapes = {{{2, 4}, {4, 4}, {6, 4}, {8, 4}}};

using Kernel = void (*)(Args);
template <class T>
constexpr std::array<Kernel, kShapes.size()> kernels() {
    return {held_kernel<T, 2, 4>, held_kernel<T, 4, 4>, held_kernel<T, 6, 4>, held_kernel<T, 8, 4>};
}
Kernel kernel_of(Elem elem, uint8_t variant) {
    return elem == Elem::kBF16 ? kernels<__nv_bfloat16>()[variant] : kernels<__half>()[variant];
}

uint32_t shared_bytes(const Matrix& matrix, const HeldShape& shape) { return kHeader + kWarps * shape.rows * matrix.k * 2; }

}  // namespace

std::span<const HeldShape> held_shapes() { return kShapes; }

cudaError_t held_prepare(Elem elem, uint32_t& shared_most) {
    std::array<const void*, kShapes.size()> all = {};
    for (uint8_t v = 0; v < all.size(); ++v) all[v] = reinterpret_cast<const void*>(kernel_of(elem, v));
    return allow_shared_of_sm90(all, shared_most);
}

bool held_takes(const Product& product, uint8_t variant, uint32_t shared_most) {
    const Matrix& matrix = product.matrix;
    if (variant >= kShapes.size() || product.m != 1 || matrix.n == 0 || matrix.k == 0 || matrix.k % 8 != 0) return false;
    const HeldShape& shape = kShapes[variant];
    if (matrix.out == Out::kSwiGlu && (shape.rows % 2 != 0 || matrix.n % 2 != 0)) return false;
    if (matrix.k > shape.chunks * kChunk) return false;
    return shared_bytes(matrix, shape) <= shared_most;
}

cudaError_t held(const Launch& launch, const Product& product, uint8_t variant) {
    const Matrix& matrix = product.matrix;
    const HeldShape& shape = kShapes[variant];
    Args args = {gemm::operands_of(product), matrix.eps, matrix.out, {}};
    const uint32_t per_block = kWarps * (matrix.out == Out::kSwiGlu ? shape.rows / 2u : shape.rows);
    const uint32_t blocks = (args.columns + per_block - 1) / per_block;
    args.ahead = gemm::deal_ahead(matrix.ahead, matrix.ahead_bytes, blocks);
    return start(launch, kernel_of(product.elem, variant), blocks, kWarps * 32, shared_bytes(matrix, shape), 1, args);
}

}  // namespace baton::backend::cuda
