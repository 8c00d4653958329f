/// Part of sampler_test.cpp.
#include <chrono>
#include <thread>

// ---- masks that come while the device waits for them ----

namespace baton::backend::cuda {
namespace {
namespace masks {

void check(cudaError_t status) { ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status); }

bool allowed(const std::vector<uint32_t>& mask, TokenId id) {
    return (mask[static_cast<size_t>(id) / 32] >> (static_cast<uint32_t>(id) % 32) & 1) != 0;
}

wire::Sequence make_sequence(std::mt19937_64& rng, uint64_t id) {
    wire::Sequence s;
    s.ref = {SequenceId{id}, 0};
    s.prompt.assign(5 + rng() % 50, 1);
    s.emitted.assign(rng() % 9, 2);
    wire::Sampling& p = s.sampling;
    p.temperature = rng() % 3 == 0 ? 0.0f : 1.0f;
    if (rng() % 4 == 0) p.top_k = 20;
    if (rng() % 4 == 0) p.top_p = 0.9f;
    if (rng() % 4 == 0) p.min_p = 0.05f;
    if (rng() % 3 == 0) p.repetition_penalty = 1.2f;
    if (rng() % 3 == 0) p.logit_bias = {{3, 5.0f}, {7, -5.0f}};
    if (rng() % 2 == 0) p.top_logprobs = static_cast<int32_t>(rng() % 5);
    p.seed = rng();
    return s;
}

struct Case {
    uint32_t vocab = 0, rows = 0;
    bool late = false;  ///< masks come while the device waits for them
};

void run(const Case& c, uint64_t seed) {
    std::mt19937_64 rng(seed);
    std::normal_distribution<float> normal(0, 3);
    auto made = Sampler::create(c.vocab, c.rows, c.rows);
    ASSERT_TRUE(made) << made.error().message;
    Sampler& sampler = **made;
    Launch launch;
    check(cudaStreamCreateWithFlags(&launch.stream, cudaStreamNonBlocking));
    float* logits = nullptr;
    check(cudaMalloc(&logits, size_t{c.vocab} * c.rows * sizeof(float)));
    sched::SamplerScratch scratch;
    size_t draws = 0, others = 0;
    for (uint32_t step = 1; step < 9; ++step) {
        std::vector<float> raw(size_t{c.vocab} * c.rows);
        for (float& l : raw) l = normal(rng);
        std::vector<wire::Sequence> sequences;
        std::vector<SampleRequest> requests;
        std::vector<bool> masked;
        std::vector<std::vector<uint32_t>> masks(c.rows, std::vector<uint32_t>((c.vocab + 31) / 32, 0));
        for (uint32_t r = 0; r < c.rows; ++r) {
            sequences.push_back(make_sequence(rng, step * 1000 + r));
            masked.push_back(rng() % 4 != 0);
            const uint64_t density = rng() % 4;  // one token, few, half, nearly all
            for (uint32_t id = 0; id < c.vocab; ++id)
                if (density == 0 ? id == c.vocab - 1 - r : rng() % 100 < (density == 1 ? 1u : density == 2 ? 50u : 99u))
                    masks[r][id / 32] |= 1u << (id % 32);
            masks[r][1] |= 1u << (r % 32);
        }
        for (uint32_t r = 0; r < c.rows; ++r) requests.push_back({&sequences[r], r, 0, 0, masked[r]});
        check(cudaMemcpyAsync(logits, raw.data(), raw.size() * sizeof(float), cudaMemcpyHostToDevice, launch.stream));
        const auto described = sampler.prepare(launch.stream, step, requests);
        ASSERT_TRUE(described) << described.error().message;
        check(sampler.wait_for_masks(launch, logits, c.rows));
        check(sampler.run(launch, logits, c.rows, nullptr, sampler.whole(step)));
        if (c.late) std::this_thread::sleep_for(std::chrono::milliseconds(3));
        EXPECT_FALSE(sampler.ready(step)) << "it waits";
        sampler.expect_masks(step, masked);
        for (uint32_t r = c.rows; r-- > 0;)
            if (masked[r]) sampler.allow(step, r, masks[r]);
        check(cudaStreamSynchronize(launch.stream));
        ASSERT_TRUE(sampler.ready(step));
        std::vector<wire::Token> tokens;
        sampler.take(step, tokens);
        ASSERT_EQ(tokens.size(), c.rows);
        for (uint32_t r = 0; r < c.rows; ++r) {
            const std::span row = std::span<const float>(raw).subspan(size_t{r} * c.vocab, c.vocab);
            const auto want = sched::sample(row, sequences[r], scratch, masked[r] ? std::span<const uint32_t>(masks[r]) : std::span<const uint32_t>());
            const wire::Token& got = tokens[r];
            const std::string what = "seed " + std::to_string(seed) + " step " + std::to_string(step) + " row " + std::to_string(r);
            ASSERT_TRUE(!masked[r] || allowed(masks[r], got.id)) << what << " token " << got.id;
            const bool drawn = sequences[r].sampling.temperature > 0;
            draws += drawn ? 1 : 0;
            ASSERT_TRUE(drawn || got.id == want.id) << what << " got " << got.id << " want " << want.id;
            others += got.id != want.id ? 1 : 0;
            if (got.id != want.id || sequences[r].sampling.top_logprobs < 0) continue;
            EXPECT_NEAR(got.logprob, want.logprob, 1e-3) << what << ": of the logits before the mask";
            for (const auto& [id, logprob] : got.top) {
                EXPECT_TRUE(!masked[r] || allowed(masks[r], id)) << what;
                const double gap = static_cast<double>(row[static_cast<size_t>(id)]) - static_cast<double>(row[static_cast<size_t>(got.id)]);
                EXPECT_NEAR(static_cast<double>(logprob), static_cast<double>(got.logprob) + gap, 1e-3) << what;
            }
        }
    }
    EXPECT_LE(others * 50, draws + 50) << "draws on the other side of a border";
    cudaFree(logits);
    cudaStreamDestroy(launch.stream);
}

TEST(SamplerMasks, TokensAreThoseOfTheCpu) {
    NEEDS_GPU();
    for (const Case& c : {Case{151'936, 4, false}, Case{151'936, 64, true}, Case{49'152, 17, true}, Case{1'000, 3, false}, Case{97, 2, true}})
        run(c, 11 + c.vocab);
}

TEST(SamplerMasks, ARowWithoutItsMaskDoesNotHoldTheStepForEver) {
    NEEDS_GPU();
    auto sampler = *Sampler::create(1'000, 2, 2);
    Launch launch;
    check(cudaStreamCreateWithFlags(&launch.stream, cudaStreamNonBlocking));
    float* logits = nullptr;
    check(cudaMalloc(&logits, 2'000 * sizeof(float)));
    check(cudaMemset(logits, 0, 2'000 * sizeof(float)));
    std::mt19937_64 rng(1);
    const wire::Sequence one = make_sequence(rng, 1), two = make_sequence(rng, 2);
    const std::vector<SampleRequest> rows{{&one, 0, 0, 0, true}, {&two, 1, 0, 0, false}};
    ASSERT_TRUE(sampler->prepare(launch.stream, 1, rows));
    check(sampler->wait_for_masks(launch, logits, 2));
    check(sampler->run(launch, logits, 2, nullptr, true));
    sampler->expect_masks(1, {true, false});
    check(cudaStreamSynchronize(launch.stream));
    EXPECT_TRUE(sampler->ready(1));
    cudaFree(logits);
    cudaStreamDestroy(launch.stream);
}

}  // namespace masks
}  // namespace
}  // namespace baton::backend::cuda
