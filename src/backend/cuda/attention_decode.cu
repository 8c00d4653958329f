#include <algorithm>

#include "backend/cuda/attention_decode.cuh"

namespace baton::backend::cuda {
namespace {

/// Calls `use` with the warps of a block, the stages and size of their slices, and blocks a multiprocessor. Small batches take four
/// warps with long slices: such a block finds room beside those of the product in front of it, and reads ahead meanwhile. Others
/// take eight warps. Where a block has less shared memory than an A100's, slices are short.
template <int D, class Use>
cudaError_t pick(const DecodeAttention& a, const Use& use) {
    const DeviceTraits& device = current_device();
    if (device.error != cudaSuccess)
        return device.error;
    const bool clusters = device.runs_sm90_code();
    const uint32_t cluster = decode_cluster(a, clusters);
    const auto fits = [&](size_t bytes) { return bytes <= static_cast<size_t>(device.shared_max); };
    if (a.base.sequences <= 8 && fits(decode_shared<D, 4, 2, 2>(a, cluster)))
        return use.template operator()<4, 2, 2, 3>(clusters);
    if (fits(decode_shared<D, 8, 2, 1>(a, cluster)))
        return use.template operator()<8, 2, 1, 1>(clusters);
    return use.template operator()<4, 2, 1, 2>(clusters);
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
    constexpr size_t kPlan = std::max({LinePlan<256, 16>::kInts, LinePlan<256, 32>::kInts, LinePlan<128, 32>::kInts, LinePlan<128, 64>::kInts});
    return kDecodeContextsMax * sizeof(int) + parts * (head_dim * sizeof(float) + 2 * sizeof(float)) + splits * kPlan * sizeof(int);
}

bool decode_fuses(uint32_t heads, uint32_t kv_heads, uint32_t head_dim, uint32_t sequences) {
    return supported(heads, kv_heads, head_dim, sequences);
}

namespace {

cudaError_t check(const DecodeAttention& args) {
    const KvView& kv = args.base.kv;
    if (!takes_pages(kv) || args.splits == 0 || !supported(args.base.heads, kv.kv_heads, kv.head_dim, args.base.sequences))
        return cudaErrorInvalidValue;
    if (args.fused != nullptr && (args.fused->q_norm == nullptr) != (args.fused->k_norm == nullptr))
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

}  // namespace

cudaError_t decode_attention(const Launch& launch, const DecodeAttention& args) {
    const cudaError_t error = check(args);
    if (error != cudaSuccess || args.base.sequences == 0)
        return error;
    return for_shape(args.base.elem, args.base.kv.head_dim, [&]<Elem E, int D>() {
        return pick<D>(args, [&]<int WARPS, int STAGES, int SIZE, int PER_SM>(bool clusters) {
            return launch_decode<E, D, WARPS, STAGES, SIZE, PER_SM>(launch, args, clusters);
        });
    });
}

cudaError_t decode_plan(const Launch& launch, const DecodeAttention& args) {
    const cudaError_t error = check(args);
    if (error != cudaSuccess || args.base.sequences == 0)
        return error;
    // The element's type does not matter to a plan.
    return for_shape(Elem::kBF16, args.base.kv.head_dim, [&]<Elem, int D>() {
        return pick<D>(args, [&]<int WARPS, int, int SIZE, int>(bool clusters) {
            return launch_plan<Elem::kBF16, D, WARPS, SIZE>(launch, args, clusters);
        });
    });
}

}  // namespace baton::backend::cuda
