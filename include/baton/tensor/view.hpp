#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "baton/tensor/dtype.hpp"

namespace baton::tensor {

/// A read-only tensor in row-major order: `shape[0]` rows of `shape[1]` elements (a vector has `shape[0]` = 1). Rows of
/// a quantised format are whole blocks. The bytes belong to whoever made the view and must outlive it. Loaders have
/// checked that `bytes` holds exactly rows × row_bytes().
struct TensorView {
    std::string name;
    DType dtype = DType::kF32;
    std::array<size_t, 2> shape{0, 0};
    std::span<const std::byte> bytes;
    [[nodiscard]] size_t row_bytes() const {
        const BlockShape b = block_shape(dtype);
        return shape[1] / b.elements * b.bytes;
    }
    [[nodiscard]] std::span<const std::byte> row(size_t r) const {
        return bytes.subspan(r * row_bytes(), row_bytes());
    }
    [[nodiscard]] explicit operator bool() const { return shape[1] != 0; }
};

/// Writes the `n` values of one row as f32. `n` is a multiple of the format's block. The reference every quantised
/// kernel is tested against; exact in f32 as the GGUF format defines it.
void dequantize_row(DType dtype, std::span<const std::byte> row, float* out, size_t n);

}  // namespace baton::tensor
