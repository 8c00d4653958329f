#include "plan_builder.hpp"

#include <cstring>

#include "layout_check.hpp"

namespace baton::model {

using backend::MatMul;
using backend::RmsNorm;
using backend::Slot;
using backend::Step;

PlanBuilder::PlanBuilder(const ModelSpec& spec, Naming naming,
                         const std::vector<const StoredTensor*>& tensors, OwnedBytes& owned,
                         bool copy)
    : spec_(spec), naming_(naming), owned_(owned), copy_(copy) {
    for (const StoredTensor* t : tensors) tensors_.emplace(t->name, t);
}

Expected<backend::Plan> PlanBuilder::build() {
    const backend::ModelShape& s = spec_.shape;
    backend::Plan plan;
    plan.shape = s;
    BATON_TRY_ASSIGN(plan.rope, rope());
    const char* embedding = pick("model.embed_tokens.weight", "token_embd.weight");
    BATON_TRY_ASSIGN(plan.embedding, matrix(embedding, s.vocab, s.hidden));
    // Bounded by the file's tensors, each of which is there: no allocation ahead of the check.
    for (uint32_t layer = 0; layer < s.layers; ++layer) {
        std::vector<Step> steps;
        BATON_TRY(attention(layer, steps));
        BATON_TRY(feed_forward(layer, steps));
        plan.layers.push_back(std::move(steps));
    }
    const char* norm = pick("model.norm.weight", "output_norm.weight");
    BATON_TRY_ASSIGN(View final_norm, vector_f32(norm, s.hidden));
    plan.final_norm = {Slot::kHidden, Slot::kNorm, std::move(final_norm), spec_.eps, 1};
    if (spec_.tied) {
        plan.head = plan.embedding;
        if (naming_ == Naming::kHuggingFace)
            used_.insert("lm_head.weight");  // tied checkpoints may carry a copy
    } else {
        BATON_TRY_ASSIGN(plan.head,
                         matrix(pick("lm_head.weight", "output.weight"), s.vocab, s.hidden));
    }
    BATON_TRY(refuse_strays());
    return plan;
}

Expected<void> PlanBuilder::attention(uint32_t layer, std::vector<Step>& steps) {
    const backend::ModelShape& s = spec_.shape;
    const size_t q_rows = size_t{s.heads} * s.head_dim;
    const size_t kv_rows = size_t{s.kv_heads} * s.head_dim;
    const auto name = [&](const char* hf, const char* gguf) { return layer_name(layer, hf, gguf); };

    BATON_TRY_ASSIGN(View norm,
                     vector_f32(name("input_layernorm.weight", "attn_norm.weight"), s.hidden));
    steps.emplace_back(RmsNorm{Slot::kHidden, Slot::kNorm, std::move(norm), spec_.eps, 1});
    BATON_TRY_ASSIGN(MatMul q, projection(name("self_attn.q_proj", "attn_q"), Slot::kNorm, Slot::kQ,
                                          q_rows, s.hidden, spec_.qkv_bias));
    BATON_TRY_ASSIGN(MatMul k, projection(name("self_attn.k_proj", "attn_k"), Slot::kNorm, Slot::kK,
                                          kv_rows, s.hidden, spec_.qkv_bias));
    BATON_TRY_ASSIGN(MatMul v, projection(name("self_attn.v_proj", "attn_v"), Slot::kNorm, Slot::kV,
                                          kv_rows, s.hidden, spec_.qkv_bias));
    if (spec_.interleaved_qk) {
        q.weight = deinterleave(std::move(q.weight), s.heads);
        k.weight = deinterleave(std::move(k.weight), s.kv_heads);
        q.bias = deinterleave(std::move(q.bias), s.heads);
        k.bias = deinterleave(std::move(k.bias), s.kv_heads);
    }
    steps.emplace_back(std::move(q));
    steps.emplace_back(std::move(k));
    steps.emplace_back(std::move(v));
    if (spec_.qk_norm) {
        BATON_TRY_ASSIGN(
            View qn, vector_f32(name("self_attn.q_norm.weight", "attn_q_norm.weight"), s.head_dim));
        BATON_TRY_ASSIGN(
            View kn, vector_f32(name("self_attn.k_norm.weight", "attn_k_norm.weight"), s.head_dim));
        steps.emplace_back(RmsNorm{Slot::kQ, Slot::kQ, std::move(qn), spec_.eps, s.heads});
        steps.emplace_back(RmsNorm{Slot::kK, Slot::kK, std::move(kn), spec_.eps, s.kv_heads});
    }
    steps.emplace_back(backend::ApplyRope{});
    steps.emplace_back(backend::KvAppend{});
    steps.emplace_back(backend::Attention{});
    BATON_TRY_ASSIGN(MatMul out, projection(name("self_attn.o_proj", "attn_output"), Slot::kAttn,
                                            Slot::kHidden, s.hidden, q_rows, spec_.out_bias));
    out.add = true;
    steps.emplace_back(std::move(out));
    return {};
}

Expected<void> PlanBuilder::feed_forward(uint32_t layer, std::vector<Step>& steps) {
    const backend::ModelShape& s = spec_.shape;
    const auto name = [&](const char* hf, const char* gguf) { return layer_name(layer, hf, gguf); };
    BATON_TRY_ASSIGN(
        View norm,
        vector_f32(name("post_attention_layernorm.weight", "ffn_norm.weight"), s.hidden));
    steps.emplace_back(RmsNorm{Slot::kHidden, Slot::kNorm, std::move(norm), spec_.eps, 1});
    BATON_TRY_ASSIGN(MatMul gate, projection(name("mlp.gate_proj", "ffn_gate"), Slot::kNorm,
                                             Slot::kGate, s.ffn, s.hidden, spec_.mlp_bias));
    BATON_TRY_ASSIGN(MatMul up, projection(name("mlp.up_proj", "ffn_up"), Slot::kNorm, Slot::kUp,
                                           s.ffn, s.hidden, spec_.mlp_bias));
    BATON_TRY_ASSIGN(MatMul down, projection(name("mlp.down_proj", "ffn_down"), Slot::kAct,
                                             Slot::kHidden, s.hidden, s.ffn, spec_.mlp_bias));
    down.add = true;
    steps.emplace_back(std::move(gate));
    steps.emplace_back(std::move(up));
    steps.emplace_back(backend::SwiGlu{});
    steps.emplace_back(std::move(down));
    return {};
}

Expected<backend::Rope> PlanBuilder::rope() {
    std::vector<float> divisors;
    const size_t pairs = spec_.shape.head_dim / 2;
    if (naming_ == Naming::kGguf && tensors_.contains("rope_freqs.weight")) {
        BATON_TRY_ASSIGN(const View factors, vector_f32("rope_freqs.weight", pairs));
        divisors.resize(pairs);
        tensor::dequantize_row(factors.dtype, factors.bytes, divisors.data(), pairs);
    }
    return make_rope(spec_.rope, spec_.shape.head_dim, divisors);
}

const char* PlanBuilder::pick(const char* hf, const char* gguf) const {
    return naming_ == Naming::kHuggingFace ? hf : gguf;
}

std::string PlanBuilder::layer_name(uint32_t layer, const char* hf, const char* gguf) const {
    return std::string(pick("model.layers.", "blk.")) + std::to_string(layer) + "." +
           pick(hf, gguf);
}

/// The tensor, noted as used; nullptr when the files lack it.
const StoredTensor* PlanBuilder::find(const std::string& name) {
    const auto it = tensors_.find(name);
    if (it == tensors_.end()) return nullptr;
    used_.insert(it->first);
    return it->second;
}

namespace {

std::string shape_text(const std::vector<uint64_t>& shape) {
    std::string out = "[";
    for (const uint64_t d : shape) out += (out.size() > 1 ? ", " : "") + std::to_string(d);
    return out + "]";
}

Expected<void> check_tensor(const StoredTensor* t, const std::string& name,
                            const std::vector<uint64_t>& shape) {
    if (t == nullptr) return fail(ErrorCode::kCorrupt, "tensor '" + name + "' is missing");
    if (t->shape != shape) {
        return fail(ErrorCode::kCorrupt, "tensor '" + name + "' has shape " + shape_text(t->shape) +
                                             ", expected " + shape_text(shape));
    }
    if (!t->dtype) {
        return not_supported("tensor '" + name + "' has type " + t->type_name + ", which");
    }
    return {};
}

}  // namespace

Expected<tensor::TensorView> PlanBuilder::matrix(const std::string& name, size_t rows,
                                                 size_t columns) {
    const StoredTensor* t = find(name);
    BATON_TRY(check_tensor(t, name, {rows, columns}));
    View view{name, *t->dtype, {rows, columns}, t->bytes};
    const size_t align =
        tensor::block_shape(view.dtype).elements == 1 ? tensor::block_shape(view.dtype).bytes : 2;
    if (copy_ && reinterpret_cast<uintptr_t>(view.bytes.data()) % align != 0) {
        // safetensors promises no alignment; a copy spares every kernel the question.
        const auto copy = own(view.bytes.size());
        std::memcpy(copy.data(), view.bytes.data(), copy.size());
        view.bytes = copy;
    }
    return view;
}

/// A vector of `n` values as F32, converted if it is stored otherwise.
Expected<tensor::TensorView> PlanBuilder::vector_f32(const std::string& name, size_t n) {
    const StoredTensor* t = find(name);
    BATON_TRY(check_tensor(t, name, {n}));
    const auto values = own(n * sizeof(float));
    tensor::dequantize_row(*t->dtype, t->bytes, reinterpret_cast<float*>(values.data()), n);
    return View{name, tensor::DType::kF32, {1, n}, values};
}

Expected<tensor::TensorView> PlanBuilder::bias(const std::string& projection, size_t n,
                                               Bias policy) {
    const std::string name = projection + ".bias";
    if (policy == Bias::kNone || (policy == Bias::kIfPresent && !tensors_.contains(name)))
        return View{};
    return vector_f32(name, n);
}

Expected<MatMul> PlanBuilder::projection(const std::string& name, Slot in, Slot out, size_t rows,
                                         size_t columns, Bias policy) {
    BATON_TRY_ASSIGN(View weight, matrix(name + ".weight", rows, columns));
    BATON_TRY_ASSIGN(View b, bias(name, rows, policy));
    return MatMul{in, out, std::move(weight), std::move(b), false};
}

/// Brings the rows of each head (the elements of a bias) from pair order (row 2i + half) into half
/// order (row half · head_dim/2 + i). Rows are whole blocks, so quantised ones move as they are.
tensor::TensorView PlanBuilder::deinterleave(View view, uint32_t heads) {
    if (!view || !copy_) return view;
    const size_t dim = spec_.shape.head_dim;
    const bool is_vector = view.shape[0] == 1 && view.shape[1] == heads * dim;
    const size_t row = is_vector ? sizeof(float) : view.row_bytes();
    const auto out = own(view.bytes.size());
    for (size_t h = 0; h < heads; ++h) {
        for (size_t r = 0; r < dim; ++r) {
            const size_t from = h * dim + r;
            const size_t to = h * dim + (r % 2) * (dim / 2) + r / 2;
            std::memcpy(out.data() + to * row, view.bytes.data() + from * row, row);
        }
    }
    view.bytes = out;
    return view;
}

Expected<void> PlanBuilder::refuse_strays() const {
    for (const auto& [name, t] : tensors_) {
        // Old checkpoints store RoPE's frequencies, which follow from the configuration.
        if (used_.contains(name) || name.ends_with("rotary_emb.inv_freq")) continue;
        return fail(ErrorCode::kUnsupported, "tensor '" + printable(name) +
                                                 "' is not part of architecture '" +
                                                 spec_.architecture + "' as baton runs it");
    }
    return {};
}

std::span<std::byte> PlanBuilder::own(size_t bytes) {
    return owned_.emplace_back(bytes);
}

}  // namespace baton::model
