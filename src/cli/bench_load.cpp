#include "cli/bench_load.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <random>

namespace baton::cli {
namespace {

/// Words that are one token in most vocabularies.
constexpr std::array<std::string_view, 64> kWords = {
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state", "family",
    "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system", "program",
    "question", "work", "government", "number", "night", "point", "home", "water", "room", "mother", "area", "money", "story",
    "fact", "month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind", "head",
    "house", "service", "friend", "father", "power", "hour", "game", "line", "end", "member", "law"};

std::string words(std::mt19937_64& random, uint32_t count) {
    std::string out;
    for (uint32_t i = 0; i < count; ++i) {
        if (!out.empty()) out += ' ';
        out += kWords[random() % kWords.size()];
    }
    return out;
}

Expected<std::vector<PlannedRequest>> read_dataset(const BenchServeOptions& o) {
    std::ifstream in(o.dataset);
    if (!in) return fail(ErrorCode::kInvalidArgument, "cannot read " + o.dataset);
    std::vector<PlannedRequest> all;
    size_t number = 0;
    for (std::string line; std::getline(in, line);) {
        ++number;
        if (line.empty()) continue;
        const Json value = Json::parse(line, nullptr, false);
        PlannedRequest request{"", o.output_tokens, 0};
        if (value.is_string()) request.prompt = value.get<std::string>();
        else if (value.is_object() && value.contains("prompt") && value["prompt"].is_string()) {
            request.prompt = value["prompt"].get<std::string>();
            if (const auto n = value.find("output_tokens"); n != value.end() && n->is_number_unsigned()) request.output_tokens = n->get<uint32_t>();
        } else {
            return fail(ErrorCode::kInvalidArgument, o.dataset + " line " + std::to_string(number) + " is neither a string nor an object with a prompt");
        }
        all.push_back(std::move(request));
    }
    if (all.empty()) return fail(ErrorCode::kInvalidArgument, o.dataset + " has no prompts");
    std::vector<PlannedRequest> out;
    for (uint32_t i = 0; i < o.requests; ++i) out.push_back(all[i % all.size()]);
    return out;
}

/// Value at a share of sorted values, by linear interpolation.
double quantile(const std::vector<double>& sorted, double share) {
    if (sorted.empty()) return 0;
    const double at = share * static_cast<double>(sorted.size() - 1);
    const auto low = static_cast<size_t>(at);
    const size_t high = std::min(low + 1, sorted.size() - 1);
    return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

double rounded(double v) { return std::round(v * 1000.0) / 1000.0; }

Json distribution_ms(std::vector<double> us) {
    std::sort(us.begin(), us.end());
    const double mean = us.empty() ? 0 : std::accumulate(us.begin(), us.end(), 0.0) / static_cast<double>(us.size());
    return {{"mean", rounded(mean / 1000)}, {"p50", rounded(quantile(us, 0.5) / 1000)}, {"p99", rounded(quantile(us, 0.99) / 1000)}};
}

bool meets(const BenchServeOptions& o, const RequestResult& r) {
    return (o.slo_ttft_ms <= 0 || static_cast<double>(r.ttft_us) <= o.slo_ttft_ms * 1000) &&
           (o.slo_itl_ms <= 0 || r.tpot_us() <= o.slo_itl_ms * 1000);
}

}  // namespace

Expected<std::vector<PlannedRequest>> plan_load(const BenchServeOptions& o) {
    std::mt19937_64 random(o.seed);
    std::vector<PlannedRequest> out;
    if (!o.dataset.empty()) {
        BATON_TRY_ASSIGN(out, read_dataset(o));
    } else {
        const auto shared = static_cast<uint32_t>(std::lround(o.prefix_share * o.input_tokens));
        const std::string prefix = words(random, shared);
        for (uint32_t i = 0; i < o.requests; ++i) {
            std::string prompt = prefix;
            if (shared > 0 && shared < o.input_tokens) prompt += ' ';
            out.push_back({prompt + words(random, o.input_tokens - shared), o.output_tokens, 0});
        }
    }
    if (o.rate <= 0) return out;
    std::exponential_distribution<double> gap(o.rate);
    double at = 0;
    for (PlannedRequest& r : out) {
        r.at_us = static_cast<int64_t>(at * 1e6);
        at += gap(random);
    }
    return out;
}

Json summarise(const BenchServeOptions& o, const std::vector<RequestResult>& results, int64_t duration_us) {
    std::vector<double> ttft, tpot, itl, e2e;
    uint64_t input = 0, output = 0, good = 0, failed = 0;
    std::string first_error;
    for (const RequestResult& r : results) {
        if (!r.ok) {
            if (failed++ == 0) first_error = r.error;
            continue;
        }
        ttft.push_back(static_cast<double>(r.ttft_us));
        e2e.push_back(static_cast<double>(r.e2e_us));
        if (r.output_tokens > 1) tpot.push_back(r.tpot_us());
        for (const int64_t g : r.gaps_us) itl.push_back(static_cast<double>(g));
        input += r.input_tokens;
        output += r.output_tokens;
        good += meets(o, r) ? 1 : 0;
    }
    const double seconds = static_cast<double>(std::max<int64_t>(duration_us, 1)) / 1e6;
    const auto done = static_cast<double>(results.size() - failed);
    Json out{{"model", o.model}, {"requests", results.size()}, {"failed", failed}, {"rate", o.rate}, {"concurrency", o.concurrency},
             {"duration_s", rounded(seconds)}, {"input_tokens", input}, {"output_tokens", output},
             {"requests_per_s", rounded(done / seconds)}, {"input_tok_per_s", rounded(static_cast<double>(input) / seconds)},
             {"output_tok_per_s", rounded(static_cast<double>(output) / seconds)},
             {"goodput_per_s", rounded(static_cast<double>(good) / seconds)},
             {"goodput_share", results.empty() ? 0.0 : rounded(static_cast<double>(good) / static_cast<double>(results.size()))},
             {"slo_ttft_ms", o.slo_ttft_ms}, {"slo_itl_ms", o.slo_itl_ms},
             {"ttft_ms", distribution_ms(std::move(ttft))}, {"tpot_ms", distribution_ms(std::move(tpot))},
             {"itl_ms", distribution_ms(std::move(itl))}, {"e2e_ms", distribution_ms(std::move(e2e))}};
    if (failed > 0) out["first_error"] = first_error;
    return out;
}

void print_summary(const Json& s) {
    for (const char* key : {"requests", "failed", "duration_s", "input_tokens", "output_tokens", "requests_per_s", "input_tok_per_s",
                            "output_tok_per_s", "goodput_per_s", "goodput_share"})
        std::printf("%-18s %s\n", key, s[key].dump().c_str());
    std::vector<std::vector<std::string>> rows{{"MS", "MEAN", "P50", "P99"}};
    for (const char* key : {"ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"})
        rows.push_back({std::string(key).substr(0, 4), s[key]["mean"].dump(), s[key]["p50"].dump(), s[key]["p99"].dump()});
    print_table(rows);
}

}  // namespace baton::cli
