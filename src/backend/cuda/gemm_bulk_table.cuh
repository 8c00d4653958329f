#pragma once

#include <array>

#include "backend/cuda/gemm_bulk.cuh"

/// The instantiations of bulk_kernel, in the order of bulk_shapes(). One file of this folder per element type.
namespace baton::backend::cuda::gemm {

struct BulkEntry {
    void (*kernel)(BulkArgs, CUtensorMap, CUtensorMap, CUtensorMap) = nullptr;
    uint32_t threads = 0;
    uint32_t shared_bytes = 0;
};
constexpr size_t kBulkShapes = 5;

template <class T, int N>
BulkEntry bulk_entry() {
    return {bulk_kernel<T, N>, BulkShape<N>::kThreads, BulkShape<N>::kShared};
}

template <class T>
std::array<BulkEntry, kBulkShapes> bulk_table() {
    return {bulk_entry<T, 256>(), bulk_entry<T, 128>(), bulk_entry<T, 224>(), bulk_entry<T, 96>(), bulk_entry<T, 64>()};
}

std::array<BulkEntry, kBulkShapes> bulk_table_bf16();
std::array<BulkEntry, kBulkShapes> bulk_table_f16();

}  // namespace baton::backend::cuda::gemm
