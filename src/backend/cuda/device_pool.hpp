#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backend/cuda/nccl_link.hpp"
#include "baton/backend/device_pool.hpp"

namespace baton::backend::cuda {

/// Where the pages of a list of blocks lie: the page of (block, layer, k|v) begins `block × block_stride + layer ×
/// layer_stride + v × kv_stride` bytes after `base`.
struct PageMap {
    std::byte* base = nullptr;
    int64_t block_stride = 0;
    int64_t layer_stride = 0;
    int64_t kv_stride = 0;
};
[[nodiscard]] PageMap page_map(std::byte* base, const kv::PoolLayout& layout);
/// Pages packed in (block, layer, k|v) order, blocks and layers counted from 0: staging memory.
[[nodiscard]] PageMap packed_map(std::byte* base, uint32_t layers, size_t page_bytes);

/// Blocks that one launch copies; longer lists take several launches.
inline constexpr uint32_t kPageCopyBlocks = 448;

struct PageCopyShape {
    uint32_t layers = 0;
    uint32_t page_bytes = 0;  ///< a multiple of 16
    uint32_t ctas = 64;       ///< of 512 threads
    uint32_t loads = 8;       ///< 16-byte loads a thread has in flight: 4 or 8
};
/// Copies both pages of layers 0 … layers - 1 from block `from_blocks[i]` to block `to_blocks[i]`, any number of blocks. The
/// maps are based at the first layer. Lists travel as kernel arguments: nothing of the caller's is read afterwards.
cudaError_t copy_pages(cudaStream_t stream, const PageMap& from, std::span<const uint32_t> from_blocks, const PageMap& to,
                       std::span<const uint32_t> to_blocks, const PageCopyShape& shape);
/// Loads the kernels, so that no first launch has to.
cudaError_t load_copy_pages();

/// CTAs that copies take: within a GPU, where 64 reach nine tenths of its rate, and where NVLink or the bus sets the rate: 16
/// CTAs with 8 loads a thread pull 353 GB/s from another H200, 132 pull 356.
inline constexpr uint32_t kCopyCtas = 64;
inline constexpr uint32_t kSlowCopyCtas = 16;
/// CTAs of the copies between pages and a link's buffers, some of which are waited for: what runs beside NCCL's is a few
/// microseconds long.
inline constexpr uint32_t kLinkCopyCtas = 64;
/// Runs from another GPU that the copy engine takes. Beside a decoding batch it costs the steps 2 %, the kernel 40 %, but each
/// run costs it 4 us: 7 MiB go at 320 GB/s, 1.75 MiB at 220, by kernel at 360.
inline constexpr size_t kEngineRunBytes = 4u << 20;

/// The KV pool of a CUDA backend for the movers. Two streams of the lowest priority: pulls, and copies from and to the
/// host; a pull does not queue behind a snapshot.
class CudaDevicePool final : public DevicePool {
  public:
    /// `base` is what cudaMalloc returned for at least layout.pool_bytes() on `device` (IPC handles cover whole allocations
    /// of that kind alone); it outlives the object. kUnsupported for pages that are no multiple of 16 bytes, kIo where the
    /// driver refuses.
    static Expected<std::unique_ptr<CudaDevicePool>> make(int device, void* base, const kv::PoolLayout& layout);
    ~CudaDevicePool() override;
    CudaDevicePool(const CudaDevicePool&) = delete;
    CudaDevicePool& operator=(const CudaDevicePool&) = delete;

    [[nodiscard]] const kv::PoolLayout& layout() const override { return layout_; }
    [[nodiscard]] std::string gpu() const override { return gpu_; }
    [[nodiscard]] std::vector<std::string> mappable_gpus() const override { return mappable_; }
    [[nodiscard]] Expected<std::vector<std::byte>> export_handle() const override;
    Expected<uint32_t> map(std::span<const std::byte> handle, const kv::PoolLayout& layout) override;
    void unmap(uint32_t peer) override;
    Expected<uint64_t> pull(uint32_t peer, const PageCopy& copy) override;
    Expected<uint64_t> to_host(const PageCopy& copy, std::span<std::byte> host) override;
    Expected<uint64_t> from_host(const PageCopy& copy, std::span<const std::byte> host) override;
    bool pin(std::span<std::byte> memory) override;
    void unpin(std::span<std::byte> memory) override;
    [[nodiscard]] Expected<bool> done(uint64_t ticket) override;
    void set_copy_options(const CopyOptions& options) override { options_ = options; }
    [[nodiscard]] Expected<void> linkable() override { return nccl_.load(); }
    Expected<std::vector<uint8_t>> make_link_id() override { return nccl_.make_id(); }
    Expected<std::unique_ptr<DeviceLink>> open_link(std::span<const uint8_t> id, bool sender) override {
        return nccl_.open(*this, id, sender);
    }
    void set_link_options(const LinkOptions& options) override {
        link_ctas_ = options.copy_ctas;
        nccl_.set_options(options);
    }

    /// Queues a copy of pages between the pool and a link's packed memory of the same device, beside the pulls; an empty list
    /// stands for 0, 1, 2 …: the blocks of packed memory.
    Expected<uint64_t> copy(const PageMap& from, std::span<const uint32_t> from_blocks, const PageMap& to,
                            std::span<const uint32_t> to_blocks, uint32_t layers);
    /// What is queued on `stream` from now on runs after the ticket's work.
    Expected<void> follow(cudaStream_t stream, uint64_t ticket);
    [[nodiscard]] int device() const { return device_; }
    /// The own pool's pages from `first_layer` on.
    [[nodiscard]] PageMap pages(uint32_t first_layer) const;
    /// `slow`: one end lies behind NVLink or the bus, which few CTAs fill.
    [[nodiscard]] PageCopyShape shape(uint32_t layers, bool slow) const;
    /// 16-byte loads a thread has in flight, 4 or 8; for tuning.
    void set_loads(uint32_t loads) { loads_ = loads; }

  private:
    /// Work queued on one stream; tickets count up and name their lane.
    struct Lane {
        cudaStream_t stream = nullptr;
        uint64_t queued = 0;
        uint64_t completed = 0;
        std::deque<cudaEvent_t> events;  ///< of tickets completed + 1 … queued
    };
    struct Peer {
        std::byte* base = nullptr;
        bool ipc = false;      ///< opened by handle: to be closed
        bool another = false;  ///< on another GPU
        kv::PoolLayout layout;
    };
    static constexpr uint64_t kLanes = 2;

    CudaDevicePool(int device, std::byte* base, kv::PoolLayout layout);
    Expected<void> set_up();
    [[nodiscard]] Expected<void> reach(const std::string& gpu) const;
    /// A ticket for what was queued on the lane since the last one; where that failed, waits for what was, and fails.
    Expected<uint64_t> ticket(uint64_t lane, Expected<void> queued);
    void reap(Lane& lane);
    /// Copies runs of bytes of blocks, both pools kBlockFirst.
    Expected<void> pull_runs(const PageMap& from, const PageCopy& copy);
    Expected<void> move_host(const PageCopy& copy, std::span<const uint32_t> blocks, std::byte* host, size_t bytes, bool out);

    const int device_;
    std::byte* const base_;
    const kv::PoolLayout layout_;
    std::string gpu_;
    std::vector<std::string> mappable_;
    CopyOptions options_;
    uint32_t link_ctas_ = 0;
    uint32_t loads_ = 8;
    Lane lanes_[kLanes];
    std::vector<cudaEvent_t> spare_events_;
    std::byte* staging_ = nullptr;  ///< device memory of staging_bytes_, for the host lane
    size_t staging_bytes_ = 0;
    std::vector<uint32_t> identity_;  ///< 0, 1, 2 …: the blocks of packed memory

    std::mutex mutex_;  ///< guards peers_
    uint32_t next_peer_ = 1;
    std::map<uint32_t, Peer> peers_;
    Background background_;
    NcclRuntime nccl_{background_};
};

}  // namespace baton::backend::cuda
