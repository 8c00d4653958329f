#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "baton/cli/bench.hpp"
#include "cli/client_session.hpp"

namespace baton::cli {

/// One request of a load: what to send, and when (microseconds after the start; 0 everywhere in the closed loop).
struct PlannedRequest {
    std::string prompt;
    uint32_t output_tokens = 0;
    int64_t at_us = 0;
};

/// What one request measured.
struct RequestResult {
    bool ok = false;
    std::string error;
    int64_t ttft_us = 0;                ///< from when it was due
    int64_t e2e_us = 0;
    std::vector<int64_t> gaps_us;       ///< between events with text
    uint64_t input_tokens = 0, output_tokens = 0;
    /// Time per output token after the first.
    [[nodiscard]] double tpot_us() const {
        return output_tokens > 1 ? static_cast<double>(e2e_us - ttft_us) / static_cast<double>(output_tokens - 1) : 0;
    }
};

/// Prompts and arrival times: generated from the seed, or read from the dataset.
[[nodiscard]] Expected<std::vector<PlannedRequest>> plan_load(const BenchServeOptions& options);
/// Sums a finished load up as one JSON object (docs of `baton bench serve` name its fields).
[[nodiscard]] Json summarise(const BenchServeOptions& options, const std::vector<RequestResult>& results, int64_t duration_us);
/// The same as a table on stdout.
void print_summary(const Json& summary);

}  // namespace baton::cli
