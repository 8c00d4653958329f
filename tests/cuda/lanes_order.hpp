#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace baton::test {

/// Elements of [rows ≤ 16, columns] in lanes' order (backend::cuda::Rows): [columns / 32][16][32]. Rows that there are not are `nothing`.
inline size_t place_for_lanes(size_t row, size_t column) { return column / 32 * 512 + row * 32 + column % 32; }
inline std::vector<uint16_t> to_lanes_order(const std::vector<uint16_t>& rows, size_t columns, uint16_t nothing = 0xffff) {
    std::vector<uint16_t> laid(16 * columns, nothing);
    for (size_t at = 0; at < rows.size(); ++at) laid[place_for_lanes(at / columns, at % columns)] = rows[at];
    return laid;
}

inline std::vector<uint16_t> from_lanes_order(const std::vector<uint16_t>& laid, size_t columns) {
    std::vector<uint16_t> rows(laid.size());
    for (size_t at = 0; at < rows.size(); ++at) rows[at] = laid[place_for_lanes(at / columns, at % columns)];
    return rows;
}

}  // namespace baton::test
