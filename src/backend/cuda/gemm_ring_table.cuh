#pragma once

#include <array>

#include "backend/cuda/gemm_ring.cuh"

/// The instantiations of ring_kernel, in the order of ring_shapes(). One file of this folder per element type.
namespace baton::backend::cuda::gemm {

struct RingEntry {
    void (*kernel)(RingArgs, CUtensorMap, CUtensorMap) = nullptr;
    void (*norm_kernel)(RingArgs, CUtensorMap, CUtensorMap) = nullptr;
    uint32_t threads = 0;
    uint32_t norm_threads = 0;
    uint32_t stage_w = 0;
    uint32_t stage_x = 0;
    uint32_t sum_bytes = 0;
    uint32_t header = 0;
};
constexpr size_t kRingShapes = 5;

template <class T, int MW, int N>
RingEntry ring_entry() {
    using S = RingShape<MW, N>;
    return {ring_kernel<T, MW, N, false>, ring_kernel<T, MW, N, true>, S::kThreads, S::kNormThreads, S::kStageW, S::kStageX, S::kSumBytes, S::kHeader};
}

template <class T>
std::array<RingEntry, kRingShapes> ring_table() {
    return {ring_entry<T, 1, 48>(), ring_entry<T, 1, 64>(), ring_entry<T, 1, 96>(), ring_entry<T, 1, 128>(),
            ring_entry<T, 1, 224>()};
}

std::array<RingEntry, kRingShapes> ring_table_bf16();
std::array<RingEntry, kRingShapes> ring_table_f16();

}  // namespace baton::backend::cuda::gemm
