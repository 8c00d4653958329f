#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "baton/backend/plan.hpp"
#include "baton/model/model.hpp"
#include "cli/bench_shapes.hpp"
#include "cli/commands.hpp"
#include "cli/split_advice.hpp"
#include "cli/split_arithmetic.hpp"
#include "cli/split_measure.hpp"

/// `baton doctor split`: which replicas, of which roles, a load needs on this hardware.
namespace baton::cli {
namespace {

using split::Candidate;
using split::Rates;
using split::Topology;

constexpr uint32_t kRequestsMin = 200, kRequestsMax = 2000;
constexpr double kLoadSeconds = 60;
constexpr double kTokensMax = 2e7;  ///< simulated at most, of prompts and answers
constexpr double kErrorMax = 0.5;   ///< of the formulas at a time that was given

/// What the command line says, completed: how many requests, who is warm-up.
Expected<BenchServeOptions> load_of(const SplitOptions& o) {
    BenchServeOptions load = o.load;
    if (load.rate <= 0 && load.concurrency == 0) return fail(ErrorCode::kInvalidArgument, "--rate or --concurrency: one of them says how much is asked for", "rate");
    if (load.rate > 0 && load.concurrency > 0) return fail(ErrorCode::kInvalidArgument, "--rate and --concurrency: only one of them", "rate");
    if (load.requests == 0)
        load.requests = static_cast<uint32_t>(std::clamp(load.rate > 0 ? load.rate * kLoadSeconds : 20.0 * load.concurrency, double{kRequestsMin}, double{kRequestsMax}));
    if (!o.warmup_given) load.warmup = load.rate > 0 ? load.requests / 10 : load.concurrency;
    load.model = "simulated";
    return load;
}

uint32_t longest_of(const LoadPlan& plan) {
    uint64_t longest = 0;
    for (uint64_t i = 0; i < std::min<uint64_t>(plan.size(), 4096); ++i) longest = std::max<uint64_t>(longest, uint64_t{plan.input_tokens(i)} + plan.output_tokens(i));
    return static_cast<uint32_t>(std::min<uint64_t>(longest, UINT32_MAX));
}

Expected<void> check_size(const LoadPlan& plan) {
    double tokens = 0;
    for (uint64_t i = 0; i < plan.size(); ++i) tokens += static_cast<double>(plan.input_tokens(i)) + plan.output_tokens(i);
    if (tokens <= kTokensMax) return {};
    return fail(ErrorCode::kInvalidArgument, "--requests: " + std::to_string(plan.size()) + " requests have more than 20 million tokens; ask for fewer", "requests");
}

/// Sequences that decode beside prompts, for what is measured: a few, or what a fixed number in flight leaves.
uint32_t batch_of(const BenchServeOptions& load) { return load.concurrency > 0 ? std::clamp(load.concurrency, 1u, 64u) : 4u; }

/// What requests have of something, on average.
template <class Of>
double average(const LoadPlan& plan, Of of) {
    const uint64_t count = std::min<uint64_t>(plan.size(), 4096);
    double sum = 0;
    for (uint64_t i = 0; i < count; ++i) sum += of(i);
    return std::max(1.0, sum / static_cast<double>(std::max<uint64_t>(count, 1)));
}

Expected<Rates> measured(const SplitOptions& o, const BenchServeOptions& load, const LoadPlan& plan_of_load) {
    split::MeasureOptions m;
    m.device = o.device;
    m.threads = o.threads;
    m.isa = o.isa;
    m.step_tokens = o.step_tokens;
    m.sequences = o.sequences;
    m.block_tokens = o.block_tokens;
    m.longest = longest_of(plan_of_load);
    m.prompt = static_cast<uint32_t>(average(plan_of_load, [&](uint64_t i) { return plan_of_load.input_tokens(i); }));
    m.batch = batch_of(load);
    if (plan_of_load.open()) m.tokens_per_second = load.rate * average(plan_of_load, [&](uint64_t i) { return plan_of_load.output_tokens(i); });
    const auto plan = o.shape.empty() ? model::load_plan(o.model_path) : random_plan(o.shape);
    if (!plan) return fail(plan.error());
    if (o.shape.empty() && plan->shape.context > 0 && m.longest > plan->shape.context)
        return fail(ErrorCode::kInvalidArgument, "--input-tokens, --output-tokens: requests of " + std::to_string(m.longest) + " tokens are longer than the model's context of " + std::to_string(plan->shape.context), "input_tokens");
    std::fprintf(stderr, "measuring %s ...\n", o.shape.empty() ? o.model_path.c_str() : o.shape.c_str());
    return split::measure(*plan, m);
}

Expected<Rates> rates_of(const SplitOptions& o, const BenchServeOptions& load, const LoadPlan& plan) {
    if (o.device != "cpu" && o.device != "cuda" && !o.device.starts_with("cuda:"))
        return fail(ErrorCode::kInvalidArgument, "--device: '" + o.device + "' is none of cpu, cuda, cuda:N", "device");
    const int sources = (o.model_path.empty() ? 0 : 1) + (o.shape.empty() ? 0 : 1) + (o.rates_file.empty() ? 0 : 1) + (o.prefill_ms.empty() && o.decode_ms.empty() ? 0 : 1);
    if (sources != 1)
        return fail(ErrorCode::kInvalidArgument, "give one of --model-path, --shape, --rates, or --prefill-ms with --decode-ms: what a replica takes is measured, or known", "model_path");
    Rates rates;
    if (!o.prefill_ms.empty() || !o.decode_ms.empty()) {
        BATON_TRY_ASSIGN(auto samples, split::parse_points(o.prefill_ms, o.decode_ms));
        Json none = Json::object();
        none["device"] = o.device == "cpu" ? "cpu" : "gpu";
        BATON_TRY_ASSIGN(rates, split::parse_rates(none));
        rates.samples = std::move(samples);
        rates.engine = "as given";
    } else if (!o.rates_file.empty()) {
        BATON_TRY_ASSIGN(rates, split::read_rates(o.rates_file));
    } else {
        BATON_TRY_ASSIGN(rates, measured(o, load, plan));
    }
    if (o.step_tokens > 0) rates.step_tokens = o.step_tokens;
    if (o.sequences > 0) rates.sequences = o.sequences;
    if (o.block_tokens > 0) rates.block_tokens = o.block_tokens;
    if (o.kv_tokens > 0) rates.kv_tokens = o.kv_tokens;
    if (o.handoff_ms >= 0) rates.handoff_ms = o.handoff_ms;
    if (o.handoff_gb_per_s >= 0) rates.handoff_gb_per_s = o.handoff_gb_per_s;
    return rates;
}

/// Times that were typed in and do not go together are refused; what was measured may be noisy, and is told with a warning.
Expected<void> check_fit(const SplitOptions& o, const split::StepCost& cost) {
    if (cost.worst_error() <= kErrorMax) return {};
    const std::string missed = "the formulas miss a time by " + std::to_string(std::lround(100 * cost.worst_error())) + " %";
    if (!o.prefill_ms.empty())
        return fail(ErrorCode::kInvalidArgument, "--prefill-ms, --decode-ms: " + missed + ": they contradict each other (longer prompts and larger batches take longer)", "prefill_ms");
    complain("warning: " + missed + " that was measured: measure again on a quiet machine before you trust the advice");
    return {};
}

/// Below the shortest prompt that was timed the formula is a guess: nothing says what a short step costs.
std::string short_prompts(const LoadPlan& plan, const Rates& rates) {
    uint64_t timed = 0, asked = 0;
    for (const split::StepSample& s : rates.samples)
        if (s.rows == 0 && s.prompt_tokens > 0 && (timed == 0 || s.prompt_tokens < timed)) timed = s.prompt_tokens;
    for (uint64_t i = 0; i < std::min<uint64_t>(plan.size(), 4096); ++i)
        if (asked == 0 || plan.input_tokens(i) < asked) asked = plan.input_tokens(i);
    if (asked >= timed) return "";
    return "prompts of " + std::to_string(asked) + " tokens are shorter than all that were timed (from " + std::to_string(timed) + " on): their times are a guess";
}

Expected<void> save(const std::string& path, const Rates& rates) {
    std::ofstream out(path);
    out << to_json(rates).dump(2) << "\n";
    out.close();
    return out ? Expected<void>{} : fail(ErrorCode::kIo, "--save: cannot write " + path, "save");
}

/// What is asked for; else on GPUs all that use every device, on the CPU all of up to so many replicas.
Expected<std::vector<Topology>> topologies_of(const SplitOptions& o, const Rates& rates) {
    std::vector<Topology> out;
    for (const std::string& text : o.topologies) {
        auto one = split::parse_topology(text);
        if (!one) return fail(ErrorCode::kInvalidArgument, "--topology: " + one.error().message, "topology");
        if (rates.device && one->replicas() > o.devices)
            complain("warning: --topology: " + one->name() + " needs " + std::to_string(one->replicas()) + " GPUs, --devices says " + std::to_string(o.devices));
        out.push_back(*one);
    }
    if (!out.empty()) return out;
    for (uint32_t n = rates.device ? o.devices : 1; n <= o.devices; ++n) {
        const auto some = split::all_topologies(n);
        out.insert(out.end(), some.begin(), some.end());
    }
    return out;
}

std::string busy(const Candidate& c) {
    char text[64];
    const split::Simulated& s = c.simulated;
    if (c.topology.split()) std::snprintf(text, sizeof text, "P %.0f D %.0f %%", 100 * s.prefill_busy, 100 * s.decode_busy);
    else std::snprintf(text, sizeof text, "%.0f %%", 100 * s.hybrid_busy);
    return text;
}

std::string verdict(const Candidate& c, bool any_limit) {
    if (!c.keeps_up) return "falls behind";
    std::string text;
    for (const std::string& missed : c.missed) text += (text.empty() ? "" : "; ") + missed;
    return text.empty() ? any_limit ? "met" : "-" : text;
}

std::string short_number(double value) {
    char text[40];
    std::snprintf(text, sizeof text, value < 10 ? "%.2f" : value < 1000 ? "%.1f" : "%.0f", value);
    return text;
}

void print_rows(const std::vector<Candidate>& all, const split::Limits& limits, bool searched) {
    Table table;
    table.columns = {{"TOPOLOGY", false}, {"TTFT P50", true}, {"P99", true}, {"TPOT P50", true}, {"P99", true}, {"ITL P50", true}, {"P99", true},
                     {"REQ/S", true}, {"TOK/S", true}, {"BATCH", true}, {"KV", true}, {"BUSY", true}};
    if (searched) table.columns.push_back({"GOOD UP TO", true});
    table.columns.push_back({"LIMITS AT " + std::string(limits.percentile == 50 ? "P50" : limits.percentile == 90 ? "P90" : "P99"), false});
    for (const Candidate& c : all) {
        const auto value = [&](const char* key, const char* p) { return short_number(c.summary[key][p].get<double>()); };
        std::vector<std::string> row{c.topology.name(), value("ttft_ms", "p50"), value("ttft_ms", "p99"), value("tpot_ms", "p50"), value("tpot_ms", "p99"),
                                     value("itl_ms", "p50"), value("itl_ms", "p99"), short_number(c.summary["requests_per_s"].get<double>()),
                                     short_number(c.summary["output_tok_per_s"].get<double>()), short_number(c.simulated.decode_batch),
                                     std::to_string(std::lround(100 * c.simulated.kv_peak_share)) + " %", busy(c)};
        if (searched) row.push_back(c.rate_max > 0 ? short_number(c.rate_max) + "/s" : "-");
        row.push_back(verdict(c, limits.any()));
        table.rows.push_back(std::move(row));
    }
    print_table(table);
}

Json row_json(const Candidate& c, bool searched) {
    Json row{{"topology", c.topology.name()}, {"prefill", c.topology.prefill}, {"decode", c.topology.decode}, {"hybrid", c.topology.hybrid}};
    for (const char* key : {"requests", "requests_per_s", "output_tok_per_s", "ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"}) row[key] = c.summary[key];
    row["busy"] = {{"prefill", c.simulated.prefill_busy}, {"decode", c.simulated.decode_busy}, {"hybrid", c.simulated.hybrid_busy}};
    row["decode_batch"] = c.simulated.decode_batch;
    row["kv_peak_share"] = c.simulated.kv_peak_share;
    row["refused"] = c.simulated.refused;
    row["keeps_up"] = c.keeps_up;
    row["missed"] = c.missed;
    row["good"] = c.good();
    if (searched) row["good_up_to_per_s"] = c.rate_max;
    return row;
}

struct Result {
    Rates rates;
    std::vector<std::string> arithmetic;
    std::vector<Candidate> candidates;
    split::Advice advice;
    double worst_error = 0;
    Json cost;
};

Expected<Result> work_out(const SplitOptions& o, bool& searched) {
    BATON_TRY_ASSIGN(const BenchServeOptions load, load_of(o));
    BATON_TRY_ASSIGN(const LoadPlan plan, LoadPlan::make(load));
    BATON_TRY(check_size(plan));
    Result r;
    BATON_TRY_ASSIGN(r.rates, rates_of(o, load, plan));
    BATON_TRY_ASSIGN(const split::StepCost cost, split::StepCost::fit(r.rates.samples));
    BATON_TRY(check_fit(o, cost));
    BATON_TRY_ASSIGN(const std::vector<Topology> topologies, topologies_of(o, r.rates));
    if (!o.save_file.empty()) BATON_TRY(save(o.save_file, r.rates));
    r.worst_error = cost.worst_error();
    r.cost = cost.json();
    r.arithmetic = split::explain(split::traffic_of(load, plan, r.rates, cost), topologies, r.rates, cost);
    if (std::string guess = short_prompts(plan, r.rates); !guess.empty()) r.arithmetic.push_back("warning: " + guess);
    const split::Limits limits{o.ttft_ms, o.tpot_ms, o.itl_ms, o.percentile};
    searched = limits.any() && load.rate > 0 && !o.no_search;
    for (const Topology& topology : topologies) {
        BATON_TRY_ASSIGN(Candidate c, split::judge(load, topology, r.rates, cost, limits));
        if (searched) {
            BATON_TRY_ASSIGN(c.rate_max, split::find_rate(load, topology, r.rates, cost, limits));
        }
        r.candidates.push_back(std::move(c));
    }
    r.advice = split::advise(r.candidates, limits);
    return r;
}

void print_text(const SplitOptions& o, const Result& r, bool searched) {
    const split::Limits limits{o.ttft_ms, o.tpot_ms, o.itl_ms, o.percentile};
    std::printf("%s; times in ms\n\n", printable(r.rates.engine.empty() ? "rates from a file" : r.rates.engine).c_str());
    for (const std::string& line : r.arithmetic) std::printf("  %s\n", line.c_str());
    std::printf("  the formulas are within %.0f %% of every step that was timed\n\n", std::ceil(100 * r.worst_error));
    print_rows(r.candidates, limits, searched);
    std::printf("\n%s %s\n  %s\n", r.advice.good ? "Take" : "Nearest:", r.candidates[r.advice.best].topology.name().c_str(), r.advice.why.c_str());
}

}  // namespace

int run_split(const SplitOptions& o) {
    bool searched = false;
    const auto result = work_out(o, searched);
    if (!result) {
        complain(result.error().message);
        return result.error().code == ErrorCode::kInvalidArgument ? kUsage : kFailed;
    }
    if (!o.json) {
        print_text(o, *result, searched);
        return kDone;
    }
    Json rows = Json::array();
    for (const Candidate& c : result->candidates) rows.push_back(row_json(c, searched));
    return print_json({{"rates", to_json(result->rates)}, {"cost", result->cost}, {"arithmetic", result->arithmetic}, {"topologies", rows},
                       {"limits", {{"ttft_ms", o.ttft_ms}, {"tpot_ms", o.tpot_ms}, {"itl_ms", o.itl_ms}, {"percentile", o.percentile}}},
                       {"recommendation", {{"topology", result->candidates[result->advice.best].topology.name()}, {"good", result->advice.good}, {"why", result->advice.why}}}});
}

}  // namespace baton::cli
