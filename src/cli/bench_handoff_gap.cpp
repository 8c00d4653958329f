#include "cli/bench_handoff_gap.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <mutex>
#include <random>
#include <thread>

#include "baton/base/clock.hpp"
#include "cli/client_session.hpp"

namespace baton::cli {
namespace {

/// Token ids of a prompt: small ones, which every vocabulary has.
constexpr uint64_t kIdsBelow = 256, kIdsFrom = 100;
constexpr double kBarMs = 2;  ///< by which the first gap may exceed the others

struct Stream {
    bool ok = false;
    std::string error;
    double ttft_ms = 0;
    std::vector<double> gaps_ms;  ///< between tokens; the first is that of the hand-off
};

Json body_of(const BenchHandoffOptions& o, uint64_t seed, uint32_t output_tokens) {
    std::mt19937_64 random(o.seed + seed);
    Json prompt = Json::array();
    for (uint32_t i = 0; i < o.input_tokens; ++i) prompt.push_back(kIdsFrom + random() % (kIdsBelow - kIdsFrom));
    return {{"model", o.model}, {"prompt", std::move(prompt)}, {"max_tokens", output_tokens}, {"stream", true}, {"temperature", 0}, {"ignore_eos", true}};
}

/// One request; events with text are tokens. `stop` ends it early.
Stream stream_one(http::Client& client, const std::string& body, const std::atomic<bool>& stop) {
    Stream s;
    const int64_t begin_us = steady_now_us();
    int64_t last_us = 0;
    const auto answer = client.stream("/v1/completions", body, [&](std::string_view data) {
        const int64_t now = steady_now_us();
        const Json event = Json::parse(data, nullptr, false);
        if (!event.is_object()) return !stop.load();
        if (const auto error = event.find("error"); error != event.end() && !error->is_null()) {
            s.error = error->is_object() ? text_of(*error, "message") : error->dump();
            return false;
        }
        const auto choices = event.find("choices");
        if (choices == event.end() || !choices->is_array() || choices->empty() || (*choices)[0].value("text", "").empty()) return !stop.load();
        if (last_us == 0) s.ttft_ms = static_cast<double>(now - begin_us) / 1e3;
        else s.gaps_ms.push_back(static_cast<double>(now - last_us) / 1e3);
        last_us = now;
        return !stop.load();
    });
    if (!answer && s.error.empty() && !stop) s.error = answer.error().message;
    else if (answer && answer->status != 200) s.error = "status " + std::to_string(answer->status) + ": " + answer->body.substr(0, 200);
    else if (last_us == 0 && s.error.empty() && !stop) s.error = "no text came";
    else if (s.gaps_ms.empty()) s.gaps_ms.push_back(0);  // all of it in one event: no gap that a client could see
    s.ok = s.error.empty();
    return s;
}

double quantile(std::vector<double> v, double share) {
    if (v.empty()) return 0;
    std::sort(v.begin(), v.end());
    return std::round(v[static_cast<size_t>(std::lround(share * static_cast<double>(v.size() - 1)))] * 1000) / 1000;
}

Json quantiles(const std::vector<double>& v) { return {{"p50", quantile(v, 0.5)}, {"p90", quantile(v, 0.9)}, {"p99", quantile(v, 0.99)}, {"max", quantile(v, 1)}}; }

/// Streams that run while others are measured.
class Background {
  public:
    Background(const BenchHandoffOptions& o, const http::ClientOptions& client) {
        for (uint32_t i = 0; i < o.streams; ++i)
            threads_.emplace_back([this, &o, client, i] {
                const auto c = http::Client::create(client);
                for (uint64_t n = 0; c && !stop_; ++n) (void)stream_one(**c, body_of(o, 1'000'000 * (i + 1ull) + n, std::max(o.output_tokens, 400u)).dump(), stop_);
            });
    }
    ~Background() {
        stop_ = true;
        for (std::thread& t : threads_) t.join();
    }

  private:
    std::atomic<bool> stop_{false};
    std::vector<std::thread> threads_;
};

}  // namespace

int run_bench_handoff_gap(const BenchHandoffOptions& given) {
    BenchHandoffOptions o = given;
    if (o.seed == 0) o.seed = std::random_device{}() * uint64_t{1} << 32;
    const http::ClientOptions options = [&] {
        http::ClientOptions c;
        c.base_url = o.url;
        c.api_key = o.api_key;
        c.ca_file = resolve_ca_file({});
        return c;
    }();
    if (o.model.empty()) {
        ClientSession session({o.url, o.api_key});
        Json models;
        if (!session.get("/v1/models", models)) return kFailed;
        const Json data = models.value("data", Json::array());
        if (data.size() != 1) {
            complain(data.empty() ? "the server has no model" : "the server has several models: name one with --model");
            return kFailed;
        }
        o.model = text_of(data[0], "id");
    }
    const auto client = http::Client::create(options);
    if (!client) {
        complain(client.error().message);
        return kFailed;
    }
    std::vector<double> first, others, excess, ttft;
    uint32_t failed = 0;
    std::string first_error;
    {
        const Background background(o, options);
        if (o.streams > 0) std::this_thread::sleep_for(std::chrono::seconds(1));
        const std::atomic<bool> never{false};
        for (uint32_t i = 0; i <= o.requests; ++i) {
            const Stream s = stream_one(**client, body_of(o, i + 1, o.output_tokens).dump(), never);
            if (i == 0) continue;  // warm-up
            if (!s.ok) {
                if (failed++ == 0) first_error = s.error;
                continue;
            }
            std::vector<double> rest(s.gaps_ms.begin() + 1, s.gaps_ms.end());
            ttft.push_back(s.ttft_ms);
            first.push_back(s.gaps_ms[0]);
            if (!rest.empty()) excess.push_back(s.gaps_ms[0] - quantile(rest, 0.5));
            others.insert(others.end(), rest.begin(), rest.end());
        }
    }
    const Json out{{"model", o.model}, {"requests", o.requests}, {"failed", failed}, {"input_tokens", o.input_tokens}, {"output_tokens", o.output_tokens}, {"streams", o.streams},
                   {"ttft_ms", quantiles(ttft)}, {"gap_1_2_ms", quantiles(first)}, {"itl_ms", quantiles(others)}, {"excess_ms", quantiles(excess)}, {"bar_ms", kBarMs}};
    if (o.json) {
        std::printf("%s\n", out.dump().c_str());
    } else {
        std::printf("%u requests of %u tokens beside %u streams, %u failed; excess: token 1 to 2 less the request's median gap behind it, bar %.1f ms\n", o.requests, o.input_tokens,
                    o.streams, failed, kBarMs);
        std::vector<std::vector<std::string>> rows{{"MS", "P50", "P90", "P99", "MAX"}};
        for (const char* key : {"ttft_ms", "gap_1_2_ms", "itl_ms", "excess_ms"})
            rows.push_back({std::string(key), out[key]["p50"].dump(), out[key]["p90"].dump(), out[key]["p99"].dump(), out[key]["max"].dump()});
        print_table(rows);
    }
    if (failed == 0) return kDone;
    complain(std::to_string(failed) + " requests failed; the first: " + first_error);
    return kFailed;
}

}  // namespace baton::cli
