#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <array>
#include <cstddef>

#include "backend/cuda/common.hpp"

/// Descriptions of device memory for the copy engine of sm_90.
namespace baton::backend::cuda {

using EncodeTensorMap = decltype(&cuTensorMapEncodeTiled);

/// The driver's function, found through the runtime so that nothing links against the driver; null: the driver has none.
inline EncodeTensorMap tensor_map_encoder() {
    static const auto encode = [] {
        void* entry = nullptr;
        cudaDriverEntryPointQueryResult found{};
        if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found) != cudaSuccess ||
            found != cudaDriverEntryPointSuccess)
            entry = nullptr;
        return reinterpret_cast<EncodeTensorMap>(entry);
    }();
    return encode;
}

/// Describes a tensor of elements: `sizes` innermost first, `strides` in bytes of all dimensions but the innermost, boxes that are
/// 64 elements (128 bytes) wide and lie in shared memory with the words of a row at word ^ (row & 7). What lies outside reads as
/// zero. `promotion`: how much L2 brings at a time. False where the driver cannot.
template <size_t RANK>
bool describe_tensor(CUtensorMap& map, Elem elem, const void* from, const std::array<cuuint64_t, RANK>& sizes,
                     const std::array<cuuint64_t, RANK - 1>& strides, const std::array<cuuint32_t, RANK>& box,
                     CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B) {
    const EncodeTensorMap encode = tensor_map_encoder();
    std::array<cuuint32_t, RANK> steps;
    steps.fill(1);
    return encode != nullptr &&
           encode(&map, elem == Elem::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, RANK,
                  const_cast<void*>(from), sizes.data(), strides.data(), box.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE,
                  CU_TENSOR_MAP_SWIZZLE_128B, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/// Rows [rows, k], in boxes of `box_rows` of them.
inline bool describe_rows(CUtensorMap& map, Elem elem, const void* from, uint32_t rows, uint32_t k, uint32_t box_rows,
                          CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B) {
    return describe_tensor<2>(map, elem, from, {k, rows}, {cuuint64_t{k} * 2}, {64, box_rows}, promotion);
}

}  // namespace baton::backend::cuda
