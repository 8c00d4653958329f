#include "cli/split_simulation.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "cli/split_advice.hpp"
#include "cli/split_arithmetic.hpp"

namespace baton::cli::split {
namespace {

constexpr Overheads kNone{0, 0, 0};

/// Steps of a fixed time: 10 ms with a prompt in it, 2 ms else.
StepCost fixed_cost(double prompt_us = 10'000, double decode_us = 2'000) {
    const std::vector<StepSample> samples{{16, 0, 0, 0, prompt_us}, {512, 0, 0, 0, prompt_us}, {0, 0, 1, 64, decode_us}, {0, 0, 64, 512, decode_us}};
    return *StepCost::fit(samples);
}

/// Like a small model on a CPU: 0.35 ms a prompt token, 3 to 5 ms a decode step.
StepCost real_cost() {
    const std::vector<StepSample> samples{{16, 0, 0, 0, 9'000}, {512, 0, 0, 0, 180'000}, {512, 512, 0, 0, 195'000}, {0, 0, 1, 64, 3'400},
                                          {0, 0, 1, 1024, 4'000}, {0, 0, 16, 64, 9'000}, {0, 0, 16, 1024, 17'000}};
    return *StepCost::fit(samples);
}

Rates devices() {
    Rates r;
    r.device = true;
    r.kv_bytes_per_token = 1000;
    return r;
}

BenchServeOptions load(uint32_t input, uint32_t output, double rate, uint32_t requests) {
    BenchServeOptions o;
    o.model = "m";
    o.input_tokens = input;
    o.output_tokens = output;
    o.rate = rate;
    o.requests = requests;
    return o;
}

Simulated run(const BenchServeOptions& o, const Topology& t, const Rates& r, const StepCost& c, const Overheads& over = kNone) {
    const auto plan = LoadPlan::make(o);
    EXPECT_TRUE(plan);
    return simulate(o, *plan, t, r, c, over);
}

double mean_ttft_us(const Simulated& s) {
    double sum = 0;
    for (const RequestResult& r : s.outcome.results) sum += static_cast<double>(r.ttft_us);
    return sum / static_cast<double>(s.outcome.results.size());
}

const Topology kHybrid{0, 0, 1}, kPair{1, 1, 0};

TEST(SplitSimulation, NothingIsLostWhateverTheTopology) {
    for (const bool device : {false, true}) {
        for (const Topology& t : {kHybrid, kPair, Topology{2, 1, 0}, Topology{1, 3, 0}, Topology{0, 0, 3}}) {
            BenchServeOptions o = load(0, 0, 6, 60);
            o.mix = {"700:12", "40:90", "513:2"};
            Rates r = devices();
            r.device = device;
            const Simulated s = run(o, t, r, real_cost());
            uint64_t input = 0, output = 0;
            ASSERT_EQ(s.outcome.results.size(), 60u);
            for (size_t i = 0; i < 60; ++i) {
                const RequestResult& result = s.outcome.results[i];
                const uint32_t in[]{700, 40, 513}, out[]{12, 90, 2};
                EXPECT_TRUE(result.ok) << result.error;
                EXPECT_EQ(result.output_tokens, out[i % 3]);
                EXPECT_EQ(result.gaps_us.size(), out[i % 3] - 1);
                EXPECT_GT(result.ttft_us, 0);
                EXPECT_GE(result.e2e_us, result.ttft_us);
                input += in[i % 3];
                output += out[i % 3];
            }
            EXPECT_EQ(s.output_tokens, output) << t.name();
            EXPECT_EQ(s.prompt_tokens, input) << t.name();
            EXPECT_EQ(s.handoffs, t.split() ? 60u : 0u);
            EXPECT_EQ(s.refused, 0u);
        }
    }
}

TEST(SplitSimulation, TheSameArgumentsGiveTheSameResult) {
    const BenchServeOptions o = load(300, 20, 5, 50);
    const Simulated a = run(o, kPair, devices(), real_cost()), b = run(o, kPair, devices(), real_cost());
    for (size_t i = 0; i < 50; ++i) {
        EXPECT_EQ(a.outcome.results[i].ttft_us, b.outcome.results[i].ttft_us);
        EXPECT_EQ(a.outcome.results[i].gaps_us, b.outcome.results[i].gaps_us);
    }
    BenchServeOptions other = o;
    other.seed = 1;
    EXPECT_NE(mean_ttft_us(run(other, kPair, devices(), real_cost())), mean_ttft_us(a));
}

TEST(SplitSimulation, AQueueOfEqualPromptsIsAnMD1Queue) {
    // A prompt fills a step, so each is served alone and in order.
    for (const Topology& t : {kHybrid, kPair}) {
        for (const double rate : {30.0, 60.0, 80.0}) {
            const Simulated s = run(load(512, 1, rate, 30'000), t, Rates{}, fixed_cost());
            const double wait = mean_ttft_us(s) - 10'000, theory = md1_wait(rate / 1e6, 10'000);
            EXPECT_NEAR(wait, theory, 0.08 * theory) << t.name() << " at " << rate;
            EXPECT_NEAR(t.split() ? s.prefill_busy : s.hybrid_busy, rate / 100, 0.03);
        }
    }
    EXPECT_TRUE(std::isinf(md1_wait(101, 0.01)));
    EXPECT_EQ(md1_wait(0, 5), 0);
}

TEST(SplitSimulation, ARequestAloneTakesTheSumOfItsSteps) {
    Rates r = devices();
    r.handoff_ms = 3;
    const BenchServeOptions o = load(1200, 11, 0.01, 3);
    const Simulated whole = run(o, kHybrid, r, fixed_cost()), pair = run(o, kPair, r, fixed_cost());
    EXPECT_EQ(whole.outcome.results[0].ttft_us, 30'000);  // three chunks of at most 512
    EXPECT_EQ(whole.outcome.results[0].e2e_us, 30'000 + 10 * 2'000);
    EXPECT_EQ(pair.outcome.results[0].ttft_us, 30'000);
    EXPECT_EQ(pair.outcome.results[0].e2e_us, 30'000 + 3'000 + 10 * 2'000);
}

TEST(SplitSimulation, AStepAfterAPauseTakesLonger) {
    Rates r = devices();
    r.after_pause_ms[0] = 5;
    const Simulated rested = run(load(512, 11, 0.01, 3), kHybrid, r, fixed_cost());
    EXPECT_EQ(rested.outcome.results[1].ttft_us, 15'000);
    EXPECT_EQ(rested.outcome.results[1].e2e_us, 15'000 + 10 * 2'000);
}

TEST(SplitSimulation, BytesOfAHandOffTakeTheirTimeBesideThePrompt) {
    Rates r = devices();
    const BenchServeOptions o = load(512, 2, 0.01, 1);
    r.handoff_gb_per_s = 1;
    r.kv_bytes_per_token = 10'000;  // 5.1 ms of bytes are hidden behind 10 ms of prompt
    EXPECT_EQ(run(o, kPair, r, fixed_cost()).outcome.results[0].e2e_us, 12'000);
    r.kv_bytes_per_token = 100'000;  // 51 ms are not
    EXPECT_NEAR(static_cast<double>(run(o, kPair, r, fixed_cost()).outcome.results[0].e2e_us), 51'200 + 2'000, 10);
}

TEST(SplitSimulation, TheDecodingBatchFollowsLittlesLaw) {
    const Simulated s = run(load(16, 51, 40, 4'000), kPair, devices(), fixed_cost(500, 2'000));
    double batch_by_time = 0;  // sequences there at a moment: rate × time each is there
    for (const RequestResult& r : s.outcome.results) batch_by_time += static_cast<double>(r.e2e_us - r.ttft_us) / 1e6;
    batch_by_time *= 40.0 / 4'000;
    EXPECT_NEAR(batch_by_time, 40 * 50 * 0.002, 0.5);
    const auto plan = LoadPlan::make(load(16, 51, 40, 4'000));
    const StepCost cost = fixed_cost(500, 2'000);
    const Estimate e = estimate(traffic_of(load(16, 51, 40, 4'000), *plan, devices(), cost), kPair, devices(), cost);
    EXPECT_NEAR(e.batch, 4, 0.01);
    EXPECT_NEAR(e.prefill_busy, 0.02, 1e-3);
}

TEST(SplitSimulation, MoreRequestsNeverMakeItQuicker) {
    for (const Topology& t : {kHybrid, kPair, Topology{0, 0, 2}}) {
        double ttft = 0, busy = 0;
        for (const double rate : {0.2, 1.0, 2.0, 3.0, 4.0}) {
            const Simulated s = run(load(512, 32, rate, 300), t, devices(), real_cost());
            const double now_busy = s.prefill_busy + s.hybrid_busy;
            EXPECT_GE(mean_ttft_us(s), 0.999 * ttft) << t.name() << " at " << rate;
            EXPECT_GE(now_busy, 0.999 * busy);
            ttft = mean_ttft_us(s);
            busy = now_busy;
        }
    }
}

TEST(SplitSimulation, PromptsStopStreamsOfHybridReplicasAlone) {
    const auto longest_gap = [](const Simulated& s) {
        uint32_t longest = 0;
        for (const RequestResult& r : s.outcome.results)
            for (const uint32_t gap : r.gaps_us) longest = std::max(longest, gap);
        return longest;
    };
    const BenchServeOptions o = load(1024, 64, 1.5, 40);
    EXPECT_GT(longest_gap(run(o, kHybrid, devices(), real_cost())), 180'000u);
    EXPECT_LT(longest_gap(run(o, kPair, devices(), real_cost())), 30'000u);
}

TEST(SplitSimulation, ReplicasOnTheSameCoresSlowEachOther) {
    Rates shared, apart = devices();
    std::fill_n(&shared.beside[0][0], 4, 2.0);
    const BenchServeOptions o = load(512, 32, 2, 100);
    EXPECT_GT(mean_ttft_us(run(o, kPair, shared, real_cost())), 1.2 * mean_ttft_us(run(o, kPair, apart, real_cost())));
    // Two hybrid replicas are no quicker there than one.
    EXPECT_GT(mean_ttft_us(run(o, {0, 0, 2}, shared, real_cost())), 0.7 * mean_ttft_us(run(o, kHybrid, shared, real_cost())));
}

TEST(SplitSimulation, SharedPrefixesAreComputedOnce) {
    BenchServeOptions o = load(512, 4, 1, 50);
    o.prefix_share = 0.75;
    const Simulated s = run(o, kHybrid, devices(), real_cost());
    EXPECT_LE(s.prompt_tokens, 512u + 49 * 128u + 512u);
    EXPECT_GE(s.prompt_tokens, 50 * 128u);
}

TEST(SplitSimulation, ASmallPoolHoldsFewButLosesNone) {
    for (const Topology& t : {kHybrid, kPair}) {
        Rates r = devices();
        r.kv_tokens = 1024;
        const Simulated s = run(load(200, 100, 20, 60), t, r, real_cost());
        for (const RequestResult& result : s.outcome.results) {
            EXPECT_TRUE(result.ok) << result.error;
            EXPECT_EQ(result.output_tokens, 100u);
        }
        EXPECT_GT(s.kv_peak_share, 0.5);
        EXPECT_LE(s.kv_peak_share, 1);
        EXPECT_LE(s.decode_batch, 5);
    }
    Rates tiny = devices();
    tiny.kv_tokens = 128;
    const Simulated s = run(load(200, 10, 20, 5), kHybrid, tiny, real_cost());
    for (const RequestResult& result : s.outcome.results) EXPECT_FALSE(result.ok);
}

TEST(SplitSimulation, WhatComesTooFastIsRefusedAndCounted) {
    const Simulated s = run(load(512, 8, 10'000, 1'500), kHybrid, devices(), real_cost());
    EXPECT_GT(s.refused, 0u);
    uint64_t refused = 0;
    for (const RequestResult& r : s.outcome.results) refused += r.ok ? 0 : 1;
    EXPECT_EQ(refused, s.refused);
}

TEST(SplitSimulation, AClosedLoopKeepsItsNumberInFlight) {
    BenchServeOptions o = load(64, 16, 0, 200);
    o.concurrency = 6;
    o.warmup = 6;
    const Simulated s = run(o, kPair, devices(), real_cost());
    EXPECT_EQ(s.outcome.in_flight_max, 6u);
    EXPECT_EQ(s.outcome.results.size(), 206u);
    EXPECT_LE(s.decode_batch, 6);
}

TEST(SharedCores, AStepAloneTakesItsWork) {
    const double beside[2][2]{{2, 1.5}, {3, 2}};
    SharedCores cores(beside);
    EXPECT_TRUE(std::isinf(cores.next().first));
    cores.begin(100, 7, 50, 1);
    EXPECT_EQ(cores.next(), std::pair(150.0, 7u));
    cores.end(150, 7);
    EXPECT_TRUE(std::isinf(cores.next().first));
}

TEST(SharedCores, StepsAreSlowedWhileTheyOverlapAlone) {
    const double beside[2][2]{{2, 1.5}, {3, 2}};
    SharedCores cores(beside);
    cores.begin(0, 0, 100, 1);
    cores.begin(40, 1, 10, 0);  // a decode step beside a chunk: three times as long
    EXPECT_EQ(cores.next(), std::pair(70.0, 1u));
    cores.end(70, 1);           // the chunk got 30 / 1.5 done meanwhile
    EXPECT_EQ(cores.next(), std::pair(70.0 + 40, 0u));
}

TEST(SharedCores, AStepOfBothKindsIsBetweenThem) {
    const double beside[2][2]{{2, 1.5}, {3, 2}};
    SharedCores cores(beside);
    cores.begin(0, 0, 10, 0.5);
    cores.begin(0, 1, 1000, 1);
    EXPECT_NEAR(cores.next().first, 10 * (1 + (1.0 + 2.0) / 2), 1e-9);
}

TEST(Topology, IsReadAndNamed) {
    EXPECT_EQ(parse_topology("1p1d")->name(), "1P1D");
    EXPECT_EQ(parse_topology("12P3D")->name(), "12P3D");
    EXPECT_EQ(parse_topology("hybrid")->name(), "1 hybrid");
    EXPECT_EQ(parse_topology("3 hybrid")->name(), "3 hybrid");
    for (const char* bad : {"", "1p", "p1d", "0p1d", "1p0d", "0hybrid", "1p1dx", "hybrids", "-1p1d", "-1p5d", "500p1d", "1d1p"}) {
        EXPECT_FALSE(parse_topology(bad)) << bad;
    }
    EXPECT_EQ(all_topologies(1).size(), 1u);
    const auto four = all_topologies(4);
    ASSERT_EQ(four.size(), 4u);
    for (const Topology& t : four) EXPECT_EQ(t.replicas(), 4u);
}

TEST(Advice, TakesWhatMeetsTheLimits) {
    const BenchServeOptions o = load(1024, 64, 1.2, 150);
    const Limits limits{5'000, 0, 6, 99};  // one gap in a hundred may be longer than a step
    std::vector<Candidate> candidates;
    for (const Topology& t : {Topology{0, 0, 2}, kPair}) {
        auto c = judge(o, t, devices(), real_cost(), limits);
        ASSERT_TRUE(c) << c.error().message;
        candidates.push_back(std::move(*c));
    }
    const Advice advice = advise(candidates, limits);
    EXPECT_TRUE(advice.good);
    EXPECT_EQ(candidates[advice.best].topology, kPair);
    ASSERT_EQ(candidates[0].missed.size(), 1u);
    EXPECT_TRUE(candidates[0].missed[0].starts_with("ITL"));
    EXPECT_NE(advice.why.find("against"), std::string::npos);
}

TEST(Advice, NamesTheNearestWhereNoneIsGood) {
    const BenchServeOptions o = load(1024, 64, 1.2, 100);
    const Limits limits{1, 1, 1, 50};
    std::vector<Candidate> candidates{*judge(o, kHybrid, devices(), real_cost(), limits), *judge(o, kPair, devices(), real_cost(), limits)};
    const Advice advice = advise(candidates, limits);
    EXPECT_FALSE(advice.good);
    EXPECT_EQ(candidates[0].missed.size(), 3u);
    EXPECT_NE(advice.why.find("none meets"), std::string::npos);
}

TEST(Advice, SeesThatALoadIsTooMuch) {
    const auto slow = judge(load(1024, 64, 30, 300), kPair, devices(), real_cost(), {}), calm = judge(load(1024, 64, 1, 300), kPair, devices(), real_cost(), {});
    ASSERT_TRUE(slow && calm);
    EXPECT_FALSE(slow->keeps_up);
    EXPECT_TRUE(calm->keeps_up);
}

TEST(Advice, TheHighestRateIsGoodAndAHigherOneIsNot) {
    const Limits limits{1'000, 0, 0, 99};
    BenchServeOptions o = load(512, 32, 1, 300);
    for (const Topology& t : {kHybrid, kPair}) {
        const auto rate = find_rate(o, t, devices(), real_cost(), limits);
        ASSERT_TRUE(rate);
        ASSERT_GT(*rate, 1);
        o.rate = *rate;
        EXPECT_TRUE(judge(o, t, devices(), real_cost(), limits)->good());
        o.rate = *rate * 1.3;
        EXPECT_FALSE(judge(o, t, devices(), real_cost(), limits)->good());
        o.rate = 1;
    }
    EXPECT_EQ(*find_rate(o, kPair, devices(), real_cost(), {0.001, 0, 0, 50}), 0);
}

// A burst that ends before its queue has grown must not pass for a rate that is kept up.
TEST(Advice, NoRateIsAboveWhatPrefillCanDo) {
    std::vector<double> found;
    for (const double from : {1.0, 64.0}) {
        BenchServeOptions o = load(512, 32, from, 300);
        const auto rate = find_rate(o, kPair, devices(), real_cost(), {0, 0, 1e9, 50});
        ASSERT_TRUE(rate);
        o.rate = *rate;
        const auto plan = LoadPlan::make(o);
        const StepCost cost = real_cost();
        EXPECT_LT(estimate(traffic_of(o, *plan, devices(), cost), kPair, devices(), cost).prefill_busy, 1.25);
        found.push_back(*rate);
    }
    EXPECT_NEAR(found[0] / found[1], 1, 0.15) << "it does not depend on where the search begins";
}

TEST(Advice, ALoadThatFitsNowhereIsRefused) {
    Rates small = devices();
    small.kv_tokens = 16;
    const auto none = judge(load(512, 32, 1, 100), kPair, small, real_cost(), {});
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().param, "kv_tokens");
}

TEST(Arithmetic, SaysWhatPilesUp) {
    const BenchServeOptions o = load(1024, 64, 30, 300);
    const auto plan = LoadPlan::make(o);
    const StepCost cost = real_cost();
    const Traffic traffic = traffic_of(o, *plan, devices(), cost);
    EXPECT_NEAR(traffic.prompt, 1024, 1e-6);
    EXPECT_NEAR(traffic.prompt_us, cost.prefill_us(0, 1024, 512), 1e-6);
    EXPECT_GT(estimate(traffic, kPair, devices(), cost).prefill_busy, 1);
    const auto lines = explain(traffic, {kPair, kHybrid}, devices(), cost);
    EXPECT_NE(lines[lines.size() - 2].find("1P1D: 30/s"), std::string::npos);
    EXPECT_NE(lines[lines.size() - 2].find("pile up"), std::string::npos);
}

}  // namespace
}  // namespace baton::cli::split
