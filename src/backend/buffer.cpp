#include "backend/buffer.hpp"

#include <sys/mman.h>

#include <string>

namespace baton::backend {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;
}  // namespace

Buffer& Buffer::operator=(Buffer&& o) noexcept {
    if (this != &o) {
        if (data_ != nullptr) munmap(data_, bytes_);
        data_ = std::exchange(o.data_, nullptr);
        bytes_ = std::exchange(o.bytes_, 0);
    }
    return *this;
}

Buffer::~Buffer() {
    if (data_ != nullptr) munmap(data_, bytes_);
}

Expected<Buffer> Buffer::make(size_t bytes, const char* what) {
    Buffer b;
    if (bytes == 0) return b;
    // A mapping of whole huge pages, trimmed to a huge page boundary, so that madvise can use them
    // from the start.
    const size_t size =
        bytes >= kHugePage ? (bytes + kHugePage - 1) / kHugePage * kHugePage : bytes;
    const size_t slack = bytes >= kHugePage ? kHugePage : 0;
    void* at =
        mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) {
        return fail(ErrorCode::kOverloaded, "no memory for " + std::string(what) + " (" +
                                                std::to_string(bytes) + " bytes)");
    }
    auto* start = static_cast<std::byte*>(at);
    if (slack != 0) {
        const size_t before =
            (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
        if (before != 0) munmap(start, before);
        if (slack != before) munmap(start + before + size, slack - before);
        start += before;
        madvise(start, size, MADV_HUGEPAGE);
    }
    b.data_ = start;
    b.bytes_ = size;
    return b;
}

}  // namespace baton::backend
