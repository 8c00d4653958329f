#pragma once

#include <cstddef>
#include <string>

#include "backend/kernels.hpp"
#include "backend/thread_pool.hpp"
#include "baton/base/error.hpp"
#include "baton/tensor/view.hpp"

namespace baton::backend {

/// A weight matrix in the order the kernels read it.
struct PackedMatrix {
    Packed kind = Packed::kF32;
    size_t rows = 0;
    size_t cols = 0;
    size_t groups = 0;
    size_t group_bytes = 0;
    size_t offset = 0;                ///< in the image of all weights
    const std::byte* data = nullptr;  ///< null until the matrix is bound to an image
    [[nodiscard]] size_t bytes() const { return groups * group_bytes; }
    [[nodiscard]] PackedView view() const { return {kind, rows, cols, groups, group_bytes, data}; }
};

/// What `weight` [rows, cols] becomes when packed; `offset` and `data` are the caller's to set.
/// Errors: kUnsupported when the columns are no whole blocks (an even number for bf16), kCorrupt
/// when its bytes are not those of its shape.
[[nodiscard]] Expected<PackedMatrix> packed_form(const tensor::TensorView& weight);
/// Packs `weight` into `out`: `form`.bytes(), zeroed. Values are those of the file, except that the
/// expanded block scales of Q4_K, Q5_K and Q6_K are rounded to f16 (relative error 2^-11).
/// kUnsupported when such a scale does not fit f16.
[[nodiscard]] Expected<void> pack(const tensor::TensorView& weight, const PackedMatrix& form,
                                  std::byte* out, ThreadPool& pool);

}  // namespace baton::backend
