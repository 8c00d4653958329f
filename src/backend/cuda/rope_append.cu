#include <cstdint>

#include "backend/cuda/attention.hpp"
#include "backend/cuda/attention_device.cuh"

namespace baton::backend::cuda {
namespace {

template <Elem E>
struct AppendParams {
    using T = typename dev::Number<E>::Type;
    const T* qkv;
    T* q;
    T* k;
    T* v;
    int64_t block_stride;
    int block_shift;  ///< log2 of the tokens of a block
    int rows;
    int heads;
    int kv_heads;
    const float* q_norm;
    const float* k_norm;
    float eps;
    const float2* rope;
    const int32_t* positions;
    const int32_t* slots;
};

/// Norm and rotation of one head by D / 16 lanes: `low` are eight elements of its first half, `high` those they turn with.
template <int D>
__device__ __forceinline__ void norm_and_turn(float (&low)[8], float (&high)[8], const float* norm, float eps, const float2* rope,
                                              int lane) {
    if (norm != nullptr) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i)
            sum = fmaf(low[i], low[i], fmaf(high[i], high[i], sum));
#pragma unroll
        for (int o = D / 32; o > 0; o >>= 1)
            sum += __shfl_xor_sync(0xffffffffu, sum, o);
        const float factor = rsqrtf(sum / D + eps);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            low[i] *= factor * __ldg(norm + lane * 8 + i);
            high[i] *= factor * __ldg(norm + D / 2 + lane * 8 + i);
        }
    }
    const float4* turns = reinterpret_cast<const float4*>(rope + lane * 8);
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
        const float4 t = __ldg(turns + i / 2);
        const float a0 = low[i], b0 = high[i], a1 = low[i + 1], b1 = high[i + 1];
        low[i] = a0 * t.x - b0 * t.y;
        high[i] = b0 * t.x + a0 * t.y;
        low[i + 1] = a1 * t.z - b1 * t.w;
        high[i + 1] = b1 * t.z + a1 * t.w;
    }
}

template <class T>
__device__ __forceinline__ void unpack8(const uint4& words, float (&out)[8]) {
    const uint32_t w[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 f = dev::Ops<T>::unpack(w[i]);
        out[2 * i] = f.x;
        out[2 * i + 1] = f.y;
    }
}

constexpr int kAppendThreads = 256;

/// D / 16 lanes per head of a row, sixteen elements each.
template <Elem E, int D>
__global__ void __launch_bounds__(kAppendThreads) append_kernel(AppendParams<E> p) {
    using T = typename dev::Number<E>::Type;
    dev::launch_dependents();
    dev::wait_for_earlier();
    constexpr int kLanes = D / 16;
    const int total = p.heads + 2 * p.kv_heads;
    const int64_t index = (static_cast<int64_t>(blockIdx.x) * kAppendThreads + threadIdx.x) / kLanes;
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    // Lanes past the end stay for the shuffles of their warp.
    const int64_t last = static_cast<int64_t>(p.rows) * total - 1;
    const bool inside = index <= last;
    const int64_t vector = inside ? index : last;
    const int64_t row = vector / total;
    const int head = static_cast<int>(vector - row * total);
    const int slot = __ldg(p.slots + row);
    const T* from = p.qkv + vector * D + lane * 8;
    uint4 a = *reinterpret_cast<const uint4*>(from);
    uint4 b = *reinterpret_cast<const uint4*>(from + D / 2);
    const bool is_q = head < p.heads;
    const bool is_k = !is_q && head < p.heads + p.kv_heads;
    const int written = __ldg(p.positions + row);
    const int position = slot < 0 ? 0 : written;  // a padding row's may be anything
    float low[8];
    float high[8];
    unpack8<T>(a, low);
    unpack8<T>(b, high);
    norm_and_turn<D>(low, high, is_k ? p.k_norm : p.q_norm, p.eps, p.rope + static_cast<int64_t>(position) * (D / 2), lane);
    if (is_q || is_k) {
        a = dev::pack8<T>(low);
        b = dev::pack8<T>(high);
    }
    if (!inside || slot < 0)
        return;
    T* to;
    if (is_q) {
        to = p.q + (row * p.heads + head) * D;
    } else {
        const int kv_head = head - p.heads - (is_k ? 0 : p.kv_heads);
        const int64_t place = (static_cast<int64_t>(kv_head) << p.block_shift) + (slot & ((1 << p.block_shift) - 1));
        to = (is_k ? p.k : p.v) + static_cast<int64_t>(slot >> p.block_shift) * p.block_stride + place * D;
    }
    *reinterpret_cast<uint4*>(to + lane * 8) = a;
    *reinterpret_cast<uint4*>(to + lane * 8 + D / 2) = b;
}

template <Elem E, int D>
cudaError_t append(const Launch& launch, const RopeAppend& a) {
    using T = typename dev::Number<E>::Type;
    AppendParams<E> p{};
    p.qkv = static_cast<const T*>(a.qkv);
    p.q = static_cast<T*>(a.q);
    p.k = static_cast<T*>(a.kv.k);
    p.v = static_cast<T*>(a.kv.v);
    p.block_stride = a.kv.block_stride;
    p.block_shift = __builtin_ctz(a.kv.block_tokens);
    p.rows = static_cast<int>(a.rows);
    p.heads = static_cast<int>(a.heads);
    p.kv_heads = static_cast<int>(a.kv.kv_heads);
    p.q_norm = a.q_norm;
    p.k_norm = a.k_norm;
    p.eps = a.eps;
    p.rope = a.rope;
    p.positions = a.positions;
    p.slots = a.slots;
    const uint64_t threads = static_cast<uint64_t>(a.rows) * (a.heads + 2 * a.kv.kv_heads) * (D / 16);
    const auto grid = static_cast<unsigned>((threads + kAppendThreads - 1) / kAppendThreads);
    return launch_kernel<append_kernel<E, D>>(launch, grid, kAppendThreads, 0, p);
}

}  // namespace

cudaError_t rope_append(const Launch& launch, const RopeAppend& args) {
    if (!takes_pages(args.kv))
        return cudaErrorInvalidValue;
    // One of the two norms alone is no model's; the kernel takes both or none.
    if ((args.q_norm == nullptr) != (args.k_norm == nullptr))
        return cudaErrorInvalidValue;
    if (args.rows == 0)
        return cudaSuccess;
    return for_shape(args.elem, args.kv.head_dim, [&]<Elem E, int D>() { return append<E, D>(launch, args); });
}

}  // namespace baton::backend::cuda
