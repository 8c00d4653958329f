#pragma once

#include <cstdint>
#include <string>

#include "baton/backend/plan.hpp"
#include "cli/split_rates.hpp"

namespace baton::cli::split {

/// What to measure, and for which traffic.
struct MeasureOptions {
    std::string device = "cpu";     ///< "cpu", "cuda" or "cuda:N"
    uint32_t threads = 0;           ///< of a replica on the CPU; 0: one per core
    std::string isa;                ///< see backend::CpuOptions
    uint32_t step_tokens = 0, sequences = 0, block_tokens = 0;  ///< of a replica; 0: what a launch takes
    uint32_t longest = 2048;        ///< positions that the longest sequence gets to
    uint32_t prompt = 512;          ///< tokens of a prompt, on average
    uint32_t batch = 8;             ///< sequences that decode beside prompts, about
    double tokens_per_second = 0;   ///< that the answers ask for; 0: as many as `batch` makes
    bool beside = true;             ///< CPU: what two replicas on the same cores cost each other
    double seconds = 1;             ///< of each measurement of two replicas
};

/// Times engine steps as a replica runs them (forward and greedy sampling): chunks of prompts over lengths and positions, decode steps over
/// batches and contexts, both in one step, and two replicas on the same cores at once. Takes some ten seconds with a small model.
/// kInvalidArgument names the option; errors of the backend as they are.
[[nodiscard]] Expected<Rates> measure(const backend::Plan& plan, const MeasureOptions& options);

}  // namespace baton::cli::split
