#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "baton/backend/device_pool.hpp"

namespace baton::backend::cuda {

class CudaDevicePool;
struct NcclApi;

/// Staging memory of a link on each side, where LinkOptions do not say otherwise.
inline constexpr uint32_t kLinkBuffers = 3;
inline constexpr size_t kLinkBufferBytes = 64u << 20;
/// Communicators of a link, and CTAs all of them together may take; NCCL_MAX_CTAS in the environment, for each, overrules that.
inline constexpr uint32_t kLinkLanes = 1;
inline constexpr uint32_t kLinkLanesMax = 4;
inline constexpr uint32_t kLinkCtas = 24;
/// Both sides must have come within this time of the call.
inline constexpr int64_t kPairTimeoutMs = 20'000;

/// Links of this process that are open. Their kernels hold multiprocessors while they wait for the other side. Any thread.
[[nodiscard]] uint32_t nccl_links_open();

/// Runs what may take long, each on a thread of its own, so that whoever moves KV does not wait for it. Any thread.
class Background {
  public:
    Background() = default;
    /// Waits for all.
    ~Background();
    Background(const Background&) = delete;
    Background& operator=(const Background&) = delete;
    void run(std::function<void()> job);

  private:
    struct Job {
        std::thread thread;
        std::shared_ptr<std::atomic<bool>> ended;
    };
    std::mutex mutex_;
    std::vector<Job> jobs_;
};

/// NCCL, opened at run time. Pairings and aborts run in the background. Owned by a pool.
class NcclRuntime {
  public:
    /// `background` outlives it and every link.
    explicit NcclRuntime(Background& background) : background_(background) {}

    /// Opens libnccl.so.2 at the first call; kUnavailable with the reason where that fails. Any thread.
    Expected<void> load();
    Expected<std::vector<uint8_t>> make_id();
    Expected<std::unique_ptr<DeviceLink>> open(CudaDevicePool& pool, std::span<const uint8_t> id, bool sender);
    void set_options(const LinkOptions& options) { options_ = options; }

    struct Channel;

  private:
    Background& background_;
    LinkOptions options_;
    std::mutex mutex_;
    bool tried_ = false;
    std::string missing_;
    std::shared_ptr<NcclApi> api_;
};

}  // namespace baton::backend::cuda
