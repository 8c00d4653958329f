#include "backend/cuda/attention_prefill.cuh"

#include "backend/cuda/attention_prefill.hpp"

namespace baton::backend::cuda {
namespace {

/// Few rows a sequence take small tiles: the result's bits are the same (see the kernel), the idle rows are fewer.
template <Elem E, int D>
cudaError_t pick(const Launch& launch, const PrefillAttention& a) {
    constexpr int kTokens = D == 128 ? 32 : 64;  // measured best; part of what fixes the bits
    const uint32_t packed = a.rows_max * (a.base.heads / a.base.kv.kv_heads);
    if (packed <= 16)
        return launch_prefill<E, D, 1, 1, kTokens>(launch, a);
    if (packed <= 64)
        return launch_prefill<E, D, 4, 1, kTokens>(launch, a);
    return launch_prefill<E, D, 4, 2, kTokens>(launch, a);
}

}  // namespace

cudaError_t prefill_attention_portable(const Launch& launch, const PrefillAttention& args) {
    if (!prefill_takes(args))
        return cudaErrorInvalidValue;
    if (args.rows == 0 || args.base.sequences == 0)
        return cudaSuccess;
    return for_shape(args.base.elem, args.base.kv.head_dim, [&]<Elem E, int D>() { return pick<E, D>(launch, args); });
}

cudaError_t prefill_attention(const Launch& launch, const PrefillAttention& args) {
    return runs_prefill_90() ? prefill_attention_90(launch, args) : prefill_attention_portable(launch, args);
}

}  // namespace baton::backend::cuda
