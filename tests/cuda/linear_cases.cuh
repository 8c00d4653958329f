#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "backend/cuda/gemm_device.cuh"
#include "backend/cuda/linear_impl.hpp"

/// What the tests of the matrix products share: inputs, the oracle in float64, the comparison.
namespace baton::backend::cuda {
namespace {

using gemm::Ops;

constexpr size_t kGuard = 1024;  // bytes before and after each output
constexpr unsigned char kPoison = 0xff;

inline bool gpu_present() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}
#define NEEDS_GPU() \
    if (!gpu_present()) GTEST_SKIP() << "no GPU here"

inline uint32_t seed_of_run() {
    static const uint32_t seed = [] {
        const char* given = std::getenv("BATON_TEST_SEED");
        const uint32_t value = given != nullptr ? static_cast<uint32_t>(std::strtoul(given, nullptr, 10)) : std::random_device{}();
        std::printf("seed %u\n", value);
        return value;
    }();
    return seed;
}

__device__ float random_at(uint64_t i, uint32_t seed) {
    uint64_t h = (i + 1) * 0x9e3779b97f4a7c15ull ^ (static_cast<uint64_t>(seed) << 17);
    h ^= h >> 31;
    h *= 0xbf58476d1ce4e5b9ull;
    h ^= h >> 27;
    h *= 0x94d049bb133111ebull;
    h ^= h >> 32;
    return static_cast<float>(h & 0xffffff) / 8388608.0f - 1.0f;
}
template <class T>
__global__ void fill_kernel(T* p, uint64_t count, uint32_t seed, float scale, float offset) {
    for (uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x; i < count; i += static_cast<uint64_t>(gridDim.x) * blockDim.x)
        if constexpr (std::is_same_v<T, float>)
            p[i] = offset + scale * random_at(i, seed);
        else
            p[i] = Ops<T>::from_float(offset + scale * random_at(i, seed));
}

__device__ double warp_sum64(double v) {
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

/// Oracle: y [m, n] f64 = norm(x) · wᵀ + bias. A warp a result.
template <class T>
__global__ void oracle_kernel(const T* w, const T* bias, const float* norm, double eps, const T* x, uint32_t m, uint32_t n,
                              uint32_t k, double* y) {
    const uint64_t at = (blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x) / 32;
    const uint32_t lane = threadIdx.x & 31;
    if (at >= static_cast<uint64_t>(m) * n) return;
    const uint32_t j = static_cast<uint32_t>(at / m);
    const uint32_t i = static_cast<uint32_t>(at % m);
    double dot = 0;
    double square = 0;
    for (uint32_t e = lane; e < k; e += 32) {
        const double v = Ops<T>::to_float(x[static_cast<uint64_t>(i) * k + e]);
        square += v * v;
        dot += v * (norm != nullptr ? norm[e] : 1.0) * Ops<T>::to_float(w[static_cast<uint64_t>(j) * k + e]);
    }
    dot = warp_sum64(dot);
    square = warp_sum64(square);
    if (norm != nullptr) dot /= sqrt(square / k + eps);
    if (lane == 0) y[static_cast<uint64_t>(i) * n + j] = dot + (bias != nullptr ? Ops<T>::to_float(bias[j]) : 0.0f);
}

struct Sums {
    double error2;
    double ref2;
    double worst;          // largest |error| / (|ref| + rms), filled in two passes
    unsigned long long bad;  // not finite
};

/// What the outputs should be, from y and what out held before; compares.
template <class T>
__global__ void compare_kernel(const double* y, const void* out, const void* before, Out kind, uint32_t m, uint32_t columns,
                               double rms, Sums* sums) {
    const uint64_t count = static_cast<uint64_t>(m) * columns;
    double error2 = 0;
    double ref2 = 0;
    double worst = 0;
    unsigned long long bad = 0;
    for (uint64_t at = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x; at < count; at += static_cast<uint64_t>(gridDim.x) * blockDim.x) {
        double ref = 0;
        double got = 0;
        if (kind == Out::kSwiGlu) {
            const uint64_t row = at / columns;
            const double gate = y[row * 2 * columns + at % columns];
            ref = gate / (1 + exp(-gate)) * y[row * 2 * columns + columns + at % columns];
        } else {
            ref = y[at] + (kind == Out::kAdd ? Ops<T>::to_float(static_cast<const T*>(before)[at]) : 0.0f);
        }
        got = kind == Out::kF32 ? static_cast<const float*>(out)[at] : Ops<T>::to_float(static_cast<const T*>(out)[at]);
        if (!isfinite(got)) {
            ++bad;
            continue;
        }
        error2 += (got - ref) * (got - ref);
        ref2 += ref * ref;
        worst = fmax(worst, fabs(got - ref) / (fabs(ref) + rms));
    }
    atomicAdd(&sums->error2, error2);
    atomicAdd(&sums->ref2, ref2);
    atomicAdd(&sums->bad, bad);
    atomicMax(reinterpret_cast<unsigned long long*>(&sums->worst), __double_as_longlong(worst));
}

__global__ void difference_kernel(const uint16_t* a, const uint16_t* b, uint64_t count, unsigned long long* differ) {
    unsigned long long found = 0;
    for (uint64_t i = blockIdx.x * static_cast<uint64_t>(blockDim.x) + threadIdx.x; i < count; i += static_cast<uint64_t>(gridDim.x) * blockDim.x)
        found += a[i] != b[i];
    atomicAdd(differ, found);
}

inline DeviceBuffer device(size_t bytes) {
    auto made = DeviceBuffer::make(bytes, "a test");
    if (!made) throw std::runtime_error(made.error().message);
    return std::move(*made);
}

template <class T>
void fill(DeviceBuffer& buffer, uint32_t seed, float scale, float offset = 0) {
    fill_kernel<T><<<1024, 256>>>(buffer.as<T>(), buffer.size() / sizeof(T), seed, scale, offset);
}

inline uint64_t differing(const void* a, const void* b, size_t bytes) {
    DeviceBuffer count = device(8);
    cudaMemset(count.data(), 0, 8);
    difference_kernel<<<512, 256>>>(static_cast<const uint16_t*>(a), static_cast<const uint16_t*>(b), bytes / 2, count.as<unsigned long long>());
    unsigned long long value = 0;
    cudaMemcpy(&value, count.data(), 8, cudaMemcpyDeviceToHost);
    return value;
}

struct Shape {
    uint32_t n;
    uint32_t k;
    Out out;
    bool norm;
    bool bias;
};

/// The inputs of one matrix for up to `rows` rows, and its oracle.
template <class T>
class Case {
  public:
    Case(const Shape& shape, uint32_t rows, uint32_t seed) : rows_(rows) {
        w_ = device(size_t{shape.n} * shape.k * 2);
        bias_ = device(size_t{shape.n} * 2 + 16);
        norm_ = device(size_t{shape.k} * 4);
        x_ = device(size_t{rows} * shape.k * 2);
        matrix.n = shape.n;
        matrix.k = shape.k;
        matrix.out = shape.out;
        matrix.eps = 1e-5f;
        columns_ = result_columns(matrix);
        const float spread = 1.7f / std::sqrt(static_cast<float>(shape.k));
        fill<T>(w_, seed, spread);
        fill<T>(bias_, seed + 1, 0.5f);
        fill<float>(norm_, seed + 2, 0.5f, 1.0f);
        fill<T>(x_, seed + 3, shape.norm ? 3.0f : 1.0f);
        matrix.w = w_.data();
        if (shape.bias) matrix.bias = bias_.data();
        if (shape.norm) matrix.norm = norm_.as<float>();
        before_ = device(out_bytes(rows));
        fill<T>(before_, seed + 4, 1.0f);
        out_ = device(out_bytes(rows) + 2 * kGuard);
        y_ = device(size_t{rows} * shape.n * 8);
        const uint64_t warps = static_cast<uint64_t>(rows) * shape.n;
        oracle_kernel<T><<<static_cast<unsigned>((warps + 7) / 8), 256>>>(w_.as<T>(), static_cast<const T*>(matrix.bias), matrix.norm, matrix.eps,
                                                                         x_.as<T>(), rows, shape.n, shape.k, y_.as<double>());
        sums_ = device(sizeof(Sums));
    }
    [[nodiscard]] size_t out_bytes(uint32_t m) const { return size_t{m} * columns_ * (matrix.out == Out::kF32 ? 4 : 2); }
    [[nodiscard]] const void* x() const { return x_.data(); }
    [[nodiscard]] std::byte* out() const { return out_.data() + kGuard; }
    /// Poison everywhere; with kAdd what is added to.
    void prepare(uint32_t m) {
        cudaMemset(out_.data(), kPoison, out_.size());
        if (matrix.out == Out::kAdd) cudaMemcpy(out(), before_.data(), out_bytes(m), cudaMemcpyDeviceToDevice);
    }
    /// Empty where out [m] is right and nothing around it was written.
    std::string check(uint32_t m, double tolerance) {
        if (const cudaError_t e = cudaDeviceSynchronize(); e != cudaSuccess) return cudaGetErrorString(e);
        std::vector<unsigned char> guard(kGuard);
        const std::byte* after = out() + out_bytes(m);
        cudaMemcpy(guard.data(), out_.data(), kGuard, cudaMemcpyDeviceToHost);
        for (unsigned char c : guard)
            if (c != kPoison) return "wrote before the output";
        const size_t rest = std::min<size_t>(kGuard, static_cast<size_t>(out_.data() + out_.size() - after));
        cudaMemcpy(guard.data(), after, rest, cudaMemcpyDeviceToHost);
        for (size_t i = 0; i < rest; ++i)
            if (guard[i] != kPoison) return "wrote behind the output";
        const Sums sums = compare(m, 1.0);
        char text[160];
        const double relative = std::sqrt(sums.error2 / sums.ref2);
        if (sums.bad != 0 || !(relative <= tolerance)) {
            std::snprintf(text, sizeof text, "relative error %.3g (limit %.3g), %llu not finite", relative, tolerance, sums.bad);
            return text;
        }
        const double rms = std::sqrt(sums.ref2 / (static_cast<double>(m) * columns_));
        const double worst = compare(m, rms).worst;
        // Of hundreds of thousands of results; SwiGLU's are products of two.
        if (!(worst <= (matrix.out == Out::kSwiGlu ? 12 : 8) * tolerance)) {
            std::snprintf(text, sizeof text, "worst element off by %.3g of |ref| + rms", worst);
            return text;
        }
        return {};
    }
    Matrix matrix;

  private:
    Sums compare(uint32_t m, double rms) {
        cudaMemset(sums_.data(), 0, sizeof(Sums));
        compare_kernel<T><<<512, 256>>>(y_.as<double>(), out(), before_.data(), matrix.out, m, columns_, rms, sums_.as<Sums>());
        Sums sums = {};
        cudaMemcpy(&sums, sums_.data(), sizeof sums, cudaMemcpyDeviceToHost);
        return sums;
    }
    uint32_t rows_;
    uint32_t columns_ = 0;
    DeviceBuffer w_, bias_, norm_, x_, before_, out_, y_, sums_;
};

constexpr Out kStore = Out::kStore, kAdd = Out::kAdd, kSwiGlu = Out::kSwiGlu, kF32 = Out::kF32;
const std::vector<Shape> kShapes = {
    {4096, 1024, kStore, true, false},  {1024, 2048, kAdd, false, false},  {6144, 1024, kSwiGlu, true, false},
    {1024, 3072, kAdd, false, false},   {1152, 896, kStore, true, true},   {896, 896, kAdd, false, false},
    {9728, 896, kSwiGlu, true, false},  {896, 4864, kAdd, false, false},   {2048, 8192, kAdd, false, false},
    {960, 576, kStore, true, false},    {576, 1536, kAdd, false, false},   {3072, 576, kSwiGlu, true, false},
    {4096, 4096, kAdd, false, true},    {28672, 4096, kSwiGlu, true, false}, {4096, 14336, kAdd, false, false},
    {49152, 576, kF32, true, false},    {2000, 1024, kF32, true, true},    {1000, 200, kStore, false, true},
    {144, 72, kSwiGlu, true, true},     {37, 264, kStore, true, false},    {45, 8, kAdd, false, true},
    {333, 136, kF32, false, false}};
const std::vector<uint32_t> kRows = {1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 33, 64, 65, 127, 200};

inline LinearOptions options(Elem elem, uint32_t rows_max, bool deterministic = false) {
    LinearOptions o;
    o.elem = elem;
    o.rows_max = rows_max;
    o.width_max = 28672;
    o.deterministic = deterministic;
    return o;
}

/// Only shapes with n·k up to this, for slow checkers.
inline uint64_t size_limit() {
    const char* given = std::getenv("BATON_TEST_SIZE_MAX");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : ~uint64_t{0};
}
/// A norm rounds x · norm, or norm and w · norm, to the element type; outputs round once. Over few results that can come to more
/// than the limit for many: simulated for 37 results of k 264 in bf16, the mean of 4,000 seeds is 0.0029, the most 0.0050.
inline double tolerance(Elem elem, const Shape& shape, uint32_t m = 1024) {
    const double unit = elem == Elem::kBF16 ? 1.0 / 256 : 1.0 / 2048;
    if (shape.out == Out::kF32 && !shape.norm) return 2e-6;
    const bool few = shape.norm && uint64_t{m} * shape.n < 1024;
    return unit * (few ? 1.6 : 1.0) * (shape.out == Out::kSwiGlu ? 1.6 : 1.0);  // the library rounds gate and up before SwiGLU
}

}  // namespace
}  // namespace baton::backend::cuda
