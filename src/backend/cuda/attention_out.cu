// The product behind attention of 16 rows. Weights go from memory straight into the registers that mma.sync takes as its left operand, ahead
// of the wait; the rows lie in the order in which lanes read them. A block takes so many registers that none of the feed-forward kernel's finds
// room beside it, and half of the multiprocessors have one: so half of that kernel's weights come behind these rows, which else wait for all.
#include "backend/cuda/attention_out.hpp"

#include "backend/cuda/gemm_device.cuh"
#include "backend/cuda/laid_rows.cuh"

namespace baton::backend::cuda {

namespace {

using dev::Ops;

constexpr uint32_t kWarps = 16;
constexpr uint32_t kRows = 16;
constexpr uint32_t kColumns = 16;  // of a block
constexpr uint32_t kUnit = LaidRows::kUnit;
constexpr uint32_t kUnits = 4;     // of a warp
constexpr uint32_t kDepth = kUnit * kUnits * kWarps;

struct Args {
    const void* w;
    LaidRows result;
    LaidRows x;
    LaidRows to;
};

template <class T>
__global__ void __launch_bounds__(kWarps * 32, 1) attention_out_kernel(const __grid_constant__ Args a) {
    __shared__ float parts[kWarps][kColumns][kRows + 1];
    dev::launch_dependents();
    const uint32_t lane = threadIdx.x & 31;
    const uint32_t warp = threadIdx.x >> 5;
    const uint32_t g = lane >> 2;
    const uint32_t t = lane & 3;
    const uint32_t depth = warp * kUnits * kUnit + t * 8;
    const T* lo_row = static_cast<const T*>(a.w) + static_cast<size_t>(blockIdx.x * kColumns + g) * kDepth + depth;
    const T* hi_row = lo_row + 8 * kDepth;
    uint4 lo[kUnits], hi[kUnits];
#pragma unroll
    for (uint32_t c = 0; c < kUnits; ++c) lo[c] = dev::load_once(lo_row + c * kUnit), hi[c] = dev::load_once(hi_row + c * kUnit);
    const uint32_t row = threadIdx.x / kColumns;
    const uint32_t column = threadIdx.x % kColumns;
    const auto at = [&](const LaidRows& rows) { return reinterpret_cast<T*>(rows.of(row, blockIdx.x * kColumns + column)); };
    dev::wait_for_earlier();

    uint4 x[kUnits][2];
    const unsigned char* from = a.result.of(g, depth);
#pragma unroll
    for (uint32_t c = 0; c < kUnits; ++c)
#pragma unroll
        for (uint32_t h = 0; h < 2; ++h) x[c][h] = __ldcg(reinterpret_cast<const uint4*>(from + c * a.result.unit + h * a.result.eight));
    const float old = row < kRows ? Ops<T>::to_float(__ldcg(at(a.x))) : 0;
    float acc[2][2][4] = {};
#pragma unroll
    for (uint32_t c = 0; c < kUnits; ++c) {
        const uint32_t left[2][4] = {{lo[c].x, hi[c].x, lo[c].y, hi[c].y}, {lo[c].z, hi[c].z, lo[c].w, hi[c].w}};
#pragma unroll
        for (uint32_t h = 0; h < 2; ++h) {
            dev::mma<T>(acc[h][0], left[0], x[c][h].x, x[c][h].y);
            dev::mma<T>(acc[h][1], left[1], x[c][h].z, x[c][h].w);
        }
    }
#pragma unroll
    for (uint32_t h = 0; h < 2; ++h)
#pragma unroll
        for (uint32_t e = 0; e < 4; ++e) parts[warp][g + (e >= 2 ? 8 : 0)][h * 8 + t * 2 + (e & 1)] = acc[h][0][e] + acc[h][1][e];
    __syncthreads();
    if (row >= kRows) return;
    float y = 0;
#pragma unroll
    for (uint32_t w = 0; w < kWarps; ++w) y += parts[w][column][row];
    *at(a.to) = Ops<T>::from_float(y + old);
}

}  // namespace

bool attention_out_takes(const Matrix& out) {
    return out.k == kDepth && out.n != 0 && out.n % kUnit == 0 && out.norm == nullptr && out.bias == nullptr && out.out == Out::kAdd;
}

cudaError_t attention_out(const Launch& launch, const AttentionOut& part) {
    if (!attention_out_takes(part.out)) return cudaErrorInvalidValue;
    const Args args = {part.out.w, laid_rows({const_cast<void*>(part.result), true}, kDepth), laid_rows(part.x, part.out.n), laid_rows(part.to, part.out.n)};
    const auto kernel = part.elem == Elem::kBF16 ? attention_out_kernel<__nv_bfloat16> : attention_out_kernel<__half>;
    return start(launch, kernel, part.out.n / kColumns, kWarps * 32, 0, 1, args);
}

}  // namespace baton::backend::cuda
