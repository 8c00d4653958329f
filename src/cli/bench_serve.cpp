#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <thread>

#include "baton/base/clock.hpp"
#include "cli/bench_load.hpp"
#include "cli/bench_serve_loop.hpp"

/// `baton bench serve`: sends a planned load from a few threads over many connections and measures from outside.
namespace baton::cli {
namespace {

constexpr uint32_t kClosedConcurrency = 8;
constexpr uint32_t kThreadsMax = 8;
constexpr double kBusyShare = 0.8;

/// The only model the server has, or none.
std::string only_model(const BenchServeOptions& o) {
    ClientSession session({o.url, o.api_key, o.ca_file});
    Json models;
    if (!session.get("/v1/models", models)) return {};
    const Json data = models.value("data", Json::array());
    if (data.size() == 1) return text_of(data[0], "id");
    complain(data.empty() ? "the server has no model" : "the server has several models: name one with --model");
    return {};
}

/// A connection each for thousands of requests in flight, as far as the system allows.
void raise_descriptor_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

void show_progress(uint64_t done, uint64_t all, int64_t start_us, bool last) {
    constexpr uint64_t kWidth = 40;
    const double seconds = static_cast<double>(steady_now_us() - start_us) / 1e6;
    if (all > 1'000'000'000) {  // only the duration bounds it
        std::fprintf(stderr, "\r%llu requests %.1f s ", static_cast<unsigned long long>(done), seconds);
    } else {
        const auto full = static_cast<size_t>(all == 0 ? kWidth : std::min(kWidth, done * kWidth / all));
        std::fprintf(stderr, "\r[%s%s] %llu/%llu %.1f s ", std::string(full, '#').c_str(), std::string(kWidth - full, '.').c_str(),
                     static_cast<unsigned long long>(done), static_cast<unsigned long long>(all), seconds);
    }
    if (last) std::fprintf(stderr, "\n");
    std::fflush(stderr);
}

uint32_t threads_for(const BenchServeOptions& o) {
    if (o.threads > 0) return o.threads;
    const uint32_t quarter = std::clamp(std::thread::hardware_concurrency() / 4, 1u, kThreadsMax);
    return o.concurrency > 0 ? std::min(quarter, o.concurrency + o.background) : quarter;
}

/// What all loops measured, once they are over.
LoadOutcome gather(SharedLoad& shared, const BenchServeOptions& o) {
    LoadOutcome out;
    const int64_t zero_us = shared.zero_us;
    int64_t end_us = zero_us;
    for (const auto& loop : shared.loops) end_us = std::max(end_us, loop->last_end_us);
    out.windowed = o.duration_s > 0 && !shared.plan.open();
    out.window_s = o.duration_s > 0 ? o.duration_s : static_cast<double>(end_us - zero_us) / 1e6;
    out.in_flight_max = shared.in_flight_max();
    out.threads = static_cast<uint32_t>(shared.loops.size());
    for (const auto& loop : shared.loops) {
        std::move(loop->results.begin(), loop->results.end(), std::back_inserter(out.results));
        out.event_lag_us.insert(out.event_lag_us.end(), loop->event_lag_us.begin(), loop->event_lag_us.end());
        for (const LoadLoop::Gap& gap : loop->background_gaps) {
            if (gap.at_us >= zero_us && gap.at_us < end_us) out.background_gaps_us.push_back(gap.gap_us);
            else if (gap.at_us < zero_us) out.background_quiet_gaps_us.push_back(gap.gap_us);
        }
        out.window_requests += loop->window_requests;
        out.window_input_tokens += loop->window_input_tokens;
        out.window_events += loop->window_events;
        out.cpu_s += loop->cpu_s;
        out.busiest_cpu = std::max(out.busiest_cpu, loop->cpu_share);
        if (loop->background_failed > 0 && out.background_failed == 0) out.background_error = loop->background_error;
        out.background_failed += loop->background_failed;
    }
    return out;
}

Expected<LoadOutcome> run_load(const BenchServeOptions& o, const LoadPlan& plan) {
    BATON_TRY_ASSIGN(LoadTarget target, LoadTarget::resolve(o.url, o.api_key, o.ca_file));
    raise_descriptor_limit();
    SharedLoad shared(o, plan, std::move(target));
    const uint32_t count = threads_for(o);
    for (uint32_t i = 0; i < count; ++i) shared.loops.push_back(std::make_unique<LoadLoop>(shared, i, count));
    const int64_t start_us = steady_now_us();
    if (o.background == 0 && plan.open()) shared.zero_us = start_us + (plan.size() > 0 ? -plan.due_us().front() : 0);
    std::vector<std::thread> threads;
    for (const auto& loop : shared.loops) threads.emplace_back([&loop] { loop->run(); });
    const bool show = ::isatty(STDERR_FILENO) == 1;
    while (!shared.wait_finished_ms(100)) {
        if (show) show_progress(shared.done, plan.size(), start_us, false);
    }
    for (std::thread& t : threads) t.join();
    if (show) show_progress(shared.done, plan.size(), start_us, true);
    return gather(shared, o);
}

}  // namespace

int run_bench_serve(const BenchServeOptions& given) {
    BenchServeOptions o = given;
    if (o.model.empty()) o.model = only_model(o);
    if (o.model.empty()) return kFailed;
    if (o.concurrency == 0 && o.rate <= 0 && o.interval_ms <= 0) o.concurrency = kClosedConcurrency;
    const auto plan = LoadPlan::make(o);
    if (!plan) {
        complain(plan.error().message);
        return kUsage;
    }
    auto outcome = run_load(o, *plan);
    if (!outcome) {
        complain(outcome.error().message);
        return kFailed;
    }
    const Json summary = summarise(o, std::move(*outcome));
    if (o.json) std::printf("%s\n", summary.dump().c_str());
    else print_summary(summary);
    if (summary["client"]["busiest_cpu"].get<double>() > kBusyShare) complain("the client was busy: its figures may be worse than the server's");
    if (summary["failed"].get<uint64_t>() == 0) return kDone;
    complain(summary["failed"].dump() + " requests failed; the first: " + text_of(summary, "first_error"));
    return kFailed;
}

}  // namespace baton::cli
