#include "backend/cuda/gemm_ring_table.cuh"

namespace baton::backend::cuda::gemm {

std::array<RingEntry, kRingShapes> ring_table_bf16() { return ring_table<__nv_bfloat16>(); }

}  // namespace baton::backend::cuda::gemm
