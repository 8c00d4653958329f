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
    const KvView& kv = args.base.kv;
    if ((kv.block_tokens != 16 && kv.block_tokens != 32 && kv.block_tokens != 64) || kv.kv_heads == 0 ||
        args.base.heads % kv.kv_heads != 0 || args.base.heads == 0 || (kv.head_dim != 64 && kv.head_dim != 128))
        return cudaErrorInvalidValue;
    if (args.rows == 0 || args.base.sequences == 0)
        return cudaSuccess;
    const bool bf16 = args.base.elem == Elem::kBF16;
    if (kv.head_dim == 128)
        return bf16 ? pick<Elem::kBF16, 128>(launch, args) : pick<Elem::kF16, 128>(launch, args);
    return bf16 ? pick<Elem::kBF16, 64>(launch, args) : pick<Elem::kF16, 64>(launch, args);
}

cudaError_t prefill_attention(const Launch& launch, const PrefillAttention& args) {
    return runs_prefill_90() ? prefill_attention_90(launch, args) : prefill_attention_portable(launch, args);
}

}  // namespace baton::backend::cuda
