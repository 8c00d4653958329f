#include "backend/cuda/sampler_kernels.hpp"

#include <algorithm>

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

template <class... P, class... A>
cudaError_t launch_kernel(const Launch& launch, void (*kernel)(P...), dim3 grid, uint32_t threads,
                          A... args) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.stream = launch.stream;
    config.attrs = &attribute;
    config.numAttrs = launch.pdl ? 1 : 0;
    return cudaLaunchKernelEx(&config, kernel, args...);
}

/// CTAs a row so that all rows together have about `wanted`, when a CTA takes at least
/// `chunks_each` chunks.
uint32_t ctas_a_row(uint32_t wanted, uint32_t chunks, uint32_t chunks_each, uint32_t rows) {
    return std::clamp(wanted / rows, 1u,
                      std::min((chunks + chunks_each - 1) / chunks_each, kBlocksMax));
}

}  // namespace

cudaError_t launch_sample(const Launch& launch, const Args& args, uint32_t rows) {
    if (rows == 0) return cudaSuccess;
    cudaError_t status =
        launch_kernel(launch, scan_kernel, dim3((args.chunks + kScanWarps - 1) / kScanWarps, rows),
                      kScanThreads, args);
    if (status != cudaSuccess) return status;
    status = launch_kernel(launch, weigh_kernel,
                           dim3(ctas_a_row(kWeighCtas, args.chunks, kScanWarps, rows), rows),
                           kWeighThreads, args);
    if (status != cudaSuccess) return status;
    return launch_kernel(
        launch, choose_kernel,
        dim3(ctas_a_row(kChooseCtas, args.chunks, kChooseThreads / 32, rows), rows), kChooseThreads,
        args);
}

cudaError_t launch_count(cudaStream_t stream, uint16_t* counts, const int32_t* last,
                         uint32_t vocab) {
    return launch_kernel({stream, false}, count_kernel, dim3(1), 1, counts, last, vocab);
}

}  // namespace baton::backend::cuda::sampling
