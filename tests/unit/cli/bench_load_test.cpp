#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <set>

#include "cli/bench_load.hpp"

namespace baton::cli {
namespace {

BenchServeOptions options() {
    BenchServeOptions o;
    o.model = "m";
    o.input_tokens = 40;
    return o;
}

std::vector<std::string> words_of(const Json& body) {
    std::vector<std::string> out{""};
    for (const char c : body["prompt"].get<std::string>()) {
        if (c == ' ') out.emplace_back();
        else out.back() += c;
    }
    return out;
}

TEST(LoadPlan, PromptsHaveTheWordsAskedForAndBeginDifferently) {
    const auto plan = LoadPlan::make(options());
    ASSERT_TRUE(plan);
    EXPECT_EQ(plan->size(), 100u);
    std::set<std::vector<std::string>> begins;
    for (uint64_t i = 0; i < 2000; ++i) {
        const Json body = Json::parse(i % 2 == 0 ? plan->body(i) : plan->background_body(i, 9));
        const std::vector<std::string> words = words_of(body);
        ASSERT_EQ(words.size(), i % 2 == 0 ? 40u : 512u);
        ASSERT_EQ(body["max_tokens"], i % 2 == 0 ? 64 : 9);
        ASSERT_TRUE(body["stream"].get<bool>() && body["ignore_eos"].get<bool>());
        begins.insert({words.begin(), words.begin() + 16});
    }
    EXPECT_EQ(begins.size(), 2000u);
}

TEST(LoadPlan, TheClosedLoopsWarmUpBeginsWithAnswersOfDifferentLengths) {
    BenchServeOptions o = options();
    o.concurrency = 32;
    o.warmup = 40;
    const auto plan = LoadPlan::make(o);
    ASSERT_TRUE(plan);
    std::set<int> lengths;
    for (uint64_t i = 0; i < 32; ++i) lengths.insert(Json::parse(plan->body(i))["max_tokens"].get<int>());
    EXPECT_EQ(lengths.size(), 32u);
    EXPECT_GE(*lengths.begin(), 1);
    EXPECT_LE(*lengths.rbegin(), 64);
    EXPECT_EQ(Json::parse(plan->body(32))["max_tokens"], 64);
}

TEST(LoadPlan, TheSeedDecides) {
    BenchServeOptions o = options();
    o.rate = 10;
    const auto a = LoadPlan::make(o), b = LoadPlan::make(o);
    o.seed = 1;
    const auto c = LoadPlan::make(o);
    ASSERT_TRUE(a && b && c);
    EXPECT_EQ(a->body(7), b->body(7));
    EXPECT_EQ(a->due_us(), b->due_us());
    EXPECT_NE(a->body(7), c->body(7));
    EXPECT_NE(a->due_us(), c->due_us());
}

TEST(LoadPlan, SharesAPrefix) {
    BenchServeOptions o = options();
    o.prefix_share = 0.5;
    const auto plan = LoadPlan::make(o);
    ASSERT_TRUE(plan);
    const auto a = words_of(Json::parse(plan->body(0))), b = words_of(Json::parse(plan->body(1)));
    ASSERT_EQ(a.size(), 40u);
    ASSERT_EQ(b.size(), 40u);
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + 20, b.begin()));
    EXPECT_FALSE(std::equal(a.begin() + 20, a.end(), b.begin() + 20));
}

TEST(LoadPlan, LengthsOfAMixComeInTurn) {
    BenchServeOptions o = options();
    o.mix = {"30:5", "7:90"};
    o.token_ids = 1000;
    o.prefix_share = 0.5;
    const auto plan = LoadPlan::make(o);
    ASSERT_TRUE(plan);
    for (uint64_t i = 0; i < 6; ++i) {
        const Json body = Json::parse(plan->body(i));
        EXPECT_EQ(body["prompt"].size(), i % 2 == 0 ? 30u : 7u);
        EXPECT_EQ(body["max_tokens"], i % 2 == 0 ? 5 : 90);
        EXPECT_EQ(plan->input_tokens(i), body["prompt"].size());
        EXPECT_EQ(plan->output_tokens(i), body["max_tokens"]);
        EXPECT_EQ(plan->shared_tokens(i), i % 2 == 0 ? 15u : 4u);
    }
    const Json a = Json::parse(plan->body(0))["prompt"], b = Json::parse(plan->body(1))["prompt"];
    EXPECT_TRUE(std::equal(a.begin(), a.begin() + 4, b.begin()));
    for (const char* bad : {"", "5", "5:", ":5", "0:1", "1:0", "-1:1", "1:2:3", "1:2x", "9999999:1"}) {
        o.mix = {"1:1", bad};
        const auto none = LoadPlan::make(o);
        ASSERT_FALSE(none) << bad;
        EXPECT_NE(none.error().message.find("mix: '" + std::string(bad) + "'"), std::string::npos);
    }
    o.mix = {"1:1"};
    o.dataset = "/dev/null";
    EXPECT_FALSE(LoadPlan::make(o));
}

TEST(LoadPlan, TokenIdsAreIdsBelowTheBound) {
    BenchServeOptions o = options();
    o.token_ids = 300;
    o.prefix_share = 0.25;
    const auto plan = LoadPlan::make(o);
    ASSERT_TRUE(plan);
    for (const std::string& text : {plan->body(3), plan->background_body(3, 4)}) {
        const Json prompt = Json::parse(text)["prompt"];
        ASSERT_TRUE(prompt.is_array());
        for (const Json& id : prompt) ASSERT_LT(id.get<uint64_t>(), 300u);
    }
    EXPECT_EQ(Json::parse(plan->body(3))["prompt"].size(), 40u);
}

TEST(LoadPlan, ArrivalsKeepTheRateAndTheWarmUpIsAhead) {
    BenchServeOptions o = options();
    o.rate = 200;
    o.duration_s = 100;
    o.warmup = 50;
    const auto plan = LoadPlan::make(o);
    ASSERT_TRUE(plan);
    const std::vector<int64_t>& due = plan->due_us();
    ASSERT_EQ(due.size(), plan->size());
    EXPECT_TRUE(std::is_sorted(due.begin(), due.end()));
    EXPECT_LT(due[49], 1);
    EXPECT_EQ(due[50], 0);
    EXPECT_LT(due.back(), 100'000'000);
    EXPECT_NEAR(static_cast<double>(due.size() - 50), 20'000, 600);  // four standard deviations
    o.rate = 0;
    o.interval_ms = 250;
    o.warmup = 0;
    o.duration_s = 5;
    const auto even = LoadPlan::make(o);
    ASSERT_TRUE(even);
    ASSERT_EQ(even->due_us().size(), 20u);
    EXPECT_NEAR(static_cast<double>(even->due_us()[19]), 4'750'000, 2);
}

TEST(LoadPlan, ReadsADatasetAndRefusesABadOne) {
    const std::string path = testing::TempDir() + "bench_load_dataset.jsonl";
    std::ofstream(path) << "\"one \\\"quoted\\\"\"\n\n{\"prompt\":\"two\",\"output_tokens\":7}\n";
    BenchServeOptions o = options();
    o.dataset = path;
    const auto plan = LoadPlan::make(o);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(Json::parse(plan->body(2))["prompt"], "one \"quoted\"");
    EXPECT_EQ(Json::parse(plan->body(3))["max_tokens"], 7);
    std::ofstream(path) << "[1]\n";
    EXPECT_FALSE(LoadPlan::make(o));
    std::remove(path.c_str());
    EXPECT_FALSE(LoadPlan::make(o));
    o.dataset.clear();
    o.slos = {"50-4"};
    EXPECT_FALSE(LoadPlan::make(o));
}

RequestResult result(int64_t ttft_us, uint32_t gap_us, uint64_t tokens) {
    RequestResult r;
    r.measured = r.ok = true;
    r.ttft_us = ttft_us;
    r.gaps_us.assign(tokens - 1, gap_us);
    r.e2e_us = ttft_us + static_cast<int64_t>(gap_us) * static_cast<int64_t>(tokens - 1);
    r.input_tokens = 10;
    r.output_tokens = tokens;
    return r;
}

TEST(Summary, CountsMeasuredRequestsAndGoodput) {
    BenchServeOptions o = options();
    o.slo_ttft_ms = 50;
    o.slo_itl_ms = 4;
    o.slos = {"200:10"};
    LoadOutcome outcome;
    outcome.results = {result(10'000, 2'000, 11), result(100'000, 2'000, 11), result(10'000, 8'000, 11), result(1, 1, 11)};
    outcome.results[3].measured = false;
    RequestResult cut = result(30'000, 1'000, 5);
    cut.ok = false;
    cut.unfinished = true;
    outcome.results.push_back(cut);
    outcome.window_s = 2;
    const Json s = summarise(o, outcome);
    EXPECT_EQ(s["requests"], 4);
    EXPECT_EQ(s["failed"], 0);
    EXPECT_EQ(s["unfinished"], 1);
    EXPECT_EQ(s["requests_per_s"], 1.5);
    EXPECT_EQ(s["goodput_per_s"], 0.5);
    EXPECT_EQ(s["goodput_share"], 0.25);
    EXPECT_EQ(s["goodput"][1]["per_s"], 1.5);
    EXPECT_EQ(s["ttft_ms"]["count"], 4);
    EXPECT_EQ(s["ttft_ms"]["max"], 100.0);
    EXPECT_EQ(s["tpot_ms"]["p50"], 2.0);
    EXPECT_EQ(s["itl_ms"]["count"], 34);
    EXPECT_EQ(s["output_tokens"], 33);
    EXPECT_FALSE(s.contains("background"));
}

TEST(Summary, QuantilesInterpolateAndFailuresAreNamed) {
    LoadOutcome outcome;
    for (int i = 0; i <= 100; ++i) outcome.results.push_back(result(1000 * (100 - i) + 1000, 1000, 2));
    RequestResult bad;
    bad.measured = true;
    bad.error = "status 500: no";
    outcome.results.push_back(bad);
    outcome.background_gaps_us = {1000, 3000};
    BenchServeOptions o = options();
    o.background = 2;
    const Json s = summarise(o, outcome);
    EXPECT_EQ(s["ttft_ms"]["p50"], 51.0);
    EXPECT_EQ(s["ttft_ms"]["p90"], 91.0);
    EXPECT_EQ(s["ttft_ms"]["p99"], 100.0);
    EXPECT_EQ(s["failed"], 1);
    EXPECT_EQ(s["first_error"], "status 500: no");
    EXPECT_EQ(s["background"]["itl_ms"]["p50"], 2.0);
}

}  // namespace
}  // namespace baton::cli
