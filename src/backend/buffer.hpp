#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "baton/base/error.hpp"

namespace baton::backend {

/// Memory, 64-byte aligned at least, on huge pages where the system gives them: zeroed and of this
/// process alone, or a part of a memory file.
class Buffer {
  public:
    Buffer() = default;
    Buffer(Buffer&& o) noexcept
        : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
    Buffer& operator=(Buffer&& o) noexcept;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer();
    static constexpr size_t kHugePageBytes = size_t{2} << 20;
    /// `what` names the buffer in the error (kOverloaded) when there is no memory.
    [[nodiscard]] static Expected<Buffer> make(size_t bytes, const char* what);
    /// The first `bytes` (a multiple of the page size) of a memory file, shared with everybody who
    /// maps it, at an address that lets huge pages be used. A read-only one must not be written.
    /// kIo when it cannot be mapped.
    [[nodiscard]] static Expected<Buffer> map(int fd, size_t bytes, bool writable);
    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] size_t bytes() const { return bytes_; }
    template <class T>
    [[nodiscard]] T* as() const {
        return reinterpret_cast<T*>(data_);
    }

  private:
    [[nodiscard]] static std::byte* reserve(size_t bytes);
    std::byte* data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace baton::backend
