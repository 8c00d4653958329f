#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "backend/cuda/attention.hpp"

/// Sequences over a paged pool on the device, their values on the host, and attention in float64 over the same values: what
/// the attention tests and the bench share.
namespace baton::test {

using backend::cuda::Elem;

inline void cuda_check(cudaError_t error, const char* what, int line) {
    if (error != cudaSuccess) {
        std::printf("line %d: %s: %s\n", line, what, cudaGetErrorString(error));
        std::exit(3);
    }
}
#define BATON_CUDA(x) ::baton::test::cuda_check((x), #x, __LINE__)

/// Device memory that is filled with 0xff (NaN in every type here) when made.
template <class T>
class DeviceArray {
  public:
    explicit DeviceArray(size_t n) : size_(n) {
        BATON_CUDA(cudaMalloc(&data_, std::max<size_t>(1, n) * sizeof(T)));
        BATON_CUDA(cudaMemset(data_, 0xff, std::max<size_t>(1, n) * sizeof(T)));
    }
    explicit DeviceArray(const std::vector<T>& v) : DeviceArray(v.size()) { put(v); }
    DeviceArray(const DeviceArray&) = delete;
    DeviceArray& operator=(const DeviceArray&) = delete;
    ~DeviceArray() { cudaFree(data_); }
    void put(const std::vector<T>& v) {
        if (!v.empty())
            BATON_CUDA(cudaMemcpy(data_, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    [[nodiscard]] std::vector<T> get() const {
        std::vector<T> v(size_);
        if (size_ != 0)
            BATON_CUDA(cudaMemcpy(v.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
        return v;
    }
    void fill(int byte) { BATON_CUDA(cudaMemset(data_, byte, std::max<size_t>(1, size_) * sizeof(T))); }
    [[nodiscard]] T* data() const { return data_; }
    [[nodiscard]] size_t size() const { return size_; }

  private:
    T* data_ = nullptr;
    size_t size_;
};

/// Runs `work(i)` for all i below n on all cores.
template <class F>
void for_each_index(size_t n, const F& work) {
    std::atomic<size_t> next{0};
    std::vector<std::thread> threads;
    for (size_t t = 0; t < std::min<size_t>(n, std::max(1u, std::thread::hardware_concurrency())); ++t)
        threads.emplace_back([&] {
            for (size_t i = next++; i < n; i = next++)
                work(i);
        });
    for (std::thread& t : threads)
        t.join();
}

/// Whether the tests take fewer shapes: under compute-sanitizer, where a kernel takes some thousand times as long.
inline bool reduced() { return std::getenv("BATON_TEST_REDUCED") != nullptr; }

inline uint16_t to_bits(Elem e, float v) {
    uint16_t bits;
    if (e == Elem::kBF16) {
        const __nv_bfloat16 x = __float2bfloat16(v);
        std::memcpy(&bits, &x, 2);
    } else {
        const __half x = __float2half(v);
        std::memcpy(&bits, &x, 2);
    }
    return bits;
}
inline float to_float(Elem e, uint16_t bits) {
    if (e == Elem::kBF16) {
        __nv_bfloat16 x;
        std::memcpy(static_cast<void*>(&x), &bits, 2);
        return __bfloat162float(x);
    }
    __half x;
    std::memcpy(static_cast<void*>(&x), &bits, 2);
    return __half2float(x);
}

struct Shape {
    Elem elem = Elem::kBF16;
    uint32_t heads = 1;
    uint32_t kv_heads = 1;
    uint32_t head_dim = 128;
    uint32_t block_tokens = 16;
    bool kv_first = false;
    uint32_t layers = 2;
    uint32_t layer = 1;
    [[nodiscard]] uint32_t group() const { return heads / kv_heads; }
    [[nodiscard]] float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }
};

/// Values of one matrix [rows, width] on the host as bits.
inline std::vector<uint16_t> random_bits(Elem e, size_t n, float range, std::mt19937& rng) {
    std::uniform_real_distribution<float> d(-range, range);
    std::vector<uint16_t> v(n);
    for (auto& x : v)
        x = to_bits(e, d(rng));
    return v;
}

/// Contexts of given lengths in a poisoned pool with shuffled blocks.
class Contexts {
  public:
    Contexts(const Shape& s, std::vector<uint32_t> lengths, std::mt19937& rng) : shape(s), lengths_(std::move(lengths)) {
        const uint32_t bt = s.block_tokens;
        uint32_t total = 0;
        uint32_t longest = 0;
        for (const uint32_t n : lengths_) {
            total += (n + bt - 1) / bt;
            longest = std::max(longest, (n + bt - 1) / bt);
        }
        blocks = total + 3;
        stride = longest + 2;
        page = static_cast<size_t>(bt) * s.kv_heads * s.head_dim;
        std::vector<int32_t> order(blocks);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), rng);
        table.assign(lengths_.size() * stride, 0x3fffffff);  // reading through it faults
        pool.assign(page * 2 * s.layers * blocks, 0xffff);
        size_t next = 0;
        for (size_t i = 0; i < lengths_.size(); ++i) {
            for (uint32_t b = 0; b < (lengths_[i] + bt - 1) / bt; ++b)
                table[i * stride + b] = order[next++];
            const size_t n = static_cast<size_t>(lengths_[i]) * s.kv_heads * s.head_dim;
            k.push_back(random_bits(s.elem, n, 1.0f, rng));
            v.push_back(random_bits(s.elem, n, 1.0f, rng));
            for (uint32_t t = 0; t < lengths_[i]; ++t)
                write_row(i, t);
        }
    }
    /// Offset in the pool of the row of `token` of sequence i.
    [[nodiscard]] size_t offset(size_t i, uint32_t token, uint32_t head, bool is_v) const {
        const auto block = static_cast<size_t>(table[i * stride + token / shape.block_tokens]);
        const size_t first = shape.kv_first ? ((is_v ? shape.layers : 0) + shape.layer) * static_cast<size_t>(blocks) + block
                                            : (block * shape.layers + shape.layer) * 2 + (is_v ? 1 : 0);
        return first * page + (static_cast<size_t>(head) * shape.block_tokens + token % shape.block_tokens) * shape.head_dim;
    }
    [[nodiscard]] int32_t slot(size_t i, uint32_t token) const {
        return table[i * stride + token / shape.block_tokens] * static_cast<int32_t>(shape.block_tokens) +
               static_cast<int32_t>(token % shape.block_tokens);
    }
    [[nodiscard]] size_t row(uint32_t token, uint32_t head) const {
        return (static_cast<size_t>(token) * shape.kv_heads + head) * shape.head_dim;
    }
    void write_row(size_t i, uint32_t t) {
        for (uint32_t h = 0; h < shape.kv_heads; ++h) {
            std::copy_n(k[i].begin() + static_cast<long>(row(t, h)), shape.head_dim, pool.begin() + static_cast<long>(offset(i, t, h, false)));
            std::copy_n(v[i].begin() + static_cast<long>(row(t, h)), shape.head_dim, pool.begin() + static_cast<long>(offset(i, t, h, true)));
        }
    }
    void poison_row(size_t i, uint32_t t) {
        for (uint32_t h = 0; h < shape.kv_heads; ++h) {
            std::fill_n(pool.begin() + static_cast<long>(offset(i, t, h, false)), shape.head_dim, 0xffff);
            std::fill_n(pool.begin() + static_cast<long>(offset(i, t, h, true)), shape.head_dim, 0xffff);
        }
    }
    [[nodiscard]] backend::cuda::KvView view(uint16_t* device_pool) const {
        const size_t pages = shape.kv_first ? 1 : 2 * shape.layers;
        backend::cuda::KvView kv;
        kv.k = device_pool + page * (shape.kv_first ? static_cast<size_t>(shape.layer) * blocks : 2 * shape.layer);
        kv.v = device_pool + page * (shape.kv_first ? static_cast<size_t>(shape.layers + shape.layer) * blocks : 2 * shape.layer + 1);
        kv.block_stride = static_cast<int64_t>(page * pages);
        kv.block_tokens = shape.block_tokens;
        kv.kv_heads = shape.kv_heads;
        kv.head_dim = shape.head_dim;
        return kv;
    }
    /// softmax(q · Kᵀ · scale) · V of one head in float64 over the first `visible` positions.
    [[nodiscard]] std::vector<double> attend(size_t i, uint32_t head, const uint16_t* q, uint32_t visible) const {
        const uint32_t kv_head = head / shape.group();
        const uint32_t d = shape.head_dim;
        std::vector<double> score(visible);
        double top = -1e300;
        for (uint32_t t = 0; t < visible; ++t) {
            double s = 0;
            for (uint32_t c = 0; c < d; ++c)
                s += static_cast<double>(to_float(shape.elem, q[c])) * to_float(shape.elem, k[i][row(t, kv_head) + c]);
            score[t] = s * shape.scale();
            top = std::max(top, score[t]);
        }
        double sum = 0;
        std::vector<double> out(d, 0.0);
        for (uint32_t t = 0; t < visible; ++t) {
            const double w = std::exp(score[t] - top);
            sum += w;
            for (uint32_t c = 0; c < d; ++c)
                out[c] += w * to_float(shape.elem, v[i][row(t, kv_head) + c]);
        }
        for (auto& x : out)
            x /= sum;
        return out;
    }
    [[nodiscard]] size_t count() const { return lengths_.size(); }
    [[nodiscard]] uint32_t length(size_t i) const { return lengths_[i]; }

    Shape shape;
    uint32_t blocks = 0;
    uint32_t stride = 0;
    size_t page = 0;
    std::vector<int32_t> table;
    std::vector<uint16_t> pool;
    std::vector<std::vector<uint16_t>> k;  ///< [tokens, kv_heads, head_dim] of each sequence
    std::vector<std::vector<uint16_t>> v;

  private:
    std::vector<uint32_t> lengths_;
};

/// Error against float64: of the whole and of the worst element.
struct Deviation {
    double error2 = 0;
    double norm2 = 0;
    double worst = 0;
    double largest = 0;
    bool finite = true;
    void add(double got, double want) {
        finite = finite && std::isfinite(got);
        error2 += (got - want) * (got - want);
        norm2 += want * want;
        worst = std::max(worst, std::fabs(got - want));
        largest = std::max(largest, std::fabs(want));
    }
    [[nodiscard]] double relative() const { return norm2 > 0 ? std::sqrt(error2 / norm2) : std::sqrt(error2); }
    /// `slack`: for few numbers, whose errors even out less.
    [[nodiscard]] bool within(Elem e, double slack = 1) const {
        const double bound = slack * (e == Elem::kBF16 ? 6e-3 : 1e-3);
        return finite && relative() < bound && worst < 4 * bound * std::max(largest, 1e-3);
    }
};

}  // namespace baton::test
