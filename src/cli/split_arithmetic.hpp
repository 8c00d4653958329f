#pragma once

#include <string>
#include <vector>

#include "cli/split_simulation.hpp"

namespace baton::cli::split {

/// Mean wait in a queue with Poisson arrivals, one server and a constant service time (M/D/1); infinity where it cannot keep up.
/// Same unit as `service`, whose inverse bounds `rate`.
[[nodiscard]] double md1_wait(double rate, double service);

/// What the load is on average.
struct Traffic {
    double rate = 0;      ///< requests a second; 0: a fixed number is in flight instead
    double in_flight = 0;
    double prompt = 0;    ///< tokens
    double cached = 0;    ///< of those found in the prefix cache
    double answer = 0;    ///< tokens
    double prompt_us = 0; ///< to compute a prompt, alone
    [[nodiscard]] double context() const { return prompt + answer / 2; }  ///< of a sequence that decodes, halfway
};
[[nodiscard]] Traffic traffic_of(const BenchServeOptions& load, const LoadPlan& plan, const Rates& rates, const StepCost& cost);

/// A topology's load without a simulation: utilisation, queue and batch on average, of replicas with devices of their own.
struct Estimate {
    double prefill_busy = 0;  ///< share of a P's (or hybrid's) time that prompts take; 1 and more: they pile up
    double wait_us = 0;       ///< mean queue at P, M/D/1; of hybrid replicas for the prompts alone
    double batch = 0;         ///< sequences that decode at once on a replica (Little's law); infinity: more come than it can end
    double step_us = 0;       ///< a decode step with that batch, prompts between steps counted in on hybrid replicas
};
[[nodiscard]] Estimate estimate(const Traffic& traffic, const Topology& topology, const Rates& rates, const StepCost& cost);

/// The sums in words and numbers, a line each: first those of the traffic, then of each topology.
[[nodiscard]] std::vector<std::string> explain(const Traffic& traffic, const std::vector<Topology>& topologies, const Rates& rates, const StepCost& cost);

}  // namespace baton::cli::split
