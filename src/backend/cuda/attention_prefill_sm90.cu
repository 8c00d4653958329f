#include "backend/cuda/attention_prefill_sm90.cuh"

#include <algorithm>

#include "backend/cuda/tensor_map.hpp"

namespace baton::backend::cuda {
namespace {

/// Tiles of 64 rows where tiles of 128 would leave half of the multiprocessors idle: a row's bits are the same in both.
template <Elem E, int D>
cudaError_t pick(const Launch& launch, const PrefillAttention& a) {
    const DeviceTraits& device = current_device();
    if (device.error != cudaSuccess)
        return device.error;
    const int multiprocessors = device.multiprocessors;
    if (prefill_grid(a, 128) * 2 <= static_cast<unsigned>(multiprocessors) || a.rows_max * (a.base.heads / a.base.kv.kv_heads) <= 64)
        return launch_prefill_90<E, D, 1>(launch, a, multiprocessors);
    return launch_prefill_90<E, D, 2>(launch, a, multiprocessors);
}

}  // namespace

cudaError_t describe_pages(CUtensorMap& map, Elem elem, const void* pages, const KvView& kv, uint32_t box_tokens) {
    const cuuint64_t row = static_cast<cuuint64_t>(kv.head_dim) * 2;
    const cuuint64_t block = static_cast<cuuint64_t>(kv.block_stride) * 2;
    // The pool's end is the caller's affair: the map spans as many blocks as it can.
    const cuuint64_t blocks = std::clamp<cuuint64_t>((1ull << 39) / block, 1, 1ull << 30);
    if (tensor_map_encoder() == nullptr)
        return cudaErrorNotSupported;
    return describe_tensor<4>(map, elem, pages, {kv.head_dim, kv.block_tokens, kv.kv_heads, blocks}, {row, row * kv.block_tokens, block},
                              {64, box_tokens, 1, 1})
               ? cudaSuccess
               : cudaErrorInvalidValue;
}

bool runs_prefill_90() {
    // A build without sm_90a runs there from older PTX, in which the kernel is empty.
    const DeviceTraits& device = current_device();
    return device.error == cudaSuccess && device.major == 9 && device.minor == 0 && device.runs_sm90_code();
}

cudaError_t prefill_attention_90(const Launch& launch, const PrefillAttention& args) {
    if (!prefill_takes(args))
        return cudaErrorInvalidValue;
    if (args.rows == 0 || args.base.sequences == 0)
        return cudaSuccess;
    return for_shape(args.base.elem, args.base.kv.head_dim, [&]<Elem E, int D>() { return pick<E, D>(launch, args); });
}

}  // namespace baton::backend::cuda
