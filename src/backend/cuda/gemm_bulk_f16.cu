#include "backend/cuda/gemm_bulk_table.cuh"

namespace baton::backend::cuda::gemm {

std::array<BulkEntry, kBulkShapes> bulk_table_f16() { return bulk_table<__half>(); }

}  // namespace baton::backend::cuda::gemm
