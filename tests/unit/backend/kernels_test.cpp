// Every kernel of every instruction set against float64.
//
// Bounds for one output Σ w·x over K columns, where W = Σ|w|·|x| and T = Σ over blocks of 32 of
// max|x|·Σ|w|:
//   F32, F16                       K · 2^-23 · W
//   BF16                           2^-8 · W (weights are exact, activations may be rounded to bf16)
//   Q8_0, Q4_0, Q4_1, Q5_0, Q5_1   T / 254 · 1.001 + K · 2^-23 · W (activations rounded to max|x| /
//   127) Q4_K, Q5_K, Q6_K               the same + 2^-11 · (largest quant's share of d and m) ·
//   Σ|x| (scales rounded to f16)
#include "backend/kernels.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "backend/cpu_backend.hpp"
#include "backend/pack.hpp"
#include "synthetic.hpp"

namespace baton::backend::test {
namespace {

using tensor::DType;

struct Prepared {
    std::vector<int8_t> q;
    std::vector<float> meta;
    std::vector<uint16_t> bf16;
    std::vector<float> f32;
    size_t cols;
    Prepared(const Kernels& k, const std::vector<float>& x, size_t rows, size_t width)
        : f32(x), cols(width) {
        const size_t padded = (rows + 15) / 16 * 16, blocks = width / kBlockCols;
        q.resize(padded * width);
        meta.resize(padded * width / 8 + 64);
        bf16.resize(padded * width);
        for (size_t r = 0; r < rows; ++r) {
            const size_t at = r / kPanelRows * blocks, lane = r % kPanelRows;
            if (blocks != 0)
                k.quantize_row(x.data() + r * width, width,
                               q.data() + at * kPanelBlockBytes + lane * kBlockCols,
                               meta.data() + at * kPanelBlockMeta + lane * 4);
            k.bf16_row(x.data() + r * width, width, bf16.data() + r * width);
        }
    }
    [[nodiscard]] ActView view() const {
        return {q.data(), meta.data(), bf16.data(), f32.data(), cols};
    }
};

std::vector<float> random_rows(Rng& rng, size_t rows, size_t cols) {
    std::vector<float> x(rows * cols);
    for (size_t i = 0; i < x.size(); ++i) {
        // Blocks of different size, and some of zeros.
        const uint64_t block = (i / 32) * 0x9e3779b97f4a7c15ull >> 59;
        x[i] = block == 0 ? 0.0f : rng.symmetric() * static_cast<float>(block);
    }
    return x;
}

double bound(DType type, const float* w, const float* x, size_t k) {
    double product = 0, steps = 0, sum_x = 0, top_w = 0;
    for (size_t b = 0; b < k; b += 32) {
        double top = 0, sum_w = 0;
        for (size_t i = b; i < std::min(k, b + 32); ++i) {
            top = std::max(top, std::abs(static_cast<double>(x[i])));
            sum_w += std::abs(static_cast<double>(w[i]));
            product += std::abs(static_cast<double>(w[i]) * x[i]);
            sum_x += std::abs(static_cast<double>(x[i]));
            top_w = std::max(top_w, std::abs(static_cast<double>(w[i])));
        }
        steps += top * sum_w;
    }
    const double f32 = static_cast<double>(k) * 0x1p-23 * product + 1e-30;
    if (type == DType::kF32 || type == DType::kF16) return f32;
    if (type == DType::kBF16) return 0x1p-8 * product + f32;
    const double int8 = steps / 254 * 1.001 + f32 * 4;
    return type >= DType::kQ4_K ? int8 + 0x1p-11 * 4 * top_w * sum_x : int8;
}

/// A packed matrix with memory of its own.
struct OwnedMatrix : PackedMatrix {
    Buffer memory;
};

Expected<OwnedMatrix> pack_alone(const tensor::TensorView& weight, ThreadPool& pool) {
    BATON_TRY_ASSIGN(const PackedMatrix form, packed_form(weight));
    OwnedMatrix out{form, {}};
    BATON_TRY_ASSIGN(out.memory, Buffer::make(form.bytes(), "test"));
    BATON_TRY(pack(weight, form, out.memory.data(), pool));
    out.data = out.memory.data();
    return out;
}

class GemmOfType : public testing::TestWithParam<DType> {};

TEST_P(GemmOfType, StaysWithinItsBoundOnEveryIsa) {
    const DType type = GetParam();
    const size_t block = tensor::block_shape(type).elements;
    ThreadPool pool(2);
    Rng rng(42 + static_cast<uint64_t>(type));
    TensorStore store;
    const std::vector<size_t> widths = block == 256  ? std::vector<size_t>{256, 1024, 2560}
                                       : block == 32 ? std::vector<size_t>{32, 96, 576, 2112}
                                                     : std::vector<size_t>{2, 34, 64, 330};
    for (const size_t k : widths) {
        for (const size_t n : {size_t{1}, size_t{16}, size_t{83}}) {
            const auto weight = store.random(rng, type, n, k, 0.7f);
            const auto packed = pack_alone(weight, pool);
            ASSERT_TRUE(packed);
            const auto w = dequantize(weight);
            for (const size_t m : {size_t{1}, size_t{7}, size_t{53}}) {
                const auto x = random_rows(rng, m, k);
                for (const auto& isa : available_isas()) {
                    const Kernels& kernels = **choose_kernels(isa);
                    const Prepared a(kernels, x, m, k);
                    std::vector<float> bias(n, 0.5f), out(m * n + 16, 2.0f);
                    kernels.gemm(packed->view(), 0, packed->groups, a.view(), 0, m,
                                 {out.data(), n, bias.data(), true});
                    for (size_t r = 0; r < m; ++r) {
                        for (size_t c = 0; c < n; ++c) {
                            double want = 2.5;
                            for (size_t i = 0; i < k; ++i)
                                want += static_cast<double>(w[c * k + i]) * x[r * k + i];
                            const double limit =
                                bound(type, &w[c * k], &x[r * k], k) + std::abs(want) * 1e-6 + 1e-6;
                            ASSERT_NEAR(out[r * n + c], want, limit)
                                << isa << " k " << k << " row " << r << " " << c;
                        }
                    }
                    for (size_t i = m * n; i < out.size(); ++i)
                        ASSERT_EQ(out[i], 2.0f) << "wrote past the end";
                }
            }
        }
    }
}

TEST_P(GemmOfType, GivesARowTheSameBitsInAnyCompany) {
    const DType type = GetParam();
    ThreadPool pool(1);
    Rng rng(4);
    TensorStore store;
    const size_t k = 512, n = 7 * 16 + 3, m = 67;
    const auto packed = pack_alone(store.random(rng, type, n, k, 0.7f), pool);
    ASSERT_TRUE(packed);
    const auto x = random_rows(rng, m, k);
    for (const auto& isa : available_isas()) {
        const Kernels& kernels = **choose_kernels(isa);
        const Prepared all(kernels, x, m, k);
        std::vector<float> together(m * n);
        kernels.gemm(packed->view(), 0, packed->groups, all.view(), 0, m,
                     {together.data(), n, nullptr, false});
        for (size_t r = 0; r < m; ++r) {
            const Prepared one(kernels,
                               {x.begin() + static_cast<ptrdiff_t>(r * k),
                                x.begin() + static_cast<ptrdiff_t>((r + 1) * k)},
                               1, k);
            std::vector<float> alone(n);
            // In pieces of one group and of three.
            kernels.gemm(packed->view(), 0, 1, one.view(), 0, 1, {alone.data(), n, nullptr, false});
            for (size_t g = 1; g < packed->groups; g += 3)
                kernels.gemm(packed->view(), g, std::min(packed->groups, g + 3), one.view(), 0, 1,
                             {alone.data(), n, nullptr, false});
            ASSERT_EQ(std::memcmp(alone.data(), &together[r * n], n * sizeof(float)), 0)
                << isa << " row " << r;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Types, GemmOfType, testing::ValuesIn(kAllTypes),
                         [](const auto& type) { return std::string(to_string(type.param)); });

TEST(Gemm, TilesOfAmxGiveTheBitsOfVnni) {
    const auto amx = choose_kernels("amx");
    if (!amx) GTEST_SKIP() << "no AMX here";
    ThreadPool pool(1);
    Rng rng(4);
    TensorStore store;
    for (const DType type : kAllTypes) {
        if (!is_quantized(type)) continue;
        const auto packed = pack_alone(store.random(rng, type, 64, 2560, 0.7f), pool);
        const auto x = random_rows(rng, 40, 2560);
        std::vector<float> out[2];
        for (const auto* kernels : {*amx, *choose_kernels("avx512bf16")}) {
            auto& o = out[kernels == *amx ? 0 : 1];
            o.resize(40 * 64);
            const Prepared a(*kernels, x, 40, 2560);
            kernels->gemm(packed->view(), 0, 4, a.view(), 0, 40, {o.data(), 64, nullptr, false});
        }
        EXPECT_EQ(std::memcmp(out[0].data(), out[1].data(), out[0].size() * 4), 0)
            << to_string(type);
    }
}

TEST(Pack, RefusesWhatItCannotHold) {
    ThreadPool pool(1);
    Rng rng(1);
    TensorStore store;
    auto t = store.random(rng, DType::kQ4_0, 2, 64, 1.0f);
    t.shape[1] = 48;
    EXPECT_EQ(pack_alone(t, pool).error().code, ErrorCode::kUnsupported);
    t.shape = {2, 96};
    EXPECT_EQ(pack_alone(t, pool).error().code, ErrorCode::kCorrupt);
    t.shape = {0, 64};
    EXPECT_FALSE(pack_alone(t, pool));
    auto huge = store.random(rng, DType::kQ4_K, 1, 256, 1.0f);
    auto bytes = std::vector<std::byte>(huge.bytes.begin(), huge.bytes.end());
    bytes[1] = std::byte{0x7b};  // d = 60,000 and more, times a scale of 63
    for (size_t i = 4; i < 16; ++i) bytes[i] = std::byte{0xff};
    huge.bytes = bytes;
    EXPECT_EQ(pack_alone(huge, pool).error().code, ErrorCode::kUnsupported);
}

class RowKernels : public testing::TestWithParam<std::string> {
  protected:
    const Kernels& kernels_ = **choose_kernels(GetParam());
    Rng rng_{9};
};

TEST_P(RowKernels, QuantizeRoundsToTheNearestStep) {
    std::vector<float> x = random_rows(rng_, 1, 320);
    x[40] = -1e-42f;
    const Prepared a(kernels_, x, 1, 320);
    for (size_t b = 0; b < 10; ++b) {
        const int8_t* q = a.q.data() + b * kPanelBlockBytes;
        const float* meta = a.meta.data() + b * kPanelBlockMeta;
        int sum[2] = {};
        float top = 0;
        for (size_t i = 0; i < 32; ++i) {
            sum[i / 16] += q[i];
            top = std::max(top, std::abs(x[32 * b + i]));
            EXPECT_LE(std::abs(q[i]), 127);
            EXPECT_NEAR(static_cast<float>(q[i]) * meta[0], x[32 * b + i],
                        meta[0] * 0.5001f + 1e-36f);
        }
        EXPECT_NEAR(meta[0], top / 127, top * 1e-8f + 1e-36f);
        EXPECT_FLOAT_EQ(meta[1], meta[0] * static_cast<float>(sum[0] + sum[1]));
        EXPECT_FLOAT_EQ(meta[2], meta[0] * static_cast<float>(sum[0]));
        EXPECT_FLOAT_EQ(meta[3], meta[0] * static_cast<float>(sum[1]));
    }
}

TEST_P(RowKernels, Bf16RowRoundsToNearestEven) {
    std::vector<float> x = random_rows(rng_, 1, 77);
    x[3] = std::numeric_limits<float>::infinity();
    x[4] = std::nanf("");
    x[5] = 1.00390625f;
    x[6] = 3.4e38f;
    std::vector<uint16_t> out(78, 0xabcd);
    kernels_.bf16_row(x.data(), 77, out.data());
    for (size_t i = 0; i < 77; ++i) EXPECT_EQ(out[i], tensor::f32_to_bf16(x[i])) << i;
    EXPECT_EQ(out[77], 0xabcd);
}

TEST_P(RowKernels, RmsNormRopeAndSwiGluFollowFloat64) {
    for (const size_t n : {size_t{1}, size_t{15}, size_t{16}, size_t{64}, size_t{577}}) {
        std::vector<float> x(n), w(n), out(n + 1, 7.0f);
        for (size_t i = 0; i < n; ++i) x[i] = rng_.symmetric() * 12, w[i] = rng_.symmetric();
        kernels_.rms_norm(x.data(), w.data(), out.data(), n, 1e-5f);
        double sum = 0;
        for (const float v : x) sum += static_cast<double>(v) * v;
        const double r = 1 / std::sqrt(sum / static_cast<double>(n) + 1e-5);
        for (size_t i = 0; i < n; ++i)
            EXPECT_NEAR(out[i], x[i] * r * w[i], 2e-6 * std::abs(x[i] * r) + 1e-12);
        kernels_.swiglu(x.data(), w.data(), out.data(), n);
        for (size_t i = 0; i < n; ++i) {
            const double want = x[i] / (1 + std::exp(-static_cast<double>(x[i]))) * w[i];
            EXPECT_NEAR(out[i], want, 1e-6 * std::abs(want) + 1e-12);
        }
        EXPECT_EQ(out[n], 7.0f);
    }
    float extreme[4] = {-200, 200, -1e30f, 1e30f}, ones[4] = {1, 1, 1, 1}, got[4];
    kernels_.swiglu(extreme, ones, got, 4);
    EXPECT_NEAR(got[0], 0, 1e-30);
    EXPECT_FLOAT_EQ(got[1], 200);
    EXPECT_FLOAT_EQ(got[3], 1e30f);
    for (const size_t half : {size_t{1}, size_t{9}, size_t{32}, size_t{64}}) {
        std::vector<float> x(2 * half), c(half), s(half);
        for (auto& v : x) v = rng_.symmetric();
        for (size_t i = 0; i < half; ++i) c[i] = rng_.symmetric(), s[i] = rng_.symmetric();
        auto y = x;
        kernels_.rope(y.data(), c.data(), s.data(), half);
        for (size_t i = 0; i < half; ++i) {
            EXPECT_NEAR(y[i],
                        static_cast<double>(x[i]) * c[i] - static_cast<double>(x[half + i]) * s[i],
                        1e-6);
            EXPECT_NEAR(y[half + i],
                        static_cast<double>(x[half + i]) * c[i] + static_cast<double>(x[i]) * s[i],
                        1e-6);
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Isas, RowKernels, testing::ValuesIn(available_isas()),
                         [](const auto& isa) { return isa.param; });

}  // namespace
}  // namespace baton::backend::test
