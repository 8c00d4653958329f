#pragma once

#include <string>
#include <vector>

#include "cli/split_simulation.hpp"

namespace baton::cli::split {

/// Limits in milliseconds, at one percentile; 0: none.
struct Limits {
    double ttft_ms = 0, tpot_ms = 0, itl_ms = 0;
    uint32_t percentile = 99;  ///< 50, 90 or 99
    [[nodiscard]] bool any() const { return ttft_ms > 0 || tpot_ms > 0 || itl_ms > 0; }
    [[nodiscard]] std::string key() const { return "p" + std::to_string(percentile); }
};

/// What a topology does with the load.
struct Candidate {
    Topology topology;
    Json summary;            ///< as `baton bench serve --json` prints it
    Simulated simulated;     ///< without its results
    std::vector<std::string> missed;  ///< limits that it misses, in words
    bool keeps_up = true;    ///< requests end as fast as they come
    double strain = 0;       ///< the largest share of a limit that is used; without limits how far it is from the best of all
    double rate_max = 0;     ///< requests a second up to which the limits are met; 0: not looked for
    [[nodiscard]] bool good() const { return missed.empty() && keeps_up; }
};

/// Simulates one topology and holds it against the limits. Prompts and arrivals are made from `load`; kInvalidArgument where they cannot be.
[[nodiscard]] Expected<Candidate> judge(const BenchServeOptions& load, const Topology& topology, const Rates& rates, const StepCost& cost, const Limits& limits);
/// The highest Poisson rate up to which the topology is good, within 5 %, found by halving; 0 where none above a hundredth of the load's is.
[[nodiscard]] Expected<double> find_rate(const BenchServeOptions& load, const Topology& topology, const Rates& rates, const StepCost& cost, const Limits& limits);

struct Advice {
    size_t best = 0;       ///< index of the candidate to take
    bool good = false;     ///< it is good; else the nearest
    std::string why;
};
/// Of those that are good the one with the least strain, fewer replicas first where two are within 5 %. `candidates` is not empty.
[[nodiscard]] Advice advise(std::vector<Candidate>& candidates, const Limits& limits);

}  // namespace baton::cli::split
