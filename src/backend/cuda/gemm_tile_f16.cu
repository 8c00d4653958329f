#include "backend/cuda/gemm_tile_table.cuh"

namespace baton::backend::cuda::gemm {

std::array<TileEntry, kTileShapes> tile_table_f16() { return tile_table<__half>(); }

}  // namespace baton::backend::cuda::gemm
