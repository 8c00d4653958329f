#include "backend/buffer.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace baton::backend {

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

/// Address space that begins at a huge page boundary where `bytes` is a huge page or more; null
/// when there is none. It holds private zeroed memory until something else is mapped over it.
std::byte* Buffer::reserve(size_t bytes) {
    const size_t slack = bytes >= kHugePageBytes ? kHugePageBytes : 0;
    void* at =
        mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) return nullptr;
    auto* start = static_cast<std::byte*>(at);
    if (slack == 0) return start;
    const size_t before =
        (kHugePageBytes - reinterpret_cast<uintptr_t>(start) % kHugePageBytes) % kHugePageBytes;
    if (before != 0) munmap(start, before);
    if (slack != before) munmap(start + before + bytes, slack - before);
    return start + before;
}

Expected<Buffer> Buffer::make(size_t bytes, const char* what) {
    Buffer b;
    if (bytes == 0) return b;
    const bool large = bytes >= kHugePageBytes;
    const size_t size =
        large ? (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes : bytes;
    b.data_ = reserve(size);
    if (b.data_ == nullptr) {
        return fail(ErrorCode::kOverloaded, "no memory for " + std::string(what) + " (" +
                                                std::to_string(bytes) + " bytes)");
    }
    b.bytes_ = size;
    if (large) madvise(b.data_, size, MADV_HUGEPAGE);
    return b;
}

Expected<Buffer> Buffer::map(int fd, size_t bytes, bool writable) {
    Buffer b;
    b.data_ = bytes == 0 ? nullptr : reserve(bytes);
    if (b.data_ == nullptr)
        return fail(ErrorCode::kOverloaded, "no address space for a memory file");
    b.bytes_ = bytes;
    const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void* at = mmap(b.data_, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
    // Older kernels let nobody map a file shared that is sealed against writing; a private mapping
    // that is only read has the same pages.
    if (at == MAP_FAILED && !writable)
        at = mmap(b.data_, bytes, protection, MAP_PRIVATE | MAP_FIXED, fd, 0);
    if (at == MAP_FAILED)
        return fail(ErrorCode::kIo,
                    std::string("cannot map a memory file: ") + std::strerror(errno));
    if (bytes >= kHugePageBytes) madvise(b.data_, bytes, MADV_HUGEPAGE);
    return b;
}

}  // namespace baton::backend
