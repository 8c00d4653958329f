#include "baton/base/huge_pages.hpp"

#include <sys/mman.h>

#include <cstdint>

namespace baton {
namespace {

constexpr size_t kPageBytes = 4096;
// Values of the kernel that this C library may not name yet.
constexpr int kMadvisePopulateRead = 22;
constexpr int kMadviseCollapse = 25;

/// A range without any page is refused, so the first one is made.
bool gather(std::byte* at) {
    if (::madvise(at, kPageBytes, kMadvisePopulateRead) != 0) return false;
    return ::madvise(at, kHugePageBytes, kMadviseCollapse) == 0;
}

}  // namespace

size_t gather_huge_pages(std::span<std::byte> memory) {
    const size_t before = (kHugePageBytes - reinterpret_cast<uintptr_t>(memory.data()) % kHugePageBytes) % kHugePageBytes;
    size_t gathered = 0;
    for (size_t at = before; at + kHugePageBytes <= memory.size(); at += kHugePageBytes) {
        if (gather(memory.data() + at)) gathered += kHugePageBytes;
        else if (gathered == 0) break;  // the kernel cannot, or has none
    }
    return gathered;
}

}  // namespace baton
