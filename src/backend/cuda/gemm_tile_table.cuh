#pragma once

#include <array>

#include "backend/cuda/gemm_tile.cuh"

/// The instantiations of tile_kernel, in the order of tile_shapes(). One file of this folder per element type.
namespace baton::backend::cuda::gemm {

using TileKernel = void (*)(TileArgs);

/// One shape: its kernels (with the norm fused: bf16 alone, as x · norm may leave fp16's range) and its shared memory.
struct TileEntry {
    TileKernel plain = nullptr;
    TileKernel norm = nullptr;
    size_t (*bytes)(uint32_t slab) = nullptr;
    size_t (*norm_bytes)(uint32_t slab) = nullptr;
};
constexpr size_t kTileShapes = 10;

template <class T, bool NORM, int BM, int BN, int WM, int WN, int ST, bool TOTALS>
constexpr TileEntry tile_entry() {
    TileEntry entry;
    entry.plain = tile_kernel<T, BM, BN, WM, WN, ST, false, TOTALS>;
    entry.bytes = Tile<T, BM, BN, WM, WN, ST, false, TOTALS>::shared_bytes;
    if constexpr (NORM) {
        entry.norm = tile_kernel<T, BM, BN, WM, WN, ST, true, TOTALS>;
        entry.norm_bytes = Tile<T, BM, BN, WM, WN, ST, true, TOTALS>::shared_bytes;
    }
    return entry;
}

template <class T, bool NORM>
std::array<TileEntry, kTileShapes> tile_table() {
    return {tile_entry<T, NORM, 64, 8, 4, 1, 6, false>(),    tile_entry<T, NORM, 64, 16, 4, 1, 6, false>(),
            tile_entry<T, NORM, 64, 32, 4, 1, 6, false>(),   tile_entry<T, NORM, 64, 64, 2, 2, 6, false>(),
            tile_entry<T, NORM, 128, 8, 8, 1, 4, false>(),   tile_entry<T, NORM, 128, 16, 8, 1, 4, false>(),
            tile_entry<T, NORM, 128, 32, 4, 2, 4, false>(),  tile_entry<T, NORM, 128, 64, 4, 2, 4, false>(),
            tile_entry<T, false, 128, 128, 2, 4, 3, true>(), tile_entry<T, false, 128, 256, 2, 4, 4, false>()};
}

std::array<TileEntry, kTileShapes> tile_table_bf16();
std::array<TileEntry, kTileShapes> tile_table_f16();

}  // namespace baton::backend::cuda::gemm
