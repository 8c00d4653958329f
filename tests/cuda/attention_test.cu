#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "attention_cases.hpp"
#include "backend/cuda/attention.hpp"
#include "backend/cuda/attention_prefill.hpp"
#include "backend/cuda/attention_qkv.hpp"
#include "cuda/lanes_order.hpp"

namespace baton::test {
namespace {

namespace cuda = backend::cuda;

class CudaTest : public ::testing::Test {
  protected:
    void SetUp() override {
        int n = 0;
        const cudaError_t error = cudaGetDeviceCount(&n);
        if (error != cudaSuccess || n == 0)
            GTEST_SKIP() << "no GPU: " << cudaGetErrorString(error);
        BATON_CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    }
    int multiprocessors = 0;
};
class RopeAppendTest : public CudaTest {};
class DecodeAttentionTest : public CudaTest {
  protected:
    void SetUp() override {
        CudaTest::SetUp();
        if (!IsSkipped())
            memory = std::make_unique<DeviceArray<unsigned char>>(cuda::decode_workspace_bytes(128, 16, 128, 8192));
        if (memory)
            memory->fill(0);
    }
    /// With grid 0 the one that decode_splits chooses.
    void check_fused(const Shape& s, const std::vector<uint32_t>& lengths, bool normed, uint32_t grid, uint32_t seed);
    std::unique_ptr<DeviceArray<unsigned char>> memory;
    [[nodiscard]] uint32_t chosen_grid(const Contexts& c) const {
        uint32_t longest = 0;
        for (size_t i = 0; i < c.count(); ++i)
            longest = std::max(longest, c.length(i));
        return cuda::decode_splits(static_cast<uint32_t>(c.count()), c.shape.kv_heads, longest, static_cast<uint32_t>(multiprocessors));
    }
};
/// Over the kernel for sm_80 and later, and the one for sm_90a.
class PrefillAttentionTest : public CudaTest, public ::testing::WithParamInterface<bool> {
  protected:
    void SetUp() override {
        CudaTest::SetUp();
        if (IsSkipped())
            return;
        if (GetParam() && !cuda::runs_prefill_90())
            GTEST_SKIP() << "no sm_90a device";
        attention = GetParam() ? cuda::prefill_attention_90 : cuda::prefill_attention_portable;
    }
    cudaError_t (*attention)(const cuda::Launch&, const cuda::PrefillAttention&) = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Kernels, PrefillAttentionTest, ::testing::Bool(),
                         [](const auto& p) { return p.param ? "sm90a" : "portable"; });

std::string text(const Shape& s) {
    return std::string(s.elem == Elem::kBF16 ? "bf16" : "f16") + " heads " + std::to_string(s.heads) + "/" +
           std::to_string(s.kv_heads) + " d" + std::to_string(s.head_dim) + " block " + std::to_string(s.block_tokens) +
           (s.kv_first ? " kv-first" : " block-first");
}

/// Shapes that cover types, groups, head sizes, block sizes and pool orders.
std::vector<Shape> shapes() {
    std::vector<Shape> all;
    const std::pair<uint32_t, uint32_t> heads[] = {{2, 2}, {16, 8}, {9, 3}, {8, 2}, {14, 2}, {8, 1}, {6, 1}, {5, 1}};
    int i = 0;
    for (const auto& [q, kv] : heads)
        for (const uint32_t d : {64u, 128u}) {
            Shape s;
            s.heads = q;
            s.kv_heads = kv;
            s.head_dim = d;
            s.block_tokens = 16u << (i % 3);
            s.elem = i % 4 == 3 ? Elem::kF16 : Elem::kBF16;
            s.kv_first = i % 5 == 1;
            ++i;
            if (!reduced() || i == 4 || i == 5 || i == 9 || i == 14)
                all.push_back(s);
        }
    return all;
}

/// What attention over contexts reads and writes; `lengths` counts the sequences of a call.
cuda::AttentionArgs attention_over(const Contexts& c, uint16_t* pool, const DeviceArray<int32_t>& lengths, const DeviceArray<int32_t>& table,
                                   const DeviceArray<uint16_t>& out) {
    cuda::AttentionArgs a;
    a.elem = c.shape.elem;
    a.kv = c.view(pool);
    a.heads = c.shape.heads;
    a.scale = c.shape.scale();
    a.sequences = static_cast<uint32_t>(lengths.size());
    a.kv_len = lengths.data();
    a.blocks = table.data();
    a.blocks_stride = c.stride;
    a.out = out.data();
    return a;
}

constexpr uint16_t kUnwritten = 0xffff;  // as DeviceArray fills new memory
/// One prefill call: `rows[i]` last positions of `contexts` i, up to `lengths[i]`.
struct PrefillCall {
    std::vector<uint16_t> out;
    cudaError_t error = cudaSuccess;
};
PrefillCall prefill(cudaError_t (*attention)(const cuda::Launch&, const cuda::PrefillAttention&), const Contexts& c, const uint16_t* pool, const std::vector<int32_t>& lengths, const std::vector<uint32_t>& rows,
                    const std::vector<uint16_t>& q, bool last_only = false) {
    std::vector<int32_t> begin{0};
    uint32_t most = 0;
    for (const uint32_t n : rows) {
        begin.push_back(begin.back() + static_cast<int32_t>(n));
        most = std::max(most, n);
    }
    const DeviceArray<uint16_t> dq(q);
    const DeviceArray<uint16_t> out(q.size());
    const DeviceArray<int32_t> len(lengths);
    const DeviceArray<int32_t> table(c.table);
    const DeviceArray<int32_t> dbegin(begin);
    cuda::PrefillAttention a;
    a.base = attention_over(c, const_cast<uint16_t*>(pool), len, table, out);
    a.q = dq.data();
    a.row_begin = dbegin.data();
    a.rows = last_only ? static_cast<uint32_t>(std::ranges::count_if(rows, [](uint32_t n) { return n > 0; })) : static_cast<uint32_t>(begin.back());
    a.rows_max = last_only ? 1 : most;
    a.last_only = last_only;
    PrefillCall r;
    r.error = attention({nullptr, true}, a);
    BATON_CUDA(cudaDeviceSynchronize());
    r.out = out.get();
    return r;
}

/// What rope_append makes of one head, in float64.
std::vector<double> norm_and_turn(Elem e, const uint16_t* x, uint32_t d, const float* norm, double eps, const float2* turn) {
    std::vector<double> y(d);
    double sum = 0;
    for (uint32_t i = 0; i < d; ++i) {
        y[i] = to_float(e, x[i]);
        sum += y[i] * y[i];
    }
    if (norm != nullptr)
        for (uint32_t i = 0; i < d; ++i)
            y[i] *= norm[i] / std::sqrt(sum / d + eps);
    for (uint32_t i = 0; i < d / 2; ++i) {
        const double a = y[i];
        const double b = y[i + d / 2];
        y[i] = a * turn[i].x - b * turn[i].y;
        y[i + d / 2] = b * turn[i].x + a * turn[i].y;
    }
    return y;
}

/// Inputs of the norm, rotation and append of one row a sequence.
struct NewRows {
    NewRows(const Shape& s, const std::vector<uint32_t>& at, uint32_t longest, bool with_norm, std::mt19937& rng)
        : width((s.heads + 2 * s.kv_heads) * s.head_dim), normed(with_norm), positions(at.begin(), at.end()) {
        qkv = random_bits(s.elem, at.size() * width, 2.0f, rng);
        std::uniform_real_distribution<float> w(0.5f, 1.5f);
        for (auto* v : {&q_norm, &k_norm})
            for (uint32_t i = 0; i < s.head_dim; ++i)
                v->push_back(w(rng) * (normed && v == &q_norm ? 2.0f : 1.0f));
        for (uint32_t p = 0; p <= longest; ++p)
            for (uint32_t i = 0; i < s.head_dim / 2; ++i) {
                const double angle = p * std::pow(10000.0, -2.0 * i / s.head_dim);
                turns.push_back(make_float2(static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))));
            }
    }
    uint32_t width;
    bool normed;
    std::vector<int32_t> positions;
    std::vector<uint16_t> qkv;
    std::vector<float> q_norm;
    std::vector<float> k_norm;
    std::vector<float2> turns;
};

/// Device copies of NewRows.
struct NewRowsOnDevice {
    NewRowsOnDevice(const NewRows& r, const std::vector<int32_t>& where)
        : qkv(r.qkv), q_norm(r.q_norm), k_norm(r.k_norm), turns(r.turns), positions(r.positions), slots(where), normed(r.normed) {}
    [[nodiscard]] cuda::RopeAppend args(const Contexts& c, uint16_t* pool, uint16_t* q) const {
        cuda::RopeAppend a;
        a.elem = c.shape.elem;
        a.qkv = qkv.data();
        a.q = q;
        a.kv = c.view(pool);
        a.rows = static_cast<uint32_t>(slots.size());
        a.heads = c.shape.heads;
        a.q_norm = normed ? q_norm.data() : nullptr;
        a.k_norm = normed ? k_norm.data() : nullptr;
        a.eps = 1e-6f;
        a.rope = turns.data();
        a.positions = positions.data();
        a.slots = slots.data();
        return a;
    }
    DeviceArray<uint16_t> qkv;
    DeviceArray<float> q_norm;
    DeviceArray<float> k_norm;
    DeviceArray<float2> turns;
    DeviceArray<int32_t> positions;
    DeviceArray<int32_t> slots;
    bool normed;
};

/// Half a unit in the last place of v, with room for float32 arithmetic in front of the rounding.
double rounding(Elem e, double v) { return std::fabs(v) * (e == Elem::kBF16 ? 1.0 / 256 : 1.0 / 2048) * 1.02 + 1e-6; }

/// Checks the appended k and v of row i against float64 and takes them over into the host's values; every other byte of the
/// pool must be as before.
void check_appended(Contexts& c, const std::vector<uint16_t>& pool, const NewRows& r, const std::vector<int32_t>& slots) {
    const Shape& s = c.shape;
    std::vector<uint16_t> want = c.pool;
    for (size_t i = 0; i < slots.size(); ++i) {
        if (slots[i] < 0)
            continue;
        const auto t = static_cast<uint32_t>(r.positions[i]);
        for (uint32_t h = 0; h < s.kv_heads; ++h) {
            const uint16_t* k = &r.qkv[i * r.width + (s.heads + h) * s.head_dim];
            const uint16_t* v = k + s.kv_heads * s.head_dim;
            const auto turned = norm_and_turn(s.elem, k, s.head_dim, r.normed ? r.k_norm.data() : nullptr, 1e-6,
                                              &r.turns[t * s.head_dim / 2]);
            for (uint32_t d = 0; d < s.head_dim; ++d) {
                const size_t at = c.offset(i, t, h, false) + d;
                ASSERT_NEAR(to_float(s.elem, pool[at]), turned[d], rounding(s.elem, turned[d])) << "row " << i << " head " << h;
                want[at] = pool[at];
                c.k[i][c.row(t, h) + d] = pool[at];
                want[c.offset(i, t, h, true) + d] = v[d];
                c.v[i][c.row(t, h) + d] = v[d];
            }
        }
    }
    size_t wrong = 0;
    for (size_t i = 0; i < want.size(); ++i)
        wrong += want[i] != pool[i];
    ASSERT_EQ(wrong, 0u) << "elements of the pool that should not have changed, or should have";
    c.pool = std::move(want);
}

TEST_F(RopeAppendTest, MatchesFloat64AndWritesNothingElse) {
    uint32_t seed = 100;
    for (const Shape& s : shapes())
        for (const bool normed : {false, true}) {
            SCOPED_TRACE(text(s) + " seed " + std::to_string(++seed));
            std::mt19937 rng(seed);
            const std::vector<uint32_t> lengths{1, 17, 64, 33, 100, 5, 65};
            Contexts c(s, lengths, rng);
            std::vector<uint32_t> at;
            std::vector<int32_t> slots;
            for (size_t i = 0; i < lengths.size(); ++i) {
                at.push_back(lengths[i] - 1);
                c.poison_row(i, lengths[i] - 1);
                slots.push_back(i == 3 ? -1 : c.slot(i, lengths[i] - 1));
            }
            const NewRows r(s, at, 100, normed, rng);
            const NewRowsOnDevice d(r, slots);
            const DeviceArray<uint16_t> pool(c.pool);
            const DeviceArray<uint16_t> q(lengths.size() * s.heads * s.head_dim);
            ASSERT_EQ(cuda::rope_append({nullptr, true}, d.args(c, pool.data(), q.data())), cudaSuccess);
            BATON_CUDA(cudaDeviceSynchronize());
            check_appended(c, pool.get(), r, slots);
            const auto got = q.get();
            for (size_t i = 0; i < lengths.size(); ++i)
                for (uint32_t h = 0; h < s.heads; ++h) {
                    const auto want = norm_and_turn(s.elem, &r.qkv[i * r.width + h * s.head_dim], s.head_dim,
                                                    normed ? r.q_norm.data() : nullptr, 1e-6, &r.turns[at[i] * s.head_dim / 2]);
                    for (uint32_t x = 0; x < s.head_dim; ++x) {
                        const uint16_t bits = got[(i * s.heads + h) * s.head_dim + x];
                        if (slots[i] < 0)
                            ASSERT_EQ(bits, 0xffff) << "padding row was written";
                        else
                            ASSERT_NEAR(to_float(s.elem, bits), want[x], rounding(s.elem, want[x])) << i << " " << h;
                    }
                }
        }
}

TEST_F(RopeAppendTest, RefusesShapesWithoutKernel) {
    cuda::RopeAppend a;
    a.rows = 1;
    a.heads = 2;
    a.kv.kv_heads = 1;
    a.kv.head_dim = 96;
    a.kv.block_tokens = 16;
    EXPECT_EQ(cuda::rope_append({}, a), cudaErrorInvalidValue);
    a.kv.head_dim = 64;
    a.kv.block_tokens = 24;
    EXPECT_EQ(cuda::rope_append({}, a), cudaErrorInvalidValue);
    a.kv.block_tokens = 16;
    a.rows = 0;
    EXPECT_EQ(cuda::rope_append({}, a), cudaSuccess);
}

TEST_P(PrefillAttentionTest, MatchesFloat64) {
    uint32_t seed = 200;
    for (const Shape& s : shapes()) {
        SCOPED_TRACE(text(s) + " seed " + std::to_string(++seed));
        std::mt19937 rng(seed);
        const uint32_t bt = s.block_tokens;
        // Whole prompts with tails around a block, chunks behind a context, single rows, padding.
        const std::vector<uint32_t> lengths{1, bt - 1, bt, bt + 1, 200, 0, 333, 129, 700, 64, 65};
        const std::vector<uint32_t> rows{1, bt - 1, bt, bt + 1, 200, 1, 70, 1, 300, 64, 1};
        const Contexts c(s, lengths, rng);
        const DeviceArray<uint16_t> pool(c.pool);
        const size_t total = std::accumulate(rows.begin(), rows.end(), size_t{0});
        const auto q = random_bits(s.elem, total * s.heads * s.head_dim, 4.0f, rng);
        const PrefillCall r = prefill(attention, c, pool.data(), std::vector<int32_t>(lengths.begin(), lengths.end()), rows, q);
        ASSERT_EQ(r.error, cudaSuccess);
        Deviation all;
        size_t first = 0;
        for (size_t i = 0; i < rows.size(); first += rows[i], ++i) {
            Deviation mine;
            for (uint32_t j = 0; j < rows[i]; j += (rows[i] > 80 ? 7 : 1))
                for (uint32_t h = 0; h < s.heads; ++h) {
                    const size_t at = ((first + j) * s.heads + h) * s.head_dim;
                    if (lengths[i] == 0) {
                        for (uint32_t d = 0; d < s.head_dim; ++d)
                            ASSERT_EQ(r.out[at + d], 0);
                        continue;
                    }
                    const auto want = c.attend(i, h, &q[at], lengths[i] - rows[i] + j + 1);
                    for (uint32_t d = 0; d < s.head_dim; ++d) {
                        mine.add(to_float(s.elem, r.out[at + d]), want[d]);
                        all.add(to_float(s.elem, r.out[at + d]), want[d]);
                    }
                }
            EXPECT_TRUE(mine.within(s.elem)) << "sequence " << i << " length " << lengths[i] << ": error " << mine.relative()
                                             << ", worst " << mine.worst << " of " << mine.largest << " finite " << mine.finite;
        }
        for (const uint16_t bits : r.out)
            ASSERT_NE(bits, 0xffff) << "a row was not written";
    }
}

TEST_P(PrefillAttentionTest, ManySequencesFindTheirRows) {
    Shape s;
    s.heads = 6;
    s.kv_heads = 2;
    s.head_dim = 64;
    std::mt19937 rng(9);
    std::vector<uint32_t> lengths;
    std::vector<uint32_t> rows;
    for (uint32_t i = 0; i < 150; ++i) {
        rows.push_back(i % 7 == 3 ? 90 : 1 + i % 5);
        lengths.push_back(i % 11 == 5 ? 0 : rows.back() + i % 60);
    }
    const Contexts c(s, lengths, rng);
    const DeviceArray<uint16_t> pool(c.pool);
    const size_t total = std::accumulate(rows.begin(), rows.end(), size_t{0});
    const auto q = random_bits(s.elem, total * s.heads * s.head_dim, 4.0f, rng);
    const PrefillCall r = prefill(attention, c, pool.data(), std::vector<int32_t>(lengths.begin(), lengths.end()), rows, q);
    ASSERT_EQ(r.error, cudaSuccess);
    size_t at = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
        Deviation mine;
        for (uint32_t j = 0; j < rows[i]; ++j)
            for (uint32_t h = 0; h < s.heads; ++h, at += s.head_dim) {
                const auto want = lengths[i] == 0 ? std::vector<double>(s.head_dim, 0.0)
                                                  : c.attend(i, h, &q[at], lengths[i] - rows[i] + j + 1);
                for (uint32_t d = 0; d < s.head_dim; ++d)
                    mine.add(to_float(s.elem, r.out[at + d]), want[d]);
            }
        ASSERT_TRUE(mine.within(s.elem)) << "sequence " << i << ": error " << mine.relative();
    }
}

TEST_P(PrefillAttentionTest, LongContextMatchesFloat64) {
    if (reduced())
        GTEST_SKIP() << "takes too long under a sanitizer";
    for (const uint32_t d : {64u, 128u}) {
        Shape s;
        s.heads = 8;
        s.kv_heads = 2;
        s.head_dim = d;
        s.block_tokens = 64;
        std::mt19937 rng(d);
        const Contexts c(s, {4099}, rng);
        const DeviceArray<uint16_t> pool(c.pool);
        const auto q = random_bits(s.elem, static_cast<size_t>(4099) * s.heads * d, 4.0f, rng);
        const PrefillCall r = prefill(attention, c, pool.data(), {4099}, {4099}, q);
        ASSERT_EQ(r.error, cudaSuccess);
        Deviation all;
        for (uint32_t row = 0; row < 4099; row += row < 300 || row > 4000 ? 13 : 301)
            for (uint32_t h = 0; h < s.heads; ++h) {
                const size_t at = (static_cast<size_t>(row) * s.heads + h) * d;
                const auto want = c.attend(0, h, &q[at], row + 1);
                for (uint32_t x = 0; x < d; ++x)
                    all.add(to_float(s.elem, r.out[at + x]), want[x]);
            }
        EXPECT_TRUE(all.within(s.elem)) << all.relative() << " " << all.worst;
        std::printf("[ figures  ] prefill d%u 4099: relative error %.2e\n", d, all.relative());
    }
}

/// Every row of a context computed in one go, in chunks, alone, and among other sequences: the same bits.
TEST_P(PrefillAttentionTest, BitsDoNotDependOnChunkingOrBatch) {
    uint32_t seed = 300;
    for (const Shape& s : shapes()) {
        SCOPED_TRACE(text(s) + " seed " + std::to_string(++seed));
        std::mt19937 rng(seed);
        constexpr uint32_t kLength = 421;
        const Contexts c(s, {kLength, 150, 90}, rng);
        const DeviceArray<uint16_t> pool(c.pool);
        const size_t row = static_cast<size_t>(s.heads) * s.head_dim;
        const auto q = random_bits(s.elem, kLength * row, 4.0f, rng);
        const auto other = random_bits(s.elem, 240 * row, 4.0f, rng);
        const auto whole = prefill(attention, c, pool.data(), {kLength}, {kLength}, q).out;
        for (const uint32_t chunk : {1u, 3u, 16u, 40u, 128u}) {
            if (reduced() && chunk != 40)
                continue;
            for (uint32_t begin = 0; begin < kLength; begin += (chunk == 1 ? 37 : chunk)) {
                const uint32_t n = std::min(chunk, kLength - begin);
                const std::vector<uint16_t> part(q.begin() + static_cast<long>(begin * row), q.begin() + static_cast<long>((begin + n) * row));
                const auto got = prefill(attention, c, pool.data(), {static_cast<int32_t>(begin + n)}, {n}, part).out;
                ASSERT_TRUE(std::equal(got.begin(), got.end(), whole.begin() + static_cast<long>(begin * row)))
                    << "chunk of " << n << " rows at " << begin;
            }
        }
        std::vector<uint16_t> mixed(q.begin() + static_cast<long>(300 * row), q.end());
        mixed.insert(mixed.end(), other.begin(), other.end());
        const auto got = prefill(attention, c, pool.data(), {kLength, 150, 90}, {kLength - 300, 150, 90}, mixed).out;
        ASSERT_TRUE(std::equal(got.begin(), got.begin() + static_cast<long>((kLength - 300) * row), whole.begin() + static_cast<long>(300 * row)));
    }
}

/// Asked for last rows alone it computes those, the same bits, and touches no other.
TEST_P(PrefillAttentionTest, LastRowsAloneAreTheSameBits) {
    uint32_t seed = 350;
    for (const Shape& s : shapes()) {
        SCOPED_TRACE(text(s) + " seed " + std::to_string(++seed));
        std::mt19937 rng(seed);
        const std::vector<uint32_t> rows = {297, 1, 0, 128, 129};
        const std::vector<int32_t> lengths = {421, 150, 90, 128, 700};
        const Contexts c(s, {421, 150, 90, 128, 700}, rng);
        const DeviceArray<uint16_t> pool(c.pool);
        const size_t row = static_cast<size_t>(s.heads) * s.head_dim;
        const auto q = random_bits(s.elem, std::accumulate(rows.begin(), rows.end(), size_t{0}) * row, 4.0f, rng);
        const auto whole = prefill(attention, c, pool.data(), lengths, rows, q);
        const auto last = prefill(attention, c, pool.data(), lengths, rows, q, true);
        ASSERT_EQ(whole.error, cudaSuccess);
        ASSERT_EQ(last.error, cudaSuccess);
        size_t end = 0;
        std::vector<bool> wanted(q.size() / row);
        for (const uint32_t n : rows)
            if (n > 0) wanted[(end += n) - 1] = true;
        for (size_t i = 0; i < wanted.size(); ++i)
            for (size_t j = i * row; j < (i + 1) * row; ++j)
                ASSERT_EQ(last.out[j], wanted[i] ? whole.out[j] : kUnwritten) << "row " << i;
    }
}

/// The kernel of qkv and attention takes for granted what its constants say. Needs no GPU.
TEST(QkvAttention, TakesOnlyTheShapesItIsMadeFor) {
    const cuda::AtOnceLimits limits{232448, 132};
    const float norm = 1;
    const auto part = [&] {
        cuda::QkvAttention p;
        p.qkv.n = 4096;
        p.qkv.k = 1024;
        p.qkv.norm = &norm;
        p.rope.q_norm = p.rope.k_norm = &norm;
        p.attention.heads = 16;
        p.attention.sequences = 16;
        p.attention.kv.kv_heads = 8;
        p.attention.kv.head_dim = 128;
        p.attention.kv.block_tokens = 16;
        return p;
    };
    EXPECT_TRUE(cuda::qkv_attention_takes(part(), limits));
    EXPECT_FALSE(cuda::qkv_attention_takes(part(), {0, 132})) << "no sm_90 code";
    EXPECT_FALSE(cuda::qkv_attention_takes(part(), {160 << 10, 132})) << "too little shared memory";
    EXPECT_FALSE(cuda::qkv_attention_takes(part(), {232448, 127})) << "blocks that wait for one that finds no room";
    const auto refused = [&](auto change) {
        cuda::QkvAttention p = part();
        change(p);
        return !cuda::qkv_attention_takes(p, limits);
    };
    EXPECT_TRUE(refused([](auto& p) { p.qkv.n = 3072; }));
    EXPECT_TRUE(refused([](auto& p) { p.qkv.k = 2048; }));
    EXPECT_TRUE(refused([](auto& p) { p.qkv.norm = nullptr; }));
    EXPECT_TRUE(refused([&](auto& p) { p.qkv.bias = &norm; }));
    EXPECT_TRUE(refused([](auto& p) { p.rope.k_norm = nullptr; }));
    EXPECT_TRUE(refused([](auto& p) { p.attention.heads = 32; }));
    EXPECT_TRUE(refused([](auto& p) { p.attention.sequences = 15; }));
    for (const uint32_t splits : {0u, 3u, 32u})
        EXPECT_TRUE(refused([&](auto& p) { p.splits = splits; })) << splits;
    EXPECT_TRUE(refused([](auto& p) { p.attention.kv.kv_heads = 4; }));
    EXPECT_TRUE(refused([](auto& p) { p.attention.kv.head_dim = 64; }));
    EXPECT_TRUE(refused([](auto& p) { p.attention.kv.block_tokens = 8; }));
}

/// One decode call over the whole contexts.
struct DecodeCall {
    std::vector<uint16_t> out;
    cudaError_t error = cudaSuccess;
};
class Decoder {
  public:
    /// `memory`: all calls of a test share one workspace, which is zero at first and never cleared again.
    Decoder(const Contexts& contexts, uint32_t splits_wanted, const DeviceArray<unsigned char>& memory)
        : c(contexts), splits(splits_wanted), table(contexts.table), lengths(lengths_of(contexts)), workspace(memory),
          out(contexts.count() * contexts.shape.heads * contexts.shape.head_dim) {
        if (memory.size() < cuda::decode_workspace_bytes(static_cast<uint32_t>(contexts.count()), contexts.shape.heads,
                                                         contexts.shape.head_dim, splits_wanted))
            std::abort();
    }
    cuda::DecodeAttention args(uint16_t* pool, const uint16_t* q, const cuda::RopeAppend* fused, bool early) const {
        cuda::DecodeAttention a;
        a.base = attention_over(c, pool, lengths, table, out);
        a.q = q;
        a.fused = fused;
        a.early = early;
        a.workspace = workspace.data();
        a.splits = splits;
        return a;
    }
    DecodeCall run(uint16_t* pool, const uint16_t* q, const cuda::RopeAppend* fused, bool early, bool planned = false) {
        out.fill(0xff);
        DecodeCall r;
        cuda::DecodeAttention a = args(pool, q, fused, early);
        a.planned = planned;
        if (planned)
            r.error = cuda::decode_plan({nullptr, true}, a);
        if (r.error == cudaSuccess)
            r.error = cuda::decode_attention({nullptr, !planned}, a);
        BATON_CUDA(cudaDeviceSynchronize());
        r.out = out.get();
        return r;
    }
    static std::vector<int32_t> lengths_of(const Contexts& x) {
        std::vector<int32_t> v;
        for (size_t i = 0; i < x.count(); ++i)
            v.push_back(static_cast<int32_t>(x.length(i)));
        return v;
    }
    const Contexts& c;
    uint32_t splits;
    DeviceArray<int32_t> table;
    DeviceArray<int32_t> lengths;
    const DeviceArray<unsigned char>& workspace;
    DeviceArray<uint16_t> out;
};

/// Attention of one query row a sequence in float64; zero for a sequence without context.
std::vector<double> attend_all(const Contexts& c, const std::vector<uint16_t>& q) {
    const Shape& s = c.shape;
    std::vector<double> all(c.count() * s.heads * s.head_dim);
    for_each_index(c.count() * s.heads, [&](size_t row) {
        const size_t i = row / s.heads;
        if (c.length(i) == 0)
            return;
        const auto one = c.attend(i, static_cast<uint32_t>(row % s.heads), &q[row * s.head_dim], c.length(i));
        std::copy(one.begin(), one.end(), all.begin() + static_cast<long>(row * s.head_dim));
    });
    return all;
}

Deviation compare(Elem e, const std::vector<double>& want, const std::vector<uint16_t>& out) {
    Deviation all;
    for (size_t i = 0; i < want.size(); ++i)
        all.add(to_float(e, out[i]), want[i]);
    return all;
}

/// Batches with tails around blocks, slices and tiles, padding in front, between and behind.
std::vector<std::vector<uint32_t>> batches(uint32_t bt) {
    if (reduced())
        return {{bt + 1}, {700, 650}, {0, 5, 0, 64, 65, bt, 127, 128, 129, 0}};
    return {{1}, {bt - 1}, {bt + 1}, {129}, {1000}, {4099}, {700, 650}, {900, 1}, {0, 5, 0, 64, 65, bt, 127, 128, 129, 0}, {3000, 1, 1, 1, 17, 0},
            {0, 0}, std::vector<uint32_t>(70, 33)};
}

TEST_F(DecodeAttentionTest, MatchesFloat64ForAnyGrid) {
    uint32_t seed = 400;
    double worst = 0;
    for (const Shape& s : shapes())
        for (const auto& lengths : batches(s.block_tokens)) {
            std::mt19937 rng(++seed);
            const Contexts c(s, lengths, rng);
            const DeviceArray<uint16_t> pool(c.pool);
            const auto q = random_bits(s.elem, lengths.size() * s.heads * s.head_dim, 4.0f, rng);
            const DeviceArray<uint16_t> dq(q);
            const std::vector<double> want = attend_all(c, q);
            const auto contexts = static_cast<uint32_t>(lengths.size()) * s.kv_heads;
            for (const uint32_t grid : {static_cast<uint32_t>(multiprocessors), 1u, 5u, 61u, contexts, contexts * 2, contexts * 8}) {
                if (reduced() && (grid == 1 || grid == 61))
                    continue;
                SCOPED_TRACE(text(s) + " seed " + std::to_string(seed) + " sequences " + std::to_string(lengths.size()) + " first " +
                             std::to_string(lengths[0]) + " grid " + std::to_string(grid));
                Decoder decoder(c, grid, *memory);
                const DecodeCall first = decoder.run(pool.data(), dq.data(), nullptr, false);
                ASSERT_EQ(first.error, cudaSuccess);
                const Deviation all = compare(s.elem, want, first.out);
                ASSERT_TRUE(all.within(s.elem)) << all.relative() << ", worst " << all.worst << " of " << all.largest << " finite "
                                                << all.finite;
                if (s.elem == Elem::kBF16)
                    worst = std::max(worst, all.relative());
                // The workspace is left as it was found: again, and the same bits.
                const DecodeCall second = decoder.run(pool.data(), dq.data(), nullptr, false);
                ASSERT_EQ(first.out, second.out);
                const DecodeCall planned = decoder.run(pool.data(), dq.data(), nullptr, false, true);
                ASSERT_EQ(planned.error, cudaSuccess);
                ASSERT_EQ(first.out, planned.out);
            }
        }
    std::printf("[ figures  ] decode, bf16: largest relative error %.2e\n", worst);
}

TEST_F(DecodeAttentionTest, ManySequences) {
    Shape s;
    s.heads = 6;
    s.kv_heads = 3;
    s.head_dim = 64;
    for (const uint32_t count : {257u, 600u, 1024u}) {
        if (reduced() && count > 300)
            break;
        std::mt19937 rng(count);
        std::vector<uint32_t> lengths;
        for (uint32_t i = 0; i < count; ++i)
            lengths.push_back(i % 9 == 4 ? 0 : i % 50 == 7 ? 900 : 1 + i % 70);
        const Contexts c(s, lengths, rng);
        const DeviceArray<uint16_t> pool(c.pool);
        const auto q = random_bits(s.elem, lengths.size() * s.heads * s.head_dim, 4.0f, rng);
        const DeviceArray<uint16_t> dq(q);
        Decoder decoder(c, chosen_grid(c), *memory);
        const DecodeCall r = decoder.run(pool.data(), dq.data(), nullptr, false);
        ASSERT_EQ(r.error, cudaSuccess);
        const Deviation all = compare(s.elem, attend_all(c, q), r.out);
        EXPECT_TRUE(all.within(s.elem)) << count << ": " << all.relative() << ", worst " << all.worst;
    }
}

TEST_F(DecodeAttentionTest, RefusesShapesWithoutKernel) {
    EXPECT_TRUE(cuda::decode_fuses(14, 2, 64, 256));
    EXPECT_FALSE(cuda::decode_fuses(18, 2, 64, 1));
    EXPECT_FALSE(cuda::decode_fuses(8, 2, 96, 1));
    EXPECT_FALSE(cuda::decode_fuses(8, 2, 64, 1025));
    cuda::DecodeAttention a;
    a.base.heads = 18;
    a.base.sequences = 1;
    a.base.kv.kv_heads = 2;
    a.base.kv.head_dim = 64;
    a.base.kv.block_tokens = 16;
    EXPECT_EQ(cuda::decode_attention({}, a), cudaErrorInvalidValue);
    a.base.heads = 2;
    a.base.kv.block_tokens = 8;
    EXPECT_EQ(cuda::decode_attention({}, a), cudaErrorInvalidValue);
    a.base.kv.block_tokens = 16;
    a.base.sequences = 0;
    EXPECT_EQ(cuda::decode_attention({}, a), cudaSuccess);
}

/// The last position of each sequence, whose row is poisoned, and its place in the pool; -1 for one without context.
std::pair<std::vector<uint32_t>, std::vector<int32_t>> places_of_new(Contexts& c) {
    std::vector<uint32_t> at;
    std::vector<int32_t> places;
    for (size_t i = 0; i < c.count(); ++i) {
        const bool empty = c.length(i) == 0;
        at.push_back(empty ? 0 : c.length(i) - 1);
        places.push_back(empty ? -1 : c.slot(i, at[i]));
        if (!empty)
            c.poison_row(i, at[i]);
    }
    return {at, places};
}

/// Norm, rotation and append inside of the kernel: exactly the new rows are written, and the result is that of the queries which the
/// separate kernel makes, up to a rounding.
void DecodeAttentionTest::check_fused(const Shape& s, const std::vector<uint32_t>& lengths, bool normed, uint32_t grid, uint32_t seed) {
    SCOPED_TRACE(text(s) + " seed " + std::to_string(seed) + " sequences " + std::to_string(lengths.size()) + " first " +
                 std::to_string(lengths[0]) + " grid " + std::to_string(grid));
    std::mt19937 rng(seed);
    Contexts c(s, lengths, rng);
    const auto [at, slots] = places_of_new(c);
    const NewRows r(s, at, *std::max_element(lengths.begin(), lengths.end()) + 1, normed, rng);
    const NewRowsOnDevice d(r, slots);
    const DeviceArray<uint16_t> pool(c.pool);
    const DeviceArray<uint16_t> q(lengths.size() * s.heads * s.head_dim);
    const cuda::RopeAppend fused = d.args(c, pool.data(), nullptr);
    Decoder decoder(c, grid == 0 ? chosen_grid(c) : grid, *memory);
    const DecodeCall got = decoder.run(pool.data(), nullptr, &fused, seed % 2 == 0);
    ASSERT_EQ(got.error, cudaSuccess);
    check_appended(c, pool.get(), r, slots);
    if (HasFatalFailure())
        return;
    // With the shares worked out ahead: the same bits.
    const std::vector<uint16_t> appended = pool.get();
    const DeviceArray<uint16_t> again(c.pool);
    const cuda::RopeAppend fused_again = d.args(c, again.data(), nullptr);
    const DecodeCall planned = decoder.run(again.data(), nullptr, &fused_again, seed % 2 == 0, true);
    ASSERT_EQ(planned.error, cudaSuccess);
    ASSERT_EQ(planned.out, got.out);
    ASSERT_EQ(again.get(), appended);
    ASSERT_EQ(cuda::rope_append({nullptr, true}, d.args(c, pool.data(), q.data())), cudaSuccess);
    BATON_CUDA(cudaDeviceSynchronize());
    const Deviation all = compare(s.elem, attend_all(c, q.get()), got.out);
    ASSERT_TRUE(all.within(s.elem)) << all.relative() << ", worst " << all.worst << " of " << all.largest << " finite " << all.finite;
}

TEST_F(DecodeAttentionTest, FusedAppendsExactlyTheNewRowsAndMatchesFloat64) {
    uint32_t seed = 1500;
    for (const Shape& s : shapes())
        for (const auto& lengths : batches(s.block_tokens))
            for (const bool normed : {false, true}) {
                check_fused(s, lengths, normed, 0, ++seed);
                if (HasFatalFailure())
                    return;
            }
}

/// Rows of x and what the product of queries, keys and values takes of them, on the host.
struct RowsOfX {
    static constexpr uint32_t kHidden = 1024;
    RowsOfX(const Shape& s, uint32_t rows, std::mt19937& rng) : width((s.heads + 2 * s.kv_heads) * s.head_dim) {
        w = random_bits(s.elem, size_t{width} * kHidden, 1.7f / std::sqrt(static_cast<float>(kHidden)), rng);
        x = random_bits(s.elem, size_t{rows} * kHidden, 3.0f, rng);
        std::uniform_real_distribution<float> around(0.5f, 1.5f);
        for (uint32_t i = 0; i < kHidden; ++i)
            norm.push_back(around(rng));
    }
    /// norm(x) · wᵀ in float64, [rows, width].
    [[nodiscard]] std::vector<double> product(Elem e, double eps) const {
        const size_t rows = x.size() / kHidden;
        std::vector<double> in(x.size());
        for (size_t i = 0; i < rows; ++i) {
            double square = 0;
            for (uint32_t c = 0; c < kHidden; ++c) {
                const double v = to_float(e, x[i * kHidden + c]);
                square += v * v;
            }
            for (uint32_t c = 0; c < kHidden; ++c)
                in[i * kHidden + c] = to_float(e, x[i * kHidden + c]) * norm[c] / std::sqrt(square / kHidden + eps);
        }
        std::vector<double> y(rows * width);
        for_each_index(width, [&](size_t n) {
            double row[kHidden];
            for (uint32_t c = 0; c < kHidden; ++c)
                row[c] = to_float(e, w[n * kHidden + c]);
            for (size_t i = 0; i < rows; ++i)
                y[i * width + n] = std::inner_product(row, row + kHidden, in.begin() + static_cast<long>(i * kHidden), 0.0);
        });
        return y;
    }
    uint32_t width;
    std::vector<uint16_t> w;
    std::vector<uint16_t> x;
    std::vector<float> norm;
};

/// Product and attention as one kernel against float64: the rows that it appends, what it leaves alone, and the result. Twice, with the
/// same bits and its slots as before. Of fewer than 16 sequences their contexts are split.
class QkvAttentionTest : public CudaTest {
  protected:
    void check(const Shape& s, const std::vector<uint32_t>& lengths, bool normed, uint32_t seed) {
        SCOPED_TRACE(text(s) + " seed " + std::to_string(seed) + (normed ? " normed" : ""));
        constexpr float kEps = 1e-6f;
        cuda::AtOnceLimits limits;
        ASSERT_EQ(cuda::qkv_attention_prepare(s.elem, limits), cudaSuccess);
        if (limits.shared_bytes == 0)
            GTEST_SKIP() << "no sm_90 code or device here";
        std::mt19937 rng(seed);
        Contexts c(s, lengths, rng);
        const auto [at, places] = places_of_new(c);
        const NewRows r(s, at, *std::max_element(lengths.begin(), lengths.end()) + 1, normed, rng);
        const RowsOfX x(s, cuda::kQkvAttentionRows, rng);
        const NewRowsOnDevice d(r, places);
        const DeviceArray<uint16_t> pool(c.pool), w(x.w), dx(x.x), out(cuda::kQkvAttentionRows * s.heads * s.head_dim);
        const DeviceArray<float> norm(x.norm);
        const DeviceArray<unsigned char> slots(cuda::qkv_attention_slot_bytes());
        const DeviceArray<int32_t> table(c.table), length(Decoder::lengths_of(c));
        cuda::QkvAttention part;
        part.qkv.w = w.data();
        part.qkv.n = x.width;
        part.qkv.k = RowsOfX::kHidden;
        part.qkv.norm = norm.data();
        part.qkv.eps = kEps;
        part.x = {dx.data()};
        part.rope = d.args(c, pool.data(), nullptr);
        part.attention = attention_over(c, pool.data(), length, table, out);
        part.attention.sequences = cuda::kQkvAttentionRows;
        part.splits = cuda::kQkvAttentionRows / static_cast<uint32_t>(lengths.size());
        part.slots = slots.data();
        ASSERT_TRUE(cuda::qkv_attention_takes(part, limits));
        ASSERT_EQ(cuda::qkv_attention({nullptr, false}, part), cudaSuccess);
        BATON_CUDA(cudaDeviceSynchronize());
        const std::vector<uint16_t> written = pool.get(), all_rows = test::from_lanes_order(out.get(), s.heads * s.head_dim);
        const std::vector<uint16_t> got(all_rows.begin(), all_rows.begin() + static_cast<long>(lengths.size() * s.heads * s.head_dim));
        ASSERT_TRUE(std::all_of(all_rows.begin() + static_cast<long>(got.size()), all_rows.end(), [](uint16_t v) { return v == 0; })) << "rows of no sequence";
        const DeviceArray<uint16_t> laid(test::to_lanes_order(x.x, RowsOfX::kHidden));
        part.x = {laid.data(), true};
        ASSERT_EQ(cuda::qkv_attention({nullptr, false}, part), cudaSuccess);
        BATON_CUDA(cudaDeviceSynchronize());
        ASSERT_EQ(pool.get(), written);
        ASSERT_EQ(test::from_lanes_order(out.get(), s.heads * s.head_dim), all_rows) << "rows for lanes";
        const std::vector<unsigned char> left = slots.get();
        ASSERT_TRUE(std::ranges::all_of(left, [](unsigned char b) { return b == 0xff; })) << "a slot was not made absent again";

        std::vector<uint16_t> want = c.pool;
        std::vector<uint16_t> q(got.size());
        Deviation appended;
        const std::vector<double> y = x.product(s.elem, kEps);
        for (size_t i = 0; i < lengths.size(); ++i) {
            const auto row = [&](uint32_t head) {
                std::vector<uint16_t> bits;
                for (uint32_t e = 0; e < s.head_dim; ++e)
                    bits.push_back(to_bits(s.elem, static_cast<float>(y[i * x.width + head * s.head_dim + e])));
                return bits;
            };
            const float2* turn = &r.turns[at[i] * s.head_dim / 2];
            for (uint32_t h = 0; h < s.heads; ++h) {
                const auto turned = norm_and_turn(s.elem, row(h).data(), s.head_dim, normed ? r.q_norm.data() : nullptr, kEps, turn);
                for (uint32_t e = 0; e < s.head_dim; ++e)
                    q[(i * s.heads + h) * s.head_dim + e] = to_bits(s.elem, static_cast<float>(turned[e]));
            }
            for (uint32_t h = 0; h < s.kv_heads && lengths[i] != 0; ++h) {
                const auto turned = norm_and_turn(s.elem, row(s.heads + h).data(), s.head_dim, normed ? r.k_norm.data() : nullptr, kEps, turn);
                const auto v = row(s.heads + s.kv_heads + h);
                for (uint32_t e = 0; e < s.head_dim; ++e) {
                    const size_t k_at = c.offset(i, at[i], h, false) + e, v_at = c.offset(i, at[i], h, true) + e;
                    appended.add(to_float(s.elem, written[k_at]), turned[e]);
                    appended.add(to_float(s.elem, written[v_at]), to_float(s.elem, v[e]));
                    c.k[i][c.row(at[i], h) + e] = want[k_at] = written[k_at];
                    c.v[i][c.row(at[i], h) + e] = want[v_at] = written[v_at];
                }
            }
        }
        ASSERT_EQ(written, want) << "elements of the pool that should not have changed";
        ASSERT_TRUE(appended.within(s.elem, lengths.size() < 8 ? 1.5 : 1)) << "k and v: " << appended.relative() << ", worst " << appended.worst << " of " << appended.largest;
        const Deviation all = compare(s.elem, attend_all(c, q), got);
        ASSERT_TRUE(all.within(s.elem, lengths.size() < 8 ? 1.5 : 1)) << all.relative() << ", worst " << all.worst << " of " << all.largest << " finite " << all.finite;
        worst_ = std::max(worst_, std::max(all.relative(), appended.relative()) * (s.elem == Elem::kBF16 ? 1 : 8));
    }
    double worst_ = 0;
};

TEST_F(QkvAttentionTest, MatchesFloat64) {
    uint32_t seed = 5200;
    for (const Elem e : {Elem::kBF16, Elem::kF16})
        for (const bool normed : {true, false}) {
            std::mt19937 rng(++seed);
            Shape s;
            s.elem = e;
            s.heads = 16;
            s.kv_heads = 8;
            s.head_dim = 128;
            s.block_tokens = seed % 2 == 0 ? 16 : 64;
            s.kv_first = seed % 3 == 0;
            // Around tiles of 16 and what the warps have at once of them, padding, and one longer than what lanes remember of a block table.
            std::vector<uint32_t> lengths{1, 0, 15, 16, 17, 63, 64, 65, 127, 128, 129, 0, 385, reduced() ? 300u : 1500u, reduced() ? 33u : 700u, reduced() ? 2u : 4300u};
            std::shuffle(lengths.begin(), lengths.end(), rng);
            check(s, lengths, normed, seed);
            if (HasFatalFailure() || IsSkipped())
                return;
            if (HasFatalFailure())
                return;
            // Parts without a token, of one, and many of them, for each number of sequences.
            for (size_t count = 8; count > 0; count /= 2) {
                std::vector<uint32_t> fewer(lengths.begin() + static_cast<long>(count), lengths.begin() + 2 * static_cast<long>(count));
                if (std::ranges::max(fewer) == 0)
                    fewer.front() = 129;
                check(s, fewer, normed, seed + static_cast<uint32_t>(count));
                if (HasFatalFailure())
                    return;
            }
            if (!reduced() && e == Elem::kBF16 && normed)
                check(s, std::vector<uint32_t>(16, 820), normed, seed + 100);
            if (HasFatalFailure())
                return;
        }
    std::printf("[ figures  ] product and attention: largest relative error %.2e (bf16; that of fp16 times eight)\n", worst_);
}

/// Batches of any lengths: few or many sequences, short and long ones and padding among each other.
TEST_F(DecodeAttentionTest, UnevenLengthsMatchFloat64) {
    const std::vector<Shape> all = shapes();
    for (uint32_t seed = 1; seed <= (reduced() ? 3u : 12u); ++seed) {
        std::mt19937 rng(seed * 7919);
        const Shape& s = all[rng() % all.size()];
        constexpr uint32_t kCounts[] = {1, 2, 3, 5, 9, 16, 17, 24, 33, 64, 130};
        const uint32_t count = kCounts[rng() % (reduced() ? 7 : std::size(kCounts))];
        const double most = reduced() ? 200 : count > 33 ? 700 : 2000;
        std::vector<uint32_t> lengths(count);
        for (uint32_t& n : lengths)
            n = rng() % 12 == 0 ? 0 : static_cast<uint32_t>(std::exp(std::log(most) * (rng() % 10000) / 1e4));
        if (rng() % 2 == 0)
            lengths[rng() % count] = (reduced() ? 900 : 6000) + rng() % 3000;
        if (*std::max_element(lengths.begin(), lengths.end()) == 0)
            lengths[0] = 1;
        const uint32_t grids[] = {static_cast<uint32_t>(multiprocessors), 0, 1 + static_cast<uint32_t>(rng() % 400)};
        for (const uint32_t grid : grids) {
            check_fused(s, lengths, seed % 3 != 0, grid, seed + grid);
            if (HasFatalFailure())
                return;
        }
        const Contexts c(s, lengths, rng);
        const DeviceArray<uint16_t> pool(c.pool);
        const auto q = random_bits(s.elem, lengths.size() * s.heads * s.head_dim, 4.0f, rng);
        const DeviceArray<uint16_t> dq(q);
        const std::vector<double> want = attend_all(c, q);
        for (const uint32_t grid : grids) {
            SCOPED_TRACE(text(s) + " seed " + std::to_string(seed) + " sequences " + std::to_string(count) + " grid " + std::to_string(grid));
            Decoder decoder(c, grid == 0 ? chosen_grid(c) : grid, *memory);
            const DecodeCall got = decoder.run(pool.data(), dq.data(), nullptr, false);
            ASSERT_EQ(got.error, cudaSuccess);
            const Deviation deviation = compare(s.elem, want, got.out);
            ASSERT_TRUE(deviation.within(s.elem)) << deviation.relative() << ", worst " << deviation.worst << " of " << deviation.largest;
        }
    }
}

TEST_F(DecodeAttentionTest, AgreesWithPrefill) {
    for (const Shape& s : shapes()) {
        SCOPED_TRACE(text(s));
        std::mt19937 rng(77);
        const std::vector<uint32_t> lengths{900, 31, 2100, 128};
        const Contexts c(s, lengths, rng);
        const DeviceArray<uint16_t> pool(c.pool);
        const auto q = random_bits(s.elem, lengths.size() * s.heads * s.head_dim, 4.0f, rng);
        const DeviceArray<uint16_t> dq(q);
        Decoder decoder(c, chosen_grid(c), *memory);
        const auto a = decoder.run(pool.data(), dq.data(), nullptr, false).out;
        const auto b = prefill(cuda::prefill_attention, c, pool.data(), Decoder::lengths_of(c), {1, 1, 1, 1}, q).out;
        Deviation all;
        for (size_t i = 0; i < a.size(); ++i)
            all.add(to_float(s.elem, a[i]), to_float(s.elem, b[i]));
        EXPECT_TRUE(all.within(s.elem)) << all.relative();
    }
}

/// A captured chain of layers replayed while the lengths grow: the graph reads them from the device.
TEST_F(DecodeAttentionTest, CapturedChainServesChangingLengths) {
    Shape s;
    s.heads = 16;
    s.kv_heads = 8;
    std::mt19937 rng(5);
    const std::vector<uint32_t> full{700, 64, 300, 1500};
    const Contexts c(s, full, rng);
    const DeviceArray<uint16_t> pool(c.pool);
    const auto q = random_bits(s.elem, full.size() * s.heads * s.head_dim, 4.0f, rng);
    const DeviceArray<uint16_t> dq(q);
    for (const bool planned : {false, true}) {
        SCOPED_TRACE(planned);
        Decoder decoder(c, planned ? static_cast<uint32_t>(multiprocessors) : chosen_grid(c), *memory);
        cuda::DecodeAttention args = decoder.args(pool.data(), dq.data(), nullptr, false);
        args.planned = planned;
        cudaStream_t stream;
        BATON_CUDA(cudaStreamCreate(&stream));
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        BATON_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
        if (planned)
            BATON_CUDA(cuda::decode_plan({stream, true}, args));
        for (int i = 0; i < (reduced() ? 3 : 20); ++i)
            BATON_CUDA(cuda::decode_attention({stream, !planned || i > 0}, args));
        BATON_CUDA(cudaStreamEndCapture(stream, &graph));
        BATON_CUDA(cudaGraphInstantiate(&exec, graph, 0));
        for (const uint32_t cut : {0u, 1u, 63u, 64u}) {
            std::vector<int32_t> lengths = Decoder::lengths_of(c);
            for (auto& n : lengths)
                n -= static_cast<int32_t>(cut);
            decoder.lengths.put(lengths);
            decoder.out.fill(0xff);
            BATON_CUDA(cudaDeviceSynchronize());
            BATON_CUDA(cudaGraphLaunch(exec, stream));
            BATON_CUDA(cudaStreamSynchronize(stream));
            const auto out = decoder.out.get();
            Deviation all;
            for (size_t i = 0; i < full.size(); ++i)
                for (uint32_t h = 0; h < s.heads; ++h) {
                    const size_t at = (i * s.heads + h) * s.head_dim;
                    const auto n = static_cast<uint32_t>(lengths[i]);
                    const auto want = n == 0 ? std::vector<double>(s.head_dim, 0.0) : c.attend(i, h, &q[at], n);
                    for (uint32_t d = 0; d < s.head_dim; ++d)
                        all.add(to_float(s.elem, out[at + d]), want[d]);
                }
            EXPECT_TRUE(all.within(s.elem)) << "cut " << cut << ": " << all.relative();
        }
        BATON_CUDA(cudaGraphExecDestroy(exec));
        BATON_CUDA(cudaGraphDestroy(graph));
        BATON_CUDA(cudaStreamDestroy(stream));
    }
}

}  // namespace
}  // namespace baton::test
