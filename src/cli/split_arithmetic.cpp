#include "cli/split_arithmetic.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>

/// The sums behind the advice, as they would be done on paper (docs/OPERATIONS.md).
namespace baton::cli::split {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr uint64_t kRequestsLooked = 4096;

std::string number(double value, int digits = 3) {
    if (std::isinf(value)) return "∞";
    char text[40];
    std::snprintf(text, sizeof text, "%.*g", std::abs(value) >= 1000 ? 6 : digits, value);
    return text;
}

std::string ms(double us) { return number(us / 1000) + " ms"; }
std::string percent(double share) { return number(100 * share) + " %"; }

/// A batch that is its own cause: as many decode at once as come while each of them takes its steps.
double settle(double rate_per_us, double steps, double most, const std::function<double(double)>& step_us) {
    double batch = 0;
    for (int i = 0; i < 200; ++i) {
        const double next = rate_per_us * steps * step_us(std::max(batch, 1.0));
        if (!(next < 4 * most)) return kInfinite;
        if (std::abs(next - batch) < 1e-6 * std::max(1.0, batch)) return next;
        batch = next;
    }
    return batch > most ? kInfinite : batch;
}

}  // namespace

double md1_wait(double rate, double service) {
    const double busy = rate * service;
    return busy >= 1 ? kInfinite : busy * service / (2 * (1 - busy));
}

Traffic traffic_of(const BenchServeOptions& load, const LoadPlan& plan, const Rates& rates, const StepCost& cost) {
    Traffic t;
    t.rate = load.rate > 0 ? load.rate : load.interval_ms > 0 ? 1000 / load.interval_ms : 0;
    t.in_flight = load.concurrency;
    const uint64_t first = plan.warmup(), count = std::min<uint64_t>(plan.size() - std::min(plan.size(), first), kRequestsLooked);
    const double share = 1 / static_cast<double>(std::max<uint64_t>(count, 1));
    for (uint64_t i = first; i < first + count; ++i) {
        const uint32_t prompt = plan.input_tokens(i);
        const uint32_t cached = std::min(plan.shared_tokens(i), prompt - 1) / rates.block_tokens * rates.block_tokens;
        t.prompt += share * prompt;
        t.cached += share * cached;
        t.answer += share * plan.output_tokens(i);
        t.prompt_us += share * cost.prefill_us(cached, prompt - cached, rates.step_tokens);
    }
    return t;
}

Estimate estimate(const Traffic& t, const Topology& topology, const Rates& rates, const StepCost& cost) {
    Estimate e;
    const double prompts = topology.split() ? topology.prefill : topology.hybrid, decoders = topology.split() ? topology.decode : topology.hybrid;
    const double rate = t.rate / 1e6;  // a microsecond
    e.prefill_busy = rate / prompts * t.prompt_us;
    e.wait_us = t.rate > 0 ? md1_wait(rate / prompts, t.prompt_us) : 0;
    const double left = topology.split() ? 1 : 1 - e.prefill_busy;
    const auto step = [&](double batch) { return left <= 0 ? kInfinite : cost.decode_us(batch, t.context()) / left; };
    e.batch = t.rate > 0 ? settle(rate / decoders, t.answer - 1, rates.sequences, step) : std::min<double>(t.in_flight / decoders, rates.sequences);
    e.step_us = std::isinf(e.batch) ? kInfinite : step(std::max(e.batch, 1.0));
    return e;
}

std::vector<std::string> explain(const Traffic& t, const std::vector<Topology>& topologies, const Rates& rates, const StepCost& cost) {
    std::vector<std::string> out = cost.formulas();
    out.push_back("a prompt of " + number(t.prompt) + " tokens" + (t.cached > 0 ? ", " + number(t.cached) + " of them cached," : "") + " in steps of at most " +
                  std::to_string(rates.step_tokens) + ": " + ms(t.prompt_us) + " alone; a prefill replica ends " + number(1e6 / std::max(t.prompt_us, 1e-9)) + " a second at most");
    out.push_back("an answer of " + number(t.answer) + " tokens at " + number(t.context()) + " positions: a step takes " + ms(cost.decode_us(1, t.context())) + " alone, " +
                  ms(cost.decode_us(8, t.context())) + " with 8 sequences, " + ms(cost.decode_us(rates.sequences, t.context())) + " with " + std::to_string(rates.sequences));
    const double bytes = t.prompt * rates.kv_bytes_per_token;
    if (bytes > 0)
        out.push_back("its hand-off: " + number(bytes / 1e6) + " MB at " + number(rates.handoff_gb_per_s) + " GB/s, copied while the prompt is computed, and " +
                      number(rates.handoff_ms) + " ms");
    if (rates.kv_tokens > 0)
        out.push_back("a pool of " + std::to_string(rates.kv_tokens) + " positions holds " + number(static_cast<double>(rates.kv_tokens) / std::max(1.0, t.prompt + t.answer)) +
                      " such sequences");
    if (!rates.device)
        out.push_back("on shared cores: a chunk takes " + number(rates.beside[0][1]) + " times as long beside decode steps and " + number(rates.beside[0][0]) +
                      " beside chunks, a decode step " + number(rates.beside[1][0]) + " beside chunks and " + number(rates.beside[1][1]) + " beside decode steps; after a pause " +
                      number(rates.after_pause_ms[0]) + " ms and " + number(rates.after_pause_ms[1]) + " ms more");
    for (const Topology& topology : topologies) {
        const Estimate e = estimate(t, topology, rates, cost);
        std::string line = topology.name() + ": ";
        if (t.rate > 0) {
            line += number(t.rate) + "/s × " + ms(t.prompt_us) + " of prompts keep " + (topology.split() ? "P " : "a replica ") + percent(e.prefill_busy) + " busy";
            line += std::isinf(e.wait_us) ? ": they pile up; " : ", wait " + ms(e.wait_us) + " (M/D/1); ";
        }
        line += std::isinf(e.batch) ? "more sequences come than decode can end" : number(e.batch) + " sequences decode at once" + (topology.split() ? " on a D" : " on a replica") +
                                                                                   (t.rate > 0 ? " (Little)" : "") + ", a token each " + ms(e.step_us);
        out.push_back(line + (rates.device ? "" : ", cores not yet shared"));
    }
    return out;
}

}  // namespace baton::cli::split
