// The product for many rows in every configuration, against float64.
#include <gtest/gtest.h>

#include <random>

#include "cuda/linear_cases.cuh"

namespace baton::backend::cuda {
namespace {

const char* name_of(Out out) {
    constexpr const char* kNames[] = {"store", "add", "swiglu", "f32"};
    return kNames[static_cast<size_t>(out)];
}

/// Counts what ran and what was wrong.
struct Tally {
    uint32_t ran = 0;
    uint32_t failures = 0;
};

/// One product in one configuration, if the kernel takes it.
template <class T>
void check_one(Elem elem, Case<T>& c, const Shape& shape, uint32_t m, BulkConfig config, const BulkLimits& limits, bool pdl, Tally& tally) {
    const Product product = {elem, c.matrix, c.x(), m, c.out()};
    if (!bulk_takes(product, config, limits)) return;
    c.prepare(m);
    const cudaError_t e = bulk({nullptr, pdl}, product, config, limits);
    // Sums in f32 by the tensor cores, which cut off what they add.
    const std::string wrong = e != cudaSuccess ? cudaGetErrorString(e) : c.check(m, shape.out == kF32 ? 1e-5 : tolerance(elem, shape, m));
    ++tally.ran;
    EXPECT_EQ(wrong, "") << shape.n << " x " << shape.k << ' ' << name_of(shape.out) << " m " << m << " tile 128 x " << bulk_shapes()[config.variant].cols
                         << " share " << int{config.share_m} << ',' << int{config.share_n} << " band " << int{config.band} << " clusters " << limits.clusters[0];
    if (wrong.empty()) return;
    cudaGetLastError();
    ASSERT_LT(++tally.failures, 20u) << "too many failures";
}

template <class T>
void every_config(Elem elem, Case<T>& c, const Shape& shape, const std::vector<uint32_t>& rows, const std::vector<uint8_t>& bands, const BulkLimits& limits,
                  Tally& tally) {
    for (const uint32_t m : rows)
        for (uint8_t v = 0; v < bulk_shapes().size(); ++v)
            for (const uint8_t share_m : {uint8_t{1}, uint8_t{2}, uint8_t{4}})
                for (const uint8_t share_n : {uint8_t{1}, uint8_t{2}})
                    for (const uint8_t band : bands) {
                        check_one(elem, c, shape, m, {v, share_m, share_n, band}, limits, band % 2 == 0, tally);
                        if (::testing::Test::HasFatalFailure()) return;
                    }
}

/// Every tile, cluster and band, on tails of every size: of k, of the columns, of the rows; with so few blocks that each has many tiles and
/// its ring goes round and round, and with blocks for all.
template <class T>
void every_bulk(Elem elem, uint32_t salt) {
    BulkLimits all;
    ASSERT_EQ(bulk_prepare(elem, all), cudaSuccess);
    if (all.shared_bytes == 0) GTEST_SKIP() << "no sm_90 code or device here";
    const BulkLimits few = {all.shared_bytes, all.multiprocessors, {7, 3, 2, 1}};
    Tally tally;
    if (size_limit() != ~uint64_t{0}) {  // under a checker of memory or races
        const Shape shape = {272, 136, kSwiGlu, false, true};
        Case<T> c(shape, 200, seed_of_run() + salt);
        every_config(elem, c, shape, {200}, {1}, few, tally);
    } else {
        for (const Shape& shape : {Shape{1064, 1160, kAdd, false, true}, Shape{1232, 520, kSwiGlu, false, true}, Shape{2048, 1024, kSwiGlu, false, false},
                                   Shape{1544, 776, kF32, false, true}, Shape{584, 72, kStore, false, true}, Shape{264, 3000, kAdd, false, false},
                                   Shape{8, 8, kStore, false, false}}) {
            Case<T> c(shape, 1000, seed_of_run() + salt + shape.n);
            every_config(elem, c, shape, {1, 127, 257, 640, 1000}, {1, 2, 8}, few, tally);
            if (::testing::Test::HasFatalFailure()) return;
            every_config(elem, c, shape, {300}, {3}, all, tally);
            if (::testing::Test::HasFatalFailure()) return;
        }
    }
    std::printf("%u products checked\n", tally.ran);
    EXPECT_GT(tally.ran, size_limit() != ~uint64_t{0} ? 20u : 2000u);
}

TEST(Linear, EveryBulkBf16) {
    NEEDS_GPU();
    every_bulk<__nv_bfloat16>(Elem::kBF16, 11000);
}

TEST(Linear, EveryBulkFp16) {
    NEEDS_GPU();
    every_bulk<__half>(Elem::kF16, 12000);
}

/// Shapes, rows and configurations drawn anew each time.
TEST(Linear, BulkOfRandomShapes) {
    NEEDS_GPU();
    if (size_limit() != ~uint64_t{0}) GTEST_SKIP() << "too large under a checker";
    BulkLimits limits;
    ASSERT_EQ(bulk_prepare(Elem::kBF16, limits), cudaSuccess);
    if (limits.shared_bytes == 0) GTEST_SKIP() << "no sm_90 code or device here";
    std::mt19937 random(seed_of_run() + 13000);
    const auto up_to = [&](uint32_t most) { return 1 + static_cast<uint32_t>(random() % most); };
    Tally tally;
    for (int i = 0; i < 40; ++i) {
        Shape shape = {8 * up_to(300), 8 * up_to(200), static_cast<Out>(random() % 4), false, random() % 2 == 0};
        if (shape.out == kSwiGlu) shape.n = (shape.n + 15) / 16 * 16;
        const uint32_t m = up_to(1500);
        Case<__nv_bfloat16> c(shape, m, seed_of_run() + 14000 + static_cast<uint32_t>(i));
        for (int j = 0; j < 6; ++j) {
            const BulkConfig config = {static_cast<uint8_t>(random() % bulk_shapes().size()), static_cast<uint8_t>(1u << random() % 3), static_cast<uint8_t>(1u << random() % 2),
                                       static_cast<uint8_t>(up_to(40))};
            check_one(Elem::kBF16, c, shape, m, config, limits, j % 2 == 0, tally);
            if (::testing::Test::HasFatalFailure()) return;
        }
    }
    std::printf("%u products checked\n", tally.ran);
}

/// A chain in which each product reads what the one ahead wrote, launched to overlap, gives the bits of one that is not.
TEST(Linear, BulkOverlapChangesNothing) {
    NEEDS_GPU();
    BulkLimits limits;
    ASSERT_EQ(bulk_prepare(Elem::kBF16, limits), cudaSuccess);
    if (limits.shared_bytes == 0) GTEST_SKIP() << "no sm_90 code or device here";
    const uint32_t m = size_limit() == ~uint64_t{0} ? 700 : 130;
    const Shape up = {2048, 512, kSwiGlu, false, false}, down = {512, 1024, kAdd, false, false};
    Case<__nv_bfloat16> a(up, 1, seed_of_run() + 15000), b(down, 1, seed_of_run() + 15001);
    DeviceBuffer hidden = device(size_t{m} * 512 * 2), first = device(hidden.size()), wide = device(size_t{m} * 1024 * 2);
    for (uint8_t v = 0; v < bulk_shapes().size(); ++v)
        for (const uint8_t share : {uint8_t{1}, uint8_t{2}})
            for (const bool overlap : {false, true}) {
                fill<__nv_bfloat16>(hidden, seed_of_run() + 7, 1.0f);
                cudaMemset(wide.data(), kPoison, wide.size());
                cudaDeviceSynchronize();
                for (int l = 0; l < 8; ++l) {
                    ASSERT_EQ(bulk({nullptr, overlap}, {Elem::kBF16, a.matrix, hidden.data(), m, wide.data()}, {v, share, 1, 4}, limits), cudaSuccess);
                    const uint8_t adds = bulk_shapes()[v].cols % 64 == 0 ? v : uint8_t{0};  // not all tiles add to what was there
                    ASSERT_EQ(bulk({nullptr, overlap}, {Elem::kBF16, b.matrix, wide.data(), m, hidden.data()}, {adds, share, 1, 4}, limits), cudaSuccess);
                }
                ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
                if (v == 0 && share == 1 && !overlap)
                    cudaMemcpy(first.data(), hidden.data(), hidden.size(), cudaMemcpyDeviceToDevice);
                else
                    EXPECT_EQ(differing(hidden.data(), first.data(), hidden.size()), 0u) << int{v} << " share " << int{share} << " overlap " << overlap;
            }
}

TEST(Linear, BulkRefusesWhatItCannotDo) {
    BulkLimits limits = {232448, 132, {132, 66, 33, 16}};
    Product product;
    product.m = 512;
    product.matrix.n = 1024;
    product.matrix.k = 1024;
    EXPECT_TRUE(bulk_takes(product, {0, 2, 1, 8}, limits));
    EXPECT_FALSE(bulk_takes(product, {100, 2, 1, 8}, limits));
    EXPECT_FALSE(bulk_takes(product, {0, 3, 1, 8}, limits));
    EXPECT_FALSE(bulk_takes(product, {0, 8, 1, 8}, limits));
    EXPECT_FALSE(bulk_takes(product, {0, 1, 4, 8}, limits));
    EXPECT_FALSE(bulk_takes(product, {0, 1, 1, 0}, limits));
    EXPECT_FALSE(bulk_takes(product, {0, 1, 1, 8}, BulkLimits{}));
    limits.clusters[1] = 0;
    EXPECT_FALSE(bulk_takes(product, {0, 2, 1, 8}, limits));
    product.matrix.k = 1020;
    EXPECT_FALSE(bulk_takes(product, {0, 1, 1, 8}, limits));
    product.matrix.k = 1024;
    product.matrix.n = 1020;
    EXPECT_FALSE(bulk_takes(product, {0, 1, 1, 8}, limits));
    product.matrix.n = 1032;
    product.matrix.out = Out::kSwiGlu;
    EXPECT_FALSE(bulk_takes(product, {0, 1, 1, 8}, limits));
}

}  // namespace
}  // namespace baton::backend::cuda
