#pragma once

#include <array>

#include "backend/cuda/gemm_tile.cuh"

/// The instantiations of tile_kernel, in the order of tile_shapes(). One file of this folder per element type.
namespace baton::backend::cuda::gemm {

struct TileEntry {
    void (*kernel)(TileArgs) = nullptr;
    size_t shared_bytes = 0;
};
constexpr size_t kTileShapes = 10;

template <class T, int BM, int BN, int WM, int WN, int ST, bool TOTALS>
TileEntry tile_entry() {
    return {tile_kernel<T, BM, BN, WM, WN, ST, TOTALS>, Tile<T, BM, BN, WM, WN, ST, TOTALS>::shared_bytes()};
}

template <class T>
std::array<TileEntry, kTileShapes> tile_table() {
    return {tile_entry<T, 64, 8, 4, 1, 6, false>(),   tile_entry<T, 64, 16, 4, 1, 6, false>(),
            tile_entry<T, 64, 32, 4, 1, 6, false>(),  tile_entry<T, 64, 64, 2, 2, 6, false>(),
            tile_entry<T, 128, 8, 8, 1, 4, false>(),  tile_entry<T, 128, 16, 8, 1, 4, false>(),
            tile_entry<T, 128, 32, 4, 2, 4, false>(), tile_entry<T, 128, 64, 4, 2, 4, false>(),
            tile_entry<T, 128, 128, 2, 4, 3, true>(), tile_entry<T, 128, 256, 2, 4, 4, false>()};
}

std::array<TileEntry, kTileShapes> tile_table_bf16();
std::array<TileEntry, kTileShapes> tile_table_f16();

}  // namespace baton::backend::cuda::gemm
