#pragma once

#include <cstdint>
#include <vector>

#include "backend/cuda/forward.hpp"
#include "backend/cuda/memory.hpp"
#include "baton/backend/backend.hpp"

namespace baton::backend::cuda {

/// The batch sizes that graphs are captured for: a step of fewer sequences is padded to the next. The last is `slices_max`.
[[nodiscard]] std::vector<uint32_t> batch_buckets(uint32_t slices_max);

struct StepLimits {
    uint32_t tokens_max = 0;  ///< of a batch
    uint32_t slices_max = 0;
    uint32_t block_tokens = 0;
    uint32_t positions_max = 0;
    uint32_t blocks = 0;      ///< of the pool
    uint32_t vocab = 0;
    bool deterministic = false;
};

/// How a batch is run: its slices in the order of rows, and the shape of the step.
struct Arrangement {
    std::vector<uint32_t> order;  ///< slices, those for decode attention first
    StepShape shape;              ///< splits not filled in
    bool graph = false;           ///< padded to a shape that will come again
    uint32_t kv_max = 0;          ///< longest context of the decode rows
};

/// The two uploads of a backend: steps' arrays and block tables in page-locked memory and where they go on the device.
/// Block tables stay on the device; only what changed since the buffer's last step is sent.
class StepInput {
  public:
    [[nodiscard]] static Expected<StepInput> make(const StepLimits& limits);

    /// Checks a batch before anything is touched. kInvalidArgument with the slice and what is wrong with it.
    [[nodiscard]] Expected<void> check(const Batch& batch);
    /// Decides how the batch is run in `buffer`; the reference is good until the next call.
    const Arrangement& arrange(const Batch& batch, uint32_t buffer);
    /// Fills the buffer's page-locked memory and enqueues the kernel that brings it to the device. `words` are those of the
    /// slices that have some, in order.
    cudaError_t upload(cudaStream_t stream, const Batch& batch, const Arrangement& step, std::span<const ProgressWord> words);
    /// The same for a step of padding alone: rows that are computed and written nowhere. With `context` they read as many
    /// positions of blocks spread over the pool, as sequences would.
    cudaError_t upload_padding(cudaStream_t stream, const StepShape& shape, uint32_t context = 0);

    [[nodiscard]] const int32_t* arrays(uint32_t buffer) const { return device_[buffer].as<int32_t>(); }
    [[nodiscard]] const int32_t* table(uint32_t buffer) const { return table_[buffer].as<int32_t>(); }
    [[nodiscard]] uint32_t table_stride() const { return stride_; }
    /// Device bytes that make will take.
    [[nodiscard]] static size_t bytes(const StepLimits& limits);

  private:
    [[nodiscard]] Expected<void> check_slice(const Slice& slice, size_t index, uint64_t rows_before) const;
    [[nodiscard]] Expected<void> check_writers(const Batch& batch);
    void fill_rows(const Batch& batch, const Arrangement& step, int32_t* out);
    void pad_to_bucket(const Batch& batch);
    [[nodiscard]] int2* patches(uint32_t buffer) const;
    void patch_table(uint32_t buffer, uint32_t row, const Slice& slice);
    void pad(const StepShape& shape, uint32_t rows, uint32_t sequences, int32_t* out) const;

    StepLimits limits_;
    uint32_t stride_ = 0;       ///< blocks of the longest sequence
    uint32_t array_values_ = 0; ///< most that one step's arrays take
    PinnedBuffer host_[2];      ///< arrays, then patches
    DeviceBuffer device_[2];
    DeviceBuffer table_[2];
    std::vector<int32_t> mirror_[2];  ///< what the device's table will hold when all enqueued work has run
    uint32_t patch_count_ = 0;
    std::vector<uint32_t> buckets_;
    std::vector<uint32_t> first_row_;  ///< of each slice in Batch::tokens
    Arrangement arrangement_;
    std::vector<uint64_t> written_;    ///< for each block: the step that last wrote it
    std::vector<uint64_t> states_;     ///< for each state row: the step that last used it
    uint64_t step_ = 0;
};

}  // namespace baton::backend::cuda
