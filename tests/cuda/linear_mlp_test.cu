// What follows attention of few rows in two kernels: the product behind it, and a layer's feed-forward part. Against float64.
#include <gtest/gtest.h>

#include "backend/cuda/attention_out.hpp"
#include "backend/cuda/linear_mlp.hpp"
#include "cuda/lanes_order.hpp"
#include "cuda/linear_cases.cuh"

namespace baton::backend::cuda {
namespace {

template <class T>
__global__ void gated_kernel(const double* y, uint32_t m, uint32_t ffn, double* act) {
    for (uint64_t at = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x; at < uint64_t{m} * ffn; at += uint64_t{gridDim.x} * blockDim.x) {
        const double gate = y[at / ffn * 2 * ffn + at % ffn];
        act[at] = gate / (1 + exp(-gate)) * y[at / ffn * 2 * ffn + ffn + at % ffn];
    }
}
template <class T>
__global__ void down_kernel(const double* act, const T* w, const T* x, uint32_t m, uint32_t n, uint32_t k, double* y) {
    const uint64_t at = (blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x) / 32;
    if (at >= uint64_t{m} * n) return;
    const uint32_t j = static_cast<uint32_t>(at / m), i = static_cast<uint32_t>(at % m);
    double dot = 0;
    for (uint32_t e = threadIdx.x & 31; e < k; e += 32) dot += act[uint64_t{i} * k + e] * Ops<T>::to_float(w[uint64_t{j} * k + e]);
    dot = warp_sum64(dot);
    if ((threadIdx.x & 31) == 0) y[uint64_t{i} * n + j] = dot + Ops<T>::to_float(x[uint64_t{i} * n + j]);
}

/// A layer's feed-forward part with random weights, and what it should make of random rows.
template <class T>
class Layer {
  public:
    Layer(Elem elem, uint32_t hidden, uint32_t ffn, uint32_t rows, uint32_t seed) : elem_(elem), hidden_(hidden), ffn_(ffn), rows_(rows) {
        gate_up_ = device(size_t{2} * ffn * hidden * 2);
        down_ = device(size_t{hidden} * ffn * 2);
        norm_ = device(size_t{hidden} * 4);
        before_ = device(size_t{rows} * hidden * 2);
        x_ = device(before_.size() + 2 * kGuard);
        fill<T>(gate_up_, seed, 1.7f / std::sqrt(static_cast<float>(hidden)));
        fill<T>(down_, seed + 1, 1.7f / std::sqrt(static_cast<float>(ffn)));
        fill<float>(norm_, seed + 2, 0.5f, 1.0f);
        fill<T>(before_, seed + 3, 3.0f);
        y_ = device(size_t{rows} * hidden * 8);
        const DeviceBuffer wide = device(size_t{rows} * 2 * ffn * 8);
        const DeviceBuffer act = device(size_t{rows} * ffn * 8);
        oracle_kernel<T><<<static_cast<unsigned>((size_t{rows} * 2 * ffn + 7) / 8), 256>>>(gate_up_.as<T>(), nullptr, norm_.as<float>(), 1e-5, before_.as<T>(),
                                                                                          rows, 2 * ffn, hidden, wide.as<double>());
        gated_kernel<T><<<256, 256>>>(wide.as<double>(), rows, ffn, act.as<double>());
        down_kernel<T><<<static_cast<unsigned>((size_t{rows} * hidden + 7) / 8), 256>>>(act.as<double>(), down_.as<T>(), before_.as<T>(), rows, hidden, ffn, y_.as<double>());
        sums_ = device(sizeof(Sums));
        cudaDeviceSynchronize();
    }
    [[nodiscard]] Mlp part(uint32_t m, void* slots) const {
        Mlp part;
        part.elem = elem_;
        part.gate_up.w = gate_up_.data();
        part.gate_up.n = 2 * ffn_;
        part.gate_up.k = hidden_;
        part.gate_up.norm = norm_.as<float>();
        part.gate_up.eps = 1e-5f;
        part.gate_up.out = Out::kSwiGlu;
        part.down.w = down_.data();
        part.down.n = hidden_;
        part.down.k = ffn_;
        part.down.out = Out::kAdd;
        part.x = part.to = {x()};
        part.m = m;
        part.slots = slots;
        return part;
    }
    [[nodiscard]] std::byte* x() const { return x_.data() + kGuard; }
    [[nodiscard]] size_t bytes(uint32_t m) const { return size_t{m} * hidden_ * 2; }
    void prepare(uint32_t m) {
        cudaMemset(x_.data(), kPoison, x_.size());
        cudaMemcpy(x(), before_.data(), bytes(m), cudaMemcpyDeviceToDevice);
    }
    /// Empty where x [m] is right and nothing around it was written.
    std::string check(uint32_t m) {
        if (const cudaError_t e = cudaDeviceSynchronize(); e != cudaSuccess) return cudaGetErrorString(e);
        std::vector<unsigned char> guard(kGuard);
        for (const std::byte* at : {static_cast<const std::byte*>(x_.data()), static_cast<const std::byte*>(x() + bytes(m))}) {
            cudaMemcpy(guard.data(), at, kGuard, cudaMemcpyDeviceToHost);
            if (std::any_of(guard.begin(), guard.end(), [](unsigned char c) { return c != kPoison; })) return "wrote beside the rows";
        }
        cudaMemset(sums_.data(), 0, sizeof(Sums));
        compare_kernel<T><<<512, 256>>>(y_.as<double>(), x(), nullptr, Out::kStore, m, hidden_, 1.0, sums_.as<Sums>());
        Sums sums = {};
        cudaMemcpy(&sums, sums_.data(), sizeof sums, cudaMemcpyDeviceToHost);
        const double limit = elem_ == Elem::kBF16 ? 1.0 / 256 : 1.0 / 2048;
        const double relative = std::sqrt(sums.error2 / sums.ref2);
        char text[120];
        if (sums.bad == 0 && relative <= limit && sums.worst <= 8 * limit) return {};
        std::snprintf(text, sizeof text, "relative error %.3g, worst %.3g (limit %.3g), %llu not finite", relative, sums.worst, limit, sums.bad);
        return text;
    }

  private:
    Elem elem_;
    uint32_t hidden_, ffn_, rows_;
    DeviceBuffer gate_up_, down_, norm_, before_, x_, y_, sums_;
};

/// Memory for parts of sums, all of them absent.
class Slots {
  public:
    explicit Slots(size_t bytes) : memory_(device(bytes)) { cudaMemset(memory_.data(), 0xff, bytes); }
    [[nodiscard]] void* get() const { return memory_.data(); }
    /// Whether a launch left all of them absent.
    [[nodiscard]] bool clean() const {
        std::vector<unsigned char> bytes(memory_.size());
        cudaMemcpy(bytes.data(), memory_.data(), bytes.size(), cudaMemcpyDeviceToHost);
        return std::all_of(bytes.begin(), bytes.end(), [](unsigned char c) { return c == 0xff; });
    }

  private:
    DeviceBuffer memory_;
};

constexpr size_t kSlotBytes = size_t{8} << 20;
constexpr std::pair<uint32_t, uint32_t> kSizes[] = {{1024, 3072}, {1024, 1536}, {512, 768}, {256, 192}, {768, 384}, {896, 960}, {640, 3072}};

template <class T>
void every_form(Elem elem, uint32_t salt) {
    AtOnceLimits limits;
    ASSERT_EQ(mlp_prepare(elem, limits), cudaSuccess);
    if (limits.shared_bytes == 0) GTEST_SKIP() << "no sm_90 code or device here";
    const Slots slots(kSlotBytes);
    const bool checker = size_limit() != ~uint64_t{0};
    uint32_t ran = 0, failures = 0;
    for (const auto& [hidden, ffn] : kSizes) {
        if (checker && hidden * ffn > size_limit()) continue;
        Layer<T> layer(elem, hidden, ffn, 32, seed_of_run() + salt + hidden + ffn);
        for (uint8_t v = 0; v < mlp_shapes().size(); ++v)
            for (uint32_t m = 1; m <= 32; m += checker ? 5 : 1) {
                const Mlp part = layer.part(m, slots.get());
                if (!mlp_takes(part, v, limits)) continue;
                ASSERT_LE(mlp_slot_bytes(part, v), kSlotBytes);
                layer.prepare(m);
                const cudaError_t e = mlp({}, part, v);
                const std::string wrong = e != cudaSuccess ? cudaGetErrorString(e) : layer.check(m);
                ++ran;
                EXPECT_EQ(wrong, "") << hidden << ", " << ffn << ", m " << m << " form " << int{v};
                if (!wrong.empty() && ++failures > 10) FAIL() << "too many failures";
            }
        EXPECT_TRUE(slots.clean()) << hidden << ", " << ffn;
    }
    std::printf("%u layers checked\n", ran);
    EXPECT_GT(ran, checker ? 2u : 60u);
}

/// What a launch is given holds what the kernel takes for granted: of any sizes. Needs no GPU.
TEST(Mlp, TakesOnlyWhatItsBlocksAndWarpsShare) {
    const AtOnceLimits limits{232448, 132};
    uint32_t taken = 0;
    for (uint32_t hidden = 32; hidden <= 2048; hidden += 32)
        for (uint32_t ffn = 64; ffn <= 6144; ffn += 64)
            for (const uint32_t m : {1u, 8u, 9u, 16u, 17u, 32u, 33u}) {
                Mlp part;
                const float norm = 1;
                part.gate_up.n = 2 * ffn;
                part.gate_up.k = part.down.n = hidden;
                part.down.k = ffn;
                part.gate_up.norm = &norm;
                part.m = m;
                for (uint8_t v = 0; v < mlp_shapes().size(); ++v) {
                    if (!mlp_takes(part, v, limits)) continue;
                    ++taken;
                    const MlpShape& shape = mlp_shapes()[v];
                    EXPECT_GE(hidden, 8u * 32u) << "a warp without a part of k";
                    EXPECT_LE(ffn / (shape.tiles * 8u), limits.multiprocessors) << "blocks that wait for one that finds no room";
                    EXPECT_EQ(ffn % (shape.tiles * 8u * shape.ranks), 0u);
                    EXPECT_LE(m, shape.x_tiles * 16u);
                }
            }
    EXPECT_GT(taken, 50u);
}

/// Rows as a kernel reads or leaves them, among guards.
class RowsOnDevice {
  public:
    RowsOnDevice(const std::vector<uint16_t>& rows, uint32_t columns, bool for_lanes) : columns_(columns), for_lanes_(for_lanes) {
        const std::vector<uint16_t> laid = for_lanes ? test::to_lanes_order(rows, columns) : rows;
        bytes_ = laid.size() * 2;
        memory_ = device(bytes_ + 2 * kGuard);
        cudaMemset(memory_.data(), kPoison, memory_.size());
        cudaMemcpy(memory_.data() + kGuard, laid.data(), bytes_, cudaMemcpyHostToDevice);
    }
    [[nodiscard]] Rows rows() const { return {memory_.data() + kGuard, for_lanes_}; }
    /// Whether it holds these rows, and nothing else was written.
    [[nodiscard]] bool holds(const std::vector<uint16_t>& rows) const {
        std::vector<uint16_t> want(kGuard / 2, 0xffff);
        const std::vector<uint16_t> laid = for_lanes_ ? test::to_lanes_order(rows, columns_) : rows;
        want.insert(want.end(), laid.begin(), laid.end());
        want.insert(want.end(), kGuard / 2, 0xffff);
        std::vector<uint16_t> got(memory_.size() / 2);
        cudaMemcpy(got.data(), memory_.data(), memory_.size(), cudaMemcpyDeviceToHost);
        return got == want;
    }

  private:
    uint32_t columns_;
    bool for_lanes_;
    size_t bytes_ = 0;
    DeviceBuffer memory_;
};
std::vector<uint16_t> rows_at(const void* from, size_t elements) {
    std::vector<uint16_t> rows(elements);
    cudaMemcpy(rows.data(), from, elements * 2, cudaMemcpyDeviceToHost);
    return rows;
}

/// Runs `run`(x, to) with rows in order and for lanes, in place and not: `want` of `before` in all of them.
template <class Run>
void every_order(const std::vector<uint16_t>& before, const std::vector<uint16_t>& want, uint32_t columns, const Run& run) {
    for (const bool from_lanes : {false, true})
        for (const bool to_lanes : {false, true}) {
            SCOPED_TRACE(std::string(from_lanes ? "for lanes" : "in order") + " to " + (to_lanes ? "for lanes" : "in order"));
            const RowsOnDevice from(before, columns, from_lanes), to(std::vector<uint16_t>(before.size(), 0x1234), columns, to_lanes);
            ASSERT_EQ(run(from.rows(), to.rows()), cudaSuccess);
            ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
            EXPECT_TRUE(to.holds(want));
            EXPECT_TRUE(from.holds(before)) << "x was written to";
            if (from_lanes != to_lanes) continue;
            ASSERT_EQ(run(from.rows(), from.rows()), cudaSuccess);
            ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
            EXPECT_TRUE(from.holds(want)) << "in place";
        }
}

/// The same bits however rows lie, and no other row of theirs is written.
template <class T>
void every_order_of_mlp(Elem elem) {
    AtOnceLimits limits;
    ASSERT_EQ(mlp_prepare(elem, limits), cudaSuccess);
    if (limits.shared_bytes == 0) GTEST_SKIP() << "no sm_90 code or device here";
    const Slots slots(kSlotBytes);
    uint32_t ran = 0;
    for (const auto& [hidden, ffn] : kSizes) {
        if (hidden * ffn > size_limit()) continue;
        Layer<T> layer(elem, hidden, ffn, 32, seed_of_run() + 27000 + hidden + ffn);
        for (uint8_t v = 0; v < mlp_shapes().size(); ++v)
            for (const uint32_t m : {9u, 13u, 16u, 17u}) {
                Mlp part = layer.part(m, slots.get());
                if (!mlp_takes(part, v, limits)) continue;
                SCOPED_TRACE(std::to_string(hidden) + ", " + std::to_string(ffn) + ", m " + std::to_string(m));
                layer.prepare(m);
                const std::vector<uint16_t> before = rows_at(layer.x(), size_t{m} * hidden);
                if (mlp_shapes()[v].x_tiles > 1) {
                    part.to.for_lanes = true;
                    EXPECT_NE(mlp({}, part, v), cudaSuccess) << "there is no such order of more than 16 rows";
                    continue;
                }
                ASSERT_EQ(mlp({}, part, v), cudaSuccess);
                ASSERT_EQ(layer.check(m), "");
                ++ran;
                every_order(before, rows_at(layer.x(), size_t{m} * hidden), hidden, [&](Rows x, Rows to) {
                    part.x = x;
                    part.to = to;
                    return mlp({}, part, v);
                });
                if (testing::Test::HasFatalFailure()) return;
            }
    }
    EXPECT_TRUE(slots.clean());
    EXPECT_GT(ran, 2u);
}
TEST(Mlp, RowsMayLieInLanesOrder) {
    NEEDS_GPU();
    every_order_of_mlp<__nv_bfloat16>(Elem::kBF16);
    every_order_of_mlp<__half>(Elem::kF16);
}

template <class T>
void attention_out_of(Elem elem, uint32_t columns) {
    Case<T> product({columns, 2048, kAdd, false, false}, 16, seed_of_run() + 28000 + columns);
    const DeviceBuffer result = device(size_t{16} * 2048 * 2);
    const std::vector<uint16_t> laid = test::to_lanes_order(rows_at(product.x(), size_t{16} * 2048), 2048);
    cudaMemcpy(result.data(), laid.data(), laid.size() * 2, cudaMemcpyHostToDevice);
    product.prepare(16);
    const std::vector<uint16_t> before = rows_at(product.out(), size_t{16} * columns);
    const Rows rows{product.out()};
    ASSERT_EQ(attention_out({}, {elem, product.matrix, result.data(), rows, rows}), cudaSuccess);
    ASSERT_EQ(product.check(16, elem == Elem::kBF16 ? 1.0 / 256 : 1.0 / 2048), "");
    every_order(before, rows_at(product.out(), size_t{16} * columns), columns,
                [&](Rows x, Rows to) { return attention_out({}, {elem, product.matrix, result.data(), x, to}); });
}
TEST(AttentionOut, MatchesFloat64) {
    NEEDS_GPU();
    for (const uint32_t columns : {32u, 1024u}) {
        if (uint64_t{columns} * 2048 > size_limit()) continue;
        attention_out_of<__nv_bfloat16>(Elem::kBF16, columns);
        attention_out_of<__half>(Elem::kF16, columns);
    }
}

/// Needs no GPU.
TEST(AttentionOut, TakesOnlyWhatItIsMadeFor) {
    Matrix matrix;
    matrix.n = 1024;
    matrix.k = 2048;
    matrix.out = Out::kAdd;
    EXPECT_TRUE(attention_out_takes(matrix));
    const auto refused = [&](auto change) {
        Matrix other = matrix;
        change(other);
        return !attention_out_takes(other) && attention_out({}, {Elem::kBF16, other, nullptr, {}, {}}) == cudaErrorInvalidValue;
    };
    const float norm = 1;
    EXPECT_TRUE(refused([](Matrix& m) { m.k = 1024; }));
    EXPECT_TRUE(refused([](Matrix& m) { m.n = 0; }));
    EXPECT_TRUE(refused([](Matrix& m) { m.n = 1040; })) << "half of 32 columns";
    EXPECT_TRUE(refused([&](Matrix& m) { m.norm = &norm; }));
    EXPECT_TRUE(refused([&](Matrix& m) { m.bias = &norm; }));
    EXPECT_TRUE(refused([](Matrix& m) { m.out = Out::kStore; }));
}

TEST(Mlp, MatchesFloat64) {
    NEEDS_GPU();
    every_form<__nv_bfloat16>(Elem::kBF16, 21000);
    every_form<__half>(Elem::kF16, 22000);
}

/// Layers behind each other in a graph, between products, all of them launched to overlap, give the bits of layers that are not: a hundred
/// replays, and with other numbers of rows between them.
TEST(Mlp, ChainsRepeatTheirBits) {
    NEEDS_GPU();
    AtOnceLimits limits;
    ASSERT_EQ(mlp_prepare(Elem::kBF16, limits), cudaSuccess);
    uint32_t shared = 0;
    ASSERT_EQ(slab_prepare(Elem::kBF16, shared), cudaSuccess);
    if (limits.shared_bytes == 0) GTEST_SKIP() << "no sm_90 code or device here";
    using T = __nv_bfloat16;
    constexpr uint32_t kHidden = 1024, kFfn = 3072, kMost = 32;
    constexpr int kReplays = 100;
    const Slots slots(kSlotBytes);
    std::vector<std::unique_ptr<Layer<T>>> layers;
    for (uint32_t i = 0; i < 3; ++i) layers.push_back(std::make_unique<Layer<T>>(Elem::kBF16, kHidden, kFfn, kMost, seed_of_run() + 23000 + i));
    Case<T> wide({2048, kHidden, kStore, true, false}, kMost, seed_of_run() + 24000);
    Case<T> back({kHidden, 2048, kAdd, false, false}, kMost, seed_of_run() + 25000);
    DeviceBuffer hidden = device(size_t{kMost} * kHidden * 2), between = device(size_t{kMost} * 2048 * 2), start = device(hidden.size()), first = device(hidden.size());
    fill<T>(start, seed_of_run() + 26000, 1.0f);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    auto stream = make_stream();
    ASSERT_TRUE(stream);
    const auto run = [&](const Launch& launch, uint8_t form, uint32_t m) {
        cudaError_t e = cudaMemcpyAsync(hidden.data(), start.data(), hidden.size(), cudaMemcpyDeviceToDevice, launch.stream);
        for (size_t i = 0; i < layers.size() && e == cudaSuccess; ++i) {
            constexpr uint8_t kTall = 5;  // of slab's shapes, one for 32 rows
            e = slab(launch, {Elem::kBF16, wide.matrix, hidden.data(), m, between.data()}, {kTall, 8, 1, false});
            if (e == cudaSuccess) e = slab(launch, {Elem::kBF16, back.matrix, between.data(), m, hidden.data()}, {kTall, 8, 4, false});
            Mlp part = layers[i]->part(m, slots.get());
            part.x = part.to = {hidden.data()};
            if (e == cudaSuccess) e = mlp(launch, part, form);
        }
        return e;
    };
    uint32_t ran = 0;
    for (uint8_t v = 0; v < mlp_shapes().size(); ++v)
        for (const uint32_t m : {9u, 16u, 17u, 24u, 27u, 32u}) {
            if (!mlp_takes(layers[0]->part(m, slots.get()), v, limits)) continue;
            ++ran;
            ASSERT_EQ(run({stream->get(), false}, v, m), cudaSuccess);
            ASSERT_EQ(cudaStreamSynchronize(stream->get()), cudaSuccess);
            cudaMemcpy(first.data(), hidden.data(), hidden.size(), cudaMemcpyDeviceToDevice);
            ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
            cudaGraph_t graph = nullptr;
            cudaGraphExec_t exec = nullptr;
            ASSERT_EQ(cudaStreamBeginCapture(stream->get(), cudaStreamCaptureModeThreadLocal), cudaSuccess);
            const cudaError_t captured = run({stream->get(), true}, v, m);
            ASSERT_EQ(cudaStreamEndCapture(stream->get(), &graph), cudaSuccess);
            ASSERT_EQ(captured, cudaSuccess);
            ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
            cudaGraphDestroy(graph);
            const GraphExec owner(exec);
            for (int i = 0; i < kReplays; ++i) {
                ASSERT_EQ(cudaGraphLaunch(exec, stream->get()), cudaSuccess);
                if (i % 10 != 0) continue;
                ASSERT_EQ(cudaStreamSynchronize(stream->get()), cudaSuccess);
                ASSERT_EQ(differing(hidden.data(), first.data(), size_t{m} * kHidden * 2), 0u) << "form " << int{v} << " m " << m << " replay " << i;
            }
            ASSERT_EQ(cudaStreamSynchronize(stream->get()), cudaSuccess);
            EXPECT_EQ(differing(hidden.data(), first.data(), size_t{m} * kHidden * 2), 0u) << "form " << int{v} << " m " << m;
        }
    EXPECT_TRUE(slots.clean());
    EXPECT_GT(ran, 3u);
}

}  // namespace
}  // namespace baton::backend::cuda
