#include "backend/cuda/gemm_bulk_table.cuh"

namespace baton::backend::cuda::gemm {

std::array<BulkEntry, kBulkShapes> bulk_table_bf16() { return bulk_table<__nv_bfloat16>(); }

}  // namespace baton::backend::cuda::gemm
