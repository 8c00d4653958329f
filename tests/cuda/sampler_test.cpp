#include "backend/cuda/sampler.hpp"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>

#include "baton/sched/sampler.hpp"

// The oracle is sched::sample. Tokens may differ from it only where the draw falls within 1e-4 of
// the border of two candidates, and that in less than one row of a hundred.
namespace baton::backend::cuda {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kNear = 1e-4;

/// Fewer rounds under a sanitizer, which slows kernels down a hundredfold.
size_t rounds(size_t full) {
    return std::getenv("BATON_TEST_REDUCED") != nullptr ? std::max<size_t>(1, full / 16) : full;
}

bool has_gpu() {
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess && n > 0;
}
#define NEEDS_GPU() \
    if (!has_gpu()) GTEST_SKIP() << "no GPU on this machine"

#define CUDA_OK(expr) ASSERT_EQ(expr, cudaSuccess)

bool has_pdl() {
    cudaDeviceProp properties{};
    return cudaGetDeviceProperties(&properties, 0) == cudaSuccess && properties.major >= 9;
}

/// A sampler with a stream and a buffer of logits.
class Rig {
  public:
    Rig(uint32_t vocab, uint32_t rows_max, uint32_t states) : vocab_(vocab), rows_max_(rows_max) {
        auto made = Sampler::create(vocab, rows_max, states);
        if (!made) {
            ADD_FAILURE() << made.error().message;
            std::abort();
        }
        sampler = std::move(*made);
        check(cudaStreamCreateWithFlags(&launch.stream, cudaStreamNonBlocking));
        check(cudaMalloc(&logits_, size_t{vocab} * rows_max * sizeof(float)));
        launch.pdl = has_pdl();
    }
    ~Rig() {
        cudaFree(logits_);
        cudaStreamDestroy(launch.stream);
    }
    Rig(const Rig&) = delete;
    Rig& operator=(const Rig&) = delete;

    void upload(const std::vector<std::vector<float>>& rows) {
        for (size_t i = 0; i < rows.size(); ++i)
            check(cudaMemcpyAsync(logits_ + i * vocab_, rows[i].data(), vocab_ * sizeof(float),
                                  cudaMemcpyHostToDevice, launch.stream));
        check(cudaStreamSynchronize(launch.stream));
    }
    void prepare(const std::vector<SampleRequest>& requests) {
        const auto done = sampler->prepare(launch.stream, ++step, requests);
        ASSERT_TRUE(done) << done.error().message;
    }
    std::vector<wire::Token> take() {
        std::vector<wire::Token> tokens;
        check(cudaStreamSynchronize(launch.stream));
        EXPECT_TRUE(sampler->ready(step));
        EXPECT_FALSE(sampler->ready(step + 2)) << "a step's results bear its number";
        sampler->take(step, tokens);
        return tokens;
    }
    std::vector<wire::Token> sample(const std::vector<std::vector<float>>& rows,
                                    const std::vector<SampleRequest>& requests) {
        upload(rows);
        prepare(requests);
        check(sampler->run(launch, logits_, static_cast<uint32_t>(requests.size()), nullptr, sampler->whole(step)));
        return take();
    }
    static void check(cudaError_t status) {
        ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status);
    }

    std::unique_ptr<Sampler> sampler;
    Launch launch;
    uint32_t step = 0;
    [[nodiscard]] float* logits() const { return logits_; }

  private:
    uint32_t vocab_, rows_max_;
    float* logits_ = nullptr;
};

enum class Kind {
    kNormal,
    kPeaked,
    kFlat,
    kTies,
    kHoles,
    kEqual,
    kPlusInf,
    kAllNan,
    kAllMinusInf,
    kWide,
    kFew,
    kBf16,
    kCount
};

float round_bf16(float v) {
    return std::bit_cast<float>((std::bit_cast<uint32_t>(v) + 0x8000u) & 0xFFFF0000u);
}

/// About normal: the sum of four uniform numbers.
float normal(std::mt19937_64& rng) {
    const uint64_t bits = rng();
    float sum = 0;
    for (int i = 0; i < 4; ++i)
        sum += static_cast<float>((bits >> (16 * i)) & 0xFFFF) / 65536.0f - 0.5f;
    return sum * 1.732f;
}

std::vector<float> make_logits(std::mt19937_64& rng, size_t vocab, Kind kind) {
    std::vector<float> out(vocab);
    const float width = kind == Kind::kFlat     ? 0.3f
                        : kind == Kind::kWide   ? 700.0f
                        : kind == Kind::kPeaked ? 2.0f
                                                : 3.0f;
    for (float& l : out) l = normal(rng) * width;
    const auto some = [&](size_t n, auto&& change) {
        for (size_t i = 0; i < n; ++i) change(out[rng() % vocab]);
    };
    switch (kind) {
        case Kind::kPeaked:
            some(40, [&](float& l) { l = 10.0f + static_cast<float>(rng() % 1000) / 60.0f; });
            break;
        case Kind::kTies:
            for (float& l : out) l = std::round(l * 2) / 2;
            break;
        case Kind::kHoles:
            some(vocab / 4, [](float& l) { l = -kInf; });
            some(vocab / 4, [](float& l) { l = kNan; });
            some(2, [](float& l) { l = -0.0f; });
            break;
        case Kind::kEqual:
            std::ranges::fill(out, static_cast<float>(rng() % 3) - 1.0f);
            break;
        case Kind::kPlusInf:
            some(2, [](float& l) { l = kInf; });
            break;
        case Kind::kAllNan:
            std::ranges::fill(out, kNan);
            break;
        case Kind::kAllMinusInf:
            std::ranges::fill(out, -kInf);
            break;
        case Kind::kFew:
            std::ranges::fill(out, -kInf);
            some(3, [&](float& l) { l = normal(rng); });
            break;
        case Kind::kBf16:
            for (float& l : out) l = round_bf16(l * 0.7f);
            break;
        default:
            break;
    }
    return out;
}

float chance(std::mt19937_64& rng) {
    return static_cast<float>(rng() % 4096) / 4096.0f;
}

wire::Sampling random_settings(std::mt19937_64& rng, size_t vocab, bool penalties) {
    wire::Sampling s;
    const auto one_of = [&](std::initializer_list<float> values) {
        return std::data(values)[rng() % values.size()];
    };
    s.temperature =
        one_of({0.0f, 1.0f, 1.0f, 0.3f + chance(rng), 0.3f + 1.5f * chance(rng), 1e-3f, 1e4f});
    const int32_t k_max = static_cast<int32_t>(vocab);
    if (rng() % 2 == 0)
        s.top_k = std::min(k_max, static_cast<int32_t>(one_of({1, 5, 50, 200, 1000, 40'000})) +
                                      static_cast<int32_t>(rng() % 3));
    if (rng() % 2 == 0) s.top_p = one_of({chance(rng), 0.9f, 0.95f, 0.0f, 0.9999f, 0.5f});
    if (rng() % 3 == 0) s.min_p = one_of({chance(rng) * 0.3f, 0.05f, 1.0f, 1e-4f});
    s.seed = rng();
    s.max_tokens = 1000;
    s.top_logprobs = rng() % 2 == 0 ? -1 : static_cast<int32_t>(rng() % 21);
    if (rng() % 4 == 0)
        for (size_t i = 0; i < 1 + rng() % 300; ++i) {
            const auto id = static_cast<TokenId>(rng() % (vocab + 5)) - 2;
            if (std::ranges::none_of(s.logit_bias, [&](const auto& b) { return b.first == id; }))
                s.logit_bias.emplace_back(id, rng() % 5 == 0 ? -kInf : 20 * chance(rng) - 10);
        }
    if (rng() % 4 == 0) {
        s.min_tokens = static_cast<uint32_t>(rng() % 6);
        for (size_t i = 0; i < rng() % 100; ++i)
            s.stop_ids.push_back(static_cast<TokenId>(rng() % (vocab + 3)) - 1);
    }
    if (penalties) {
        if (rng() % 2 == 0) s.repetition_penalty = 0.5f + chance(rng);
        if (rng() % 2 == 0) s.presence_penalty = 4 * chance(rng) - 2;
        if (rng() % 2 == 0) s.frequency_penalty = 4 * chance(rng) - 2;
    }
    return s;
}

wire::Sequence make_sequence(std::mt19937_64& rng, size_t vocab, wire::Sampling sampling,
                             uint64_t id) {
    wire::Sequence s;
    s.ref = {SequenceId{id}, 0};
    s.sampling = std::move(sampling);
    s.prompt.resize(1 + rng() % 200);
    s.emitted.resize(rng() % 20);
    for (TokenId& t : s.prompt) t = static_cast<TokenId>(rng() % vocab);
    for (TokenId& t : s.emitted) t = static_cast<TokenId>(rng() % vocab);
    return s;
}

/// What may be drawn and in which order, in double: each candidate's share of the draw, by the
/// rules of sched::sample.
struct Share {
    TokenId id;
    double begin, end;
};
std::vector<Share> shares(const std::vector<float>& raw, const wire::Sequence& sequence,
                          double top_p_slack) {
    const wire::Sampling& s = sequence.sampling;
    std::vector<float> l(raw);
    for (float& v : l)
        if (std::isnan(v)) v = -kInf;
    const auto in = [&](TokenId t) { return t >= 0 && static_cast<size_t>(t) < l.size(); };
    for (const auto& [id, bias] : s.logit_bias)
        if (in(id)) l[static_cast<size_t>(id)] += bias;
    std::set<TokenId> seen(sequence.prompt.begin(), sequence.prompt.end());
    seen.insert(sequence.emitted.begin(), sequence.emitted.end());
    std::map<TokenId, int> counts;
    for (const TokenId t : sequence.emitted) ++counts[t];
    if (s.repetition_penalty != 1.0f)
        for (const TokenId t : seen) {
            float& v = l[static_cast<size_t>(t)];
            v = v > 0 ? v / s.repetition_penalty : v * s.repetition_penalty;
        }
    for (const auto& [t, n] : counts)
        l[static_cast<size_t>(t)] -=
            s.frequency_penalty * static_cast<float>(n) + s.presence_penalty;
    if (sequence.emitted.size() < s.min_tokens)
        for (const TokenId t : s.stop_ids)
            if (in(t)) l[static_cast<size_t>(t)] = -kInf;
    std::vector<TokenId> order(l.size());
    std::iota(order.begin(), order.end(), 0);
    const float max = *std::ranges::max_element(l);
    const bool top_k = s.top_k > 0 && static_cast<size_t>(s.top_k) < l.size();
    const auto weight = [&](TokenId t) {
        return std::exp(
            (static_cast<double>(l[static_cast<size_t>(t)]) - static_cast<double>(max)) /
            static_cast<double>(s.temperature));
    };
    if (top_k || s.top_p < 1.0f) {
        std::ranges::stable_sort(order, [&](TokenId a, TokenId b) {
            return l[static_cast<size_t>(a)] > l[static_cast<size_t>(b)];
        });
        if (top_k) order.resize(static_cast<size_t>(s.top_k));
        double total = 0, sum = 0;
        for (const TokenId t : order) total += weight(t);
        size_t n = 0;
        while (s.top_p < 1.0f && n < order.size() &&
               (n == 0 || sum < (static_cast<double>(s.top_p) + top_p_slack) * total))
            sum += weight(order[n++]);
        if (s.top_p < 1.0f) order.resize(n);
    }
    std::vector<Share> out;
    double sum = 0;
    for (const TokenId t : order) {
        const double w = weight(t);
        if (w < static_cast<double>(s.min_p) * (1 - top_p_slack) && w < 1) continue;
        out.push_back({t, sum, sum + w});
        sum += w;
    }
    for (Share& share : out) {
        share.begin /= sum;
        share.end /= sum;
    }
    return out;
}

/// Whether `id` is what a draw within kNear of the row's own could have given.
bool is_near(const std::vector<float>& raw, const wire::Sequence& sequence, TokenId id) {
    const double u =
        sched::uniform(sequence.sampling.seed, sequence.prompt.size() + sequence.emitted.size());
    for (const double slack : {0.0, kNear, -kNear})
        for (const Share& share : shares(raw, sequence, slack))
            if (share.id == id && share.begin - kNear <= u && u <= share.end + kNear) return true;
    return false;
}

/// Compares a row with the CPU's. Counts draws that fell on the other side of a border.
void compare(const std::vector<float>& logits, const wire::Sequence& sequence,
             const wire::Token& got, size_t& near, const std::string& what) {
    static sched::SamplerScratch scratch;
    const wire::Token want = sched::sample(logits, sequence, scratch);
    const wire::Sampling& s = sequence.sampling;
    const std::string settings =
        what + ": temperature " + std::to_string(s.temperature) + " top_k " +
        std::to_string(s.top_k) + " top_p " + std::to_string(s.top_p) + " min_p " +
        std::to_string(s.min_p) + " bias " + std::to_string(s.logit_bias.size()) + " min_tokens " +
        std::to_string(s.min_tokens) + " repetition " + std::to_string(s.repetition_penalty) +
        " presence " + std::to_string(s.presence_penalty) + " frequency " +
        std::to_string(s.frequency_penalty);
    ASSERT_GE(got.id, 0) << settings;
    ASSERT_LT(static_cast<size_t>(got.id), logits.size()) << settings;
    if (got.id != want.id) {
        ASSERT_GT(s.temperature, 0.0f) << settings << " got " << got.id << " want " << want.id;
        ASSERT_TRUE(is_near(logits, sequence, got.id))
            << settings << " got " << got.id << " want " << want.id;
        ++near;
    }
    ASSERT_EQ(got.top.size(), want.top.size()) << settings;
    for (size_t i = 0; i < want.top.size(); ++i) {
        ASSERT_EQ(got.top[i].first, want.top[i].first) << settings << " top " << i;
        ASSERT_NEAR(got.top[i].second, want.top[i].second,
                    1e-4 + 3e-7 * std::abs(want.top[i].second))
            << settings;
    }
    if (got.id == want.id) {
        ASSERT_NEAR(got.logprob, want.logprob, 1e-4 + 3e-7 * std::abs(want.logprob))
            << settings << " top " << s.top_logprobs;
    }
}

std::vector<SampleRequest> requests_for(const std::vector<wire::Sequence>& sequences) {
    std::vector<SampleRequest> out;
    for (size_t i = 0; i < sequences.size(); ++i)
        out.push_back({&sequences[i], static_cast<uint32_t>(i), 0});
    return out;
}

class SamplerOracle : public ::testing::TestWithParam<uint32_t> {};

TEST_P(SamplerOracle, EqualsTheCpu) {
    NEEDS_GPU();
    const uint32_t vocab = GetParam();
    const uint64_t seed = std::random_device{}();
    std::mt19937_64 rng(seed);
    constexpr uint32_t kRows = 24;
    Rig rig(vocab, kRows, kRows);
    size_t near = 0, compared = 0;
    uint64_t next_id = 1;
    for (size_t round = 0; round < rounds(vocab > 100'000 ? 24 : 64); ++round) {
        rig.sampler->limit_list(round % 4 == 3 ? 1 + static_cast<uint32_t>(rng() % 40) : 0);
        const uint32_t rows = 1 + static_cast<uint32_t>(rng() % kRows);
        std::vector<std::vector<float>> logits;
        std::vector<wire::Sequence> sequences;
        for (uint32_t i = 0; i < rows; ++i) {
            const Kind kind = static_cast<Kind>(rng() % static_cast<uint64_t>(Kind::kCount));
            logits.push_back(make_logits(rng, vocab, kind));
            sequences.push_back(
                make_sequence(rng, vocab, random_settings(rng, vocab, i % 3 == 0), next_id++));
        }
        const auto tokens = rig.sample(logits, requests_for(sequences));
        ASSERT_EQ(tokens.size(), rows);
        for (uint32_t i = 0; i < rows; ++i) {
            compare(logits[i], sequences[i], tokens[i], near,
                    "seed " + std::to_string(seed) + " round " + std::to_string(round) + " row " +
                        std::to_string(i));
            if (HasFatalFailure()) return;
            ++compared;
        }
    }
    std::vector<int32_t> last(kRows);
    std::cout << "vocab " << vocab << ": " << compared << " rows, " << near << " near a border\n";
    EXPECT_LT(static_cast<double>(near), 1 + 0.01 * static_cast<double>(compared));
}
INSTANTIATE_TEST_SUITE_P(Vocabularies, SamplerOracle,
                         ::testing::Values(7u, 1'024u, 32'003u, 49'152u, 151'936u, 300'001u));

TEST(Sampler, LongWayGivesTheSameTokens) {
    NEEDS_GPU();
    constexpr uint32_t kVocab = 49'152, kRows = 64;
    std::mt19937_64 rng(11);
    Rig rig(kVocab, kRows, kRows);
    for (size_t round = 0; round < rounds(16); ++round) {
        std::vector<std::vector<float>> logits;
        std::vector<wire::Sequence> sequences;
        for (uint32_t i = 0; i < kRows; ++i) {
            logits.push_back(make_logits(rng, kVocab, static_cast<Kind>(rng() % 5)));
            sequences.push_back(
                make_sequence(rng, kVocab, random_settings(rng, kVocab, false), i + 1));
        }
        rig.sampler->limit_list(0);
        const auto fast = rig.sample(logits, requests_for(sequences));
        for (const uint32_t list_max : {1u, 60u}) {
            rig.sampler->limit_list(list_max);
            const auto slow = rig.sample(logits, requests_for(sequences));
            for (uint32_t i = 0; i < kRows; ++i)
                ASSERT_EQ(fast[i].id, slow[i].id)
                    << "round " << round << " row " << i << " list " << list_max << " top_k "
                    << sequences[i].sampling.top_k << " top_p " << sequences[i].sampling.top_p
                    << " min_p " << sequences[i].sampling.min_p << " temperature "
                    << sequences[i].sampling.temperature;
        }
    }
}

/// Draws at the very ends hit the first and the last that is kept: the kept set equals the CPU's up
/// to rounding.
TEST(Sampler, EndsOfTheKeptSetAreTheCpus) {
    NEEDS_GPU();
    constexpr uint32_t kVocab = 32'003, kRows = 32;
    std::mt19937_64 rng(12);
    std::vector<uint64_t> ends;
    for (uint64_t seed = 0; ends.size() < 64; ++seed) {
        const double u = sched::uniform(seed, 1);
        if (u < 2e-5 || u > 1 - 2e-5) ends.push_back(seed);
    }
    Rig rig(kVocab, kRows, kRows);
    size_t equal = 0, compared = 0;
    for (size_t round = 0; round < rounds(32); ++round) {
        std::vector<std::vector<float>> logits;
        std::vector<wire::Sequence> sequences;
        for (uint32_t i = 0; i < kRows; ++i) {
            logits.push_back(
                make_logits(rng, kVocab, rng() % 2 == 0 ? Kind::kPeaked : Kind::kNormal));
            wire::Sequence s;
            s.prompt = {1};
            s.sampling.seed = ends[rng() % ends.size()];
            s.sampling.top_k = rng() % 2 == 0 ? 0 : static_cast<int32_t>(1 + rng() % 60);
            s.sampling.top_p = s.sampling.top_k == 0 ? 0.3f + 0.6f * chance(rng)
                               : rng() % 2 == 0      ? 1.0f
                                                     : chance(rng);
            s.sampling.min_p = rng() % 2 == 0 ? 0.0f : 0.1f * chance(rng);
            sequences.push_back(s);
        }
        const auto tokens = rig.sample(logits, requests_for(sequences));
        sched::SamplerScratch scratch;
        for (uint32_t i = 0; i < kRows; ++i) {
            const TokenId want = sched::sample(logits[i], sequences[i], scratch).id;
            ASSERT_TRUE(tokens[i].id == want || is_near(logits[i], sequences[i], tokens[i].id))
                << "round " << round << " row " << i;
            equal += tokens[i].id == want ? 1 : 0;
            ++compared;
        }
    }
    std::cout << equal << " of " << compared << " ends equal\n";
    // In wide sets the last candidates are so light that rounding shifts the end by one.
    EXPECT_GT(static_cast<double>(equal), 0.95 * static_cast<double>(compared));
}

TEST(Sampler, RowsDoNotDependOnTheBatch) {
    NEEDS_GPU();
    for (const uint32_t vocab : {32'003u, 151'936u}) {
        constexpr uint32_t kRows = 64;
        std::mt19937_64 rng(vocab);
        Rig rig(vocab, kRows, kRows);
        std::vector<std::vector<float>> logits;
        std::vector<wire::Sequence> sequences;
        for (uint32_t i = 0; i < kRows; ++i) {
            logits.push_back(make_logits(rng, vocab, static_cast<Kind>(rng() % 5)));
            wire::Sampling s = random_settings(rng, vocab, true);
            s.top_logprobs = 20;
            sequences.push_back(make_sequence(rng, vocab, s, i + 1));
        }
        const auto all = rig.sample(logits, requests_for(sequences));
        for (uint32_t i = 0; i < kRows; i += static_cast<uint32_t>(kRows / rounds(32) + 1)) {
            wire::Sequence again = sequences[i];
            again.ref.attempt = 1;  // another life in the same row: counts are rebuilt
            const auto alone = rig.sample({logits[i]}, {{&again, i, 0}});
            ASSERT_EQ(alone[0].id, all[i].id) << "row " << i;
            ASSERT_EQ(std::bit_cast<uint32_t>(alone[0].logprob),
                      std::bit_cast<uint32_t>(all[i].logprob))
                << "row " << i;
            ASSERT_EQ(alone[0].top, all[i].top) << "row " << i;
        }
    }
}

/// An engine in small: steps with and without a pending token, sequences that end and give their
/// state row to others, sequences that move.
TEST(Sampler, PenaltiesFollowTheSequences) {
    NEEDS_GPU();
    constexpr uint32_t kVocab = 1'500, kRows = 12;
    std::mt19937_64 rng(13);
    Rig rig(kVocab, kRows, kRows);
    const auto fresh = [&](uint64_t id) {
        wire::Sequence s = make_sequence(rng, kVocab, random_settings(rng, kVocab, true), id);
        s.sampling.frequency_penalty = 0.5f + chance(rng);
        if (rng() % 3 == 0) s.sampling.temperature = 0;
        return s;
    };
    uint64_t next_id = 1;
    std::vector<wire::Sequence> sequences;
    for (uint32_t i = 0; i < kRows; ++i) sequences.push_back(fresh(next_id++));
    std::vector<bool> new_in_row(kRows, true);
    size_t near = 0, compared = 0;
    for (size_t step = 0; step < rounds(100); ++step) {
        std::vector<std::vector<float>> logits;
        std::vector<wire::Sequence> seen = sequences;  // as the engine's host knows them
        std::vector<SampleRequest> requests;
        for (uint32_t i = 0; i < kRows; ++i) {
            logits.push_back(
                make_logits(rng, kVocab, rng() % 2 == 0 ? Kind::kTies : Kind::kNormal));
            const bool pending = step % 2 == 1 && !new_in_row[i] && !seen[i].emitted.empty();
            if (pending) seen[i].emitted.pop_back();
            requests.push_back({&seen[i], i, pending ? 1u : 0u});
        }
        const auto tokens = rig.sample(logits, requests);
        for (uint32_t i = 0; i < kRows; ++i) {
            compare(logits[i], sequences[i], tokens[i], near,
                    "step " + std::to_string(step) + " row " + std::to_string(i));
            if (HasFatalFailure()) return;
            ++compared;
            sequences[i].emitted.push_back(tokens[i].id);
            new_in_row[i] = false;
        }
        for (uint32_t i = 0; i < kRows; ++i) {
            const uint64_t fate = rng() % 20;
            if (fate == 0) {
                sequences[i] = fresh(next_id++);
                new_in_row[i] = true;
            } else if (fate == 1) {  // taken back to an earlier point, under the same name
                sequences[i].emitted.pop_back();
                new_in_row[i] = true;
            } else if (fate == 2) {
                const uint32_t other = static_cast<uint32_t>(rng() % kRows);
                std::swap(sequences[i], sequences[other]);
                new_in_row[i] = new_in_row[other] = true;
            }
        }
    }
    EXPECT_LT(static_cast<double>(near), 1 + 0.01 * static_cast<double>(compared));
}

/// With a token pending that the counts have not seen, they are rebuilt from the host's ids and the
/// device's last.
TEST(Sampler, RebuildCountsAPendingToken) {
    NEEDS_GPU();
    constexpr uint32_t kVocab = 100;
    Rig rig(kVocab, 1, 3);
    std::vector<float> logits(kVocab, 0.0f);
    logits[40] = 5.0f;
    logits[41] = 4.5f;
    wire::Sequence s;
    s.ref = {SequenceId{1}, 0};
    s.prompt = {3};
    s.sampling.temperature = 0;
    ASSERT_EQ(rig.sample({logits}, {{&s, 2, 0}})[0].id,
              40);  // without penalties nothing is counted
    s.sampling.presence_penalty = 1.0f;
    EXPECT_EQ(rig.sample({logits}, {{&s, 2, 1}})[0].id, 41);
    int32_t last[3] = {};
    CUDA_OK(cudaMemcpy(last, rig.sampler->last(), sizeof(last), cudaMemcpyDeviceToHost));
    EXPECT_EQ(last[2], 41);
}

TEST(Sampler, GraphServesAnySettings) {
    NEEDS_GPU();
    constexpr uint32_t kVocab = 49'152, kRows = 16;
    std::mt19937_64 rng(14);
    Rig rig(kVocab, kRows, kRows);
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    CUDA_OK(cudaStreamBeginCapture(rig.launch.stream, cudaStreamCaptureModeThreadLocal));
    CUDA_OK(rig.sampler->run(rig.launch, rig.logits(), kRows, nullptr));
    CUDA_OK(cudaStreamEndCapture(rig.launch.stream, &graph));
    CUDA_OK(cudaGraphInstantiate(&exec, graph, 0));
    CUDA_OK(cudaGraphLaunch(exec, rig.launch.stream));  // with nothing prepared it does nothing
    CUDA_OK(cudaStreamSynchronize(rig.launch.stream));
    size_t near = 0;
    for (size_t round = 0; round < rounds(48); ++round) {
        const uint32_t rows = 1 + static_cast<uint32_t>(rng() % kRows);
        std::vector<std::vector<float>> logits;
        std::vector<wire::Sequence> sequences;
        for (uint32_t i = 0; i < rows; ++i) {
            logits.push_back(make_logits(
                rng, kVocab, static_cast<Kind>(rng() % static_cast<uint64_t>(Kind::kCount))));
            sequences.push_back(make_sequence(rng, kVocab, random_settings(rng, kVocab, true),
                                              round * kRows + i + 1));
        }
        rig.upload(logits);
        rig.prepare(requests_for(sequences));
        CUDA_OK(cudaGraphLaunch(exec, rig.launch.stream));
        const auto tokens = rig.take();
        ASSERT_EQ(tokens.size(), rows);
        for (uint32_t i = 0; i < rows; ++i) {
            compare(logits[i], sequences[i], tokens[i], near,
                    "round " + std::to_string(round) + " row " + std::to_string(i));
            if (HasFatalFailure()) return;
        }
    }
    EXPECT_LT(near, 8u);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
}

// Settings stay in page-locked memory from step to step; rows of pending tokens are not written anew.
TEST(Sampler, SettingsThatStayAreThoseOfTheSequence) {
    NEEDS_GPU();
    constexpr uint32_t kVocab = 3'000, kRows = 12, kStates = 12;
    std::mt19937_64 rng(21);
    Rig kept(kVocab, kRows, kStates), anew(kVocab, kRows, kStates);
    std::vector<wire::Sequence> sequences(kStates);
    std::vector<uint32_t> fresh(kStates, 1);  // a sequence's first row is not of a pending token
    uint64_t made = 0;
    const auto begin = [&](uint32_t state) {
        wire::Sequence& s = sequences[state];
        s = make_sequence(rng, kVocab, random_settings(rng, kVocab, rng() % 4 == 0), ++made);
        if (rng() % 3 == 0) s.sampling.min_tokens = static_cast<uint32_t>(s.emitted.size() + rng() % 4);
        fresh[state] = 1;
    };
    for (uint32_t state = 0; state < kStates; ++state) begin(state);
    for (size_t round = 0; round < rounds(400); ++round) {
        std::vector<uint32_t> states;
        const uint64_t absent = round % 8;  // rows at the end of a step's settings may be of sequences long gone
        for (uint32_t state = 0; state < kStates; ++state)
            if (rng() % 8 >= absent) states.push_back(state);
        if (states.empty()) continue;
        if (rng() % 4 == 0) std::ranges::shuffle(states, rng);
        std::vector<SampleRequest> quick, slow;
        std::vector<std::vector<float>> logits;
        for (const uint32_t state : states) {
            const wire::Sequence& s = sequences[state];
            const uint32_t pending = fresh[state] != 0 ? 0 : 1;
            const auto at = static_cast<uint32_t>(s.prompt.size() + s.emitted.size() + pending);
            quick.push_back({&s, state, pending, at});
            slow.push_back({&s, state, pending, 0});
            logits.push_back(make_logits(rng, kVocab, Kind::kNormal));
            fresh[state] = 0;
        }
        const auto a = kept.sample(logits, quick), b = anew.sample(logits, slow);
        ASSERT_EQ(a.size(), states.size());
        for (size_t i = 0; i < states.size(); ++i) {
            ASSERT_EQ(a[i].id, b[i].id) << "round " << round << " row " << i;
            ASSERT_EQ(a[i].logprob, b[i].logprob);
            ASSERT_EQ(a[i].top, b[i].top);
            wire::Sequence& s = sequences[states[i]];
            // What a pending token's step sampled is known one step later; here it is anything.
            if (quick[i].pending != 0) s.emitted.push_back(static_cast<TokenId>(rng() % kVocab));
            if (rng() % 3 == 0) begin(states[i]);
        }
    }
}

// A row of settings outlives its sequence until a step has as many rows again. It is not the next one's, whatever sequences had the
// state row in between.
TEST(Sampler, SettingsOfASequenceThatEndedAreNobodys) {
    NEEDS_GPU();
    constexpr uint32_t kVocab = 1'000;
    std::mt19937_64 rng(22);
    for (const bool penalties : {false, true}) {
        Rig kept(kVocab, 2, 2), anew(kVocab, 2, 2);
        const auto sequence = [&](uint64_t id, float temperature) {
            wire::Sampling s;
            s.temperature = temperature;
            s.seed = id;
            s.max_tokens = 100;
            return make_sequence(rng, kVocab, s, id);
        };
        wire::Sequence stays = sequence(1, 0), first = sequence(2, 0), between = sequence(3, 1), last = sequence(4, 1);
        if (penalties) between.sampling.frequency_penalty = 0.5f;
        const auto step = [&](const std::vector<std::pair<wire::Sequence*, uint32_t>>& rows, const std::string& name) {
            std::vector<SampleRequest> quick, slow;
            std::vector<std::vector<float>> logits;
            for (const auto& [s, pending] : rows) {
                const uint32_t state = s == &stays ? 1 : 0;
                quick.push_back({s, state, pending, static_cast<uint32_t>(s->prompt.size() + s->emitted.size() + pending)});
                slow.push_back({s, state, pending, 0});
                logits.push_back(make_logits(rng, kVocab, Kind::kNormal));
            }
            const auto a = kept.sample(logits, quick), b = anew.sample(logits, slow);
            for (size_t i = 0; i < rows.size(); ++i) {
                EXPECT_EQ(a[i].id, b[i].id) << name << ", row " << i;
                if (rows[i].second != 0) rows[i].first->emitted.push_back(1);
            }
        };
        step({{&stays, 0}, {&first, 0}}, "odd");
        step({{&stays, 1}, {&between, 0}}, "even");
        step({{&stays, 1}}, "odd");
        step({{&stays, 1}, {&last, 0}}, "even");
        for (int i = 0; i < 8; ++i) step({{&stays, 1}, {&last, 1}}, "the last sequence's");
    }
}

TEST(Sampler, StepsSayThatTheyEnded) {
    NEEDS_GPU();
    Rig rig(100, 4, 4);
    uint32_t* counter = nullptr;
    CUDA_OK(cudaMalloc(&counter, sizeof(uint32_t)));
    CUDA_OK(cudaMemset(counter, 0, sizeof(uint32_t)));
    wire::Sequence s;
    s.prompt = {1};
    for (uint32_t round = 0; round < 6; ++round) {
        std::vector<SampleRequest> rows;
        if (round % 3 == 2) rows.push_back({&s, 0, 0});
        rig.prepare(rows);
        EXPECT_FALSE(rig.sampler->ready(rig.step));
        EXPECT_FALSE(rig.sampler->whole(rig.step));  // a draw from all
        CUDA_OK(rig.sampler->run(rig.launch, rig.logits(), static_cast<uint32_t>(rows.size()), counter, round < 3));
        EXPECT_EQ(rig.take().size(), rows.size());
    }
    uint32_t counted = 0;
    CUDA_OK(cudaMemcpy(&counted, counter, sizeof(counted), cudaMemcpyDeviceToHost));
    EXPECT_EQ(counted, 6u);
    CUDA_OK(cudaFree(counter));
}

TEST(Sampler, DrawsFollowTheDistribution) {
    NEEDS_GPU();
    constexpr uint32_t kVocab = 40, kRows = 256;
    std::mt19937_64 rng(15);
    Rig rig(kVocab, kRows, kRows);
    const auto logits = make_logits(rng, kVocab, Kind::kNormal);
    const std::vector<std::vector<float>> rows(kRows, logits);
    struct Settings {
        float temperature, top_p;
        int32_t top_k;
        float min_p;
    };
    for (const Settings& p : {Settings{1, 1, 0, 0},
                              {0.7f, 1, 8, 0},
                              {1.3f, 0.8f, 0, 0},
                              {1, 1, 0, 0.1f},
                              {1, 0.9f, 12, 0.05f}}) {
        std::vector<wire::Sequence> sequences(kRows);
        for (wire::Sequence& s : sequences) {
            s.prompt = {1};
            s.sampling.temperature = p.temperature;
            s.sampling.top_p = p.top_p;
            s.sampling.top_k = p.top_k;
            s.sampling.min_p = p.min_p;
        }
        std::map<TokenId, double> got;
        const size_t draws = rounds(80) * kRows;
        for (size_t n = 0; n < draws; n += kRows) {
            for (uint32_t i = 0; i < kRows; ++i) sequences[i].sampling.seed = (n + i) * 77;
            for (const wire::Token& token : rig.sample(rows, requests_for(sequences)))
                ++got[token.id];
        }
        double chi = 0, inside = 0;
        int degrees = -1;
        for (const Share& share : shares(logits, sequences[0], 0)) {
            const double expected = (share.end - share.begin) * static_cast<double>(draws);
            inside += got[share.id];
            if (expected < 5) continue;
            chi += std::pow(got[share.id] - expected, 2) / expected;
            ++degrees;
        }
        EXPECT_EQ(inside, static_cast<double>(draws)) << "nothing else is drawn";
        const double d = std::max(degrees, 1);  // Wilson-Hilferty bound at about p = 1e-4
        EXPECT_LT(chi, d * std::pow(1 - 2 / (9 * d) + 3.72 * std::sqrt(2 / (9 * d)), 3))
            << "top_p " << p.top_p << " top_k " << p.top_k << " min_p " << p.min_p;
    }
}

TEST(Sampler, RefusesWhatDoesNotFit) {
    NEEDS_GPU();
    EXPECT_FALSE(Sampler::create(0, 1, 1));
    EXPECT_FALSE(Sampler::create((1u << 20) + 1, 1, 1));
    EXPECT_FALSE(Sampler::create(10, 0, 1));
    Rig rig(100, 2, 2);
    wire::Sequence s;
    s.prompt = {1};
    const std::vector<SampleRequest> many(3, {&s, 0, 0}), far(1, {&s, 2, 0}),
        none(1, {nullptr, 0, 0});
    for (const auto& rows : {many, far, none})
        EXPECT_FALSE(rig.sampler->prepare(rig.launch.stream, 0, rows));
    for (int i = 0; i < 1300; ++i) s.sampling.logit_bias.emplace_back(i % 100, 1.0f);
    EXPECT_FALSE(
        rig.sampler->prepare(rig.launch.stream, 0, std::vector<SampleRequest>(1, {&s, 0, 0})));
    s.sampling.logit_bias.resize(1000);  // the same ids over and over
    s.sampling.temperature = 0;
    EXPECT_TRUE(
        rig.sampler->prepare(rig.launch.stream, 0, std::vector<SampleRequest>(1, {&s, 0, 0})));
    EXPECT_EQ(rig.sampler->run(rig.launch, rig.logits(), 3, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace baton::backend::cuda

#include "sampler_masks.inl"
