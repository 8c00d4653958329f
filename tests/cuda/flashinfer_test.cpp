#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/attention.hpp"
#include "backend/cuda/attention_prefill.hpp"
#if defined(BATON_WITH_FLASHINFER)
#include "backend/cuda/flashinfer_prefill.hpp"
#endif

// Independent kernels over the same pages: both of ours, and FlashInfer's.
namespace baton::backend::cuda {
namespace {

#if defined(BATON_WITH_FLASHINFER)

constexpr float kPoison = 12345.0f;

uint16_t to_bf16(float v) {
    const auto bits = std::bit_cast<uint32_t>(v);
    return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
float from_bf16(uint16_t v) {
    return std::bit_cast<float>(static_cast<uint32_t>(v) << 16);
}

/// Device memory with a copy of a vector.
template <class T>
class Device {
  public:
    explicit Device(const std::vector<T>& from) : size_(from.size()) {
        EXPECT_EQ(cudaMalloc(&data_, size_ * sizeof(T)), cudaSuccess);
        EXPECT_EQ(cudaMemcpy(data_, from.data(), size_ * sizeof(T), cudaMemcpyHostToDevice),
                  cudaSuccess);
    }
    ~Device() { cudaFree(data_); }
    Device(const Device&) = delete;
    Device& operator=(const Device&) = delete;
    [[nodiscard]] T* get() const { return static_cast<T*>(data_); }
    [[nodiscard]] std::vector<T> read() const {
        std::vector<T> out(size_);
        EXPECT_EQ(cudaMemcpy(out.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost),
                  cudaSuccess);
        return out;
    }

  private:
    void* data_ = nullptr;
    size_t size_;
};

struct Shape {
    uint32_t heads, kv_heads, head_dim, block_tokens;
    std::vector<std::pair<int32_t, int32_t>> sequences;  ///< rows of the step, positions with them
};

void expect_close(const std::vector<uint16_t>& a, const std::vector<uint16_t>& b) {
    double difference = 0, size = 0, largest = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        const double x = static_cast<double>(from_bf16(a[i])),
                     y = static_cast<double>(from_bf16(b[i]));
        ASSERT_LT(std::abs(x), 100.0) << "element " << i << " of ours was not written";
        ASSERT_LT(std::abs(y), 100.0) << "element " << i << " of FlashInfer's was not written";
        difference += (x - y) * (x - y);
        size += y * y;
        largest = std::max(largest, std::abs(x - y));
    }
    EXPECT_LT(std::sqrt(difference / size), 6e-3);
    EXPECT_LT(largest, 0.05);
}

void compare(const Shape& shape, uint64_t seed) {
    std::mt19937_64 rng(seed);
    std::normal_distribution<float> normal;
    const auto random = [&](size_t n) {
        std::vector<uint16_t> out(n);
        for (uint16_t& v : out) v = to_bf16(normal(rng));
        return out;
    };
    std::vector<int32_t> row_begin{0}, kv_len;
    int32_t longest = 0, rows_max = 0;
    for (const auto& [rows, length] : shape.sequences) {
        row_begin.push_back(row_begin.back() + rows);
        kv_len.push_back(length);
        longest = std::max(longest, length);
        rows_max = std::max(rows_max, rows);
    }
    const auto rows = static_cast<size_t>(row_begin.back());
    const uint32_t stride =
        (static_cast<uint32_t>(longest) + shape.block_tokens - 1) / shape.block_tokens + 1;
    const size_t blocks = shape.sequences.size() * stride;
    std::vector<int32_t> table(blocks);
    for (size_t i = 0; i < blocks; ++i) table[i] = static_cast<int32_t>(i);
    std::shuffle(table.begin(), table.end(), rng);
    const size_t page = size_t{shape.kv_heads} * shape.block_tokens * shape.head_dim;
    const Device<uint16_t> k(random(blocks * page)), v(random(blocks * page)),
        q(random(rows * shape.heads * shape.head_dim));
    const Device<int32_t> device_table(table), device_begin(row_begin), device_len(kv_len);
    const std::vector<uint16_t> poison(rows * shape.heads * shape.head_dim, to_bf16(kPoison));
    const Device<uint16_t> theirs(poison);
    PrefillAttention args;
    args.base.kv = {k.get(),        v.get(),       static_cast<int64_t>(page), shape.block_tokens,
                    shape.kv_heads, shape.head_dim};
    args.base.heads = shape.heads;
    args.base.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    args.base.sequences = static_cast<uint32_t>(shape.sequences.size());
    args.base.kv_len = device_len.get();
    args.base.blocks = device_table.get();
    args.base.blocks_stride = stride;
    args.q = q.get();
    args.row_begin = device_begin.get();
    args.rows = static_cast<uint32_t>(rows);
    args.rows_max = static_cast<uint32_t>(rows_max);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    args.base.out = theirs.get();
    ASSERT_EQ(flashinfer_prefill_attention({stream, false}, args), cudaSuccess);
    const std::pair<const char*, cudaError_t (*)(const Launch&, const PrefillAttention&)> own[] = {
        {"sm_90a", prefill_attention_90}, {"portable", prefill_attention_portable}};
    for (const auto& [name, attention] : own) {
        const Device<uint16_t> ours(poison);
        args.base.out = ours.get();
        ASSERT_EQ(attention({stream, false}, args), cudaSuccess);
        ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
        SCOPED_TRACE(std::string(name) + " kernel, seed " + std::to_string(seed) + ", head size " +
                     std::to_string(shape.head_dim));
        expect_close(ours.read(), theirs.read());
    }
    cudaStreamDestroy(stream);
}

TEST(Flashinfer, AgreesWithOurPrefill) {
    int devices = 0, major = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0)
        GTEST_SKIP() << "no GPU on this machine";
    ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
    if (major != 9 || !runs_prefill_90())
        GTEST_SKIP() << "FlashInfer's FA3 kernels and ours for sm_90a need a Hopper GPU";
    const uint64_t seed = std::random_device{}();
    const std::vector<std::pair<int32_t, int32_t>> mixed{{1, 1},     {130, 130}, {77, 1'000},
                                                         {300, 300}, {5, 64},    {700, 2'048}};
    compare({16, 8, 128, 64, mixed}, seed);
    compare({32, 8, 128, 16, mixed}, seed + 1);
    compare({14, 2, 64, 64, mixed}, seed + 2);
    compare({9, 3, 64, 32, mixed}, seed + 3);
    compare({32, 8, 64, 64, {{4'000, 4'000}}}, seed + 4);
    std::vector<std::pair<int32_t, int32_t>> many;
    for (int32_t i = 0; i < 300; ++i) many.emplace_back(1 + i % 13, 20 + i);
    compare({16, 8, 128, 64, many}, seed + 5);
}

#else

TEST(Flashinfer, AgreesWithOurPrefill) {
    GTEST_SKIP() << "this build has no FlashInfer kernels (BATON_WITH_FLASHINFER)";
}

#endif

}  // namespace
}  // namespace baton::backend::cuda
