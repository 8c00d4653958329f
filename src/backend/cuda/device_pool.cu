/// Copies of scattered KV pages between pools and staging memory, one kernel a list of blocks: step 7 of
/// docs/LIFE_OF_A_REQUEST.md on GPUs.
#include <algorithm>

#include "backend/cuda/device_pool.hpp"
#include "backend/cuda/ptx.cuh"

namespace baton::backend::cuda {
namespace {

constexpr uint32_t kThreads = 512;
constexpr uint32_t kWarp = 32;
/// Lists up to this long use a kernel with fewer argument bytes.
constexpr uint32_t kFewBlocks = 56;

template <uint32_t kBlocks>
struct Arguments {
    PageMap from;
    PageMap to;
    uint32_t vectors;           ///< 16-byte vectors of a page
    uint32_t tiles_per_page;    ///< of kWarp × loads vectors
    uint32_t pages_per_block;   ///< layers × 2
    uint32_t tiles;             ///< in all
    uint32_t from_blocks[kBlocks];
    uint32_t to_blocks[kBlocks];
};
static_assert(sizeof(Arguments<kPageCopyBlocks>) <= 4096);

/// A warp copies tiles of kWarp × kLoads vectors; consecutive warps take consecutive tiles.
template <uint32_t kBlocks, uint32_t kLoads>
__global__ void __launch_bounds__(kThreads) copy_pages_kernel(const __grid_constant__ Arguments<kBlocks> a) {
    const uint32_t lane = threadIdx.x % kWarp;
    const uint32_t warps = gridDim.x * (kThreads / kWarp);
    for (uint32_t tile = blockIdx.x * (kThreads / kWarp) + threadIdx.x / kWarp; tile < a.tiles; tile += warps) {
        const uint32_t page = tile / a.tiles_per_page;
        const uint32_t begin = (tile - page * a.tiles_per_page) * (kWarp * kLoads) + lane;
        const uint32_t i = page / a.pages_per_block;
        const uint32_t in_block = page - i * a.pages_per_block;
        const int64_t layer = in_block / 2;
        const int64_t kv = in_block % 2;
        const auto* from = reinterpret_cast<const uint4*>(a.from.base + a.from_blocks[i] * a.from.block_stride +
                                                          layer * a.from.layer_stride + kv * a.from.kv_stride);
        auto* to = reinterpret_cast<uint4*>(a.to.base + a.to_blocks[i] * a.to.block_stride + layer * a.to.layer_stride +
                                            kv * a.to.kv_stride);
        uint4 v[kLoads];
#pragma unroll
        for (uint32_t u = 0; u < kLoads; ++u)
            // The owner of the page may write it meanwhile: then the copy is void, see docs/XAVIER.md.
            if (begin + u * kWarp < a.vectors) v[u] = dev::load_once(from + begin + u * kWarp);
#pragma unroll
        for (uint32_t u = 0; u < kLoads; ++u)
            if (begin + u * kWarp < a.vectors) to[begin + u * kWarp] = v[u];
    }
}

template <uint32_t kBlocks, uint32_t kLoads>
cudaError_t launch(cudaStream_t stream, const PageMap& from, std::span<const uint32_t> from_blocks, const PageMap& to,
                   std::span<const uint32_t> to_blocks, const PageCopyShape& shape) {
    Arguments<kBlocks> a;
    a.from = from;
    a.to = to;
    a.vectors = shape.page_bytes / sizeof(uint4);
    a.tiles_per_page = (a.vectors + kWarp * kLoads - 1) / (kWarp * kLoads);
    a.pages_per_block = shape.layers * 2;
    a.tiles = a.tiles_per_page * a.pages_per_block * static_cast<uint32_t>(from_blocks.size());
    std::copy(from_blocks.begin(), from_blocks.end(), a.from_blocks);
    std::copy(to_blocks.begin(), to_blocks.end(), a.to_blocks);
    const uint32_t useful = (a.tiles + kThreads / kWarp - 1) / (kThreads / kWarp);
    const uint32_t ctas = std::max(1u, std::min(shape.ctas, useful));
    copy_pages_kernel<kBlocks, kLoads><<<ctas, kThreads, 0, stream>>>(a);
    return cudaGetLastError();
}

template <uint32_t kBlocks, uint32_t kLoads>
cudaError_t load_one() {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, copy_pages_kernel<kBlocks, kLoads>);
}

}  // namespace

cudaError_t load_copy_pages() {
    for (const cudaError_t e : {load_one<kFewBlocks, 4>(), load_one<kFewBlocks, 8>(), load_one<kPageCopyBlocks, 4>(), load_one<kPageCopyBlocks, 8>()})
        if (e != cudaSuccess) return e;
    return cudaSuccess;
}

cudaError_t copy_pages(cudaStream_t stream, const PageMap& from, std::span<const uint32_t> from_blocks, const PageMap& to,
                       std::span<const uint32_t> to_blocks, const PageCopyShape& shape) {
    if (from_blocks.size() != to_blocks.size() || shape.layers == 0 || shape.page_bytes == 0 || shape.page_bytes % sizeof(uint4) != 0)
        return cudaErrorInvalidValue;
    for (size_t at = 0; at < from_blocks.size(); at += kPageCopyBlocks) {
        const size_t n = std::min<size_t>(from_blocks.size() - at, kPageCopyBlocks);
        const auto f = from_blocks.subspan(at, n), t = to_blocks.subspan(at, n);
        const bool few = n <= kFewBlocks;
        const cudaError_t e = shape.loads == 4 ? (few ? launch<kFewBlocks, 4>(stream, from, f, to, t, shape)
                                                      : launch<kPageCopyBlocks, 4>(stream, from, f, to, t, shape))
                                               : (few ? launch<kFewBlocks, 8>(stream, from, f, to, t, shape)
                                                      : launch<kPageCopyBlocks, 8>(stream, from, f, to, t, shape));
        if (e != cudaSuccess) return e;
    }
    return cudaSuccess;
}

}  // namespace baton::backend::cuda
