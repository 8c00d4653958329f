#pragma once

#include <cstddef>
#include <string>

#include "backend/buffer.hpp"
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
    Buffer data;
    [[nodiscard]] PackedView view() const {
        return {kind, rows, cols, groups, group_bytes, data.data()};
    }
};

/// Lowers `weight` [rows, cols]. Values are those of the file, except that the expanded block
/// scales of Q4_K, Q5_K and Q6_K are rounded to f16 (relative error 2^-11). Errors: kUnsupported
/// when such a scale does not fit f16 or the columns are no whole blocks (even number for bf16).
[[nodiscard]] Expected<PackedMatrix> pack(const tensor::TensorView& weight, ThreadPool& pool);

}  // namespace baton::backend
