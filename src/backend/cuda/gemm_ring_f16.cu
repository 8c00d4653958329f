#include "backend/cuda/gemm_ring_table.cuh"

namespace baton::backend::cuda::gemm {

std::array<RingEntry, kRingShapes> ring_table_f16() { return ring_table<__half>(); }

}  // namespace baton::backend::cuda::gemm
