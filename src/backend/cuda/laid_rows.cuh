#pragma once

#include <cstdint>

#include "backend/cuda/linear_shared.hpp"

namespace baton::backend::cuda {

/// Rows of elements of two bytes as a kernel finds them: bytes from a row to the next of the same eight, from an eight of rows to the next, and
/// from 32 columns to the next. Lane 4 · g + t of a warp reads of row g the 16 bytes at 16 · t of 32 columns.
struct LaidRows {
    unsigned char* at = nullptr;
    uint32_t row = 0;
    uint32_t eight = 0;
    uint32_t unit = 0;

    static constexpr uint32_t kUnit = 32;
    [[nodiscard]] __device__ __forceinline__ unsigned char* of(uint32_t of_row, uint32_t column) const {
        return at + of_row / 8 * eight + of_row % 8 * row + column / kUnit * unit + column % kUnit * 2;
    }
};
inline LaidRows laid_rows(const Rows& rows, uint32_t columns) {
    auto* at = static_cast<unsigned char*>(rows.data);
    return rows.for_lanes ? LaidRows{at, 64, 512, 1024} : LaidRows{at, columns * 2, columns * 16, 64};
}

}  // namespace baton::backend::cuda
