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
    uint32_t state = 0;    ///< < states
    uint32_t pending = 0;  ///< 0 or 1, as backend::Slice
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
    /// Fills the upload of one step in pinned memory (`buffer` 0 or 1: two steps may be in flight)
    /// and enqueues its copy and, for a state row that a new sequence took, the rebuilding of its
    /// counts. Not captured. `stream` must be the one `run` is used on, or one that it waits for
    /// and that waits for the step before. Errors: more rows, states or edited ids than there is
    /// room for; CUDA's.
    virtual Expected<void> prepare(cudaStream_t stream, uint32_t buffer,
                                   std::span<const SampleRequest> rows) = 0;
    /// logits [rows, vocab] f32 on the device → last[state] and the result buffer. Reads everything
    /// else from device memory that prepare filled, so a captured graph serves any settings; rows
    /// beyond those prepared are skipped. Logits may be changed.
    virtual cudaError_t run(const Launch& launch, uint32_t buffer, float* logits,
                            uint32_t rows) = 0;
    /// Enqueues the copy of the results to pinned memory. Not captured.
    virtual cudaError_t fetch(cudaStream_t stream, uint32_t buffer) = 0;
    /// After the stream has passed fetch: the tokens of the rows prepared, with logprobs where
    /// wanted.
    virtual void take(uint32_t buffer, std::vector<wire::Token>& tokens) = 0;
    /// Device array [states]: the id last sampled for each state row.
    [[nodiscard]] virtual const int32_t* last() const = 0;
    /// Bytes of device memory it holds.
    [[nodiscard]] virtual size_t bytes() const = 0;
    /// For tests: at most how many candidates are put in order one by one (0: as built). Lower
    /// sends more rows the long way, with the same tokens.
    virtual void limit_list(uint32_t list_max) = 0;
};

}  // namespace baton::backend::cuda
