#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "baton/backend/plan.hpp"
#include "baton/tensor/view.hpp"

namespace baton::backend::test {

/// SplitMix64.
class Rng {
  public:
    explicit Rng(uint64_t seed) : state_(seed) {}
    uint64_t next() {
        uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    /// A number below n.
    uint32_t below(uint32_t n) { return static_cast<uint32_t>(next() % n); }
    /// Even over -1 … 1.
    float symmetric() {
        return static_cast<float>(static_cast<double>(next() >> 11) * 0x1p-52 - 1.0);
    }

  private:
    uint64_t state_;
};

inline constexpr tensor::DType kAllTypes[] = {
    tensor::DType::kF32,  tensor::DType::kF16,  tensor::DType::kBF16, tensor::DType::kQ8_0,
    tensor::DType::kQ4_0, tensor::DType::kQ4_1, tensor::DType::kQ5_0, tensor::DType::kQ5_1,
    tensor::DType::kQ4_K, tensor::DType::kQ5_K, tensor::DType::kQ6_K};

/// Instruction sets this CPU can run.
[[nodiscard]] std::vector<std::string> available_isas();

/// Tensors with random content of about `magnitude`, and the bytes they view.
class TensorStore {
  public:
    tensor::TensorView random(Rng& rng, tensor::DType type, size_t rows, size_t cols,
                              float magnitude);
    tensor::TensorView around_one(Rng& rng, size_t n);

  private:
    std::deque<std::vector<std::byte>> bytes_;
};

/// All values of a tensor, [rows, cols].
[[nodiscard]] std::vector<float> dequantize(const tensor::TensorView& t);

struct ModelOptions {
    tensor::DType type = tensor::DType::kF32;
    ModelShape shape{2, 64, 4, 2, 16, 96, 50, 512};
    bool bias = false;     ///< q, k and v with bias (Qwen2)
    bool qk_norm = false;  ///< norms on q and k (Qwen3)
    uint64_t seed = 1;
};
/// A small random Llama-like model whose sizes suit `type` (columns are whole blocks).
[[nodiscard]] Plan make_plan(const ModelOptions& options);
/// Sizes that every type can hold: columns multiples of 256.
[[nodiscard]] ModelShape wide_shape();

/// Logits of the last token of `tokens`, in float64 from the dequantised weights; nothing else is
/// rounded.
[[nodiscard]] std::vector<double> reference_logits(const Plan& plan,
                                                   const std::vector<int32_t>& tokens);

}  // namespace baton::backend::test
