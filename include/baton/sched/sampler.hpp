#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "baton/base/ids.hpp"
#include "baton/wire/messages.hpp"

namespace baton::sched {

/// Uniform number in [0, 1) from a counter-based generator (Philox 4x32-10, Salmon et al. 2011) keyed by seed, sequence
/// number within the request (mixed into the seed by the caller) and position: the same on any replica.
[[nodiscard]] double uniform(uint64_t seed, uint64_t position);

/// Scratch of a sampler, reused between calls so that a decode step allots nothing.
struct SamplerScratch {
    std::vector<float> logits;
    std::vector<float> weights;      ///< [vocab] exp of a logit relative to the largest
    std::vector<double> block_sums;  ///< of `weights`
    std::vector<std::pair<float, TokenId>> order;
    std::vector<uint32_t> counts;
};

/// Picks the next token of `sequence` (prompt and emitted as they stand) from `logits` [vocab] f32, in this order: logit
/// bias, repetition / presence / frequency penalty, min_tokens mask of stop ids, mask, temperature, top-k, top-p, min-p, draw.
/// `mask`: a bit for each token that may be taken, lowest first; empty: all may. One that allows none is as none.
/// Temperature 0 (below 1e-5) takes the largest (the lowest id of equals). Logprobs are of the raw logits. Pure: equal inputs give an
/// equal token on any thread or replica.
[[nodiscard]] wire::Token sample(std::span<const float> logits, const wire::Sequence& sequence, SamplerScratch& scratch,
                                 std::span<const uint32_t> mask = {});

/// Whether the sequence ends with `token` as its next emitted id.
[[nodiscard]] wire::Finish finish_after(const wire::Sequence& sequence, TokenId token, uint32_t max_model_len);

}  // namespace baton::sched
