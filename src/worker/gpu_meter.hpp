#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "baton/wire/messages.hpp"

namespace baton::worker {

/// Which of the machine's GPUs an index of CUDA's means: a number in the driver's order, or a UUID.
struct DriverGpu {
    uint32_t number = 0;
    std::string uuid;  ///< "" by number
    friend bool operator==(const DriverGpu&, const DriverGpu&) = default;
};
/// What CUDA_VISIBLE_DEVICES makes of index `index`; nothing where it hides it. "" or null: all are visible in order.
[[nodiscard]] std::optional<DriverGpu> driver_gpu(const char* visible_devices, uint32_t index);

/// Asks the driver's management library (NVML) now and then what the GPUs are doing, on a thread of its own: a driver that
/// hangs costs these figures and nothing else. Without the library there are none.
class GpuMeter {
  public:
    explicit GpuMeter(const std::vector<wire::Gpu>& gpus, int64_t every_ms = 2'000);
    ~GpuMeter();
    GpuMeter(const GpuMeter&) = delete;
    GpuMeter& operator=(const GpuMeter&) = delete;

    /// The last answer; empty before the first and where there is none. Any thread.
    [[nodiscard]] std::vector<wire::GpuUse> latest() const;

  private:
    struct Shared {
        mutable std::mutex mutex;
        std::condition_variable changed;
        bool stop = false;
        std::vector<wire::GpuUse> latest;
    };
    std::shared_ptr<Shared> shared_;
};

}  // namespace baton::worker
