// FlashInfer's headers (Apache-2.0, the Hopper kernels derived from FlashAttention 3, BSD-3) come
// from outside this repository.
#if defined(BATON_WITH_FLASHINFER)

#include "backend/cuda/flashinfer_prefill.hpp"

#include <flashinfer/attention/mask.cuh>
// clang-format off
#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>
// clang-format on

#include <type_traits>

namespace baton::backend::cuda {
namespace {

constexpr uint32_t kPlanThreads = 256;

/// Which tile of queries each CTA works on. One array a field, as the kernel reads them;
/// [tiles_max] each.
struct Plan {
    int32_t* work_begin;  ///< [ctas + 1]
    int32_t* tile;        ///< tile of queries within the sequence
    int32_t* row_begin;
    int32_t* block_begin;  ///< first block of the sequence in the block table
    int32_t* rows;
    int32_t* kv_len;
    int32_t* sequence;
};

/// Deals the tiles of all sequences out to the CTAs like cards, the last (which see the most
/// positions) first. One block.
__global__ void __launch_bounds__(kPlanThreads)
    plan_kernel(Plan plan, const int32_t* row_begin, const int32_t* kv_len, uint32_t sequences,
                uint32_t blocks_stride, uint32_t tile_rows, uint32_t ctas) {
    __shared__ uint32_t part[kPlanThreads];
    __shared__ uint32_t total;
    const uint32_t per = (sequences + kPlanThreads - 1) / kPlanThreads;
    const uint32_t first = threadIdx.x * per, last = min(first + per, sequences);
    const auto tiles_of = [&](uint32_t s) {
        return (static_cast<uint32_t>(row_begin[s + 1] - row_begin[s]) + tile_rows - 1) / tile_rows;
    };
    uint32_t mine = 0;
    for (uint32_t s = first; s < last; ++s) mine += tiles_of(s);
    part[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x == 0) {
        uint32_t sum = 0;
        for (uint32_t t = 0; t < kPlanThreads; ++t) {
            const uint32_t n = part[t];
            part[t] = sum;
            sum += n;
        }
        total = sum;
    }
    __syncthreads();
    const auto begin_of = [&](uint32_t cta) {
        return cta * (total / ctas) + min(cta, total % ctas);
    };
    for (uint32_t c = threadIdx.x; c <= ctas; c += kPlanThreads)
        plan.work_begin[c] = static_cast<int32_t>(begin_of(c));
    uint32_t item = part[threadIdx.x];
    for (uint32_t s = first; s < last; ++s)
        for (uint32_t tile = tiles_of(s); tile-- > 0; ++item) {
            const uint32_t at = begin_of(item % ctas) + item / ctas;
            plan.tile[at] = static_cast<int32_t>(tile);
            plan.row_begin[at] = row_begin[s];
            plan.block_begin[at] = static_cast<int32_t>(s * blocks_stride);
            plan.rows[at] = row_begin[s + 1] - row_begin[s];
            plan.kv_len[at] = kv_len[s];
            plan.sequence[at] = static_cast<int32_t>(s);
        }
}

template <class T, uint32_t kHeadDim>
cudaError_t run(cudaStream_t stream, const PrefillAttention& args, uint32_t ctas) {
    constexpr uint32_t kTileRows = kHeadDim == 64 ? 192 : 128;
    const AttentionArgs& base = args.base;
    const size_t tiles = args.rows / kTileRows + base.sequences;
    int32_t* memory = nullptr;
    cudaError_t status = cudaMallocAsync(reinterpret_cast<void**>(&memory),
                                         (ctas + 1 + 6 * tiles) * sizeof(int32_t), stream);
    if (status != cudaSuccess) return status;
    Plan plan{memory, memory + ctas + 1, nullptr, nullptr, nullptr, nullptr, nullptr};
    plan.row_begin = plan.tile + tiles;
    plan.block_begin = plan.row_begin + tiles;
    plan.rows = plan.block_begin + tiles;
    plan.kv_len = plan.rows + tiles;
    plan.sequence = plan.kv_len + tiles;
    plan_kernel<<<1, kPlanThreads, 0, stream>>>(plan, args.row_begin, base.kv_len, base.sequences,
                                                base.blocks_stride, kTileRows, ctas);
    flashinfer::BatchPrefillPagedParams<T, T, T, int32_t> params{};
    params.q_ptr = static_cast<T*>(const_cast<void*>(args.q));
    params.k_ptr = static_cast<T*>(base.kv.k);
    params.v_ptr = static_cast<T*>(base.kv.v);
    params.o_ptr = static_cast<T*>(base.out);
    params.qo_tile_indices = plan.tile;
    params.qo_indptr = plan.row_begin;
    params.kv_indptr = plan.block_begin;
    params.kv_indices = const_cast<int32_t*>(base.blocks);
    params.qo_lens = plan.rows;
    params.kv_lens = plan.kv_len;
    params.work_indptr = plan.work_begin;
    params.batch_indices = plan.sequence;
    params.additional_params.sm_scale = base.scale;
    params.q_stride_n = params.o_stride_n = static_cast<int64_t>(base.heads) * kHeadDim;
    params.q_stride_h = params.o_stride_h = kHeadDim;
    params.k_stride_n = params.v_stride_n = kHeadDim;
    params.k_stride_h = params.v_stride_h = static_cast<int64_t>(base.kv.block_tokens) * kHeadDim;
    params.k_page_stride = params.v_page_stride = base.kv.block_stride;
    params.nnz_qo = args.rows;
    params.num_qo_heads = static_cast<int>(base.heads);
    params.num_kv_heads = static_cast<int>(base.kv.kv_heads);
    params.group_size = params.num_qo_heads / params.num_kv_heads;
    params.page_size = static_cast<int>(base.kv.block_tokens);
    params.window_left = -1;
    params.causal = true;
    status =
        flashinfer::BatchPrefillWithPagedKVCacheDispatched<kHeadDim, kHeadDim,
                                                           flashinfer::MaskMode::kCausal, false,
                                                           true, flashinfer::StandardAttention>(
            params, false, stream);
    const cudaError_t freed = cudaFreeAsync(memory, stream);
    return status != cudaSuccess ? status : freed;
}

template <class T>
cudaError_t run_head(cudaStream_t stream, const PrefillAttention& args, uint32_t ctas) {
    if (args.base.kv.head_dim == 64) return run<T, 64>(stream, args, ctas);
    if (args.base.kv.head_dim == 128) return run<T, 128>(stream, args, ctas);
    return cudaErrorNotSupported;
}

}  // namespace

cudaError_t flashinfer_prefill_attention(const Launch& launch, const PrefillAttention& args) {
    int device = 0, major = 0, ctas = 0;
    cudaError_t status = cudaGetDevice(&device);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&ctas, cudaDevAttrMultiProcessorCount, device);
    if (status != cudaSuccess) return status;
    if (major != 9) return cudaErrorNotSupported;
    if (args.rows == 0 || args.base.sequences == 0) return cudaSuccess;
    return args.base.elem == Elem::kBF16
               ? run_head<cutlass::bfloat16_t>(launch.stream, args, static_cast<uint32_t>(ctas))
               : run_head<cutlass::half_t>(launch.stream, args, static_cast<uint32_t>(ctas));
}

}  // namespace baton::backend::cuda

#endif
