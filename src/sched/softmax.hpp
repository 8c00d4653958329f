#pragma once

#include <cstddef>
#include <span>
#include <vector>

/// Passes over a row of logits, written so that the compiler vectorises them. No libm in them: a
/// replica on another CPU gets the same bits.
namespace baton::sched {

inline constexpr size_t kSumBlock = 512;  ///< weights a partial sum covers

/// The largest value; minus infinity for an empty row. NaN must not be in it.
[[nodiscard]] float max_of(std::span<const float> logits);

/// weights[i] = exp((logits[i] − max) / temperature), 0 where that is below `bar` or 2e-38.
/// block_sums[b] is the sum of block b in a fixed order. Returns the sum of all.
double softmax_weights(std::span<const float> logits, float max, float temperature, float bar,
                       std::vector<float>& weights, std::vector<double>& block_sums);

/// The first index at which the running sum of `weights` exceeds `mass`; the last index with weight
/// where none does.
[[nodiscard]] size_t find_mass(std::span<const float> weights, std::span<const double> block_sums,
                               double mass);

}  // namespace baton::sched
