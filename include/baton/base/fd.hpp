#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "baton/base/error.hpp"

namespace baton {

/// Owns a file descriptor and closes it.
class UniqueFd {
  public:
    UniqueFd() = default;
    explicit UniqueFd(int fd) : fd_(fd) {}
    UniqueFd(UniqueFd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
    UniqueFd& operator=(UniqueFd&& o) noexcept {
        if (this != &o) reset(std::exchange(o.fd_, -1));
        return *this;
    }
    UniqueFd(const UniqueFd&) = delete;
    UniqueFd& operator=(const UniqueFd&) = delete;
    ~UniqueFd() { reset(); }
    [[nodiscard]] int get() const { return fd_; }
    [[nodiscard]] int release() { return std::exchange(fd_, -1); }
    [[nodiscard]] explicit operator bool() const { return fd_ >= 0; }
    void reset(int fd = -1);

  private:
    int fd_ = -1;
};

/// A mapping of a file or shared memory object; unmapped on destruction.
class Mapping {
  public:
    Mapping() = default;
    Mapping(Mapping&& o) noexcept : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
    Mapping& operator=(Mapping&& o) noexcept;
    Mapping(const Mapping&) = delete;
    Mapping& operator=(const Mapping&) = delete;
    ~Mapping();
    /// Maps a whole regular file read-only.
    static Expected<Mapping> map_file(const std::string& path);
    /// Maps the first `bytes` of `fd`, shared, writable or read-only; from the size of a huge page on at a multiple of one.
    static Expected<Mapping> map_fd(int fd, size_t bytes, bool writable);
    [[nodiscard]] std::span<const std::byte> bytes() const { return {data_, bytes_}; }
    [[nodiscard]] std::span<std::byte> mutable_bytes() { return {data_, bytes_}; }
    [[nodiscard]] explicit operator bool() const { return data_ != nullptr; }

  private:
    std::byte* data_ = nullptr;
    size_t bytes_ = 0;
};

/// An anonymous shared memory file (memfd) of `bytes`, sealed against shrinking.
[[nodiscard]] Expected<UniqueFd> make_memfd(const std::string& name, size_t bytes);

}  // namespace baton
