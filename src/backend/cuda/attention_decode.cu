#include <algorithm>

#include "backend/cuda/attention_decode.cuh"

namespace baton::backend::cuda {
namespace {

/// Small batches take four warps with long slices: such a block finds room beside those of the product in front of it, and
/// reads ahead meanwhile. Others take eight warps. Where a block has less shared memory than an A100's, slices are short.
template <Elem E, int D>
cudaError_t pick(const Launch& launch, const DecodeAttention& a) {
    const DeviceTraits& device = current_device();
    if (device.error != cudaSuccess)
        return device.error;
    const bool clusters = device.compiled >= 90;
    const uint32_t cluster = decode_cluster(a, clusters);
    const auto fits = [&](size_t bytes) { return bytes <= static_cast<size_t>(device.shared_max); };
    if (a.base.sequences <= 8 && fits(decode_shared<D, 4, 2, 2>(a, cluster)))
        return launch_decode<E, D, 4, 2, 2, 3>(launch, a, clusters);
    if (fits(decode_shared<D, 8, 2, 1>(a, cluster)))
        return launch_decode<E, D, 8, 2, 1, 1>(launch, a, clusters);
    return launch_decode<E, D, 4, 2, 1, 2>(launch, a, clusters);
}

bool supported(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, uint32_t sequences) {
    return kv_heads > 0 && heads > 0 && heads % kv_heads == 0 && heads / kv_heads <= 8 && (head_dim == 64 || head_dim == 128) &&
           sequences <= kDecodeSequencesMax && sequences * kv_heads <= kDecodeContextsMax;
}

}  // namespace

uint32_t decode_splits(uint32_t sequences, uint32_t kv_heads, uint32_t kv_len, uint32_t multiprocessors) {
    const uint32_t contexts = sequences * kv_heads;
    // A cluster for each context, where all fit at once: clusters of more than two blocks do not fill a GPU, because they lie
    // within one of its parts of 16 or 18 multiprocessors. Not if long contexts would leave half of the GPU idle.
    for (const uint32_t cluster : {8u, 4u, 2u}) {
        const uint32_t blocks = contexts * cluster;
        const bool half = blocks * 2 <= multiprocessors;
        if (blocks > 0 && (cluster == 2 ? blocks <= multiprocessors && !half : half) && (kv_len <= 8192 || !half))
            return blocks;
    }
    // A block for each, where they are about as many as multiprocessors: no parts to put together.
    if (contexts <= multiprocessors && contexts * 8 >= multiprocessors * 7)
        return contexts;
    return std::max(1u, multiprocessors);
}

size_t decode_workspace_bytes(uint32_t, uint32_t, uint32_t head_dim, uint32_t splits) {
    const size_t parts = static_cast<size_t>(splits) * 2 * 8;
    return kDecodeContextsMax * sizeof(int) + parts * (head_dim * sizeof(float) + 2 * sizeof(float));
}

bool decode_fuses(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, uint32_t sequences) {
    return supported(heads, kv_heads, head_dim, sequences);
}

cudaError_t decode_attention(const Launch& launch, const DecodeAttention& args) {
    const KvView& kv = args.base.kv;
    if (!takes_pages(kv) || args.splits == 0 || !supported(args.base.heads, kv.kv_heads, kv.head_dim, args.base.sequences))
        return cudaErrorInvalidValue;
    if (args.fused != nullptr && (args.fused->q_norm == nullptr) != (args.fused->k_norm == nullptr))
        return cudaErrorInvalidValue;
    if (args.base.sequences == 0)
        return cudaSuccess;
    return for_shape(args.base.elem, kv.head_dim, [&]<Elem E, int D>() { return pick<E, D>(launch, args); });
}

}  // namespace baton::backend::cuda
