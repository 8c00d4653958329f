#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/bench_load.hpp"
#include "cli/split_rates.hpp"

namespace baton::cli::split {

/// How many replicas of which role.
struct Topology {
    uint32_t prefill = 0, decode = 0, hybrid = 0;
    [[nodiscard]] uint32_t replicas() const { return prefill + decode + hybrid; }
    [[nodiscard]] bool split() const { return hybrid == 0; }
    /// "2P1D" or "3 hybrid".
    [[nodiscard]] std::string name() const;
    friend bool operator==(const Topology&, const Topology&) = default;
};
/// "2p1d", "hybrid", "3hybrid" in any case. kInvalidArgument otherwise.
[[nodiscard]] Expected<Topology> parse_topology(const std::string& text);
/// All that place exactly `devices` replicas, one a device.
[[nodiscard]] std::vector<Topology> all_topologies(uint32_t devices);

/// What there is beside the engine's steps, in microseconds.
struct Overheads {
    double request_us = 700;  ///< from the client to the replica: HTTP, tokenizing, link
    double token_us = 150;    ///< from the replica to the client
    double link_us = 80;      ///< a message between two processes
};

/// A simulated load: what `baton bench serve` would measure, and what it cannot see.
struct Simulated {
    LoadOutcome outcome;
    double prefill_busy = 0, decode_busy = 0, hybrid_busy = 0;  ///< share of the time in which a replica of that role has a step
    double decode_batch = 0;    ///< sequences that decode, mean over steps with any
    double kv_peak_share = 0;   ///< of the fullest replica's pool, where its size is known
    uint64_t prompt_tokens = 0; ///< computed
    uint64_t output_tokens = 0; ///< delivered
    uint64_t handoffs = 0, preemptions = 0, refused = 0;
    double end_s = 0;           ///< when the last request ended, since the first was due
};

/// Runs a load on a clock of its own against the very router and scheduler that serve (pd::Router, pd::ReplicaCore): arrivals, queues,
/// chunks, batches, hand-offs, preemptions and prefix hits are theirs; a step takes what `cost` says, and where replicas share cores each
/// is slowed by the others. The same arguments give the same result. `load` is what `plan` was made from.
[[nodiscard]] Simulated simulate(const BenchServeOptions& load, const LoadPlan& plan, const Topology& topology, const Rates& rates,
                                 const StepCost& cost, const Overheads& overheads = {});

/// Steps under way on cores that they share: each goes on at a rate that falls with the others. Times in microseconds.
class SharedCores {
  public:
    explicit SharedCores(const double (&beside)[2][2]);
    /// A step of `work_us` when alone, `prompt_share` of it for prompts.
    void begin(double now_us, uint32_t who, double work_us, double prompt_share);
    /// When the next step ends if nothing else begins, and whose; infinity where none runs.
    [[nodiscard]] std::pair<double, uint32_t> next() const;
    /// Takes the step off.
    void end(double now_us, uint32_t who);

  private:
    struct Job {
        uint32_t who;
        double left_us, prompt_share, rate;
    };
    void advance(double now_us);
    void share();
    double beside_[2][2];
    double now_us_ = 0;
    std::vector<Job> jobs_;
};

}  // namespace baton::cli::split
