#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "baton/tensor/view.hpp"

namespace baton::backend {

/// Sizes of a decoder-only transformer with grouped-query attention.
struct ModelShape {
    uint32_t layers = 0;
    uint32_t hidden = 0;
    uint32_t heads = 0;
    uint32_t kv_heads = 0;  ///< divides heads
    uint32_t head_dim = 0;  ///< even
    uint32_t ffn = 0;
    uint32_t vocab = 0;
    uint32_t context = 0;   ///< positions the model was made for
};

/// Rotary position embedding, half rotation as in HF Llama/Qwen/Mistral: pair (i, i + head_dim/2) turns by
/// position × inv_freq[i].
struct Rope {
    std::vector<float> inv_freq;  ///< [head_dim / 2], Llama 3.x scaling already applied
    float scale = 1.0f;           ///< factor on cos and sin
};

/// Activation buffers a plan's steps read and write. Rows are tokens of the batch, all f32.
enum class Slot : uint8_t {
    kHidden,  ///< [tokens, hidden], the residual stream
    kNorm,    ///< [tokens, hidden]
    kQ,       ///< [tokens, heads, head_dim]
    kK,       ///< [tokens, kv_heads, head_dim]
    kV,       ///< [tokens, kv_heads, head_dim]
    kAttn,    ///< [tokens, heads, head_dim]
    kGate,    ///< [tokens, ffn]
    kUp,      ///< [tokens, ffn]
    kAct,     ///< [tokens, ffn]
    kCount
};

/// out = in · rsqrt(mean(in²) + eps) · weight, per row; `groups` > 1 normalises each of that many equal parts of a row
/// on its own with the same weight (Qwen3's q/k norm: groups = heads, weight [head_dim]).
struct RmsNorm { Slot in; Slot out; tensor::TensorView weight; float eps; uint32_t groups = 1; };
/// out[t, n] = Σ_k in[t, k] · weight[n, k] (+ bias[n]); with `add` the result is added to what `out` holds (residual).
struct MatMul { Slot in; Slot out; tensor::TensorView weight; tensor::TensorView bias; bool add = false; };
/// Rotates kQ and kK in place.
struct ApplyRope {};
/// Writes kK and kV of this layer into the KV pool, in the pool's dtype.
struct KvAppend {};
/// kAttn = softmax(kQ · Kᵀ / sqrt(head_dim), causal) · V over the sequence's blocks of this layer.
struct Attention {};
/// kAct = silu(kGate) · kUp.
struct SwiGlu {};
using Step = std::variant<RmsNorm, MatMul, ApplyRope, KvAppend, Attention, SwiGlu>;

/// A model family as data: what a backend lowers at load. Views point into `storage`.
struct Plan {
    ModelShape shape;
    Rope rope;
    tensor::TensorView embedding;           ///< [vocab, hidden]
    std::vector<std::vector<Step>> layers;  ///< steps of each layer, in order
    RmsNorm final_norm;                     ///< kHidden → kNorm
    tensor::TensorView head;                ///< [vocab, hidden]; the embedding again where tied
    std::shared_ptr<const void> storage;    ///< keeps the mapped files alive
};

}  // namespace baton::backend
