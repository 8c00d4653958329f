#include <gtest/gtest.h>

#include <cmath>

#include "harness.hpp"

namespace baton::backend::test {
namespace {

using tensor::DType;

std::vector<BlockId> block_range(uint32_t first, uint32_t n) {
    std::vector<BlockId> out(n);
    for (uint32_t i = 0; i < n; ++i) out[i] = first + i;
    return out;
}

CpuOptions small_options(const std::string& isa) {
    CpuOptions o;
    o.isa = isa;
    o.threads = 2;
    o.blocks = 64;
    o.max_batch_tokens = 128;
    o.max_batch_slices = 8;
    return o;
}

/// Largest difference over the spread (root mean square) of the reference.
double relative_error(const std::vector<float>& got, const std::vector<double>& want) {
    double worst = 0, square = 0;
    for (size_t i = 0; i < want.size(); ++i) {
        worst = std::max(worst, std::abs(static_cast<double>(got[i]) - want[i]));
        square += want[i] * want[i];
    }
    return worst / std::sqrt(square / static_cast<double>(want.size()));
}

TEST(CpuBackend, LogitsFollowTheReferenceForEveryTypeAndIsa) {
    for (const DType type : kAllTypes) {
        const Plan plan = make_plan({type, wide_shape(), false, false, 3});
        Rng rng(5);
        const auto tokens = random_tokens(rng, 40, plan.shape.vocab);
        const auto want = reference_logits(plan, tokens);
        for (const auto& isa : available_isas()) {
            for (const bool kv_f32 : {false, true}) {
                CpuOptions o = small_options(isa);
                o.kv_f32 = kv_f32;
                Harness h(plan, o);
                const auto got = h.run({{tokens, 0, block_range(3, 3)}});
                ASSERT_EQ(got.size(), 1u);
                // Two layers of int8 activations, or of bf16 ones, against exact ones.
                const double bound =
                    type == DType::kF32 || type == DType::kF16 ? (kv_f32 ? 1e-4 : 2e-2) : 6e-2;
                EXPECT_LT(relative_error(got[0], want), bound)
                    << to_string(type) << " " << isa << " " << kv_f32;
            }
        }
    }
}

TEST(CpuBackend, BiasAndHeadNormsFollowTheReference) {
    for (const uint32_t head_dim : {16u, 18u, 128u, 256u}) {
        const Plan plan =
            make_plan({DType::kF32, {2, 64, 6, 2, head_dim, 96, 50, 512}, true, true, 8});
        Rng rng(6);
        const auto tokens = random_tokens(rng, 37, plan.shape.vocab);
        const auto want = reference_logits(plan, tokens);
        for (const auto& isa : available_isas()) {
            CpuOptions o = small_options(isa);
            o.kv_f32 = true;
            Harness h(plan, o);
            const auto got = h.run({{tokens, 0, block_range(0, 3)}});
            ASSERT_EQ(got.size(), 1u);
            EXPECT_LT(relative_error(got[0], want), 1e-4) << isa << " " << head_dim;
        }
    }
}

TEST(CpuBackend, BothPoolOrdersGiveEqualLogitsAndPages) {
    const Plan plan = make_plan({DType::kQ8_0, wide_shape(), false, false, 2});
    CpuOptions o = small_options("");
    Harness a(plan, o);
    o.kv_first = true;
    Harness b(plan, o);
    EXPECT_TRUE(a.layout.pages_compatible(b.layout));
    Rng rng(1);
    const auto tokens = random_tokens(rng, 50, plan.shape.vocab);
    const auto x = a.run({{tokens, 0, block_range(7, 4)}}),
               y = b.run({{tokens, 0, block_range(20, 4)}});
    ASSERT_EQ(x.size(), 1u);
    EXPECT_TRUE(same_bits(x[0], y[0]));
    for (uint32_t l = 0; l < 2; ++l)
        for (const bool v : {false, true})
            for (uint32_t i = 0; i < 4; ++i) EXPECT_EQ(a.page(l, v, 7 + i), b.page(l, v, 20 + i));
}

TEST(CpuBackend, LayerDoneComesInOrderWhenThePagesAreWritten) {
    const Plan plan = make_plan({DType::kQ4_0, wide_shape(), false, false, 2});
    for (const size_t n : {size_t{1}, size_t{3}, size_t{60}}) {
        Harness h(plan, small_options(""));
        Harness whole(plan, small_options(""));
        Rng rng(1);
        const auto tokens = random_tokens(rng, n, plan.shape.vocab);
        const auto blocks = block_range(0, 4);
        ASSERT_EQ(whole.run({{tokens, 0, blocks}}).size(), 1u);
        const Slice slice{static_cast<uint32_t>(n), 0, blocks, false};
        std::vector<uint32_t> layers;
        const auto ok = h.backend->forward({tokens, {&slice, 1}}, {}, [&](uint32_t layer) {
            layers.push_back(layer);
            for (const bool v : {false, true})
                for (BlockId b = 0; b < 4; ++b)
                    EXPECT_EQ(h.page(layer, v, b), whole.page(layer, v, b));
        });
        ASSERT_TRUE(ok);
        EXPECT_EQ(layers, (std::vector<uint32_t>{0, 1}));
    }
}

TEST(CpuBackend, RefusesWhatDoesNotFit) {
    const Plan plan = make_plan({});
    CpuOptions o = small_options("");
    Harness h(plan, o);
    const auto blocks = block_range(0, 40);
    const std::vector<BlockId> outside{0, 64}, twice{3, 3};
    std::vector<TokenId> tokens(200, 1);
    std::vector<float> logits(200 * plan.shape.vocab);
    const auto code = [&](std::vector<Slice> slices, size_t n, size_t wanted) {
        const auto r = h.backend->forward({std::span(tokens).first(n), slices},
                                          std::span(logits).first(wanted * plan.shape.vocab), {});
        return r ? ErrorCode::kOk : r.error().code;
    };
    const auto bad = ErrorCode::kInvalidArgument;
    EXPECT_EQ(code({{20, 0, blocks, true}}, 20, 1), ErrorCode::kOk);
    EXPECT_EQ(code({}, 0, 0), bad);
    EXPECT_EQ(code({{0, 0, blocks, true}}, 0, 1), bad);
    EXPECT_EQ(code({{20, 0, blocks, true}}, 21, 1), bad);
    EXPECT_EQ(code({{20, 0, blocks, true}}, 19, 1), bad);
    EXPECT_EQ(code({{20, 0, blocks, true}}, 20, 0), bad);
    EXPECT_EQ(code({{20, 0, blocks, false}}, 20, 1), bad);
    EXPECT_EQ(code({{129, 0, blocks, true}}, 129, 1), bad);
    EXPECT_EQ(code({{UINT32_MAX, 0, blocks, true}, {2, 0, blocks, true}}, 20, 2), bad);
    EXPECT_EQ(code({{20, 0, std::span(blocks).first(1), true}}, 20, 1), bad);
    EXPECT_EQ(code({{20, 0, outside, true}}, 20, 1), bad);
    EXPECT_EQ(code({{20, 0, twice, true}}, 20, 1), bad);
    EXPECT_EQ(code({{1, 20, twice, true}}, 1, 1), bad);
    EXPECT_EQ(code({{1, 511, blocks, true}}, 1, 1), ErrorCode::kOk);
    EXPECT_EQ(code({{1, 512, blocks, true}}, 1, 1), bad);
    EXPECT_EQ(code({{2, UINT32_MAX, blocks, true}}, 2, 1), bad);
    EXPECT_EQ(code({{1, 0, blocks, true}, {1, 0, blocks, true}}, 2, 2), bad);
    EXPECT_EQ(code({{1, 16, blocks, true}, {1, 0, blocks, true}}, 2, 2), bad);
    const std::vector<Slice> many(9, Slice{1, 0, blocks, true});
    EXPECT_EQ(code(many, 9, 9), bad);
    for (const TokenId t : {-1, static_cast<int>(plan.shape.vocab), INT32_MAX, INT32_MIN}) {
        tokens[3] = t;
        EXPECT_EQ(code({{20, 0, blocks, true}}, 20, 1), bad);
    }
    tokens[3] = 1;
    EXPECT_EQ(code({{20, 0, blocks, true}}, 20, 1), ErrorCode::kOk);
}

TEST(CpuBackend, RefusesOptionsItCannotServe) {
    const Plan plan = make_plan({});
    const auto refused = [&](auto change, ErrorCode code = ErrorCode::kInvalidArgument) {
        CpuOptions o = small_options("");
        ModelShape s = plan.shape;
        change(o, s);
        const auto r = cpu_kv_layout(s, o);
        return !r && r.error().code == code;
    };
    EXPECT_TRUE(refused([](auto& o, auto&) { o.isa = "sse9"; }));
    EXPECT_TRUE(refused([](auto& o, auto&) { o.blocks = 0; }));
    EXPECT_TRUE(refused([](auto& o, auto&) { o.block_tokens = 0; }));
    EXPECT_TRUE(refused([](auto& o, auto&) { o.max_batch_tokens = 0; }));
    EXPECT_TRUE(refused([](auto& o, auto&) { o.max_batch_slices = 0; }));
    EXPECT_TRUE(refused([](auto& o, auto& s) { o.blocks = UINT32_MAX, s.layers = UINT32_MAX; }));
    EXPECT_TRUE(refused([](auto&, auto& s) { s.kv_heads = 3; }));
    EXPECT_TRUE(refused([](auto&, auto& s) { s.head_dim = 17; }, ErrorCode::kUnsupported));
    EXPECT_TRUE(refused([](auto&, auto& s) { s.head_dim = 512; }, ErrorCode::kUnsupported));
    std::vector<std::byte> pool(100);
    EXPECT_FALSE(make_cpu_backend(plan, small_options(""), pool));
}

TEST(CpuBackend, RefusesPlansThatDoNotFitTogether) {
    const auto refused = [](auto change) {
        Plan plan = make_plan({});
        const CpuOptions o = small_options("");
        std::vector<std::byte> memory(cpu_kv_layout(plan.shape, o)->pool_bytes() + 64);
        const auto at = reinterpret_cast<uintptr_t>(memory.data());
        const std::span pool(memory.data() + (64 - at % 64) % 64, memory.size() - 64);
        change(plan);
        return !make_cpu_backend(plan, o, pool);
    };
    EXPECT_FALSE(refused([](Plan&) {}));
    EXPECT_TRUE(refused([](Plan& p) { p.rope.inv_freq.pop_back(); }));
    EXPECT_TRUE(refused([](Plan& p) { p.layers.pop_back(); }));
    EXPECT_TRUE(refused([](Plan& p) { p.layers[0].erase(p.layers[0].begin() + 5); }));
    EXPECT_TRUE(refused([](Plan& p) { p.embedding.bytes = p.embedding.bytes.first(8); }));
    EXPECT_TRUE(refused([](Plan& p) { p.head.bytes = p.head.bytes.first(8); }));
    EXPECT_TRUE(refused([](Plan& p) { p.head.shape[0] = 3; }));
    EXPECT_TRUE(refused([](Plan& p) { std::get<RmsNorm>(p.layers[1][0]).weight.shape[1] = 63; }));
    EXPECT_TRUE(refused([](Plan& p) { std::get<RmsNorm>(p.layers[1][0]).groups = 0; }));
    EXPECT_TRUE(refused([](Plan& p) { std::get<RmsNorm>(p.layers[1][0]).out = Slot::kCount; }));
    EXPECT_TRUE(refused([](Plan& p) { std::get<MatMul>(p.layers[1][1]).out = Slot::kK; }));
    EXPECT_TRUE(refused([](Plan& p) { std::get<MatMul>(p.layers[1][1]).in = Slot::kQ; }));
    EXPECT_TRUE(refused([](Plan& p) {
        auto& m = std::get<MatMul>(p.layers[1][1]);
        m.weight.bytes = m.weight.bytes.first(m.weight.bytes.size() - 4);
    }));
}

TEST(CpuBackend, NamesItsIsaAndThreads) {
    const Plan plan = make_plan({});
    Harness h(plan, small_options("portable"));
    EXPECT_EQ(h.backend->describe(), "cpu portable, 2 threads");
    EXPECT_EQ(h.layout.page_format, "cpu-portable-1");
}

}  // namespace
}  // namespace baton::backend::test
