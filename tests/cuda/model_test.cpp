// Whole models against float64, and the promises a step makes whatever it is batched with.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <numeric>

#include "rig.hpp"

namespace baton::backend::cuda::test {

namespace {

using backend::test::make_plan;
using backend::test::ModelOptions;
using backend::test::reference_logits;
using backend::test::Rng;
using tensor::DType;

// bf16 keeps 8 bits, fp16 11, of every activation of some 20 stages; the errors add up as a random walk.
constexpr double kTolerance = 0.03;
constexpr double kToleranceFp16 = 0.004;

struct Family {
    const char* name;
    ModelShape shape;
    bool bias = false;
    bool qk_norm = false;
};
// Small, with the features and the odd sizes of the families.
const Family kFamilies[] = {
    {"llama", {2, 192, 4, 1, 64, 328, 104, 2048}},
    {"smollm", {2, 576, 9, 3, 64, 1536, 256, 2048}},
    {"qwen2", {2, 448, 7, 1, 64, 488, 152, 2048}, true, false},
    {"qwen3", {3, 264, 4, 2, 128, 392, 136, 2048}, false, true},
    {"wide", {2, 512, 8, 1, 128, 640, 320, 2048}},
    {"single", {2, 128, 2, 2, 64, 192, 96, 2048}},
};

Plan plan_of(const Family& f, DType type = DType::kBF16, uint64_t seed = 1) {
    ModelOptions o;
    o.type = type;
    o.shape = f.shape;
    o.bias = f.bias;
    o.qk_norm = f.qk_norm;
    o.seed = seed;
    return make_plan(o);
}

CudaOptions small_options() {
    CudaOptions o;
    o.max_batch_tokens = 512;
    o.max_batch_slices = 24;
    o.blocks = 400;
    o.block_tokens = 16;
    return o;
}

std::vector<double> reference(const Plan& plan, const std::vector<TokenId>& ids, size_t n) {
    return reference_logits(plan, {ids.begin(), ids.begin() + static_cast<ptrdiff_t>(n)});
}

class Model : public ::testing::TestWithParam<Family> {};

TEST_P(Model, PrefillAgreesWithFloat64) {
    BATON_NEEDS_GPU();
    const Plan plan = plan_of(GetParam());
    Rig rig(plan, small_options());
    ASSERT_TRUE(rig);
    Rng rng(11);
    for (const uint32_t n : {1u, 2u, 15u, 16u, 17u, 63u, 130u}) {
        const auto ids = random_ids(rng, n, rig.vocab());
        const auto want = reference(plan, ids, n);
        for (int round = 0; round < 4; ++round) {  // by itself, then as a graph, from either buffer
            Seq s = rig.add(ids, n);
            const auto got = rig.step({{&s, n}});
            ASSERT_EQ(got.size(), 1u);
            EXPECT_LT(relative_error(got[0], want), kTolerance) << n << " tokens, round " << round;
            ASSERT_EQ(rig.tokens().size(), 1u);
            EXPECT_EQ(rig.tokens()[0].id, std::max_element(got[0].begin(), got[0].end()) - got[0].begin());
        }
    }
}

TEST_P(Model, DecodeAgreesWithFloat64) {
    BATON_NEEDS_GPU();
    const Plan plan = plan_of(GetParam());
    Rig rig(plan, small_options());
    ASSERT_TRUE(rig);
    Rng rng(12);
    std::vector<Seq> seqs;
    for (const uint32_t n : {1u, 30u, 31u, 65u, 4u}) seqs.push_back(rig.add(random_ids(rng, n, rig.vocab()), n + 8));
    for (Seq& s : seqs) static_cast<void>(rig.step({{&s, static_cast<uint32_t>(s.ids.size())}}));
    for (int turn = 0; turn < 6; ++turn) {
        std::vector<Part> parts;
        for (Seq& s : seqs) {
            Rig::push(s, static_cast<TokenId>(rng.below(rig.vocab())));
            parts.push_back({&s, 1});
        }
        const auto got = rig.step(parts);
        ASSERT_EQ(got.size(), seqs.size());
        for (size_t i = 0; i < seqs.size(); ++i)
            EXPECT_LT(relative_error(got[i], reference(plan, seqs[i].ids, seqs[i].ids.size())), kTolerance)
                << "sequence " << i << ", " << seqs[i].ids.size() << " tokens";
    }
}

/// Sequences of many lengths step by step with qkv and attention as one kernel and as two: the same logits, but for rounding, and as one
/// the same bits every time.
TEST(Joined, AgreesWithItsKernelsOneByOne) {
    BATON_NEEDS_GPU();
    const std::filesystem::path folder = ::testing::TempDir() + "baton-joined-" + std::to_string(::getpid());
    const Plan plan = plan_of({"joined", {3, 1024, 16, 8, 128, 768, 264, 8192}, false, true});
    const bool reduced = std::getenv("BATON_TEST_REDUCED") != nullptr;
    for (const bool fp16 : {false, true})
        for (const uint32_t block_tokens : {16u, 64u}) {
            if (reduced && (fp16 || block_tokens == 64)) continue;
            SCOPED_TRACE((fp16 ? "fp16, blocks of " : "bf16, blocks of ") + std::to_string(block_tokens));
            CudaOptions options = small_options();
            options.fp16 = fp16;
            options.block_tokens = block_tokens;
            options.blocks = 16384 / block_tokens;
            options.cache_folder = folder.string();  // all take the same kernels beside
            std::vector<std::unique_ptr<Rig>> rigs;
            for (const bool joined : {false, true, true}) {
                rigs.push_back(std::make_unique<Rig>(plan, options));
                ASSERT_TRUE(*rigs.back());
                JoinedRule rule;
                rule.own_ns.fill(joined ? 1.0f : -2.0f);
                rule.parts_ns.fill(-1);  // contexts of few sequences are dealt out
                if (!rigs.back()->backend().force_joined(rule)) GTEST_SKIP() << "this GPU does not run it so";
            }
            const std::vector<uint32_t> lengths = {1, 2, 14, 15, 16, 17, 31, 63, 64, 113, 127, 128, 129, 500, 300, reduced ? 140u : 4200u};
            for (const size_t count : {size_t{16}, size_t{9}, size_t{7}, size_t{3}, size_t{2}, size_t{1}}) {  // the last longer than what lanes remember of a block table
                std::vector<std::vector<Seq>> seqs(rigs.size());
                Rng rng(15);
                for (size_t i = 0; i < count; ++i) {
                    const uint32_t n = lengths[count == 16 ? i : lengths.size() - 1 - i];
                    const auto ids = random_ids(rng, n, rigs[0]->vocab());
                    for (size_t r = 0; r < rigs.size(); ++r) {
                        seqs[r].push_back(rigs[r]->add(ids, n + 40));
                        for (uint32_t done = 0; done < n; done += 512) static_cast<void>(rigs[r]->step({{&seqs[r].back(), std::min(512u, n - done), done + 512 >= n}}));
                    }
                }
                for (int turn = 0; turn < (reduced ? 3 : 36); ++turn) {
                    std::vector<std::vector<std::vector<float>>> got;
                    std::vector<TokenId> next;
                    for (size_t i = 0; i < count; ++i) next.push_back(static_cast<TokenId>(rng.below(rigs[0]->vocab())));
                    for (size_t r = 0; r < rigs.size(); ++r) {
                        std::vector<Part> parts;
                        for (size_t i = 0; i < count; ++i) {
                            Rig::push(seqs[r][i], next[i]);
                            parts.push_back({&seqs[r][i], 1});
                        }
                        got.push_back(rigs[r]->step(parts));
                        ASSERT_EQ(got.back().size(), count);
                    }
                    for (size_t i = 0; i < count; ++i) {
                        const std::vector<double> want(got[0][i].begin(), got[0][i].end());
                        ASSERT_LT(relative_error(got[1][i], want), fp16 ? kToleranceFp16 : kTolerance)
                            << "turn " << turn << ", sequence " << i << " of " << seqs[0][i].ids.size() << " tokens";
                        ASSERT_EQ(got[1][i], got[2][i]) << "turn " << turn << ", sequence " << i;
                    }
                    if (turn != 2 || count != 16) continue;
                    for (const size_t i : {0u, 4u})
                        ASSERT_LT(relative_error(got[1][i], reference(plan, seqs[1][i].ids, seqs[1][i].ids.size())), fp16 ? kToleranceFp16 : kTolerance);
                }
            }
        }
    std::filesystem::remove_all(folder);
}

/// Long contexts beside short ones take the kernels one by one, contexts of few sequences are dealt out where they are long. Needs no GPU.
TEST(Joined, ItsRuleWeighsTheLongestContext) {
    JoinedRule rule;  // about as measured
    rule.longest_ns = 6.4f;
    rule.all_ns = 0.92f;
    rule.parts_ns = {2500, 2200, 2100, 1500, 0};
    rule.own_ns = {-400, 3400, 5700, 3700, 4000};
    EXPECT_EQ(JoinedRule().splits(16, 1, 16), 0u) << "nothing was measured";
    EXPECT_EQ(rule.splits(1, 100, 100), 0u);
    EXPECT_EQ(rule.splits(0, 0, 0), 0u);
    EXPECT_EQ(rule.splits(17, 100, 1700), 0u);
    Rng rng(5);
    for (int i = 0; i < 2000; ++i) {
        const auto n = static_cast<uint32_t>(1 + rng.below(16));
        const auto each = static_cast<uint32_t>(1 + rng.below(30000));
        for (const uint32_t even : {2u, 4u, 8u, 16u}) EXPECT_NE(rule.splits(even, each, uint64_t{each} * even), 0u) << even << " even contexts of " << each;
        const uint64_t all = each + uint64_t{n - 1} * (1 + rng.below(each));
        const uint32_t splits = rule.splits(n, each, all);
        EXPECT_TRUE(splits <= 1 || splits == JoinedRule::splits_of(n));
        if (splits == 0) continue;
        EXPECT_NE(rule.splits(n, each / 2 + 1, all), 0u) << "a shorter longest context";
        EXPECT_NE(rule.splits(n, each, all + 1000), 0u) << "longer others";
    }
    EXPECT_EQ(rule.splits(16, 1112, 13000), 1u);
    EXPECT_EQ(rule.splits(16, 2000, 2000 + 15 * 800), 1u);
    EXPECT_EQ(rule.splits(16, 4000, 4000 + 15 * 800), 0u);
    EXPECT_EQ(rule.splits(8, 200, 1600), 1u);
    EXPECT_EQ(rule.splits(8, 4096, 8 * 4096), 2u);
    EXPECT_EQ(rule.splits(3, 4096, 3 * 4096), 4u);
    EXPECT_EQ(rule.splits(4, 60000, 60000 + 3 * 100), 0u);
    EXPECT_EQ(JoinedRule::splits_of(1), 16u);
    EXPECT_EQ(JoinedRule::splits_of(9), 1u);
}

/// Contexts grow until other kernels are quicker, while steps follow one another: the tokens and logprobs, bit for bit, of steps of which
/// none follows.
TEST(Joined, FollowingStepsChangeKernelsAsContextsGrow) {
    BATON_NEEDS_GPU();
    const std::filesystem::path folder = ::testing::TempDir() + "baton-joined-grows-" + std::to_string(::getpid());
    const Plan plan = plan_of({"joined", {3, 1024, 16, 8, 128, 768, 264, 8192}, false, true});
    CudaOptions options = small_options();
    options.cache_folder = folder.string();  // both take the same kernels
    JoinedRule rule;  // whole contexts, then in two parts each, then with other kernels: as the longest is 300 and 700 tokens long
    rule.longest_ns = 1;
    rule.parts_ns.fill(44);
    rule.own_ns.fill(138);
    constexpr uint32_t kLengths[] = {280, 275, 286, 33, 70};
    constexpr uint32_t kSteps = 430;
    const auto start = [&](Rig& rig) {
        Rng rng(33);
        std::vector<Seq> seqs;
        for (const uint32_t n : kLengths) {
            seqs.push_back(rig.add(random_ids(rng, n, rig.vocab()), n + kSteps + 1));
            seqs.back().wire.sampling.top_logprobs = 2;
        }
        for (Seq& s : seqs) static_cast<void>(rig.step({{&s, static_cast<uint32_t>(s.ids.size()) - 1, false}}));
        return seqs;
    };
    Rig rig(plan, options), other(plan, options);
    ASSERT_TRUE(rig && other);
    if (!rig.backend().force_joined(rule) || !other.backend().force_joined(rule)) GTEST_SKIP() << "this GPU does not run it so";
    std::vector<Seq> seqs = start(rig), alone = start(other);
    std::vector<std::vector<wire::Token>> emitted;
    std::vector<wire::Token> out;
    const auto collect = [&] {
        const auto done = rig.backend().collect(out);
        ASSERT_TRUE(done) << done.error().message;
        ASSERT_EQ(out.size(), seqs.size());
        for (size_t i = 0; i < seqs.size(); ++i) Rig::push(seqs[i], out[i].id);
        emitted.push_back(out);
    };
    for (uint32_t step = 0; step < kSteps; ++step) {
        std::vector<Slice> slices;
        std::vector<TokenId> tokens;
        for (size_t i = 0; i < seqs.size(); ++i) {
            Slice& slice = slices.emplace_back();
            slice.tokens = 1;
            slice.position = kLengths[i] + step - 1;
            slice.blocks = seqs[i].blocks;
            slice.logits = true;
            slice.sequence = &seqs[i].wire;
            slice.state = seqs[i].state;
            slice.pending = step == 0 ? 0 : 1;
            tokens.push_back(step == 0 ? seqs[i].ids.back() : 0);
        }
        const auto done = rig.backend().submit({tokens, slices});
        ASSERT_TRUE(done) << done.error().message;
        if (step == 0) continue;
        ASSERT_NO_FATAL_FAILURE(collect());
    }
    ASSERT_NO_FATAL_FAILURE(collect());
    EXPECT_EQ(rig.backend().host_times().followed, kSteps - 3) << "but for the first step behind the prompts, and those where kernels change";
    for (uint32_t step = 0; step < kSteps; ++step) {
        std::vector<Part> parts;
        for (size_t i = 0; i < alone.size(); ++i) parts.push_back({&alone[i], 1});
        static_cast<void>(other.step(parts));
        for (size_t i = 0; i < alone.size(); ++i) {
            SCOPED_TRACE("step " + std::to_string(step) + ", sequence " + std::to_string(i));
            ASSERT_EQ(other.tokens().at(i).id, emitted[step][i].id);
            ASSERT_EQ(other.tokens()[i].logprob, emitted[step][i].logprob);
            ASSERT_EQ(other.tokens()[i].top, emitted[step][i].top);
            Rig::push(alone[i], emitted[step][i].id);
        }
    }
    EXPECT_EQ(other.backend().host_times().followed, 0u);
    std::filesystem::remove_all(folder);
}

TEST_P(Model, MixedStepsAgreeWithFloat64) {
    BATON_NEEDS_GPU();
    const Plan plan = plan_of(GetParam());
    Rig rig(plan, small_options());
    ASSERT_TRUE(rig);
    Rng rng(13);
    Seq a = rig.add(random_ids(rng, 40, rig.vocab()), 64), b = rig.add(random_ids(rng, 23, rig.vocab()), 64);
    Seq c = rig.add(random_ids(rng, 50, rig.vocab()), 64), d = rig.add(random_ids(rng, 7, rig.vocab()), 64);
    static_cast<void>(rig.step({{&a, 40}, {&b, 23}}));
    Rig::push(a, 5);
    Rig::push(b, 6);
    // A chunk without logits, a decode row, a whole prompt, another decode row: in no order.
    auto got = rig.step({{&c, 33, false}, {&a, 1}, {&d, 7}, {&b, 1}});
    ASSERT_EQ(got.size(), 3u);
    EXPECT_LT(relative_error(got[0], reference(plan, a.ids, 41)), kTolerance);
    EXPECT_LT(relative_error(got[1], reference(plan, d.ids, 7)), kTolerance);
    EXPECT_LT(relative_error(got[2], reference(plan, b.ids, 24)), kTolerance);
    got = rig.step({{&c, 17}});
    EXPECT_LT(relative_error(got.at(0), reference(plan, c.ids, 50)), kTolerance);
}

TEST_P(Model, StepsOfAnyKindComeAgain) {
    BATON_NEEDS_GPU();
    const Plan plan = plan_of(GetParam());
    for (const bool deterministic : {false, true}) {
        CudaOptions options = small_options();
        options.deterministic = deterministic;
        Rig rig(plan, options);
        ASSERT_TRUE(rig);
        Rng rng(23);
        std::vector<Seq> running;
        for (uint32_t round = 0; round < 40; ++round) {
            // Sequences that run, in any order and number, and new prompts or chunks of them, some without logits. Few shapes
            // serve all of these steps: many are graphs that an earlier one made.
            std::vector<Part> parts;
            std::vector<Seq> fresh;
            const uint32_t prompts = rng.below(4);
            for (uint32_t i = 0; i < prompts; ++i) {
                fresh.push_back(rig.add(random_ids(rng, 2 + rng.below(45), rig.vocab()), 96));
                std::erase_if(running, [&](const Seq& s) { return s.state == fresh.back().state; });
            }
            if (running.size() > 9) running.erase(running.begin(), running.begin() + 5);
            for (Seq& s : running) {
                if (rng.below(4) == 0) continue;
                if (s.done == s.ids.size()) Rig::push(s, static_cast<TokenId>(rng.below(rig.vocab())));
                parts.push_back({&s, 1, rng.below(8) != 0});
            }
            for (Seq& f : fresh) {
                const bool whole = rng.below(3) != 0;
                parts.push_back({&f, static_cast<uint32_t>(whole ? f.ids.size() : f.ids.size() - 1), whole});
            }
            if (parts.empty()) continue;
            for (uint32_t i = static_cast<uint32_t>(parts.size()); i-- > 1;) std::swap(parts[i], parts[rng.below(i + 1)]);
            const auto got = rig.step(parts);
            std::erase_if(parts, [](const Part& p) { return !p.logits; });
            ASSERT_EQ(got.size(), parts.size());
            if (round % 4 == 3 && !parts.empty()) {
                const uint32_t i = rng.below(static_cast<uint32_t>(parts.size()));
                const Seq& s = *parts[i].seq;
                EXPECT_LT(relative_error(got[i], reference(plan, s.ids, s.done)), kTolerance)
                    << "round " << round << ", " << s.done << " tokens, " << parts[i].tokens << " of them new";
            }
            for (Seq& f : fresh) running.push_back(std::move(f));
        }
        EXPECT_GT(rig.backend().host_times().steps, rig.backend().host_times().eager_steps + 5);
    }
}

TEST_P(Model, PendingTokensAreTheOnesSampled) {
    BATON_NEEDS_GPU();
    const Plan plan = plan_of(GetParam());
    constexpr uint32_t kTokens = 20;
    Rng rng(14);
    std::vector<std::vector<TokenId>> prompts;
    for (const uint32_t n : {3u, 28u, 47u}) prompts.push_back(random_ids(rng, n, plan.shape.vocab));
    // One step ahead of the host, the token of the step before taken on the device.
    Rig rig(plan, small_options());
    ASSERT_TRUE(rig);
    std::vector<Seq> seqs;
    std::vector<Part> parts;
    for (const auto& p : prompts) seqs.push_back(rig.add(p, 128));
    for (Seq& s : seqs) parts.push_back({&s, static_cast<uint32_t>(s.ids.size())});
    ASSERT_TRUE(rig.submit(parts));
    for (Part& p : parts) p.tokens = 1;
    std::vector<wire::Token> tokens;
    for (uint32_t t = 0; t < kTokens; ++t) {
        const auto ahead = rig.submit(parts, 1);
        ASSERT_TRUE(ahead) << ahead.error().message;
        ASSERT_TRUE(rig.backend().collect(tokens));
        ASSERT_EQ(tokens.size(), seqs.size());
        for (size_t i = 0; i < seqs.size(); ++i) Rig::push(seqs[i], tokens[i].id);
    }
    ASSERT_TRUE(rig.backend().collect(tokens));
    // The same continuation, fed token by token, each the largest logit unless two nearly tie.
    for (size_t i = 0; i < seqs.size(); ++i) {
        Seq s = rig.add(prompts[i], 128);
        auto got = rig.step({{&s, static_cast<uint32_t>(s.ids.size())}});
        for (uint32_t t = 0; t < kTokens; ++t) {
            const TokenId id = seqs[i].wire.emitted[t];
            const float top = *std::max_element(got.at(0).begin(), got.at(0).end());
            EXPECT_GE(got[0][static_cast<size_t>(id)], top - 0.05f * std::abs(top)) << "sequence " << i << ", token " << t;
            Rig::push(s, id);
            got = rig.step({{&s, 1}});
        }
    }
}

/// Sequences that come, go and cross into new blocks while most steps only follow the one before: their tokens
/// are those of the same sequences fed token by token, where no step follows another.
TEST_P(Model, StepsThatFollowGiveTheTokensOfOthers) {
    BATON_NEEDS_GPU();
    const Plan plan = plan_of(GetParam());
    for (const uint32_t block_tokens : {16u, 64u}) {
        if (block_tokens != 16 && !GetParam().qk_norm) continue;  // one family says enough
        CudaOptions options = small_options();
        options.deterministic = true;
        options.block_tokens = block_tokens;
        Rng rng(25 + block_tokens);
        struct Run {
            std::vector<TokenId> prompt;
            uint32_t begin, tokens;
        };
        std::vector<Run> runs;
        for (const uint32_t n : {3u, 15u, 16u, 40u, 63u, 64u, 5u, 31u})
            runs.push_back({random_ids(rng, n, plan.shape.vocab), n % 5 * 9, 20 + n % 3 * 15});
        const auto sample_by = [](Seq& s, size_t i) {
            s.wire.sampling.top_logprobs = static_cast<int32_t>(i % 4);
            if (i == 0) s.wire.sampling.logit_bias = {{3, 2.0f}};  // no step with it follows another
            if (i % 2 == 0) return;
            s.wire.sampling.temperature = 0.8f;
            s.wire.sampling.seed = i;
            if (i == 7) s.wire.sampling.min_p = 0.05f;  // the others take one look at their logits
        };
        std::vector<std::vector<wire::Token>> emitted(runs.size());
        {
            Rig rig(plan, options);
            ASSERT_TRUE(rig);
            std::vector<Seq> seqs;
            for (size_t i = 0; i < runs.size(); ++i) {
                seqs.push_back(rig.add(runs[i].prompt, 160));
                sample_by(seqs.back(), i);
            }
            std::vector<uint32_t> planned(runs.size(), 0);
            std::vector<std::vector<size_t>> flights;
            std::vector<wire::Token> tokens_out;
            const auto collect = [&] {
                const auto done = rig.backend().collect(tokens_out);
                ASSERT_TRUE(done) << done.error().message;
                ASSERT_EQ(tokens_out.size(), flights.front().size());
                for (size_t k = 0; k < tokens_out.size(); ++k) {
                    Rig::push(seqs[flights.front()[k]], tokens_out[k].id);
                    emitted[flights.front()[k]].push_back(tokens_out[k]);
                }
                flights.erase(flights.begin());
            };
            for (uint32_t step = 0; step < 120; ++step) {
                std::vector<Slice> slices;
                std::vector<TokenId> tokens;
                std::vector<size_t> of;
                for (size_t i = 0; i < runs.size(); ++i) {
                    if (step < runs[i].begin || planned[i] == runs[i].tokens) continue;
                    const auto length = static_cast<uint32_t>(runs[i].prompt.size());
                    const bool first = planned[i] == 0;
                    Slice& slice = slices.emplace_back();
                    slice.tokens = first ? length : 1;
                    slice.position = first ? 0 : length + planned[i] - 1;
                    // As an engine does it: no more blocks than are needed.
                    slice.blocks = std::span(seqs[i].blocks).first((slice.position + slice.tokens + block_tokens - 1) / block_tokens);
                    slice.logits = true;
                    slice.sequence = &seqs[i].wire;
                    slice.state = seqs[i].state;
                    slice.pending = first ? 0 : 1;
                    if (first) tokens.insert(tokens.end(), runs[i].prompt.begin(), runs[i].prompt.end());
                    else tokens.push_back(0);
                    ++planned[i];
                    of.push_back(i);
                }
                if (slices.empty()) continue;
                const auto done = rig.backend().submit({tokens, slices});
                ASSERT_TRUE(done) << done.error().message;
                flights.push_back(of);
                if (flights.size() < 2) continue;
                ASSERT_NO_FATAL_FAILURE(collect());
            }
            ASSERT_EQ(flights.size(), 1u);
            ASSERT_NO_FATAL_FAILURE(collect());
            EXPECT_GT(rig.backend().host_times().followed, 20u);
            EXPECT_LT(rig.backend().host_times().followed, rig.backend().host_times().steps);
        }
        Rig rig(plan, options);
        ASSERT_TRUE(rig);
        for (size_t i = 0; i < runs.size(); ++i) {
            Seq s = rig.add(runs[i].prompt, 160);
            sample_by(s, i);
            ASSERT_EQ(emitted[i].size(), runs[i].tokens);
            for (uint32_t t = 0; t < runs[i].tokens; ++t) {
                static_cast<void>(rig.step({{&s, t == 0 ? static_cast<uint32_t>(s.ids.size()) : 1u}}));
                const auto where = [&] { return "sequence " + std::to_string(i) + ", token " + std::to_string(t) + ", blocks of " + std::to_string(block_tokens); };
                ASSERT_EQ(rig.tokens().at(0).id, emitted[i][t].id) << where();
                ASSERT_EQ(rig.tokens()[0].logprob, emitted[i][t].logprob) << where();  // bit for bit
                ASSERT_EQ(rig.tokens()[0].top, emitted[i][t].top) << where();
                Rig::push(s, emitted[i][t].id);
            }
        }
        EXPECT_EQ(rig.backend().host_times().followed, 0u);
    }
}

TEST_P(Model, DeterministicBitsWhateverTheBatch) {
    BATON_NEEDS_GPU();
    const Plan plan = plan_of(GetParam());
    Rng rng(15);
    const auto prompt = random_ids(rng, 150, plan.shape.vocab);
    const auto others = random_ids(rng, 90, plan.shape.vocab);
    std::vector<std::vector<float>> first;  // logits after the prompt and after each of four forced tokens
    for (const bool kv_first : {false, true}) {
        for (const uint32_t chunk : {150u, 64u, 1u, 37u}) {
            CudaOptions options = small_options();
            options.deterministic = true;
            options.kv_first = kv_first;
            Rig rig(plan, options);
            ASSERT_TRUE(rig);
            Seq s = rig.add(prompt, 160);
            std::vector<Seq> crowd;
            for (uint32_t i = 0; i < (chunk == 37 ? 9u : 0u); ++i) crowd.push_back(rig.add(others, 120));
            std::vector<std::vector<float>> seen;
            for (uint32_t at = 0; at < 150; at += chunk) {
                std::vector<Part> parts;
                for (Seq& c : crowd) parts.push_back({&c, 2 + c.state, true});
                parts.push_back({&s, std::min(chunk, 150 - at)});
                auto got = rig.step(parts);
                ASSERT_FALSE(got.empty());
                if (at + chunk >= 150) seen.push_back(got.back());
            }
            for (TokenId id = 0; id < 4; ++id) {
                Rig::push(s, id + 3);
                std::vector<Part> parts{{&s, 1}};
                for (Seq& c : crowd) parts.push_back({&c, 1, true});
                seen.push_back(rig.step(parts).at(0));
            }
            if (first.empty()) {
                first = seen;
                EXPECT_LT(relative_error(first[0], reference(plan, prompt, 150)), kTolerance);
                continue;
            }
            for (size_t i = 0; i < seen.size(); ++i)
                EXPECT_TRUE(same_bits(seen[i], first[i])) << "kv_first " << kv_first << ", chunk " << chunk << ", after " << i << " tokens";
        }
    }
}

TEST_P(Model, APrefixComputedByAnotherSequenceServes) {
    BATON_NEEDS_GPU();
    const Plan plan = plan_of(GetParam());
    Rig rig(plan, small_options());
    ASSERT_TRUE(rig);
    Rng rng(16);
    Seq a = rig.add(random_ids(rng, 70, rig.vocab()), 80);
    static_cast<void>(rig.step({{&a, 70}}));
    Seq b = rig.add(a.ids, 80);
    b.ids.resize(64);
    for (const TokenId id : random_ids(rng, 9, rig.vocab())) b.ids.push_back(id);
    for (size_t i = 0; i < 4; ++i) b.blocks[i] = a.blocks[i];  // 64 positions
    b.done = 64;
    const auto got = rig.step({{&b, 9}});
    EXPECT_LT(relative_error(got.at(0), reference(plan, b.ids, 73)), kTolerance);
}

TEST_P(Model, Fp16) {
    BATON_NEEDS_GPU();
    const Plan plan = plan_of(GetParam(), DType::kF16);
    CudaOptions options = small_options();
    options.fp16 = true;
    options.block_tokens = 64;
    Rig rig(plan, options);
    ASSERT_TRUE(rig);
    Rng rng(17);
    Seq s = rig.add(random_ids(rng, 77, rig.vocab()), 128);
    auto got = rig.step({{&s, 77}});
    EXPECT_LT(relative_error(got.at(0), reference(plan, s.ids, 77)), kToleranceFp16);
    Rig::push(s, 1);
    got = rig.step({{&s, 1}});
    EXPECT_LT(relative_error(got.at(0), reference(plan, s.ids, 78)), kToleranceFp16);
}

INSTANTIATE_TEST_SUITE_P(Families, Model, ::testing::ValuesIn(kFamilies), [](const auto& p) { return std::string(p.param.name); });

TEST(CudaBackend, EveryStoredTypeIsDequantised) {
    BATON_NEEDS_GPU();
    for (const DType type : backend::test::kAllTypes) {
        Family f{"any", {2, 256, 4, 2, 64, 512, 72, 2048}};
        const Plan plan = plan_of(f, type, 3);
        Rig rig(plan, small_options());
        ASSERT_TRUE(rig);
        Rng rng(18);
        Seq s = rig.add(random_ids(rng, 21, rig.vocab()), 32);
        const auto got = rig.step({{&s, 21}});
        EXPECT_LT(relative_error(got.at(0), reference(plan, s.ids, 21)), kTolerance) << tensor::to_string(type);
    }
}

TEST(CudaBackend, ManySequencesInOneStep) {
    BATON_NEEDS_GPU();
    const Plan plan = plan_of(kFamilies[0]);
    CudaOptions options = small_options();
    options.max_batch_slices = 96;
    options.blocks = 1000;
    Rig rig(plan, options);
    ASSERT_TRUE(rig);
    Rng rng(19);
    std::vector<Seq> seqs;
    for (uint32_t i = 0; i < 96; ++i) seqs.push_back(rig.add(random_ids(rng, 1 + i % 37, rig.vocab()), 64));
    for (Seq& s : seqs) static_cast<void>(rig.step({{&s, static_cast<uint32_t>(s.ids.size())}}));
    for (const size_t batch : {96u, 95u, 65u, 47u, 33u, 17u, 9u, 3u}) {
        std::vector<Part> parts;
        for (size_t i = 0; i < batch; ++i) {
            Seq& s = seqs[(i * 7 + batch) % 96];  // rows change their sequence from step to step
            Rig::push(s, static_cast<TokenId>(rng.below(rig.vocab())));
            parts.push_back({&s, 1});
        }
        const auto got = rig.step(parts);
        ASSERT_EQ(got.size(), batch);
        for (size_t i = 0; i < batch; i += 5)
            EXPECT_LT(relative_error(got[i], reference(plan, parts[i].seq->ids, parts[i].seq->ids.size())), kTolerance)
                << "batch " << batch << ", row " << i;
    }
}

TEST(CudaBackend, GraphsOfManyShapesComeAndGo) {
    BATON_NEEDS_GPU();
    const Plan plan = plan_of(kFamilies[0]);
    Rig rig(plan, small_options());
    ASSERT_TRUE(rig);
    Rng rng(24);
    const auto ids = random_ids(rng, 512, rig.vocab());
    const auto want = reference(plan, ids, 20);
    uint32_t shapes = 0;
    for (const uint32_t rows : {16u, 32u, 48u, 64u, 96u, 128u, 192u, 256u, 320u, 384u, 448u, 512u})
        for (const uint32_t prompts : {1u, 4u, 5u, 17u})
            for (const uint32_t logits : {0u, 1u, 2u, 9u}) {
                if (logits > prompts || prompts * 2 > rows) continue;
                std::vector<Seq> seqs;
                for (uint32_t i = 0; i < prompts; ++i) {
                    const uint32_t n = i + 1 < prompts ? 2 : rows - 2 * (prompts - 1);
                    seqs.push_back(rig.add({ids.begin(), ids.begin() + n}, n));
                }
                std::vector<Part> parts;
                for (uint32_t i = 0; i < prompts; ++i) parts.push_back({&seqs[i], static_cast<uint32_t>(seqs[i].ids.size()), i < logits});
                ASSERT_EQ(rig.step(parts).size(), logits);
                ++shapes;
            }
    EXPECT_GT(shapes, 130u);  // more than graphs are kept
    for (int round = 0; round < 3; ++round) {
        Seq s = rig.add({ids.begin(), ids.begin() + 20}, 20);
        EXPECT_LT(relative_error(rig.step({{&s, 20}}).at(0), want), kTolerance);
    }
}

TEST(CudaBackend, ProgressWordsSayWhenLayersAreDone) {
    BATON_NEEDS_GPU();
    const Plan plan = plan_of(kFamilies[0]);
    Rig rig(plan, small_options());
    ASSERT_TRUE(rig);
    void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    auto* words = static_cast<uint64_t*>(memory);
    const auto shared = rig.backend().share_words({static_cast<std::byte*>(memory), 4096});
    ASSERT_TRUE(shared) << shared.error().message;
    Rng rng(20);
    Seq s = rig.add(random_ids(rng, 30, rig.vocab()), 64);
    Slice slice;
    slice.tokens = 30;
    slice.blocks = s.blocks;
    slice.logits = true;
    slice.sequence = &s.wire;
    slice.progress = words + 5;
    std::vector<wire::Token> tokens;
    for (uint64_t round = 0; round < 6; ++round) {
        slice.progress_base = 1234 + round;
        slice.logits = round < 5;  // the last one runs eagerly
        ASSERT_TRUE(rig.backend().submit({s.ids, std::span(&slice, 1)}));
        ASSERT_TRUE(rig.backend().collect(tokens));
        EXPECT_EQ(words[5], 1234 + round + (uint64_t{plan.shape.layers} << 48));
        EXPECT_EQ(words[4], 0u);
    }
    slice.progress = nullptr;
    slice.logits = true;
    ASSERT_TRUE(rig.backend().submit({s.ids, std::span(&slice, 1)}));
    ASSERT_TRUE(rig.backend().collect(tokens));
    EXPECT_EQ(words[5], 1239 + (uint64_t{plan.shape.layers} << 48));
    uint64_t elsewhere = 0;
    slice.progress = &elsewhere;
    EXPECT_FALSE(rig.backend().submit({s.ids, std::span(&slice, 1)}));
}

TEST(CudaBackend, RefusesBadBatches) {
    BATON_NEEDS_GPU();
    Rig rig(plan_of(kFamilies[0]), small_options());
    ASSERT_TRUE(rig);
    Seq s = rig.add({1, 2, 3}, 16);
    const auto refused = [&](auto change) {
        Slice slice;
        slice.tokens = 3;
        slice.blocks = s.blocks;
        slice.logits = true;
        slice.sequence = &s.wire;
        std::vector<TokenId> ids = s.ids;
        change(slice, ids);
        return !rig.backend().submit({ids, std::span(&slice, 1)});
    };
    const std::vector<BlockId> outside{400};
    EXPECT_TRUE(refused([](Slice& x, auto&) { x.tokens = 2; }));
    EXPECT_TRUE(refused([](Slice& x, auto&) { x.tokens = 4; }));
    EXPECT_TRUE(refused([](Slice& x, auto&) { x.position = 14; }));
    EXPECT_TRUE(refused([](Slice& x, auto&) { x.position = 2047; }));
    EXPECT_TRUE(refused([&](Slice& x, auto&) { x.blocks = outside; }));
    EXPECT_TRUE(refused([](Slice& x, auto&) { x.state = 24; }));
    EXPECT_TRUE(refused([](Slice& x, auto&) { x.sequence = nullptr; }));
    EXPECT_TRUE(refused([](Slice& x, auto&) { x.pending = 1; }));
    EXPECT_TRUE(refused([](Slice&, auto& ids) { ids[1] = -1; }));
    EXPECT_TRUE(refused([](Slice&, auto& ids) { ids[2] = 104; }));
    std::vector<wire::Token> tokens;
    EXPECT_FALSE(rig.backend().collect(tokens));  // nothing was submitted
    EXPECT_FALSE(refused([](Slice&, auto&) {}));
    EXPECT_TRUE(rig.backend().collect(tokens));
}

TEST(CudaBackend, SaysWhatDoesNotFit) {
    BATON_NEEDS_GPU();
    const Plan plan = plan_of(kFamilies[0]);
    const auto error = [&](auto change) {
        CudaOptions options = small_options();
        change(options);
        const auto made = CudaBackend::make(plan, options);
        EXPECT_FALSE(made);
        return made ? std::string() : made.error().message;
    };
    EXPECT_NE(error([](CudaOptions& o) { o.device = 99; }).find("there is no GPU 99; there is: 0 "), std::string::npos);
    EXPECT_NE(error([](CudaOptions& o) { o.blocks = 60'000'000; }).find("too little memory for the KV pool"), std::string::npos);
    EXPECT_NE(error([](CudaOptions& o) { o.memory_bytes = 1000; }).find("the weights need"), std::string::npos);
    EXPECT_NE(error([](CudaOptions& o) { o.block_tokens = 48; }).find("block_tokens"), std::string::npos);
}

TEST(Lowering, NamesTheStepItCannotRun) {
    Plan plan = plan_of(kFamilies[3]);
    EXPECT_TRUE(lower(plan));
    const auto refused = [&](size_t step) {
        Plan broken = plan;
        broken.layers[1].erase(broken.layers[1].begin() + static_cast<ptrdiff_t>(step));
        const auto lowered = lower(broken);
        EXPECT_FALSE(lowered) << step;
        return lowered ? std::string() : lowered.error().message;
    };
    for (size_t step = 0; step < plan.layers[1].size(); ++step)
        EXPECT_NE(refused(step).find("layer 1, step"), std::string::npos) << step;
    plan.layers[0].push_back(ApplyRope{});
    const auto lowered = lower(plan);
    ASSERT_FALSE(lowered);
    EXPECT_NE(lowered.error().message.find("the end of the layer was expected"), std::string::npos) << lowered.error().message;
}

TEST(Lowering, RefusesShapesWithoutKernels) {
    Family f{"x", {2, 96, 4, 2, 24, 96, 64, 512}};
    const auto lowered = lower(plan_of(f));
    ASSERT_FALSE(lowered);
    EXPECT_NE(lowered.error().message.find("head dimension of 24"), std::string::npos) << lowered.error().message;
}

}  // namespace

}  // namespace baton::backend::cuda::test
