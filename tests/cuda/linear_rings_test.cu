// The products whose operands come through shared memory ahead of the kernel before, rings and slabs, in every configuration.
#include <gtest/gtest.h>

#include "cuda/linear_cases.cuh"

namespace baton::backend::cuda {
namespace {

/// Rings of every tile, cut and shared in every way, with stages that are used over and over and with all that fit, on tails of
/// every size; more tiles than blocks, and blocks without a tile.
template <class T>
void every_ring(Elem elem, uint32_t salt) {
    RingLimits limits;
    ASSERT_EQ(ring_prepare(elem, limits), cudaSuccess);
    if (limits.shared_bytes == 0) GTEST_SKIP() << "no sm_90 code or device here";
    limits.multiprocessors = 8;
    uint32_t ran = 0;
    uint32_t failures = 0;
    const bool checker = size_limit() != ~uint64_t{0};
    // Under a checker of memory or races: the forms alone, cut and shared.
    const std::vector<Shape> shapes = checker ? std::vector<Shape>{{96, 264, kSwiGlu, true, true}}
                                              : std::vector<Shape>{{1064, 1160, kAdd, false, true},
                                                                   {1232, 520, kSwiGlu, true, true},
                                                                   {2048, 1024, kSwiGlu, false, false},
                                                                   {1544, 776, kF32, true, false},
                                                                   {960, 576, kStore, true, false},
                                                                   {584, 2048, kStore, true, true}};
    const std::vector<uint32_t> rows = checker ? std::vector<uint32_t>{19} : std::vector<uint32_t>{1, 15, 17, 23, 33, 64};
    const std::vector<uint8_t> cuts = checker ? std::vector<uint8_t>{2, 1} : std::vector<uint8_t>{1, 2, 4, 8};
    const std::vector<uint8_t> shares = checker ? std::vector<uint8_t>{1, 2} : std::vector<uint8_t>{1, 2, 4};
    const std::vector<uint8_t> depths = checker ? std::vector<uint8_t>{2} : std::vector<uint8_t>{2, 3, 16};
    const size_t widths = checker ? 1 : ring_shapes().size();
    for (const Shape& shape : shapes) {
        Case<T> c(shape, rows.back(), seed_of_run() + salt + shape.n);
        for (const uint32_t m : rows)
            for (size_t v = 0; v < widths; ++v)
                for (const uint8_t splits : cuts)
                    for (const uint8_t share : shares)
                        for (const uint8_t stages : depths) {
                            Product product = {elem, c.matrix, c.x(), m, c.out()};
                            const uint32_t room = limits.shared_bytes - 1024;
                            const uint32_t fits = room / (ring_shapes()[v].cols * 128u + ring_shapes()[v].rows * 128u);
                            RingConfig config = {static_cast<uint8_t>(v), splits, share, static_cast<uint8_t>(std::min<uint32_t>(stages, fits)),
                                                 static_cast<uint8_t>(std::min<uint32_t>(stages == 3 ? 2 : stages, fits)), false};
                            if (c.matrix.norm != nullptr) config.norm_fused = true;
                            while (config.norm_fused && config.x_stages > 2 && !ring_takes(product, config, limits)) --config.x_stages;
                            if (!ring_takes(product, config, limits)) config.norm_fused = false;
                            if (!config.norm_fused) product.matrix.norm = nullptr;
                            // Without the norm fused the oracle does not fit.
                            if (shape.norm && !config.norm_fused) continue;
                            if (!ring_takes(product, config, limits)) continue;
                            c.prepare(m);
                            const cudaError_t e = ring({}, product, config, limits);
                            const std::string wrong = e != cudaSuccess ? cudaGetErrorString(e) : c.check(m, tolerance(elem, shape));
                            ++ran;
                            if (checker) std::printf("splits %u share %u\n", unsigned{splits}, unsigned{share}), std::fflush(stdout);
                            EXPECT_EQ(wrong, "") << shape.n << " x " << shape.k << " out " << static_cast<int>(shape.out) << " m " << m << " tile "
                                                 << ring_shapes()[v].rows << " x " << ring_shapes()[v].cols << " splits " << int{splits} << " share "
                                                 << int{share} << " stages " << int{config.w_stages} << ',' << int{config.x_stages};
                            if (!wrong.empty()) cudaGetLastError();
                            if (!wrong.empty() && ++failures > 20) FAIL() << "too many failures";
                        }
    }
    std::printf("%u products checked\n", ran);
    EXPECT_GT(ran, checker ? 2u : 500u);
}

TEST(Linear, EveryRing) {
    NEEDS_GPU();
    every_ring<__nv_bfloat16>(Elem::kBF16, 7000);
    if (size_limit() != ~uint64_t{0}) return;
    every_ring<__half>(Elem::kF16, 8000);
}

/// A form of the ring kernel: what differs in which warps and blocks touch the same memory.
struct RingForm {
    const char* name;
    uint8_t splits;
    uint8_t share;
    bool norm;
    friend void PrintTo(const RingForm& form, std::ostream* out) { *out << form.name; }
};

/// One product of each form by each tile, as small as goes that still uses every stage twice: for checkers. Each is a test of its own, so that
/// a run can be cut to some of them.
class RingForms : public ::testing::TestWithParam<std::tuple<size_t, RingForm>> {};

TEST_P(RingForms, MatchFloat64) {
    NEEDS_GPU();
    const auto& [variant, form] = GetParam();
    RingLimits limits;
    ASSERT_EQ(ring_prepare(Elem::kBF16, limits), cudaSuccess);
    if (limits.shared_bytes == 0) GTEST_SKIP() << "no sm_90 code or device here";
    const Shape shape = {ring_shapes()[variant].cols * uint32_t{form.share}, 264u * form.splits, kStore, form.norm, true};
    const uint32_t m = 50;  // rows of all warps
    Case<__nv_bfloat16> c(shape, m, seed_of_run() + 16000);
    const Product product = {Elem::kBF16, c.matrix, c.x(), m, c.out()};
    const RingConfig config = {static_cast<uint8_t>(variant), form.splits, form.share, 2, 2, form.norm};
    ASSERT_TRUE(ring_takes(product, config, limits));
    c.prepare(m);
    ASSERT_EQ(ring({}, product, config, limits), cudaSuccess);
    EXPECT_EQ(c.check(m, tolerance(Elem::kBF16, shape, m)), "");
}

INSTANTIATE_TEST_SUITE_P(Every, RingForms,
                         ::testing::Combine(::testing::Range<size_t>(0, ring_shapes().size()),
                                            ::testing::Values(RingForm{"Plain", 1, 1, false}, RingForm{"Normed", 1, 1, true}, RingForm{"Cut", 2, 1, false},
                                                              RingForm{"CutNormed", 2, 1, true}, RingForm{"Shared", 1, 2, false}, RingForm{"CutShared", 2, 2, true})),
                         [](const auto& info) {
                             return std::string(std::get<1>(info.param).name) + std::to_string(ring_shapes()[std::get<0>(info.param)].cols);
                         });

/// Slabs of every shape, cut in every way, on tails of every size: of k, of the columns, of the rows.
template <class T>
void every_slab(Elem elem, uint32_t salt) {
    uint32_t shared = 0;
    ASSERT_EQ(slab_prepare(elem, shared), cudaSuccess);
    if (shared == 0) GTEST_SKIP() << "no sm_90 code or device here";
    uint32_t ran = 0;
    uint32_t failures = 0;
    const bool checker = size_limit() != ~uint64_t{0};
    const std::vector<Shape> shapes = checker ? std::vector<Shape>{{202, 392, kAdd, false, true}, {272, 328, kSwiGlu, true, true}}
                                              : std::vector<Shape>{{1064, 1160, kAdd, false, true}, {1232, 520, kSwiGlu, true, true},
                                                                   {2048, 1024, kSwiGlu, false, false}, {1546, 776, kF32, true, false},
                                                                   {4096, 1024, kStore, true, false}, {1024, 3072, kAdd, false, false},
                                                                   {584, 2048, kStore, true, true}, {90, 136, kAdd, false, false}};
    const std::vector<uint32_t> rows = checker ? std::vector<uint32_t>{13, 27} : std::vector<uint32_t>{1, 2, 3, 5, 8, 9, 15, 16, 17, 27, 32};
    for (const Shape& shape : shapes) {
        Case<T> c(shape, rows.back(), seed_of_run() + salt + shape.n);
        for (const uint32_t m : rows)
            for (size_t v = 0; v < slab_shapes().size(); ++v)
                for (const uint8_t splits : checker ? std::vector<uint8_t>{1, 4} : std::vector<uint8_t>{1, 2, 4})
                    for (const uint8_t slices : checker ? std::vector<uint8_t>{3, 8} : std::vector<uint8_t>{1, 3, 8, 12}) {
                        const SlabConfig config = {static_cast<uint8_t>(v), slices, splits, slices == 8};
                        const Product product = {elem, c.matrix, c.x(), m, c.out()};
                        if (!slab_takes(product, config, shared)) continue;
                        c.prepare(m);
                        const cudaError_t e = slab({}, product, config);
                        const std::string wrong = e != cudaSuccess ? cudaGetErrorString(e) : c.check(m, tolerance(elem, shape, m));
                        ++ran;
                        EXPECT_EQ(wrong, "") << shape.n << " x " << shape.k << " out " << static_cast<int>(shape.out) << " m " << m << " tiles "
                                             << int{slab_shapes()[v].x_tiles} << " x " << int{slab_shapes()[v].w_tiles} << " splits " << int{splits}
                                             << " slices " << int{slices};
                        if (!wrong.empty()) cudaGetLastError();
                        if (!wrong.empty() && ++failures > 20) FAIL() << "too many failures";
                    }
    }
    std::printf("%u products checked\n", ran);
    EXPECT_GT(ran, checker ? 20u : 100u);
}

TEST(Linear, EverySlab) {
    NEEDS_GPU();
    every_slab<__nv_bfloat16>(Elem::kBF16, 9000);
    if (size_limit() != ~uint64_t{0}) return;
    every_slab<__half>(Elem::kF16, 10000);
}

}  // namespace
}  // namespace baton::backend::cuda
