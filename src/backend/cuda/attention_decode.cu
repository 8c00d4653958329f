#include <algorithm>

#include "backend/cuda/attention_decode.cuh"

namespace baton::backend::cuda {
namespace {

constexpr uint32_t kSequencesMax = 1024;  // their lengths lie in shared memory

/// Eight warps with two stages fill a multiprocessor of an A100 or H200; four are for those with less shared memory.
template <Elem E, int D>
cudaError_t pick(const Launch& launch, const DecodeAttention& a) {
    int device = 0;
    int bytes_max = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&bytes_max, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess)
        return error;
    if (DecodeShape<D, 8, 2>::shared(a.base.sequences) <= static_cast<size_t>(bytes_max))
        return launch_decode<E, D, 8, 2, 1>(launch, a);
    return launch_decode<E, D, 4, 2, 1>(launch, a);
}

bool supported(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, uint32_t sequences) {
    return kv_heads > 0 && heads > 0 && heads % kv_heads == 0 && heads / kv_heads <= 8 && (head_dim == 64 || head_dim == 128) &&
           sequences <= kSequencesMax;
}

}  // namespace

uint32_t decode_splits(uint32_t sequences, uint32_t kv_heads, uint32_t kv_len, uint32_t multiprocessors) {
    (void)sequences;
    (void)kv_heads;
    (void)kv_len;
    return std::max(1u, multiprocessors);
}

size_t decode_workspace_bytes(uint32_t sequences, uint32_t heads, uint32_t head_dim, uint32_t splits) {
    const size_t parts = static_cast<size_t>(splits) * 2 * 8;
    (void)sequences;
    (void)heads;
    return parts * (head_dim * sizeof(float) + 2 * sizeof(float));
}

bool decode_fuses(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, uint32_t sequences) {
    return supported(heads, kv_heads, head_dim, sequences);
}

cudaError_t decode_attention(const Launch& launch, const DecodeAttention& args) {
    const KvView& kv = args.base.kv;
    if ((kv.block_tokens != 16 && kv.block_tokens != 32 && kv.block_tokens != 64) || args.splits == 0 ||
        !supported(args.base.heads, kv.kv_heads, kv.head_dim, args.base.sequences))
        return cudaErrorInvalidValue;
    if (args.fused != nullptr && (args.fused->q_norm == nullptr) != (args.fused->k_norm == nullptr))
        return cudaErrorInvalidValue;
    if (args.base.sequences == 0)
        return cudaSuccess;
    const bool bf16 = args.base.elem == Elem::kBF16;
    if (kv.head_dim == 128)
        return bf16 ? pick<Elem::kBF16, 128>(launch, args) : pick<Elem::kF16, 128>(launch, args);
    return bf16 ? pick<Elem::kBF16, 64>(launch, args) : pick<Elem::kF16, 64>(launch, args);
}

}  // namespace baton::backend::cuda
