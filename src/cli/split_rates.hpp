#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/split_cost.hpp"

namespace baton::cli::split {

/// What is known of one replica and of how two of them get along: measured here, read from an earlier measurement, or given as numbers.
struct Rates {
    std::string engine;           ///< e.g. "cpu amx, 2 threads"; "" not known
    std::vector<StepSample> samples;
    bool device = false;          ///< a GPU each, which runs a step ahead of the host; else replicas share the host's cores
    uint32_t step_tokens = 512;   ///< max_num_batched_tokens
    uint32_t sequences = 64;      ///< max_num_seqs
    uint32_t block_tokens = 16;
    uint64_t kv_tokens = 0;       ///< positions a replica's pool holds; 0: not known, taken as without bound
    double kv_bytes_per_token = 0;
    /// Shared cores: how many times longer a step takes while another replica computes all the time, by the kind of the step and then
    /// that of the other: 0 a prompt's chunk, 1 a decode step.
    double beside[2][2]{{1, 1}, {1, 1}};
    /// How much longer a chunk and a decode step take where the replica had nothing to do for a while and its caches were used by others.
    double after_pause_ms[2]{0, 0};
    double handoff_ms = 0;        ///< of a hand-off, whatever its size
    double handoff_gb_per_s = 0;  ///< of its bytes; 0: they take no time
};

[[nodiscard]] Json to_json(const Rates& rates);
/// Reads what to_json() wrote, or what `baton bench engine --device cuda --json` prints. kInvalidArgument names the field.
[[nodiscard]] Expected<Rates> parse_rates(const Json& json);
/// The same from a file. kIo where it cannot be read.
[[nodiscard]] Expected<Rates> read_rates(const std::string& path);
/// Samples from "TOKENS:MS" of prompts and "BATCH@CONTEXT:MS" of decode steps. kInvalidArgument names the option.
[[nodiscard]] Expected<std::vector<StepSample>> parse_points(const std::vector<std::string>& prefill, const std::vector<std::string>& decode);

}  // namespace baton::cli::split
