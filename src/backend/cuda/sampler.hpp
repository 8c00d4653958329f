#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/cuda/common.hpp"
#include "baton/base/error.hpp"
#include "baton/wire/messages.hpp"

namespace baton::backend::cuda {

constexpr uint32_t kTopMax = 20;  ///< top_logprobs

/// A row to sample: whose, and what is not in its emitted ids yet.
struct SampleRequest {
    const wire::Sequence* sequence = nullptr;
    uint32_t state = 0;     ///< < states
    uint32_t pending = 0;   ///< 0 or 1, as backend::Slice
    uint32_t position = 0;  ///< of the token to sample, or 0: then all that is uploaded is made anew each time
    bool masked = false;    ///< Sampler::allow says what may be sampled
};

/// What a step's settings are in page-locked memory, of steps of even and of odd number, and where they belong on the
/// device: `head` bytes and `row` bytes for each row; then, at `edits_at` of both, as many bytes as the uint32_t at
/// `edits_count` of `from` says times `edit`. Of a step described by `follow` nothing is there: the uint32_t at `step` becomes its
/// number, and the uint64_t at `position` of each row grows by one.
struct SampleUpload {
    const std::byte* from[2] = {nullptr, nullptr};
    std::byte* to = nullptr;
    uint32_t head = 0;
    uint32_t row = 0;
    uint32_t edits_at = 0;
    uint32_t edits_count = 0;
    uint32_t edit = 0;
    uint32_t step = 0;
    uint32_t position = 0;
};

/// Samples on the device by the rules of sched::sample (same order: logit bias, penalties,
/// min_tokens mask, temperature, top-k, top-p, min-p, draw; greedy takes the lowest id of equals),
/// with sched::uniform's generator keyed by seed and position, without a full sort. Keeps per state
/// row what penalties need. One thread.
///
/// A row's token depends on its logits and settings alone: not on the batch, the row's place in it,
/// nor the GPU's size. It equals the CPU's unless the draw falls within rounding of the border of
/// two candidates.
class Sampler {
  public:
    /// Allots everything: pinned memory, device memory for `rows_max` rows a step and `states`
    /// state rows. Errors: kInvalidArgument for sizes out of bounds (vocab up to 2^20),
    /// kUnavailable without memory.
    static Expected<std::unique_ptr<Sampler>> create(uint32_t vocab, uint32_t rows_max,
                                                     uint32_t states);
    virtual ~Sampler() = default;
    /// Writes the settings of step `step` into page-locked memory; up to two steps of following numbers may be under way. For
    /// a state row that a new sequence took, enqueues on `stream`, which is the one `run` is used on, the rebuilding of its
    /// counts. Not captured. Errors: more rows, states or edited ids than there is room for; CUDA's.
    virtual Expected<void> describe(cudaStream_t stream, uint32_t step,
                                    std::span<const SampleRequest> rows) = 0;
    /// Describes step `step` as the one before it, with the same rows, each a token further; writes no settings. False, and
    /// nothing is described, where that takes more: some row has logit_bias, penalties or masks.
    virtual bool follow(uint32_t step) = 0;
    /// What a kernel ahead of `run` must bring to the device.
    [[nodiscard]] virtual SampleUpload upload() const = 0;
    /// describe, and a copy that does what that kernel would. Not captured.
    virtual Expected<void> prepare(cudaStream_t stream, uint32_t step,
                                   std::span<const SampleRequest> rows) = 0;
    /// logits [rows, vocab] f32 on the device → last[state] and the results. Reads everything else from device memory, so a
    /// captured graph serves any settings; rows beyond those described are skipped. Logits may be changed. With no rows it
    /// only says that the step has ended. `counter`, on the device, is counted up by one; may be null. `whole`: any settings;
    /// without, only those of steps of which `whole` says no, by one kernel in place of three.
    virtual cudaError_t run(const Launch& launch, float* logits, uint32_t rows, uint32_t* counter,
                            bool whole = true) = 0;
    /// Whether some row of a step described last or last but one takes more than one look at its logits: top-k, top-p, min-p.
    [[nodiscard]] virtual bool whole(uint32_t step) const = 0;
    /// Enqueues, ahead of `run`, the kernel that waits for the masks of the rows that have one and puts minus infinity wherever a
    /// token is not allowed. Waits a few seconds at most: a row without a mask by then is sampled as if it had none. Logprobs stay those of
    /// the logits before, but the largest are listed of the allowed tokens alone. Can be captured.
    virtual cudaError_t wait_for_masks(const Launch& launch, float* logits, uint32_t rows) = 0;
    /// Of a step described last, with masked rows: which those are. Called once the step was enqueued; tells the device that it need
    /// not wait for the others.
    virtual void expect_masks(uint32_t step, const std::vector<bool>& masked) = 0;
    /// The mask of a row of that step: (vocab + 31) / 32 words.
    virtual void allow(uint32_t step, uint32_t row, std::span<const uint32_t> mask) = 0;
    /// Whether the results of a step described last or last but one are there: all of it has run but for its last kernel's end.
    /// Asks no driver: a device that failed is never ready.
    [[nodiscard]] virtual bool ready(uint32_t step) const = 0;
    /// The tokens of the rows described, with logprobs where wanted, of a step that is ready.
    virtual void take(uint32_t step, std::vector<wire::Token>& tokens) = 0;
    /// Device array [states]: the id last sampled for each state row.
    [[nodiscard]] virtual const int32_t* last() const = 0;
    /// Bytes of device memory it holds.
    [[nodiscard]] virtual size_t bytes() const = 0;
    /// For tests: at most how many candidates are put in order one by one (0: as built). Lower
    /// sends more rows the long way, with the same tokens.
    virtual void limit_list(uint32_t list_max) = 0;
};

}  // namespace baton::backend::cuda
