#include "backend/cuda/sampler_kernels.hpp"

#include <algorithm>

#include "backend/cuda/launch.cuh"
#include "backend/cuda/sampler_mask.cuh"
#include "backend/cuda/sampler_slow.cuh"

namespace baton::backend::cuda::sampling {
namespace {

// CTAs of all rows together: a few a multiprocessor of the largest GPUs. Nothing but speed depends
// on them.
constexpr uint32_t kWeighCtas = 396;
constexpr uint32_t kChooseCtas = 132;

__global__ void count_kernel(uint16_t* counts, const int32_t* last, uint32_t vocab) {
    const uint32_t id = static_cast<uint32_t>(*last);
    if (id < vocab && (counts[id] & (kInPrompt - 1u)) != kInPrompt - 1u) ++counts[id];
}

/// The end of a step that samples nothing.
__global__ void end_kernel(const __grid_constant__ Args a) {
    dev::launch_dependents();
    dev::wait_for_earlier();
    __threadfence_system();
    const uint32_t step = step_of(a);
    a.ended[step & 1] = step;
    count_step(a);
}

/// CTAs a row so that all rows together have about `wanted`, when a CTA takes at least
/// `chunks_each` chunks.
uint32_t ctas_a_row(uint32_t wanted, uint32_t chunks, uint32_t chunks_each, uint32_t rows) {
    return std::clamp(wanted / rows, 1u,
                      std::min((chunks + chunks_each - 1) / chunks_each, kBlocksMax));
}

}  // namespace

cudaError_t launch_sample(const Launch& launch, const Args& given, uint32_t rows, bool whole) {
    if (rows == 0) return start(launch, end_kernel, dim3(1), 1, 0, 1, given);
    Args args = given;
    args.ends = !whole;
    const auto run = [&](void (*kernel)(Args), uint32_t ctas, uint32_t threads) {
        return start(launch, kernel, dim3(ctas, rows), threads, 0, 1, args);
    };
    cudaError_t status =
        run(scan_kernel, (args.chunks + kScanWarps - 1) / kScanWarps, kScanThreads);
    if (status != cudaSuccess || !whole) return status;
    status = run(weigh_kernel, ctas_a_row(kWeighCtas, args.chunks, kScanWarps, rows), kWeighThreads);
    if (status != cudaSuccess) return status;
    return run(choose_kernel, ctas_a_row(kChooseCtas, args.chunks, kChooseThreads / 32, rows),
               kChooseThreads);
}

cudaError_t load_kernels() {
    cudaFuncAttributes attributes{};
    for (void (*kernel)(Args) : {mask_kernel, scan_kernel, weigh_kernel, choose_kernel, end_kernel})
        if (const cudaError_t status = cudaFuncGetAttributes(&attributes, kernel); status != cudaSuccess) return status;
    return cudaFuncGetAttributes(&attributes, count_kernel);
}

cudaError_t launch_masks(const Launch& launch, const Args& args, uint32_t rows) {
    return start(launch, mask_kernel, dim3(rows), kMaskThreads, 0, 1, args);
}

cudaError_t launch_count(cudaStream_t stream, uint16_t* counts, const int32_t* last,
                         uint32_t vocab) {
    return start({stream, false}, count_kernel, dim3(1), 1, 0, 1, counts, last, vocab);
}

}  // namespace baton::backend::cuda::sampling
