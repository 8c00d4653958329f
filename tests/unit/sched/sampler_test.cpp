#include "baton/sched/sampler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>

namespace baton::sched {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

wire::Sampling settings(float temperature, float top_p = 1.0f, int32_t top_k = 0,
                        float min_p = 0.0f) {
    wire::Sampling s;
    s.temperature = temperature;
    s.top_p = top_p;
    s.top_k = top_k;
    s.min_p = min_p;
    return s;
}

wire::Sequence sequence(wire::Sampling sampling, std::vector<TokenId> prompt = {1},
                        std::vector<TokenId> emitted = {}) {
    wire::Sequence s;
    s.prompt = std::move(prompt);
    s.emitted = std::move(emitted);
    s.sampling = std::move(sampling);
    return s;
}

std::vector<float> random_logits(std::mt19937& rng, size_t vocab, bool ties) {
    std::normal_distribution<float> normal(0, 3);
    std::vector<float> out(vocab);
    for (float& l : out) l = ties ? std::round(normal(rng)) : normal(rng);
    return out;
}

/// The distribution after all filters, the slow way: adjust, sort everything, cut, normalise.
std::map<TokenId, double> reference(const std::vector<float>& logits, const wire::Sequence& s) {
    const wire::Sampling& p = s.sampling;
    std::vector<double> l(logits.begin(), logits.end());
    for (double& v : l)
        if (std::isnan(v)) v = -kInf;
    for (const auto& [id, bias] : p.logit_bias)
        l[static_cast<size_t>(id)] =
            static_cast<double>(static_cast<float>(l[static_cast<size_t>(id)]) + bias);
    std::set<TokenId> seen(s.prompt.begin(), s.prompt.end());
    seen.insert(s.emitted.begin(), s.emitted.end());
    std::map<TokenId, int> counts;
    for (const TokenId t : s.emitted) ++counts[t];
    if (p.repetition_penalty != 1.0f)
        for (const TokenId t : seen) {
            float v = static_cast<float>(l[static_cast<size_t>(t)]);
            v = v > 0 ? v / p.repetition_penalty : v * p.repetition_penalty;
            l[static_cast<size_t>(t)] = static_cast<double>(v);
        }
    for (const auto& [t, n] : counts)
        l[static_cast<size_t>(t)] =
            static_cast<double>(static_cast<float>(l[static_cast<size_t>(t)]) -
                                (p.frequency_penalty * static_cast<float>(n) + p.presence_penalty));
    if (s.emitted.size() < p.min_tokens)
        for (const TokenId t : p.stop_ids) l[static_cast<size_t>(t)] = -kInf;
    std::vector<TokenId> order(l.size());
    for (size_t i = 0; i < l.size(); ++i) order[i] = static_cast<TokenId>(i);
    std::ranges::stable_sort(order, [&](TokenId a, TokenId b) {
        return l[static_cast<size_t>(a)] > l[static_cast<size_t>(b)];
    });
    if (p.temperature == 0.0f) return {{order[0], 1.0}};
    if (p.top_k > 0 && static_cast<size_t>(p.top_k) < order.size())
        order.resize(static_cast<size_t>(p.top_k));
    const double max = l[static_cast<size_t>(order[0])];
    const auto weight = [&](TokenId t) {
        return std::exp((l[static_cast<size_t>(t)] - max) / static_cast<double>(p.temperature));
    };
    double total = 0;
    for (const TokenId t : order) total += weight(t);
    if (p.top_p < 1.0f) {
        double sum = 0;
        size_t n = 0;
        while (n < order.size() && (n == 0 || sum < static_cast<double>(p.top_p) * total))
            sum += weight(order[n++]);
        order.resize(n);
    }
    std::map<TokenId, double> out;
    double kept = 0;
    for (const TokenId t : order)
        if (t == order[0] || (weight(t) >= static_cast<double>(p.min_p) && weight(t) > 0))
            kept += out[t] = weight(t);
    for (auto& [t, w] : out) w /= kept;
    return out;
}

TEST(Uniform, PhiloxMatchesItsPublishedVector) {
    // Random123 kat_vectors: philox4x32 10, counter 0, key 0 → 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
    const uint64_t bits = (uint64_t{0x6627e8d5} << 21) | (0xe169c58d >> 11);
    EXPECT_EQ(uniform(0, 0), static_cast<double>(bits) * 0x1.0p-53);
}

TEST(Uniform, IsUniformAndDependsOnBothKeys) {
    std::array<int, 20> bins{};
    constexpr int kDraws = 40'000;
    for (uint64_t i = 0; i < kDraws; ++i) {
        const double u = uniform(i % 7 + (i << 33), i);
        ASSERT_GE(u, 0.0);
        ASSERT_LT(u, 1.0);
        ++bins[static_cast<size_t>(u * 20)];
    }
    double chi = 0;
    for (const int n : bins) chi += std::pow(n - kDraws / 20.0, 2) / (kDraws / 20.0);
    EXPECT_LT(chi, 43.8);  // 19 degrees of freedom, p = 0.001
    EXPECT_NE(uniform(1, 5), uniform(2, 5));
    EXPECT_NE(uniform(1, 5), uniform(1, 6));
}

TEST(Sample, GreedyTakesLargestAndLowestOfEquals) {
    SamplerScratch scratch;
    const std::vector<float> logits{1, 7, 3, 7};
    EXPECT_EQ(sample(logits, sequence(settings(0)), scratch).id, 1);
    EXPECT_EQ(sample(std::vector<float>{kNan, -kInf, kNan, -5}, sequence(settings(0)), scratch).id,
              3);
    EXPECT_EQ(sample(std::vector<float>{kNan, kNan}, sequence(settings(0)), scratch).id, 0);
}

TEST(Sample, HostileLogitsYieldAValidToken) {
    SamplerScratch scratch;
    const std::vector<std::vector<float>> rows{{kNan, kNan, kNan}, {-kInf, -kInf, -kInf},
                                               {0, kInf, 0},       {kInf, kInf, kNan},
                                               {3e38f, -3e38f, 0}, {0}};
    for (const auto& row : rows)
        for (const float t : {0.0f, 1e-30f, 1.0f, 1e30f})
            for (const float top_p : {0.0f, 0.5f, 1.0f})
                for (const int32_t k : {0, 1, 2, 1000})
                    for (const float min_p : {0.0f, 1.0f}) {
                        wire::Sampling p = settings(t, top_p, k, min_p);
                        p.top_logprobs = 5;
                        const wire::Token token =
                            sample(row, sequence(p, {0, -7, 1'000'000}, {99, 0}), scratch);
                        ASSERT_GE(token.id, 0);
                        ASSERT_LT(static_cast<size_t>(token.id), row.size());
                        ASSERT_FALSE(std::isnan(token.logprob));
                        ASSERT_LE(token.top.size(), row.size());
                    }
    EXPECT_EQ(sample(std::vector<float>{kNan, 0, kNan}, sequence(settings(1.0f)), scratch).id, 1)
        << "NaN has no probability";
    EXPECT_EQ(sample({}, sequence(settings(1.0f)), scratch).id, 0);
}

TEST(Sample, SupportEqualsReferenceForRandomSettings) {
    std::mt19937 rng(7);
    SamplerScratch scratch;
    const auto chance = [&] { return static_cast<float>(rng() % 1000) / 1000.0f; };
    for (int round = 0; round < 3000; ++round) {
        const size_t vocab = 3 + rng() % 600;
        const auto logits = random_logits(rng, vocab, rng() % 2 == 0);
        wire::Sampling p;
        p.temperature = rng() % 8 == 0 ? 0.0f : 0.2f + 2 * chance();
        p.top_k = rng() % 2 == 0 ? 0 : static_cast<int32_t>(rng() % 20);
        p.top_p = rng() % 2 == 0 ? 1.0f : chance();
        p.min_p = rng() % 2 == 0 ? 0.0f : chance();
        if (rng() % 3 == 0) p.repetition_penalty = 0.5f + chance();
        if (rng() % 3 == 0) p.presence_penalty = 2 * chance() - 1;
        if (rng() % 3 == 0) p.frequency_penalty = 2 * chance() - 1;
        if (rng() % 3 == 0) p.logit_bias = {{static_cast<TokenId>(rng() % vocab), 10 * chance()}};
        p.stop_ids = {static_cast<TokenId>(rng() % vocab)};
        p.min_tokens = static_cast<uint32_t>(rng() % 6);
        p.seed = rng();
        std::vector<TokenId> prompt(1 + rng() % 6), emitted(rng() % 6);
        for (TokenId& t : prompt) t = static_cast<TokenId>(rng() % vocab);
        for (TokenId& t : emitted) t = static_cast<TokenId>(rng() % vocab);
        const auto s = sequence(p, prompt, emitted);
        const TokenId got = sample(logits, s, scratch).id;
        const auto want = reference(logits, s);
        ASSERT_TRUE(want.contains(got)) << "round " << round << " token " << got << " of " << vocab << ": temperature "
            << p.temperature << " top_k " << p.top_k << " top_p " << p.top_p << " min_p " << p.min_p
            << " support " << want.size();
        SamplerScratch other;
        ASSERT_EQ(sample(logits, s, other).id, got) << "equal inputs, equal token";
        ASSERT_TRUE(std::ranges::all_of(scratch.counts, [](uint32_t n) { return n == 0; }));
    }
}

TEST(Sample, DrawsFollowTheDistribution) {
    std::mt19937 rng(3);
    SamplerScratch scratch;
    const std::vector<wire::Sampling> rows{settings(1.0f), settings(0.7f, 1.0f, 8),
                                           settings(1.3f, 0.8f), settings(1.0f, 1.0f, 0, 0.1f),
                                           settings(1.0f, 0.9f, 12, 0.05f)};
    const auto logits = random_logits(rng, 30, false);
    for (size_t k = 0; k < rows.size(); ++k) {
        auto s = sequence(rows[k]);
        const auto want = reference(logits, s);
        std::map<TokenId, double> got;
        constexpr int kDraws = 60'000;
        for (int i = 0; i < kDraws; ++i) {
            s.sampling.seed = static_cast<uint64_t>(i) * 77 + k;
            ++got[sample(logits, s, scratch).id];
        }
        double chi = 0;
        int degrees = -1;
        for (const auto& [t, probability] : want) {
            if (probability * kDraws < 5) continue;
            chi += std::pow(got[t] - probability * kDraws, 2) / (probability * kDraws);
            ++degrees;
        }
        // Wilson-Hilferty bound at about p = 1e-4.
        const double d = std::max(degrees, 1);
        EXPECT_LT(chi, d * std::pow(1 - 2 / (9 * d) + 3.72 * std::sqrt(2 / (9 * d)), 3))
            << "settings " << k;
    }
}

TEST(Sample, EachPositionDrawsAnew) {
    SamplerScratch scratch;
    std::mt19937 rng(5);
    const auto logits = random_logits(rng, 50, false);
    wire::Sampling p = settings(3.0f);
    p.seed = 42;
    std::set<TokenId> seen;
    std::vector<TokenId> emitted;
    for (int i = 0; i < 30; ++i) {
        seen.insert(sample(logits, sequence(p, {1, 2}, emitted), scratch).id);
        emitted.push_back(0);
    }
    EXPECT_GT(seen.size(), 5u);
    // A sequence that moves keeps its place: only the number of ids counts for the draw.
    EXPECT_EQ(sample(logits, sequence(p, {9, 9}, {4}), scratch).id,
              sample(logits, sequence(p, {1, 2}, {0}), scratch).id);
}

TEST(Sample, PenaltiesCountAsDocumented) {
    SamplerScratch scratch;
    const std::vector<float> logits{2.0f, 1.9f, 1.8f, -1.0f};
    wire::Sampling p = settings(0);
    p.presence_penalty = 0.15f;
    EXPECT_EQ(sample(logits, sequence(p, {0}, {}), scratch).id, 0) << "prompt does not count";
    EXPECT_EQ(sample(logits, sequence(p, {0}, {0}), scratch).id, 1);
    EXPECT_EQ(sample(logits, sequence(p, {0}, {0, 0, 0}), scratch).id, 1) << "once, however often";
    p = settings(0);
    p.frequency_penalty = 0.15f;
    EXPECT_EQ(sample(logits, sequence(p, {0}, {0, 1, 1}), scratch).id, 0)
        << "0: 1.85, 1: 1.6, 2: 1.8";
    EXPECT_EQ(sample(logits, sequence(p, {0}, {0, 0, 1}), scratch).id, 2)
        << "0: 1.7, 1: 1.75, 2: 1.8";
    p = settings(0);
    p.repetition_penalty = 1.2f;
    EXPECT_EQ(sample(logits, sequence(p, {0}, {}), scratch).id, 1) << "prompt counts";
    EXPECT_EQ(sample(std::vector<float>{-1.0f, -1.1f}, sequence(p, {0}, {}), scratch).id, 1)
        << "negative logits fall";
}

TEST(Sample, MinTokensMasksStopIds) {
    SamplerScratch scratch;
    wire::Sampling p = settings(0);
    p.stop_ids = {2};
    p.min_tokens = 2;
    const std::vector<float> logits{0, 1, 9};
    EXPECT_EQ(sample(logits, sequence(p, {0}, {}), scratch).id, 1);
    EXPECT_EQ(sample(logits, sequence(p, {0}, {1}), scratch).id, 1);
    EXPECT_EQ(sample(logits, sequence(p, {0}, {1, 1}), scratch).id, 2);
}

TEST(Sample, LogprobsAreOfTheRawLogits) {
    SamplerScratch scratch;
    std::mt19937 rng(9);
    auto logits = random_logits(rng, 100, true);
    logits[7] = kNan;
    wire::Sampling p = settings(0.3f);
    p.logit_bias = {{5, 100.0f}};
    p.top_logprobs = 20;
    const wire::Token token = sample(logits, sequence(p), scratch);
    EXPECT_EQ(token.id, 5);
    double total = 0;
    for (const float l : logits)
        if (!std::isnan(l)) total += std::exp(static_cast<double>(l));
    EXPECT_NEAR(token.logprob, static_cast<double>(logits[5]) - std::log(total), 1e-4);
    ASSERT_EQ(token.top.size(), 20u);
    for (size_t i = 0; i < 20; ++i) {
        EXPECT_NEAR(
            token.top[i].second,
            static_cast<double>(logits[static_cast<size_t>(token.top[i].first)]) - std::log(total),
            1e-4);
        if (i == 0) continue;
        EXPECT_GE(token.top[i - 1].second, token.top[i].second);
        if (token.top[i - 1].second == token.top[i].second) {
            EXPECT_LT(token.top[i - 1].first, token.top[i].first);
        }
    }
    p.top_logprobs = 0;
    EXPECT_TRUE(sample(logits, sequence(p), scratch).top.empty());
    EXPECT_NE(sample(logits, sequence(p), scratch).logprob, 0.0f);
    p.top_logprobs = -1;
    EXPECT_EQ(sample(logits, sequence(p), scratch).logprob, 0.0f);
}

TEST(Sample, ScratchServesVocabulariesOfAnySize) {
    SamplerScratch scratch;
    wire::Sampling p = settings(0);
    p.presence_penalty = 1;
    EXPECT_EQ(sample(std::vector<float>{0, 0, 1, 0}, sequence(p, {1}, {3}), scratch).id, 2);
    EXPECT_EQ(sample(std::vector<float>{0, 1}, sequence(p, {1}, {3, 0}), scratch).id, 1);
    EXPECT_EQ(sample(std::vector<float>{0, 0, 0, 0, 1}, sequence(p, {1}, {3}), scratch).id, 4);
}

TEST(Sample, TakesNoTokenThatTheMaskForbids) {
    SamplerScratch scratch;
    std::vector<float> logits(70, 0.0f);
    for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 7);
    std::vector<uint32_t> mask{1u << 3 | 1u << 30, 0, 1u << 1};
    std::set<TokenId> seen;
    for (uint64_t seed = 0; seed < 200; ++seed) {
        for (const float temperature : {0.0f, 1.0f, 5.0f}) {
            wire::Sampling p = settings(temperature);
            p.seed = seed;
            p.top_k = seed % 3 == 0 ? 2 : 0;
            p.top_logprobs = 3;
            p.logit_bias = {{6, 100.0f}};
            const wire::Token token = sample(logits, sequence(p), scratch, mask);
            EXPECT_TRUE(token.id == 3 || token.id == 30 || token.id == 65) << token.id;
            seen.insert(token.id);
            EXPECT_EQ(token.top.front().first, 6) << "logprobs are of all tokens";
        }
    }
    EXPECT_EQ(seen.size(), 3u);
    // Nothing that is allowed has a finite logit: the first of it.
    const std::vector<float> holes(70, -std::numeric_limits<float>::infinity());
    EXPECT_EQ(sample(holes, sequence(settings(1)), scratch, mask).id, 3);
    const std::vector<float> nan(70, std::numeric_limits<float>::quiet_NaN());
    EXPECT_EQ(sample(nan, sequence(settings(0)), scratch, mask).id, 3);
}

TEST(FinishAfter, StopLengthAndContext) {
    wire::Sampling p;
    p.max_tokens = 3;
    p.stop_ids = {50, 51};
    EXPECT_EQ(finish_after(sequence(p), 7, 100), wire::Finish::kNone);
    EXPECT_EQ(finish_after(sequence(p), 51, 100), wire::Finish::kStop);
    EXPECT_EQ(finish_after(sequence(p, {1}, {2, 3}), 7, 100), wire::Finish::kLength);
    EXPECT_EQ(finish_after(sequence(p, {1}, {2, 3}), 50, 100), wire::Finish::kStop)
        << "stop goes before length";
    EXPECT_EQ(finish_after(sequence(p, {1, 2, 3}), 7, 4), wire::Finish::kLength)
        << "the context is full";
    EXPECT_EQ(finish_after(sequence(p, {1, 2}), 7, 4), wire::Finish::kNone);
    p.max_tokens = 1;
    EXPECT_EQ(finish_after(sequence(p), 7, 100), wire::Finish::kLength);
    p.max_tokens = 5;
    p.min_tokens = 1;
    EXPECT_EQ(finish_after(sequence(p), 50, 100), wire::Finish::kNone);
    EXPECT_EQ(finish_after(sequence(p, {1}, {2}), 50, 100), wire::Finish::kStop);
}

}  // namespace
}  // namespace baton::sched
