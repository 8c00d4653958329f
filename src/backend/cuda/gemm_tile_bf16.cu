#include "backend/cuda/gemm_tile_table.cuh"

namespace baton::backend::cuda::gemm {

std::array<TileEntry, kTileShapes> tile_table_bf16() { return tile_table<__nv_bfloat16>(); }

}  // namespace baton::backend::cuda::gemm
