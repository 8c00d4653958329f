#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <span>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace baton::xavier {

inline constexpr size_t kPageBytes = 4096;

/// Makes the pages a piece of memory lies in at once, where the kernel can; else each is made when it is touched.
inline void populate(std::span<std::byte> piece) {
    const auto begin = reinterpret_cast<uintptr_t>(piece.data()) / kPageBytes * kPageBytes;
    (void)::madvise(reinterpret_cast<void*>(begin), reinterpret_cast<uintptr_t>(piece.data()) + piece.size() - begin, MADV_POPULATE_WRITE);
}

}  // namespace baton::xavier
