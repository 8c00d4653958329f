// Linear and the row kernels against float64, on fresh random inputs with poisoned outputs inside guard zones.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "backend/cuda/device_traits.hpp"
#include "baton/base/digest.hpp"
#include "cuda/linear_cases.cuh"

namespace baton::backend::cuda {
namespace {

template <class T>
void every_candidate(Elem elem, const std::vector<uint32_t>& rows, uint32_t salt, bool deterministic) {
    auto linear = LinearImpl::make(options(elem, 256, deterministic));
    ASSERT_TRUE(linear) << linear.error().message;
    uint32_t ran = 0;
    uint32_t failures = 0;
    for (const Shape& shape : kShapes) {
        if (static_cast<uint64_t>(shape.n) * shape.k > size_limit()) continue;
        Case<T> c(shape, rows.back(), seed_of_run() + salt + shape.n);
        ASSERT_TRUE((*linear)->reserve(c.matrix));
        for (uint32_t m : rows) {
            const std::vector<Choice> found = (*linear)->candidates(c.matrix, m);
            EXPECT_FALSE(found.empty()) << shape.n << " x " << shape.k << " m " << m;
            uint32_t libraries = 0;
            for (const Choice& choice : found) {
                if (choice.kind == Kind::kLt && ++libraries > 2) continue;
                if (choice.kind == Kind::kLt && size_limit() != ~uint64_t{0}) continue;  // under a checker: our own kernels
                c.prepare(m);
                const cudaError_t e = (*linear)->run_as({nullptr, false}, c.matrix, c.x(), m, c.out(), choice);
                const std::string wrong = e != cudaSuccess ? cudaGetErrorString(e) : c.check(m, tolerance(elem, shape, m));
                ++ran;
                EXPECT_EQ(wrong, "") << shape.n << " x " << shape.k << " out " << static_cast<int>(shape.out) << " m " << m << ": "
                                     << describe(choice);
                if (!wrong.empty()) cudaGetLastError();
                if (!wrong.empty() && ++failures > 40) FAIL() << "too many failures";
            }
        }
    }
    std::printf("%u products checked\n", ran);
}

TEST(Linear, EveryCandidateBf16) {
    NEEDS_GPU();
    every_candidate<__nv_bfloat16>(Elem::kBF16, kRows, 0, false);
}

TEST(Linear, EveryCandidateFp16) {
    NEEDS_GPU();
    every_candidate<__half>(Elem::kF16, {1, 2, 4, 5, 8, 16, 33, 64, 200}, 1000, false);
}

TEST(Linear, EveryDeterministicCandidate) {
    NEEDS_GPU();
    every_candidate<__nv_bfloat16>(Elem::kBF16, {1, 7, 9, 64, 65, 200}, 2000, true);
    every_candidate<__half>(Elem::kF16, {1, 16, 130}, 3000, true);
}

/// The products of the models this backend is made for.
std::vector<Shape> model_shapes() {
    struct Sizes {
        uint32_t hidden, qkv, attention, ffn, vocab;
        bool bias;
    };
    std::vector<Shape> shapes;
    for (const Sizes& m : {Sizes{1024, 4096, 2048, 3072, 151936, false}, Sizes{896, 1152, 896, 4864, 151936, true},
                           Sizes{2048, 3072, 2048, 8192, 128256, false}, Sizes{4096, 6144, 4096, 14336, 128256, false},
                           Sizes{576, 960, 576, 1536, 49152, false}}) {
        shapes.push_back({m.qkv, m.hidden, kStore, true, m.bias});
        shapes.push_back({m.hidden, m.attention, kAdd, false, false});
        shapes.push_back({2 * m.ffn, m.hidden, kSwiGlu, true, false});
        shapes.push_back({m.hidden, m.ffn, kAdd, false, false});
        shapes.push_back({m.vocab, m.hidden, kF32, true, false});
    }
    return shapes;
}

/// The tiles alone can do every product of every model at every m: on an H200, an A100 and a consumer GPU. Needs no GPU.
TEST(Linear, SomeTileTakesEveryDeterministicProduct) {
    for (const TileLimits& limits : {TileLimits{232448, true}, TileLimits{166912, false}, TileLimits{101376, false}})
        for (const Elem elem : {Elem::kBF16, Elem::kF16})
            for (const Shape& shape : model_shapes())
                for (uint32_t m = 1; m <= 16384; m *= 2) {
                    Product product;
                    product.elem = elem;
                    product.matrix.n = shape.n;
                    product.matrix.k = shape.k;
                    product.matrix.out = shape.out;
                    product.m = m;
                    std::vector<Choice> found;
                    add_tiles(product, limits, 108, true, found);
                    EXPECT_FALSE(found.empty()) << shape.n << " x " << shape.k << " m " << m << " with " << limits.shared_bytes << " bytes";
                    for (const Choice& choice : found) {
                        EXPECT_EQ(choice.tile.splits, deterministic_splits(shape.n, shape.k, limits.cluster));
                        EXPECT_TRUE(limits.cluster || !choice.tile.cluster);
                    }
                }
}

/// Both modes find candidates for every product of every model at every bucket, and the first of each runs.
TEST(Linear, EveryModelHasCandidatesAtEveryBucket) {
    NEEDS_GPU();
    for (const bool deterministic : {false, true}) {
        auto linear = LinearImpl::make(options(Elem::kBF16, 8192, deterministic));
        ASSERT_TRUE(linear) << linear.error().message;
        for (const Shape& shape : model_shapes()) {
            const uint32_t most = shape.out == kF32 ? 64 : 8192;
            DeviceBuffer w = device(size_t{shape.n} * shape.k * 2), x = device(size_t{most} * shape.k * 2);
            DeviceBuffer small = device(size_t{std::max(shape.n, shape.k)} * 4);
            DeviceBuffer out = device(size_t{most} * shape.n * 4);
            fill<__nv_bfloat16>(w, seed_of_run(), 0.02f);
            fill<__nv_bfloat16>(x, seed_of_run() + 1, 1.0f);
            fill<float>(small, seed_of_run() + 2, 1.0f);
            cudaMemset(out.data(), 0, out.size());
            Matrix matrix;
            matrix.w = w.data();
            matrix.n = shape.n;
            matrix.k = shape.k;
            matrix.out = shape.out;
            if (shape.norm) matrix.norm = small.as<float>();
            if (shape.bias) matrix.bias = small.data();
            ASSERT_TRUE((*linear)->reserve(matrix));
            for (uint32_t m = 1; m <= most; m *= 2) {
                const std::vector<Choice> found = (*linear)->candidates(matrix, m);
                ASSERT_FALSE(found.empty()) << shape.n << " x " << shape.k << " m " << m << " deterministic " << deterministic;
                EXPECT_EQ((*linear)->run_as({nullptr, (*linear)->pdl()}, matrix, x.data(), m, out.data(), found.front()), cudaSuccess)
                    << shape.n << " x " << shape.k << " m " << m << ": " << describe(found.front());
            }
            ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << shape.n << " x " << shape.k;
        }
    }
}

TEST(Linear, WhatIsFetchedAheadIsDealtWholeAndBounded) {
    alignas(16) static unsigned char memory[16] = {};
    for (const size_t bytes : {size_t{16}, size_t{4096}, size_t{1000000}, size_t{24} << 20})
        for (const uint32_t blocks : {1u, 7u, 132u, 4096u}) {
            const gemm::Ahead ahead = gemm::deal_ahead(memory, bytes, blocks);
            EXPECT_EQ(ahead.from, memory);
            EXPECT_EQ(ahead.bytes, bytes / 16 * 16);
            EXPECT_EQ(ahead.share % 16, 0u);
            EXPECT_GE(uint64_t{ahead.share} * blocks, ahead.bytes);
            EXPECT_LT(uint64_t{ahead.share} * blocks, uint64_t{ahead.bytes} + 16 * uint64_t{blocks});
        }
    EXPECT_EQ(gemm::deal_ahead(memory, (size_t{24} << 20) + 16, 8).from, nullptr);
    EXPECT_EQ(gemm::deal_ahead(nullptr, 4096, 8).from, nullptr);
    EXPECT_EQ(gemm::deal_ahead(memory + 1, 4096, 8).from, nullptr);
    EXPECT_EQ(gemm::deal_ahead(memory, 8, 8).from, nullptr);
}

TEST(Linear, TunesDeterministicProducts) {
    NEEDS_GPU();
    auto stream = make_stream();
    ASSERT_TRUE(stream);
    for (const Shape& shape : {kShapes[0], kShapes[3], kShapes[9]}) {
        Case<__nv_bfloat16> c(shape, 64, seed_of_run());
        auto linear = LinearImpl::make(options(Elem::kBF16, 64, true));
        ASSERT_TRUE(linear);
        const auto tuned = (*linear)->tune(c.matrix, stream->get());
        ASSERT_TRUE(tuned) << tuned.error().message;
        EXPECT_GT((*linear)->measured(), 0u);
        for (uint32_t m : {1u, 33u, 64u}) {
            c.prepare(m);
            cudaDeviceSynchronize();
            ASSERT_EQ((*linear)->run({stream->get(), (*linear)->pdl()}, c.matrix, c.x(), m, c.out()), cudaSuccess);
            EXPECT_EQ(c.check(m, tolerance(Elem::kBF16, shape)), "") << "m " << m;
        }
    }
}

TEST(Linear, OracleAgreesWithTheHost) {
    NEEDS_GPU();
    const Shape shape = {24, 40, kF32, true, true};
    const uint32_t m = 3;
    Case<__half> c(shape, m, seed_of_run());
    auto linear = LinearImpl::make(options(Elem::kF16, 8));
    ASSERT_TRUE(linear);
    ASSERT_TRUE((*linear)->reserve(c.matrix));
    c.prepare(m);
    ASSERT_EQ((*linear)->run({nullptr, false}, c.matrix, c.x(), m, c.out()), cudaSuccess);
    std::vector<__half> w(24 * 40), x(3 * 40), bias(24);
    std::vector<float> norm(40), out(3 * 24);
    cudaMemcpy(w.data(), c.matrix.w, w.size() * 2, cudaMemcpyDeviceToHost);
    cudaMemcpy(x.data(), c.x(), x.size() * 2, cudaMemcpyDeviceToHost);
    cudaMemcpy(bias.data(), c.matrix.bias, bias.size() * 2, cudaMemcpyDeviceToHost);
    cudaMemcpy(norm.data(), c.matrix.norm, norm.size() * 4, cudaMemcpyDeviceToHost);
    cudaMemcpy(out.data(), c.out(), out.size() * 4, cudaMemcpyDeviceToHost);
    for (uint32_t i = 0; i < m; ++i) {
        double square = 0;
        for (uint32_t e = 0; e < 40; ++e) square += std::pow(static_cast<double>(__half2float(x[i * 40 + e])), 2);
        for (uint32_t j = 0; j < 24; ++j) {
            double ref = 0;
            for (uint32_t e = 0; e < 40; ++e)
                ref += static_cast<double>(__half2float(x[i * 40 + e])) * norm[e] * __half2float(w[j * 40 + e]);
            ref = ref / std::sqrt(square / 40 + c.matrix.eps) + __half2float(bias[j]);
            EXPECT_NEAR(out[i * 24 + j], ref, 4e-3);
        }
    }
    EXPECT_EQ(c.check(m, tolerance(Elem::kF16, shape, m)), "");
}

/// Rows of a deterministic product are the same bits for every m and every kernel that may be chosen.
TEST(Linear, DeterministicBitsDoNotDependOnM) {
    NEEDS_GPU();
    const uint32_t most = size_limit() == ~uint64_t{0} ? 4096 : 200;
    auto linear = LinearImpl::make(options(Elem::kBF16, most, true));
    ASSERT_TRUE(linear) << linear.error().message;
    uint32_t compared = 0;
    for (const Shape& shape : kShapes) {
        if (shape.n * static_cast<uint64_t>(shape.k) > std::min<uint64_t>(size_limit(), 30000000) || shape.out == kF32) continue;
        Case<__nv_bfloat16> c(shape, 1, seed_of_run() + 5000 + shape.n);
        DeviceBuffer x = device(size_t{most} * shape.k * 2);
        fill<__nv_bfloat16>(x, seed_of_run() + 1, 1.0f);
        ASSERT_TRUE((*linear)->reserve(c.matrix));
        DeviceBuffer whole = device(c.out_bytes(most));
        cudaMemset(whole.data(), 0, whole.size());
        ASSERT_EQ((*linear)->run({nullptr, false}, c.matrix, x.data(), most, whole.data()), cudaSuccess);
        DeviceBuffer part = device(c.out_bytes(most));
        for (uint32_t m : {1u, 2u, 3u, 5u, 8u, 9u, 16u, 17u, 33u, 64u, 65u, 127u, 200u, 1000u, 4096u}) {
            if (m > most) break;
            for (const Choice& choice : (*linear)->candidates(c.matrix, m)) {
                cudaMemset(part.data(), 0, c.out_bytes(m));
                ASSERT_EQ((*linear)->run_as({nullptr, false}, c.matrix, x.data(), m, part.data(), choice), cudaSuccess);
                EXPECT_EQ(differing(whole.data(), part.data(), c.out_bytes(m)), 0u)
                    << shape.n << " x " << shape.k << " m " << m << ": " << describe(choice);
                ++compared;
            }
        }
    }
    std::printf("%u products compared\n", compared);
}

/// Chains of dependent products give the same bits whether kernels overlap or not.
TEST(Linear, OverlappingLaunchesChangeNothing) {
    NEEDS_GPU();
    auto made = LinearImpl::make(options(Elem::kBF16, 256));
    ASSERT_TRUE(made);
    LinearImpl& linear = **made;
    if (!linear.pdl()) GTEST_SKIP() << "this GPU has no programmatic dependent launch";
    std::vector<std::unique_ptr<Case<__nv_bfloat16>>> layer;
    for (const Shape& shape : {Shape{2048, 1024, kStore, true, false}, Shape{1024, 2048, kAdd, false, false},
                               Shape{6144, 1024, kSwiGlu, true, false}, Shape{1024, 3072, kAdd, false, false}})
        layer.push_back(std::make_unique<Case<__nv_bfloat16>>(shape, 1, seed_of_run() + shape.k));
    auto stream = make_stream();
    ASSERT_TRUE(stream);
    for (uint32_t m : {1u, 2u, 4u, 8u, 16u, 64u, 200u}) {
        DeviceBuffer hidden = device(size_t{m} * 1024 * 2), first = device(hidden.size()), wide = device(size_t{m} * 3072 * 2);
        std::vector<std::vector<Choice>> ways;
        size_t rounds = 0;
        for (auto& c : layer) {
            ASSERT_TRUE(linear.reserve(c->matrix));
            ways.push_back(linear.candidates(c->matrix, m));
            rounds = std::max(rounds, ways.back().size());
        }
        for (size_t round = 0; round < rounds; ++round)
            for (const bool overlap : {false, true}) {
                fill<__nv_bfloat16>(hidden, seed_of_run() + 7, 1.0f);
                cudaMemset(wide.data(), kPoison, wide.size());
                cudaDeviceSynchronize();
                for (int l = 0; l < 6; ++l)
                    for (size_t i = 0; i < layer.size(); ++i) {
                        void* in = i % 2 == 0 ? hidden.data() : wide.data();
                        void* to = i % 2 == 0 ? wide.data() : hidden.data();
                        ASSERT_EQ(linear.run_as({stream->get(), overlap}, layer[i]->matrix, in, m, to, ways[i][round % ways[i].size()]), cudaSuccess);
                        if (!overlap) cudaStreamSynchronize(stream->get());
                    }
                ASSERT_EQ(cudaStreamSynchronize(stream->get()), cudaSuccess);
                if (!overlap) cudaMemcpy(first.data(), hidden.data(), hidden.size(), cudaMemcpyDeviceToDevice);
            }
        EXPECT_EQ(differing(hidden.data(), first.data(), hidden.size()), 0u) << "m " << m;
    }
}

TEST(Linear, TunesAndKeepsItsChoices) {
    NEEDS_GPU();
    const std::string folder = std::filesystem::temp_directory_path() / ("linear-cache-" + random_hex(6));
    auto o = options(Elem::kBF16, 300);
    o.cache_folder = folder;
    const Shape shape = {1152, 896, kStore, true, true};
    Case<__nv_bfloat16> c(shape, 300, seed_of_run());
    auto stream = make_stream();
    ASSERT_TRUE(stream);
    std::string first;
    {
        auto linear = LinearImpl::make(o);
        ASSERT_TRUE(linear);
        auto tuned = (*linear)->tune(c.matrix, stream->get());
        ASSERT_TRUE(tuned) << tuned.error().message;
        EXPECT_GT((*linear)->measured(), 0u);
        first = (*linear)->choices();
        for (uint32_t m : {1u, 3u, 100u, 255u, 300u}) {
            c.prepare(m);
            cudaDeviceSynchronize();
            ASSERT_EQ((*linear)->run({stream->get(), (*linear)->pdl()}, c.matrix, c.x(), m, c.out()), cudaSuccess);
            EXPECT_EQ(c.check(m, tolerance(Elem::kBF16, shape)), "") << "m " << m;
        }
        EXPECT_EQ((*linear)->run({stream->get(), false}, c.matrix, c.x(), 0, c.out()), cudaSuccess);
        EXPECT_EQ((*linear)->run({stream->get(), false}, c.matrix, c.x(), 301, c.out()), cudaErrorInvalidValue);
    }
    {
        auto linear = LinearImpl::make(o);
        ASSERT_TRUE(linear);
        ASSERT_TRUE((*linear)->tune(c.matrix, stream->get()));
        EXPECT_EQ((*linear)->measured(), 0u);
        EXPECT_EQ((*linear)->choices(), first);
    }
    for (const auto& file : std::filesystem::directory_iterator(folder)) {  // torn: tuned anew, nothing worse
        std::filesystem::resize_file(file.path(), std::filesystem::file_size(file.path()) / 2);
        auto linear = LinearImpl::make(o);
        ASSERT_TRUE(linear);
        ASSERT_TRUE((*linear)->tune(c.matrix, stream->get()));
        EXPECT_GT((*linear)->measured(), 0u);
    }
    std::filesystem::remove_all(folder);
}

/// Alternatives of a family are the same kernel, and no others are.
TEST(Linear, FamiliesAreKernels) {
    NEEDS_GPU();
    auto stream = make_stream();
    ASSERT_TRUE(stream);
    const Shape shape = {1024, 2048, kAdd, false, false};
    Case<__nv_bfloat16> c(shape, 16, seed_of_run());
    auto linear = LinearImpl::make(options(Elem::kBF16, 16));
    ASSERT_TRUE(linear) << linear.error().message;
    EXPECT_EQ((*linear)->family(c.matrix, 16, 0), 0u) << "not tuned yet";
    ASSERT_TRUE((*linear)->tune(c.matrix, stream->get()));
    for (const uint32_t m : {1u, 8u, 16u}) {
        std::vector<std::pair<std::string, uint32_t>> all;  // name up to the kernel's shape, family
        for (uint32_t i = 0; i < (*linear)->alternatives(c.matrix, m); ++i) {
            const uint32_t family = (*linear)->family(c.matrix, m, i);
            (*linear)->choose(c.matrix, m, i);
            const Choice& choice = (*linear)->chosen(c.matrix, m);
            const std::string name = describe(choice);
            all.emplace_back(name.substr(0, name.find(' ', name.find(' ') + 1)), family);
        }
        for (const auto& [name, family] : all)
            for (const auto& [other_name, other] : all)
                if (family == other || name.starts_with("slab") || name.starts_with("direct"))
                    EXPECT_EQ(family == other, name == other_name) << name << ", " << other_name << ", m " << m;
    }
    bool slab = false;
    for (uint32_t i = 0; i < (*linear)->alternatives(c.matrix, 16); ++i) {
        (*linear)->choose(c.matrix, 16, i);
        slab |= describe((*linear)->chosen(c.matrix, 16)).starts_with("slab 16x32");
    }
    EXPECT_EQ(slab, current_device().major == 9 && current_device().runs_sm90_code()) << "of 16 rows every form of slab is tried in the step";
    EXPECT_EQ((*linear)->family(c.matrix, 17, 0), 0u) << "more rows than there may be";
}

Choices some_choices() {
    std::mt19937 random(seed_of_run());
    Choices choices;
    for (uint32_t i = 0; i < 20; ++i) {
        ShapeKey key;
        key.elem = static_cast<Elem>(i % 2);
        key.out = static_cast<Out>(i % 4);
        key.bias = i % 3 == 0;
        key.n = 64 * (i + 1);
        key.k = 8 * (i + 3);
        Choice choice;
        choice.kind = static_cast<Kind>(i % 8);
        choice.gemv = {static_cast<uint8_t>(i % gemv_shapes().size()), static_cast<uint8_t>(1u << i % 4)};
        choice.tile = {static_cast<uint8_t>(i % tile_shapes().size()), static_cast<uint8_t>(1u << i % 4), i % 5 == 0, i % 7 == 0};
        choice.direct = {static_cast<uint8_t>(i % direct_shapes().size()), static_cast<uint8_t>(1 + i % 8), 1};
        choice.ring = {static_cast<uint8_t>(i % ring_shapes().size()), static_cast<uint8_t>(1u << i % 4), static_cast<uint8_t>(1u << i % 3),
                       static_cast<uint8_t>(2 + i), static_cast<uint8_t>(2 + i % 9), i % 2 == 0};
        choice.held = static_cast<uint8_t>(i % held_shapes().size());
        choice.slab = {static_cast<uint8_t>(i % slab_shapes().size()), static_cast<uint8_t>(1 + i % 12), static_cast<uint8_t>(1u << i % 3), i % 2 == 0};
        choice.bulk = {static_cast<uint8_t>(i % bulk_shapes().size()), static_cast<uint8_t>(1u << i % 3), static_cast<uint8_t>(1u << i % 2), static_cast<uint8_t>(1 + i)};
        choice.microseconds = static_cast<float>(i) * 1.5f;
        for (uint64_t& word : choice.algo) word = random();
        choices[{key, i % kBuckets}] = choice;
    }
    return choices;
}

TEST(LinearCache, RoundTrip) {
    const CacheIdentity identity = {"NVIDIA H200", 130000};
    const Choices choices = some_choices();
    const auto bytes = encode_choices(identity, choices);
    const auto back = decode_choices(identity, bytes);
    ASSERT_TRUE(back) << back.error().message;
    ASSERT_EQ(back->size(), choices.size());
    EXPECT_EQ(encode_choices(identity, *back), bytes);
    EXPECT_FALSE(decode_choices({"NVIDIA H100", 130000}, bytes));
    EXPECT_FALSE(decode_choices({"NVIDIA H200", 130001}, bytes));
}

TEST(LinearCache, TornOrChangedBytesAreRefused) {
    const CacheIdentity identity = {"NVIDIA H200", 130000};
    auto bytes = encode_choices(identity, some_choices());
    for (size_t size = 0; size < bytes.size(); ++size) EXPECT_FALSE(decode_choices(identity, std::span(bytes).first(size)));
    for (auto& byte : bytes) {
        byte ^= std::byte{0x40};
        EXPECT_FALSE(decode_choices(identity, bytes));
        byte ^= std::byte{0x40};
    }
}

/// With a right checksum over hostile bytes, what decodes is within the bounds that the kernels' tables need.
TEST(LinearCache, HostileBytesStayWithinBounds) {
    const CacheIdentity identity = {"NVIDIA H200", 130000};
    const auto good = encode_choices(identity, some_choices());
    std::mt19937 random(seed_of_run());
    for (int round = 0; round < 20000; ++round) {
        auto bytes = good;
        for (uint32_t flips = 1 + random() % 4; flips > 0; --flips) bytes[random() % bytes.size()] = static_cast<std::byte>(random());
        if (random() % 4 == 0) bytes.resize(8 + random() % bytes.size());
        const auto body = std::span(bytes).first(bytes.size() - 8);
        const uint64_t sum = checksum64(body);
        std::memcpy(bytes.data() + body.size(), &sum, 8);
        const auto choices = decode_choices(identity, bytes);
        if (!choices) continue;
        for (const auto& [where, choice] : *choices) {
            ASSERT_LT(where.second, kBuckets);
            ASSERT_LT(choice.gemv.variant, gemv_shapes().size());
            ASSERT_LT(choice.tile.variant, tile_shapes().size());
            ASSERT_LT(choice.direct.variant, direct_shapes().size());
            ASSERT_LT(choice.ring.variant, ring_shapes().size());
            ASSERT_LT(choice.held, held_shapes().size());
            ASSERT_LT(choice.slab.variant, slab_shapes().size());
            ASSERT_LT(choice.bulk.variant, bulk_shapes().size());
            ASSERT_LE(choice.bulk.share_m, 4);
            ASSERT_LE(choice.bulk.share_n, 2);
            ASSERT_GT(choice.bulk.share_m * choice.bulk.share_n * choice.bulk.band, 0);
            ASSERT_GT(choice.direct.slices * choice.direct.tiles, 0);
            ASSERT_LE(choice.gemv.k_warps, 8);
            ASSERT_LE(choice.tile.splits, 8);
            ASSERT_TRUE(std::isfinite(choice.microseconds));
        }
    }
}

TEST(LinearCache, FileIsReplacedWhole) {
    const CacheIdentity identity = {"NVIDIA H200 / test", 1};
    const std::string folder = std::filesystem::temp_directory_path() / ("linear-cache-" + random_hex(6));
    EXPECT_TRUE(load_choices(folder, identity).empty());
    ASSERT_TRUE(save_choices(folder, identity, some_choices()));
    ASSERT_TRUE(save_choices(folder, identity, some_choices()));
    EXPECT_EQ(load_choices(folder, identity).size(), some_choices().size());
    size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) files += entry.is_regular_file() ? 1 : 0;
    EXPECT_EQ(files, 1u);
    std::ofstream(std::filesystem::path(folder) / identity.file_name(), std::ios::trunc) << "garbage";
    EXPECT_TRUE(load_choices(folder, identity).empty());
    std::filesystem::remove_all(folder);
    EXPECT_FALSE(save_choices("/proc/none", identity, some_choices()));
}

TEST(LinearCache, BucketsArePowersOfTwo) {
    EXPECT_EQ(bucket_of(1), 0u);
    EXPECT_EQ(bucket_of(2), 1u);
    EXPECT_EQ(bucket_of(3), 2u);
    EXPECT_EQ(bucket_of(4), 2u);
    EXPECT_EQ(bucket_of(5), 3u);
    EXPECT_EQ(bucket_of(8192), 13u);
    EXPECT_EQ(bucket_of(8193), 14u);
}

template <class T>
std::vector<float> to_host(const DeviceBuffer& buffer, size_t offset, size_t count) {
    std::vector<T> raw(count);
    cudaMemcpy(raw.data(), buffer.as<T>() + offset, count * sizeof(T), cudaMemcpyDeviceToHost);
    std::vector<float> out(count);
    for (size_t i = 0; i < count; ++i) out[i] = static_cast<float>(raw[i]);
    return out;
}

TEST(Rows, GatherCopiesRows) {
    NEEDS_GPU();
    for (uint32_t width : {8u, 576u, 896u, 1024u, 4096u}) {
        const uint32_t from = 333, rows = 37;
        DeviceBuffer table = device(size_t{from} * width * 2), out = device(size_t{rows} * width * 2 + 64);
        fill<__nv_bfloat16>(table, seed_of_run(), 1.0f);
        cudaMemset(out.data(), kPoison, out.size());
        std::vector<int32_t> index(rows);
        for (uint32_t i = 0; i < rows; ++i) index[i] = static_cast<int32_t>((i * 101) % from);
        DeviceBuffer d_index = device(rows * 4);
        cudaMemcpy(d_index.data(), index.data(), rows * 4, cudaMemcpyHostToDevice);
        ASSERT_EQ(gather_rows({}, Elem::kBF16, table.data(), d_index.as<int32_t>(), rows, width, out.data()), cudaSuccess);
        for (uint32_t i = 0; i < rows; ++i)
            EXPECT_EQ(differing(out.data() + size_t{i} * width * 2, table.data() + static_cast<size_t>(index[i]) * width * 2, width * 2), 0u);
        unsigned char tail[64];
        cudaMemcpy(tail, out.data() + size_t{rows} * width * 2, 64, cudaMemcpyDeviceToHost);
        for (unsigned char c : tail) EXPECT_EQ(c, kPoison);
    }
    EXPECT_EQ(gather_rows({}, Elem::kBF16, nullptr, nullptr, 1, 12, nullptr), cudaErrorInvalidValue);
    EXPECT_EQ(gather_rows({}, Elem::kBF16, nullptr, nullptr, 0, 8, nullptr), cudaSuccess);
}

template <class T>
void check_norm_and_swiglu(Elem elem, double unit) {
    for (uint32_t width : {8u, 576u, 896u, 960u, 1024u, 1536u, 4096u, 4864u, 14336u}) {
        const uint32_t rows = 19;
        DeviceBuffer x = device(size_t{rows} * width * 4), g = device(size_t{width} * 4), out = device(size_t{rows} * width * 2 + 64);
        fill<T>(x, seed_of_run() + width, 2.0f);
        fill<float>(g, seed_of_run() + 9, 0.5f, 1.0f);
        cudaMemset(out.data(), kPoison, out.size());
        ASSERT_EQ(rms_norm({}, elem, x.data(), g.as<float>(), 1e-6f, rows, width, out.data()), cudaSuccess);
        const auto xs = to_host<T>(x, 0, size_t{rows} * width * 2), gs = to_host<float>(g, 0, width);
        auto got = to_host<T>(out, 0, size_t{rows} * width + 32);
        for (uint32_t i = 0; i < rows; ++i) {
            double square = 0;
            for (uint32_t e = 0; e < width; ++e) square += std::pow(static_cast<double>(xs[i * width + e]), 2);
            const double scale = 1 / std::sqrt(square / width + 1e-6);
            for (uint32_t e = 0; e < width; ++e) {
                const double ref = xs[i * width + e] * scale * gs[e];
                ASSERT_NEAR(got[i * width + e], ref, unit * std::fabs(ref) + 1e-6) << width;
            }
        }
        for (size_t i = size_t{rows} * width; i < got.size(); ++i) ASSERT_TRUE(std::isnan(got[i]));
        cudaMemset(out.data(), kPoison, out.size());
        ASSERT_EQ(swiglu({}, elem, x.data(), rows, width, out.data()), cudaSuccess);
        got = to_host<T>(out, 0, size_t{rows} * width + 32);
        for (uint32_t i = 0; i < rows; ++i)
            for (uint32_t e = 0; e < width; ++e) {
                const double gate = xs[size_t{i} * 2 * width + e];
                const double ref = gate / (1 + std::exp(-gate)) * xs[size_t{i} * 2 * width + width + e];
                ASSERT_NEAR(got[i * width + e], ref, unit * std::fabs(ref) + 1e-5) << width;
            }
        for (size_t i = size_t{rows} * width; i < got.size(); ++i) ASSERT_TRUE(std::isnan(got[i]));
    }
}

TEST(Rows, NormAndSwiGlu) {
    NEEDS_GPU();
    check_norm_and_swiglu<__nv_bfloat16>(Elem::kBF16, 1.0 / 256);
    check_norm_and_swiglu<__half>(Elem::kF16, 1.0 / 2048);
    EXPECT_EQ(rms_norm({}, Elem::kBF16, nullptr, nullptr, 0, 1, 20, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace baton::backend::cuda
