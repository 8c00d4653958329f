#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "cli/bench_load.hpp"

/// The figures of `baton bench serve`, defined as `vllm bench serve` defines them.
namespace baton::cli {
namespace {

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
    return {{"mean", rounded(mean / 1000)}, {"p50", rounded(quantile(us, 0.5) / 1000)}, {"p90", rounded(quantile(us, 0.9) / 1000)},
            {"p99", rounded(quantile(us, 0.99) / 1000)}, {"max", rounded(us.empty() ? 0 : us.back() / 1000)}, {"count", us.size()}};
}

struct Limits {
    double ttft_ms = 0, itl_ms = 0;
    uint64_t good = 0;
    [[nodiscard]] bool met(const RequestResult& r) const {
        return (ttft_ms <= 0 || static_cast<double>(r.ttft_us) <= ttft_ms * 1000) && (itl_ms <= 0 || r.tpot_us() <= itl_ms * 1000);
    }
};

/// The measured requests of a load, gathered.
struct Totals {
    std::vector<double> ttft, tpot, itl, e2e, late;
    std::vector<Limits> limits;
    uint64_t requests = 0, done = 0, input = 0, output = 0, failed = 0, unfinished = 0;
    std::string first_error;

    void add(const RequestResult& r) {
        if (!r.ok && !r.unfinished && failed++ == 0) first_error = r.error;
        if (!r.measured) return;
        ++requests;
        unfinished += r.unfinished ? 1 : 0;
        if (!r.ok && !r.unfinished) return;
        late.push_back(static_cast<double>(r.sent_late_us));
        if (r.ttft_us > 0) ttft.push_back(static_cast<double>(r.ttft_us));
        for (const uint32_t g : r.gaps_us) itl.push_back(static_cast<double>(g));
        if (!r.ok) return;
        ++done;
        e2e.push_back(static_cast<double>(r.e2e_us));
        if (r.output_tokens > 1) tpot.push_back(r.tpot_us());
        input += r.input_tokens;
        output += r.output_tokens;
        for (Limits& l : limits) l.good += l.met(r) ? 1 : 0;
    }
};

Json goodput(const Totals& t, double seconds) {
    Json out = Json::array();
    for (const Limits& l : t.limits) {
        const auto good = static_cast<double>(l.good);
        out.push_back({{"slo_ttft_ms", l.ttft_ms}, {"slo_itl_ms", l.itl_ms}, {"per_s", rounded(good / seconds)},
                       {"share", t.requests == 0 ? 0.0 : rounded(good / static_cast<double>(t.requests))}});
    }
    return out;
}

void print_distributions(const Json& from, std::initializer_list<const char*> keys) {
    std::vector<std::vector<std::string>> rows{{"MS", "MEAN", "P50", "P90", "P99", "MAX"}};
    for (const char* key : keys) {
        const std::string name = std::string(key).substr(0, std::string(key).rfind("_ms"));
        const Json& d = from[key];
        rows.push_back({name, d["mean"].dump(), d["p50"].dump(), d["p90"].dump(), d["p99"].dump(), d["max"].dump()});
    }
    print_table(rows);
}

}  // namespace

bool parse_slo(const std::string& text, double& ttft_ms, double& itl_ms) {
    int end = 0;
    return std::sscanf(text.c_str(), "%lf:%lf%n", &ttft_ms, &itl_ms, &end) == 2 && static_cast<size_t>(end) == text.size() &&
           std::isfinite(ttft_ms) && std::isfinite(itl_ms) && ttft_ms >= 0 && itl_ms >= 0;
}

Json summarise(const BenchServeOptions& o, LoadOutcome outcome) {
    Totals t;
    t.limits.push_back({o.slo_ttft_ms, o.slo_itl_ms, 0});
    for (const std::string& text : o.slos) {
        Limits l;
        if (parse_slo(text, l.ttft_ms, l.itl_ms)) t.limits.push_back(l);
    }
    for (const RequestResult& r : outcome.results) t.add(r);
    if (outcome.background_failed > 0 && t.failed == 0) t.first_error = "background: " + outcome.background_error;
    const double seconds = std::max(outcome.window_s, 1e-6);
    const double done = static_cast<double>(outcome.windowed ? outcome.window_requests : t.done);
    const double input = static_cast<double>(outcome.windowed ? outcome.window_input_tokens : t.input);
    const double output = static_cast<double>(outcome.windowed ? outcome.window_events : t.output);
    const Json good = goodput(t, seconds);
    Json out{{"model", o.model}, {"requests", t.requests}, {"failed", t.failed + outcome.background_failed}, {"unfinished", t.unfinished},
             {"rate", o.rate}, {"concurrency", o.concurrency}, {"in_flight_max", outcome.in_flight_max}, {"duration_s", rounded(seconds)},
             {"input_tokens", t.input}, {"output_tokens", t.output}, {"requests_per_s", rounded(done / seconds)},
             {"input_tok_per_s", rounded(input / seconds)}, {"output_tok_per_s", rounded(output / seconds)},
             {"goodput_per_s", good[0]["per_s"]}, {"goodput_share", good[0]["share"]}, {"slo_ttft_ms", o.slo_ttft_ms},
             {"slo_itl_ms", o.slo_itl_ms}, {"goodput", good}, {"ttft_ms", distribution_ms(std::move(t.ttft))},
             {"tpot_ms", distribution_ms(std::move(t.tpot))}, {"itl_ms", distribution_ms(std::move(t.itl))},
             {"e2e_ms", distribution_ms(std::move(t.e2e))}};
    if (o.background > 0) {
        out["background"] = {{"streams", o.background}, {"failed", outcome.background_failed},
                             {"itl_ms", distribution_ms(std::move(outcome.background_gaps_us))},
                             {"itl_quiet_ms", distribution_ms(std::move(outcome.background_quiet_gaps_us))}};
    }
    out["client"] = {{"threads", outcome.threads}, {"cpu_s", rounded(outcome.cpu_s)}, {"busiest_cpu", rounded(outcome.busiest_cpu)},
                     {"event_lag_ms", distribution_ms(std::move(outcome.event_lag_us))}, {"sent_late_ms", distribution_ms(std::move(t.late))}};
    if (!t.first_error.empty()) out["first_error"] = t.first_error;
    return out;
}

void print_summary(const Json& s) {
    for (const char* key : {"requests", "failed", "unfinished", "in_flight_max", "duration_s", "input_tokens", "output_tokens", "requests_per_s",
                            "input_tok_per_s", "output_tok_per_s", "goodput_per_s", "goodput_share"})
        std::printf("%-18s %s\n", key, s[key].dump().c_str());
    for (size_t i = 1; i < s["goodput"].size(); ++i) {
        const Json& g = s["goodput"][i];
        std::printf("goodput %s:%s ms  %s requests/s, share %s\n", g["slo_ttft_ms"].dump().c_str(), g["slo_itl_ms"].dump().c_str(),
                    g["per_s"].dump().c_str(), g["share"].dump().c_str());
    }
    print_distributions(s, {"ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"});
    if (s.contains("background")) {
        std::printf("\n%s background streams\n", s["background"]["streams"].dump().c_str());
        print_distributions(s["background"], {"itl_ms", "itl_quiet_ms"});
    }
    std::printf("\nclient: %s threads, the busiest %.0f %% of a core\n", s["client"]["threads"].dump().c_str(),
                100 * s["client"]["busiest_cpu"].get<double>());
    print_distributions(s["client"], {"event_lag_ms", "sent_late_ms"});
}

}  // namespace baton::cli
