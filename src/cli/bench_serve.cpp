#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <thread>

#include "baton/base/clock.hpp"
#include "cli/bench_load.hpp"

/// `baton bench serve`: sends a planned load from one thread a request in flight and measures from outside.
namespace baton::cli {
namespace {

constexpr uint32_t kClosedConcurrency = 8;
constexpr uint32_t kOpenConcurrencyMax = 512;

/// The only model the server has, or none.
std::string only_model(const BenchServeOptions& o) {
    ClientSession session({o.url, o.api_key});
    Json models;
    if (!session.get("/v1/models", models)) return {};
    const Json data = models.value("data", Json::array());
    if (data.size() == 1) return text_of(data[0], "id");
    complain(data.empty() ? "the server has no model" : "the server has several models: name one with --model");
    return {};
}

/// Sends one request and times its events. `due_us` is when it should have started: waiting for a free thread counts.
RequestResult send_one(http::Client& client, const BenchServeOptions& o, const PlannedRequest& plan, int64_t due_us) {
    RequestResult r;
    const Json body{{"model", o.model}, {"prompt", plan.prompt}, {"max_tokens", plan.output_tokens}, {"stream", true},
                    {"temperature", 0}, {"ignore_eos", true}, {"stream_options", {{"include_usage", true}}}};
    int64_t last_us = 0;
    uint64_t events = 0;
    const auto answer = client.stream("/v1/completions", body.dump(-1, ' ', false, Json::error_handler_t::replace), [&](std::string_view data) {
        const int64_t now = steady_now_us();
        if (data == "[DONE]") return true;
        const Json event = Json::parse(data, nullptr, false);
        if (!event.is_object()) return true;
        if (const auto error = event.find("error"); error != event.end() && !error->is_null()) {
            r.error = error->is_object() ? text_of(*error, "message") : error->dump();
            return false;
        }
        if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
            r.input_tokens = usage->value("prompt_tokens", uint64_t{0});
            r.output_tokens = usage->value("completion_tokens", uint64_t{0});
        }
        const auto choices = event.find("choices");
        if (choices == event.end() || !choices->is_array() || choices->empty() || (*choices)[0].value("text", "").empty()) return true;
        if (events++ == 0) r.ttft_us = now - due_us;
        else r.gaps_us.push_back(now - last_us);
        last_us = now;
        return true;
    });
    r.e2e_us = (last_us > 0 ? last_us : steady_now_us()) - due_us;
    if (r.output_tokens == 0) r.output_tokens = events;
    if (!answer) r.error = r.error.empty() ? answer.error().message : r.error;
    else if (answer->status != 200) r.error = "status " + std::to_string(answer->status) + ": " + answer->body.substr(0, 200);
    else if (events == 0 && r.error.empty()) r.error = "no token came";
    r.ok = r.error.empty();
    return r;
}

void show_progress(size_t done, size_t all, int64_t start_us) {
    constexpr size_t kWidth = 40;
    const size_t full = all == 0 ? kWidth : done * kWidth / all;
    std::fprintf(stderr, "\r[%s%s] %zu/%zu %.1f s ", std::string(full, '#').c_str(), std::string(kWidth - full, '.').c_str(), done, all,
                 static_cast<double>(steady_now_us() - start_us) / 1e6);
    if (done == all) std::fprintf(stderr, "\n");
    std::fflush(stderr);
}

/// Runs the plan on as many threads as may be in flight; each takes the next request when it is due.
class Load {
  public:
    Load(const BenchServeOptions& o, std::vector<PlannedRequest> plan) : o_(o), plan_(std::move(plan)), results_(plan_.size()) {}

    int64_t run(uint32_t threads) {
        const bool show = ::isatty(STDERR_FILENO) == 1;
        start_us_ = steady_now_us();
        std::vector<std::thread> pool;
        for (uint32_t i = 0; i < threads; ++i) pool.emplace_back([this] { work(); });
        {
            std::unique_lock lock(mutex_);
            while (done_ < plan_.size()) {
                changed_.wait_for(lock, std::chrono::milliseconds(100));
                if (show) show_progress(done_, plan_.size(), start_us_);
            }
        }
        for (std::thread& t : pool) t.join();
        return steady_now_us() - start_us_;
    }
    [[nodiscard]] const std::vector<RequestResult>& results() const { return results_; }

  private:
    void work() {
        http::ClientOptions options;
        options.base_url = o_.url;
        options.api_key = o_.api_key;
        auto client = http::Client::create(options);
        for (size_t i = next_++; i < plan_.size(); i = next_++) {
            int64_t due_us = steady_now_us();
            if (o_.rate > 0) {
                due_us = start_us_ + plan_[i].at_us;
                std::this_thread::sleep_for(std::chrono::microseconds(std::max<int64_t>(0, due_us - steady_now_us())));
            }
            if (client) results_[i] = send_one(**client, o_, plan_[i], due_us);
            else results_[i].error = client.error().message;
            const std::lock_guard lock(mutex_);
            if (++done_ == plan_.size()) changed_.notify_all();
        }
    }

    const BenchServeOptions& o_;
    const std::vector<PlannedRequest> plan_;
    std::vector<RequestResult> results_;  // each written by one thread, read after all were joined
    std::atomic<size_t> next_{0};
    std::mutex mutex_;
    std::condition_variable changed_;
    size_t done_ = 0;
    int64_t start_us_ = 0;
};

}  // namespace

int run_bench_serve(const BenchServeOptions& given) {
    BenchServeOptions o = given;
    if (o.model.empty()) o.model = only_model(o);
    if (o.model.empty()) return kFailed;
    auto plan = plan_load(o);
    if (!plan) {
        complain(plan.error().message);
        return kUsage;
    }
    if (o.concurrency == 0) o.concurrency = o.rate > 0 ? kOpenConcurrencyMax : kClosedConcurrency;
    const auto threads = static_cast<uint32_t>(std::min<size_t>(o.concurrency, plan->size()));
    Load load(o, std::move(*plan));
    const int64_t duration_us = load.run(threads);
    const Json summary = summarise(o, load.results(), duration_us);
    if (o.json) std::printf("%s\n", summary.dump().c_str());
    else print_summary(summary);
    if (summary["failed"].get<uint64_t>() == 0) return kDone;
    complain(summary["failed"].dump() + " requests failed; the first: " + text_of(summary, "first_error"));
    return kFailed;
}

}  // namespace baton::cli
