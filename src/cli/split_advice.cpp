#include "cli/split_advice.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

/// Holds simulated topologies against limits, and says which to take and why.
namespace baton::cli::split {
namespace {

constexpr double kKeepsUp = 0.85;        ///< of the time that all took must be that of the arrivals
constexpr uint32_t kSearchRequests = 300, kSearchRequestsMax = 6000;
constexpr double kSearchSeconds = 20;    ///< for so long requests come at each rate that is tried: a queue must have the time to grow
constexpr double kNear = 1.05;
constexpr double kHundredth = 0.01;
constexpr int kDoublings = 8;

double figure(const Json& summary, const char* key, const std::string& percentile) { return summary[key][percentile].get<double>(); }

std::string ms(double value) {
    char text[40];
    std::snprintf(text, sizeof text, value < 10 ? "%.2f ms" : value < 100 ? "%.1f ms" : "%.0f ms", value);
    return text;
}

void hold(Candidate& c, const char* key, const char* name, double limit_ms, const Limits& limits) {
    if (limit_ms <= 0) return;
    const double value = figure(c.summary, key, limits.key());
    c.strain = std::max(c.strain, value / limit_ms);
    if (value > limit_ms) c.missed.push_back(std::string(name) + " " + ms(value) + " > " + ms(limit_ms));
}

/// Without limits: how far the three figures are from the best of all, on average.
void strain_without_limits(std::vector<Candidate>& all, const std::string& percentile) {
    for (Candidate& c : all) c.strain = 0;
    for (const char* key : {"ttft_ms", "tpot_ms", "itl_ms"}) {
        double best = 0;
        for (const Candidate& c : all) {
            const double value = figure(c.summary, key, percentile);
            if (value > 0 && (best <= 0 || value < best)) best = value;
        }
        for (Candidate& c : all) c.strain += best > 0 ? figure(c.summary, key, percentile) / best / 3 : 0;
    }
}

std::string compare(const Candidate& best, const Candidate& other, const std::string& percentile) {
    const auto pair = [&](const char* name, const char* key) {
        return std::string(name) + " " + percentile + " " + ms(figure(best.summary, key, percentile)) + " against " + ms(figure(other.summary, key, percentile));
    };
    std::string text = best.topology.name() + " beside " + other.topology.name() + ": " + pair("TTFT", "ttft_ms") + ", " + pair("TPOT", "tpot_ms") + ", " + pair("ITL", "itl_ms");
    const Candidate& split = best.topology.split() ? best : other;
    const Candidate& whole = best.topology.split() ? other : best;
    if (split.topology.split() == whole.topology.split()) return text + ".";
    const double split_gap = figure(split.summary, "itl_ms", "p99"), whole_gap = figure(whole.summary, "itl_ms", "p99");
    if (whole_gap > 1.5 * split_gap) text += ". Prompts stop the streams of hybrid replicas, and not those of decode replicas";
    else if (split.simulated.prefill_busy > 0.8) text += ". " + split.topology.name() + " has too little prefill for this load";
    else if (split.simulated.decode_busy > 0.95 && split.simulated.decode_batch > 1.5 * whole.simulated.decode_batch)
        text += ". All that decodes shares the few decode replicas of " + split.topology.name();
    return text + ".";
}

}  // namespace

Expected<Candidate> judge(const BenchServeOptions& load, const Topology& topology, const Rates& rates, const StepCost& cost, const Limits& limits) {
    BATON_TRY_ASSIGN(const LoadPlan plan, LoadPlan::make(load));
    Candidate c;
    c.topology = topology;
    c.simulated = simulate(load, plan, topology, rates, cost);
    const auto& results = c.simulated.outcome.results;
    if (!results.empty() && std::none_of(results.begin(), results.end(), [](const RequestResult& r) { return r.ok; }))
        return fail(ErrorCode::kInvalidArgument, "no request of this load fits into the KV cache of a replica, " + std::to_string(rates.kv_tokens) + " tokens", "kv_tokens");
    c.summary = summarise(load, c.simulated.outcome);
    // What one request takes after it came is no sign of a queue; what the median takes may be the queue.
    double tail_s = 0;
    for (const RequestResult& r : results)
        if (r.ok && (tail_s <= 0 || static_cast<double>(r.e2e_us) / 1e6 < tail_s)) tail_s = static_cast<double>(r.e2e_us) / 1e6;
    c.simulated.outcome.results.clear();
    const double window_s = c.simulated.outcome.window_s;
    const double arriving_s = plan.open() && plan.size() > plan.warmup() ? static_cast<double>(plan.due_us().back() - plan.due_us()[plan.warmup()]) / 1e6 : window_s;
    c.keeps_up = c.simulated.refused == 0 && kKeepsUp * window_s <= arriving_s + tail_s;
    hold(c, "ttft_ms", "TTFT", limits.ttft_ms, limits);
    hold(c, "tpot_ms", "TPOT", limits.tpot_ms, limits);
    hold(c, "itl_ms", "ITL", limits.itl_ms, limits);
    return c;
}

Expected<double> find_rate(const BenchServeOptions& load, const Topology& topology, const Rates& rates, const StepCost& cost, const Limits& limits) {
    BenchServeOptions trial = load;
    trial.interval_ms = 0;
    const auto good = [&](double rate) -> Expected<bool> {
        trial.rate = rate;
        trial.requests = static_cast<uint32_t>(std::clamp(rate * kSearchSeconds, double{kSearchRequests}, double{kSearchRequestsMax}));
        BATON_TRY_ASSIGN(const Candidate c, judge(trial, topology, rates, cost, limits));
        return c.good();
    };
    double low = load.rate > 0 ? load.rate : 1000 / load.interval_ms, high = low;
    BATON_TRY_ASSIGN(bool holds, good(low));
    for (int i = 0; i < kDoublings; ++i) {
        (holds ? high : low) *= holds ? 2 : 0.5;
        BATON_TRY_ASSIGN(const bool next, good(holds ? high : low));
        if (next != holds) break;
        (holds ? low : high) = holds ? high : low;
        if (!holds && low < kHundredth * load.rate) return 0.0;
    }
    if (!holds && high <= low) return 0.0;
    while (high > kNear * low) {
        const double middle = std::sqrt(low * high);
        BATON_TRY_ASSIGN(const bool ok, good(middle));
        (ok ? low : high) = middle;
    }
    return low;
}

Advice advise(std::vector<Candidate>& candidates, const Limits& limits) {
    if (!limits.any()) strain_without_limits(candidates, limits.key());
    Advice out;
    const auto better = [&](const Candidate& a, const Candidate& b) {
        if (a.good() != b.good()) return a.good();
        if (a.topology.replicas() != b.topology.replicas() && std::max(a.strain, b.strain) <= kNear * std::min(a.strain, b.strain))
            return a.topology.replicas() < b.topology.replicas();
        return a.strain < b.strain;
    };
    for (size_t i = 1; i < candidates.size(); ++i)
        if (better(candidates[i], candidates[out.best])) out.best = i;
    const Candidate& best = candidates[out.best];
    out.good = best.good();
    if (!best.keeps_up) out.why = "no topology keeps up with the load; " + best.topology.name() + " comes nearest. ";
    else if (!best.missed.empty()) out.why = "none meets all limits; " + best.topology.name() + " comes nearest. ";
    else if (limits.any()) out.why = best.topology.name() + " meets all limits and uses " + std::to_string(std::lround(100 * best.strain)) + " % of the tightest. ";
    // The best of the other kind tells what splitting, or not, would cost.
    const Candidate* other = nullptr;
    for (const Candidate& c : candidates)
        if (c.topology.split() != best.topology.split() && (other == nullptr || better(c, *other))) other = &c;
    if (other != nullptr) out.why += compare(best, *other, limits.key());
    return out;
}

}  // namespace baton::cli::split
