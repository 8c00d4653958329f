#include "baton/base/fd.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "baton/base/huge_pages.hpp"

namespace baton {
namespace {

constexpr size_t kPageBytes = 4096;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/// Maps the beginning of a file, shared. Where it is larger than a huge page, the address is a multiple of one: the kernel maps huge
/// pages of a file only where offsets and addresses agree.
void* map_shared(int fd, size_t bytes, int protection) {
    if (bytes < kHugePageBytes) return ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
    const size_t size = round_up(bytes, kPageBytes);
    void* reserved = ::mmap(nullptr, size + kHugePageBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) return MAP_FAILED;
    auto* const begin = static_cast<std::byte*>(reserved);
    auto* const at = begin + (round_up(reinterpret_cast<uintptr_t>(begin), kHugePageBytes) - reinterpret_cast<uintptr_t>(begin));
    void* const mapped = ::mmap(at, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0);
    const int error = errno;
    if (mapped == MAP_FAILED) {
        ::munmap(begin, size + kHugePageBytes);
    } else {
        if (at != begin) ::munmap(begin, static_cast<size_t>(at - begin));
        ::munmap(at + size, kHugePageBytes - static_cast<size_t>(at - begin));
    }
    errno = error;
    return mapped;
}

}  // namespace

void UniqueFd::reset(int fd) {
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
}

Mapping& Mapping::operator=(Mapping&& o) noexcept {
    if (this != &o) {
        if (data_ != nullptr) ::munmap(data_, bytes_);
        data_ = std::exchange(o.data_, nullptr);
        bytes_ = std::exchange(o.bytes_, 0);
    }
    return *this;
}

Mapping::~Mapping() {
    if (data_ != nullptr) ::munmap(data_, bytes_);
}

Expected<Mapping> Mapping::map_file(const std::string& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd)
        return fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo,
                    "cannot open " + path + ": " + std::strerror(errno));
    struct stat st {};
    if (::fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode))
        return fail(ErrorCode::kInvalidArgument, path + " is not a regular file");
    if (st.st_size == 0) return fail(ErrorCode::kCorrupt, path + " is empty");
    void* p = ::mmap(nullptr, static_cast<size_t>(st.st_size), PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (p == MAP_FAILED) return fail(ErrorCode::kIo, "cannot map " + path + ": " + std::strerror(errno));
    Mapping m;
    m.data_ = static_cast<std::byte*>(p);
    m.bytes_ = static_cast<size_t>(st.st_size);
    return m;
}

Expected<Mapping> Mapping::map_fd(int fd, size_t bytes, bool writable) {
    struct stat st {};
    if (::fstat(fd, &st) != 0 || static_cast<size_t>(st.st_size) < bytes)
        return fail(ErrorCode::kCorrupt, "shared memory object is smaller than described");
    void* p = map_shared(fd, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ);
    if (p == MAP_FAILED)
        return fail(ErrorCode::kIo, std::string("cannot map shared memory: ") + std::strerror(errno));
    Mapping m;
    m.data_ = static_cast<std::byte*>(p);
    m.bytes_ = bytes;
    return m;
}

Expected<UniqueFd> make_memfd(const std::string& name, size_t bytes) {
    UniqueFd fd(::memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd) return fail(ErrorCode::kIo, std::string("memfd_create: ") + std::strerror(errno));
    if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
        return fail(ErrorCode::kIo, std::string("cannot size shared memory: ") + std::strerror(errno));
    // A peer may map it for as long as it likes: the size must not change under its feet.
    if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return fail(ErrorCode::kIo, std::string("cannot seal shared memory: ") + std::strerror(errno));
    return fd;
}

}  // namespace baton
