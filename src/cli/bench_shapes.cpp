#include "cli/bench_shapes.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "baton/tensor/dtype.hpp"

namespace baton::cli {

namespace {

using backend::Plan;
using backend::Slot;

struct KnownShape {
    std::string_view name;
    backend::ModelShape shape;
    float rope_base;
    float eps;
    bool qk_norm;
    bool qkv_bias;
    bool tied;
};
constexpr KnownShape kShapes[] = {
    {"qwen3-0.6b", {28, 1024, 16, 8, 128, 3072, 151936, 40960}, 1e6f, 1e-6f, true, false, true},
    {"qwen2.5-0.5b", {24, 896, 14, 2, 64, 4864, 151936, 32768}, 1e6f, 1e-6f, false, true, true},
    {"llama-3.2-1b", {16, 2048, 32, 8, 64, 8192, 128256, 131072}, 5e5f, 1e-5f, false, false, true},
    {"llama-3.1-8b", {32, 4096, 32, 8, 128, 14336, 128256, 131072}, 5e5f, 1e-5f, false, false, false},
    {"smollm2-135m", {30, 576, 9, 3, 64, 1536, 49152, 8192}, 1e5f, 1e-5f, false, false, true},
};
constexpr float kMagnitude = 0.035f;  // keeps activations within a few powers of ten for all widths here
constexpr size_t kShift = 4096;       // bytes between the head and the embedding of an untied model

/// The bytes behind a random plan.
class RandomWeights {
  public:
    explicit RandomWeights(size_t elements) : matrix_(elements), ones_(1 << 16, 1.0f), small_(1 << 16, 0.01f) {
        uint64_t state = 0x9e3779b97f4a7c15ull;
        for (size_t i = 0; i < elements; i += 4) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            const uint64_t bits = state * 0x2545f4914f6cdd1dull;
            for (size_t j = 0; j < 4 && i + j < elements; ++j) {
                const auto q = static_cast<int16_t>(bits >> (16 * j));
                matrix_[i + j] = tensor::f32_to_bf16(static_cast<float>(q) * (kMagnitude / 32768.0f));
            }
        }
    }
    [[nodiscard]] tensor::TensorView matrix(size_t rows, size_t columns, size_t shift = 0) const {
        const auto bytes = std::as_bytes(std::span(matrix_)).subspan(shift, rows * columns * 2);
        return {"random", tensor::DType::kBF16, {rows, columns}, bytes};
    }
    [[nodiscard]] tensor::TensorView ones(size_t n) const {
        return {"ones", tensor::DType::kF32, {1, n}, std::as_bytes(std::span(ones_)).first(n * 4)};
    }
    [[nodiscard]] tensor::TensorView bias(size_t n) const {
        return {"bias", tensor::DType::kF32, {1, n}, std::as_bytes(std::span(small_)).first(n * 4)};
    }

  private:
    std::vector<uint16_t> matrix_;
    std::vector<float> ones_, small_;
};

std::vector<backend::Step> layer_steps(const KnownShape& k, const RandomWeights& w) {
    const backend::ModelShape& s = k.shape;
    const size_t q = size_t{s.heads} * s.head_dim, kv = size_t{s.kv_heads} * s.head_dim;
    const auto bias = [&](size_t n) { return k.qkv_bias ? w.bias(n) : tensor::TensorView{}; };
    std::vector<backend::Step> steps;
    steps.emplace_back(backend::RmsNorm{Slot::kHidden, Slot::kNorm, w.ones(s.hidden), k.eps, 1});
    steps.emplace_back(backend::MatMul{Slot::kNorm, Slot::kQ, w.matrix(q, s.hidden), bias(q), false});
    steps.emplace_back(backend::MatMul{Slot::kNorm, Slot::kK, w.matrix(kv, s.hidden), bias(kv), false});
    steps.emplace_back(backend::MatMul{Slot::kNorm, Slot::kV, w.matrix(kv, s.hidden), bias(kv), false});
    if (k.qk_norm) {
        steps.emplace_back(backend::RmsNorm{Slot::kQ, Slot::kQ, w.ones(s.head_dim), k.eps, s.heads});
        steps.emplace_back(backend::RmsNorm{Slot::kK, Slot::kK, w.ones(s.head_dim), k.eps, s.kv_heads});
    }
    steps.emplace_back(backend::ApplyRope{});
    steps.emplace_back(backend::KvAppend{});
    steps.emplace_back(backend::Attention{});
    steps.emplace_back(backend::MatMul{Slot::kAttn, Slot::kHidden, w.matrix(s.hidden, q), {}, true});
    steps.emplace_back(backend::RmsNorm{Slot::kHidden, Slot::kNorm, w.ones(s.hidden), k.eps, 1});
    steps.emplace_back(backend::MatMul{Slot::kNorm, Slot::kGate, w.matrix(s.ffn, s.hidden), {}, false});
    steps.emplace_back(backend::MatMul{Slot::kNorm, Slot::kUp, w.matrix(s.ffn, s.hidden), {}, false});
    steps.emplace_back(backend::SwiGlu{});
    steps.emplace_back(backend::MatMul{Slot::kAct, Slot::kHidden, w.matrix(s.hidden, s.ffn), {}, true});
    return steps;
}

}  // namespace

std::string shape_names() {
    std::string names;
    for (const KnownShape& k : kShapes) names += (names.empty() ? "" : ", ") + std::string(k.name);
    return names;
}

Expected<Plan> random_plan(std::string_view shape) {
    const auto* known = std::find_if(std::begin(kShapes), std::end(kShapes), [&](const KnownShape& k) { return k.name == shape; });
    if (known == std::end(kShapes))
        return fail(ErrorCode::kNotFound, "unknown shape '" + std::string(shape.substr(0, 32)) + "'; there are " + shape_names());
    const backend::ModelShape& s = known->shape;
    const size_t largest = std::max(size_t{s.vocab} * s.hidden, size_t{s.ffn} * s.hidden);
    const auto weights = std::make_shared<const RandomWeights>(largest + kShift / 2);
    Plan plan;
    plan.shape = s;
    for (uint32_t i = 0; i < s.head_dim / 2; ++i)
        plan.rope.inv_freq.push_back(std::pow(known->rope_base, -2.0f * static_cast<float>(i) / static_cast<float>(s.head_dim)));
    plan.embedding = weights->matrix(s.vocab, s.hidden);
    for (uint32_t layer = 0; layer < s.layers; ++layer) plan.layers.push_back(layer_steps(*known, *weights));
    plan.final_norm = {Slot::kHidden, Slot::kNorm, weights->ones(s.hidden), known->eps, 1};
    plan.head = known->tied ? plan.embedding : weights->matrix(s.vocab, s.hidden, kShift);
    plan.storage = weights;
    return plan;
}

}  // namespace baton::cli
