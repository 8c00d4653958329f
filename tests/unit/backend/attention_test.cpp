#include "backend/attention.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "backend/cpu_backend.hpp"
#include "synthetic.hpp"

namespace baton::backend::test {
namespace {

struct Case {
    uint32_t heads, kv_heads, head_dim, block_tokens;
};

/// One sequence of `tokens` random keys and values in a pool that holds NaN everywhere else.
class Cache {
  public:
    Cache(const Case& c, bool kv_f32, uint32_t tokens, Rng& rng) : case_(c) {
        layout_.order = kv::PoolOrder::kBlockFirst;
        layout_.dtype = static_cast<uint8_t>(kv_f32 ? tensor::DType::kF32 : tensor::DType::kBF16);
        layout_.layers = 1;
        layout_.kv_heads = c.kv_heads;
        layout_.head_dim = c.head_dim;
        layout_.block_tokens = c.block_tokens;
        const uint32_t blocks = (tokens + c.block_tokens - 1) / c.block_tokens;
        layout_.blocks = blocks;
        memory_.assign(layout_.pool_bytes(), std::byte{0xff});
        blocks_.resize(blocks);
        std::iota(blocks_.rbegin(), blocks_.rend(), 0u);
        const size_t width = size_t{c.kv_heads} * c.head_dim;
        for (uint32_t t = 0; t < tokens; ++t) {
            std::vector<float> k(width), v(width);
            for (auto& x : k) x = round(rng.symmetric() * 2, kv_f32);
            for (auto& x : v) x = round(rng.symmetric(), kv_f32);
            pages().append(0, blocks_[t / c.block_tokens], t, k.data(), v.data());
            keys_.push_back(k);
            values_.push_back(v);
        }
    }
    static float round(float x, bool kv_f32) {
        return kv_f32 ? x : tensor::bf16_to_f32(tensor::f32_to_bf16(x));
    }
    [[nodiscard]] KvPages pages() { return {layout_, memory_.data()}; }
    [[nodiscard]] std::span<const BlockId> blocks() const { return blocks_; }
    [[nodiscard]] std::vector<double> reference(const float* q, uint32_t position,
                                                uint32_t head) const {
        const size_t hd = case_.head_dim, at = head / (case_.heads / case_.kv_heads) * hd;
        std::vector<double> p(position + 1), out(hd, 0.0);
        double top = -1e300, sum = 0;
        for (uint32_t t = 0; t <= position; ++t) {
            double dot = 0;
            for (size_t d = 0; d < hd; ++d) dot += static_cast<double>(q[d]) * keys_[t][at + d];
            p[t] = dot / std::sqrt(static_cast<double>(hd));
            top = std::max(top, p[t]);
        }
        for (auto& x : p) sum += x = std::exp(x - top);
        for (uint32_t t = 0; t <= position; ++t)
            for (size_t d = 0; d < hd; ++d) out[d] += p[t] / sum * values_[t][at + d];
        return out;
    }

  private:
    Case case_;
    kv::PoolLayout layout_;
    std::vector<std::byte> memory_;
    std::vector<BlockId> blocks_;
    std::vector<std::vector<float>> keys_, values_;
};

void check(const std::string& isa, const Case& c, bool kv_f32, uint32_t position, uint32_t tokens,
           double bound) {
    Rng rng(position * 131 + tokens);
    Cache cache(c, kv_f32, position + tokens, rng);
    ModelShape shape{1, 1, c.heads, c.kv_heads, c.head_dim, 1, 1, 1};
    auto runner = AttentionRunner::make(shape, cache.pages(), **choose_kernels(isa), 2, 4);
    ASSERT_TRUE(runner);
    ThreadPool pool(2);
    const size_t width = size_t{c.heads} * c.head_dim;
    std::vector<float> q(tokens * width), out(tokens * width);
    for (auto& x : q) x = Cache::round(rng.symmetric() * 2, kv_f32);
    const Slice slice{tokens, position, cache.blocks(), true};
    runner->prepare({{}, {&slice, 1}});
    runner->run(pool, 0, q.data(), out.data(), [] {});
    for (uint32_t t = 0; t < tokens; t += std::max(1u, tokens / 5)) {
        for (uint32_t h = 0; h < c.heads; ++h) {
            const float* row = q.data() + t * width + size_t{h} * c.head_dim;
            const auto want = cache.reference(row, position + t, h);
            for (size_t d = 0; d < c.head_dim; ++d)
                ASSERT_NEAR(out[t * width + size_t{h} * c.head_dim + d], want[d], bound)
                    << isa << " head_dim " << c.head_dim << " block " << c.block_tokens
                    << " position " << position << " token " << t << " head " << h << " d " << d;
        }
    }
}

class AttentionOfIsa : public testing::TestWithParam<std::string> {};

// Values are within ±1. f32 KV: rounding only. bf16 KV: the weights of the softmax are rounded to
// 2^-9 where the kernels multiply bf16 pairs.
TEST_P(AttentionOfIsa, FollowsFloat64OverBlockEdgesAndLongContexts) {
    const Case cases[] = {{4, 2, 64, 16}, {9, 3, 64, 16}, {8, 1, 128, 16}, {2, 2, 80, 16},
                          {3, 1, 34, 7},  {2, 1, 2, 16},  {2, 1, 256, 32}, {6, 2, 18, 1}};
    for (const Case& c : cases) {
        for (const bool kv_f32 : {false, true}) {
            const double bound = kv_f32 ? 3e-6 : 4e-3;
            for (const uint32_t position : {0u, 1u, 14u, 15u, 16u, 63u, 64u, 255u, 256u, 600u})
                check(GetParam(), c, kv_f32, position, 1, bound);
            for (const uint32_t position : {0u, 5u, 250u})
                check(GetParam(), c, kv_f32, position, 70, bound);
        }
    }
    check(GetParam(), {3, 1, 64, 16}, false, 8191, 1, 4e-3);
    check(GetParam(), {3, 1, 64, 16}, true, 8191, 2, 3e-6);
}

INSTANTIATE_TEST_SUITE_P(Isas, AttentionOfIsa, testing::ValuesIn(available_isas()),
                         [](const auto& isa) { return isa.param; });

}  // namespace
}  // namespace baton::backend::test
