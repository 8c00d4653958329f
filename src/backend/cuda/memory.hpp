#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "backend/cuda/check.hpp"

/// Owners of what the CUDA runtime hands out.
namespace baton::backend::cuda {

/// Bytes of device memory that this process's buffers have. What is free on the device says less where others use it too.
[[nodiscard]] inline std::atomic<uint64_t>& device_bytes_held() {
    static std::atomic<uint64_t> bytes{0};
    return bytes;
}

/// Memory that `Free` gives back.
template <cudaError_t (*Free)(void*)>
class Memory {
  public:
    Memory() = default;
    Memory(void* data, size_t bytes) : data_(data), bytes_(bytes) {}
    Memory(Memory&& o) noexcept : data_(std::exchange(o.data_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
    Memory& operator=(Memory&& o) noexcept {
        std::swap(data_, o.data_);
        std::swap(bytes_, o.bytes_);
        return *this;
    }
    ~Memory() {
        if (data_ == nullptr) return;
        static_cast<void>(Free(data_));
        if constexpr (Free == cudaFree) device_bytes_held() -= bytes_;
    }
    template <class T>
    [[nodiscard]] T* as() const {
        return static_cast<T*>(data_);
    }
    [[nodiscard]] std::byte* data() const { return as<std::byte>(); }
    [[nodiscard]] size_t size() const { return bytes_; }

  private:
    void* data_ = nullptr;
    size_t bytes_ = 0;
};

/// Device memory.
class DeviceBuffer : public Memory<cudaFree> {
  public:
    using Memory::Memory;
    /// `what` names the memory in an error.
    [[nodiscard]] static Expected<DeviceBuffer> make(size_t bytes, const std::string& what) {
        if (bytes == 0) return DeviceBuffer();
        void* data = nullptr;
        if (const cudaError_t status = cudaMalloc(&data, bytes); status != cudaSuccess) {
            size_t free = 0, total = 0;
            static_cast<void>(cudaGetLastError());
            static_cast<void>(cudaMemGetInfo(&free, &total));
            return fail(ErrorCode::kUnavailable, "no device memory for " + what + ": " + std::to_string(bytes) + " bytes needed, " +
                                                     std::to_string(free) + " free of " + std::to_string(total) + " (" +
                                                     cudaGetErrorString(status) + ")");
        }
        device_bytes_held() += bytes;
        return DeviceBuffer(data, bytes);
    }
};

/// Page-locked host memory, which kernels may read as well.
class PinnedBuffer : public Memory<cudaFreeHost> {
  public:
    using Memory::Memory;
    [[nodiscard]] static Expected<PinnedBuffer> make(size_t bytes) {
        void* data = nullptr;
        BATON_CUDA_TRY(cudaHostAlloc(&data, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
                       "page-locked memory, " + std::to_string(bytes) + " bytes");
        return PinnedBuffer(data, bytes);
    }
};

/// A handle of type H that `Destroy` ends.
template <class H, cudaError_t (*Destroy)(H)>
class Handle {
  public:
    Handle() = default;
    explicit Handle(H handle) : handle_(handle) {}
    Handle(Handle&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)) {}
    Handle& operator=(Handle&& o) noexcept {
        std::swap(handle_, o.handle_);
        return *this;
    }
    ~Handle() {
        if (handle_ != nullptr) static_cast<void>(Destroy(handle_));
    }
    [[nodiscard]] H get() const { return handle_; }
    [[nodiscard]] explicit operator bool() const { return handle_ != nullptr; }

  private:
    H handle_ = nullptr;
};
using Stream = Handle<cudaStream_t, cudaStreamDestroy>;
using Event = Handle<cudaEvent_t, cudaEventDestroy>;
using GraphExec = Handle<cudaGraphExec_t, cudaGraphExecDestroy>;

/// A stream that does not wait for the legacy default stream. `priority` 0 is the lowest, -1 and below come first.
[[nodiscard]] inline Expected<Stream> make_stream(int priority = 0) {
    cudaStream_t stream = nullptr;
    BATON_CUDA_TRY(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority), "a stream");
    return Stream(stream);
}
/// An event without timing whose waiters may sleep.
[[nodiscard]] inline Expected<Event> make_event() {
    cudaEvent_t event = nullptr;
    BATON_CUDA_TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync), "an event");
    return Event(event);
}

}  // namespace baton::backend::cuda
