#pragma once

#include <cstddef>
#include <span>

namespace baton {

inline constexpr size_t kHugePageBytes = size_t{2} << 20;

/// Puts the whole huge pages that lie within a writable mapping of a memory file on huge pages, those that nobody has touched yet
/// too; what is in them stays, also while others write there. Whole means aligned in memory: a file has to be mapped so that offsets
/// and addresses agree (Mapping::map_fd does). Returns the bytes that are on huge pages then: 0 on kernels before 6.1, less than asked
/// where memory has no more of them. A few milliseconds each.
size_t gather_huge_pages(std::span<std::byte> memory);

}  // namespace baton
