#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "baton/base/error.hpp"

namespace baton::backend {

/// Zeroed anonymous memory, 64-byte aligned at least, on huge pages where the system gives them.
class Buffer {
  public:
    Buffer() = default;
    Buffer(Buffer&& o) noexcept
        : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
    Buffer& operator=(Buffer&& o) noexcept;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer();
    /// `what` names the buffer in the error (kOverloaded) when there is no memory.
    [[nodiscard]] static Expected<Buffer> make(size_t bytes, const char* what);
    [[nodiscard]] std::byte* data() const { return data_; }
    [[nodiscard]] size_t bytes() const { return bytes_; }
    template <class T>
    [[nodiscard]] T* as() const {
        return reinterpret_cast<T*>(data_);
    }

  private:
    std::byte* data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace baton::backend
