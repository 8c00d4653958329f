#include "backend/cuda/attention_prefill_sm90.cuh"

#include <algorithm>

namespace baton::backend::cuda {
namespace {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                                 const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                 CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

/// The driver's function, found through the runtime so that nothing links against the driver.
EncodeTiled find_encode() {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return nullptr;
    return reinterpret_cast<EncodeTiled>(entry);
}

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

cudaError_t describe_pages(CUtensorMap& map, Elem elem, const void* pages, const KvView& kv) {
    static const EncodeTiled encode = find_encode();
    if (encode == nullptr)
        return cudaErrorNotSupported;
    const cuuint64_t row = static_cast<cuuint64_t>(kv.head_dim) * 2;
    const cuuint64_t block = static_cast<cuuint64_t>(kv.block_stride) * 2;
    // The pool's end is the caller's affair: the map spans as many blocks as it can.
    const cuuint64_t blocks = std::clamp<cuuint64_t>((1ull << 39) / block, 1, 1ull << 30);
    const cuuint64_t sizes[4] = {kv.head_dim, kv.block_tokens, kv.kv_heads, blocks};
    const cuuint64_t strides[3] = {row, row * kv.block_tokens, block};
    const cuuint32_t box[4] = {64, kv.block_tokens, 1, 1};
    const cuuint32_t steps[4] = {1, 1, 1, 1};
    const CUresult result = encode(&map, elem == Elem::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
                                   const_cast<void*>(pages), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                   CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

bool runs_prefill_90() {
    // A build without sm_90a runs there from older PTX, in which the kernel is empty.
    const DeviceTraits& device = current_device();
    return device.error == cudaSuccess && device.major == 9 && device.minor == 0 && device.compiled >= 90;
}

cudaError_t prefill_attention_90(const Launch& launch, const PrefillAttention& args) {
    if (!prefill_takes(args))
        return cudaErrorInvalidValue;
    if (args.rows == 0 || args.base.sequences == 0)
        return cudaSuccess;
    return for_shape(args.base.elem, args.base.kv.head_dim, [&]<Elem E, int D>() { return pick<E, D>(launch, args); });
}

}  // namespace baton::backend::cuda
