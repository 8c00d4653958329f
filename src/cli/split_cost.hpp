#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cli/client_session.hpp"

namespace baton::cli::split {

/// A step that was timed: a chunk of one prompt, rows of sequences that decode, or both.
struct StepSample {
    uint32_t prompt_tokens = 0, position = 0;  ///< of the chunk; the first position
    uint32_t rows = 0, context = 0;            ///< sequences that decode, and the positions each has
    double us = 0;
};

/// What a step holds, as far as its time depends on it.
struct StepLoad {
    double prompt_tokens = 0;
    double prompt_pairs = 0;  ///< query and key pairs of the chunks, twice: 2·position·n + n² of each
    double rows = 0;          ///< sequences that decode
    double positions = 0;     ///< of all those together
    void add_chunk(double tokens, double position) {
        prompt_tokens += tokens;
        prompt_pairs += 2 * position * tokens + tokens * tokens;
    }
    void add_row(double context) {
        rows += 1;
        positions += context;
    }
};

/// How long a step takes on a replica that has its device to itself, in microseconds, fitted to timed steps:
///
///   a chunk of n tokens at position p      a + b·n + c·(2·p·n + n²), so that a whole prompt has a + b·n + c·n²
///   B sequences that decode, K positions   (d + e·B + f·K) · r(B), where r goes in lines through what was timed at each batch
///   both in one step                       the chunk, and g·B + f·K
///
/// No coefficient is negative, so a step never gets shorter by holding more.
class StepCost {
  public:
    /// Least squares of relative errors. Needs a chunk (rows 0) and a decode step (prompt_tokens 0) at least; with fewer samples than
    /// coefficients the later ones stay 0. kInvalidArgument where a kind is missing or a time is not positive.
    static Expected<StepCost> fit(std::span<const StepSample> samples);

    [[nodiscard]] double us(const StepLoad& load) const;
    /// Of `us(load)` the part that the prompts' chunks are to blame for, 0…1.
    [[nodiscard]] double prompt_share(const StepLoad& load) const;
    /// A prompt of which the last `tokens` have to be computed behind `cached`, alone, in steps of at most `step_tokens`.
    [[nodiscard]] double prefill_us(uint32_t cached, uint32_t tokens, uint32_t step_tokens) const;
    /// A step of `batch` sequences with `context` positions each.
    [[nodiscard]] double decode_us(double batch, double context) const;
    /// Largest relative error at the samples.
    [[nodiscard]] double worst_error() const { return worst_error_; }
    /// The three formulas with their numbers, in milliseconds.
    [[nodiscard]] std::vector<std::string> formulas() const;
    [[nodiscard]] Json json() const;

  private:
    [[nodiscard]] double chunk_us(const StepLoad& load) const;
    [[nodiscard]] double rows_us(const StepLoad& load) const;
    [[nodiscard]] double correction(double batch) const;
    void fit_correction(std::span<const StepSample> decode);

    double chunk_[3]{};  ///< a, b, c
    double rows_[3]{};   ///< d, e, f
    double beside_ = 0;  ///< g
    std::vector<std::pair<double, double>> correction_;  ///< batch, r; by batch
    double worst_error_ = 0;
};

/// Coefficients, none negative, for which Σ_k x[k]·coefficient[k] is next to y: least squares of (error / y). Rows of `x` are as long as
/// the result; as many coefficients as there are rows at most differ from 0. Every y is positive.
[[nodiscard]] std::vector<double> fit_nonnegative(const std::vector<std::vector<double>>& x, const std::vector<double>& y);

}  // namespace baton::cli::split
