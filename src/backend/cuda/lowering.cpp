#include "backend/cuda/lowering.hpp"

#include <optional>
#include <string>

namespace baton::backend::cuda {

namespace {

tl::unexpected<Error> invalid(std::string message) {
    return fail(ErrorCode::kInvalidArgument, std::move(message));
}

uint32_t width(const ModelShape& s, Slot slot) {
    switch (slot) {
        case Slot::kHidden:
        case Slot::kNorm: return s.hidden;
        case Slot::kQ:
        case Slot::kAttn: return s.heads * s.head_dim;
        case Slot::kK:
        case Slot::kV: return s.kv_heads * s.head_dim;
        case Slot::kGate:
        case Slot::kUp:
        case Slot::kAct: return s.ffn;
        case Slot::kCount: break;
    }
    return 0;
}

const char* name(const Step& step) {
    constexpr const char* kNames[] = {"RmsNorm", "MatMul", "ApplyRope", "KvAppend", "Attention", "SwiGlu"};
    return kNames[step.index()];
}

bool holds(const tensor::TensorView& t, size_t rows, size_t columns) {
    return t.shape[0] == rows && t.shape[1] == columns && columns % tensor::block_shape(t.dtype).elements == 0 &&
           t.bytes.size() == t.row_bytes() * rows;
}

/// Walks through one layer's steps.
class LayerMatch {
  public:
    LayerMatch(const ModelShape& shape, uint32_t layer, const std::vector<Step>& steps)
        : shape_(shape), layer_(layer), steps_(steps) {}

    Expected<LayerParts> run() {
        LayerParts parts;
        BATON_TRY_ASSIGN(parts.attention_norm, norm(Slot::kHidden, Slot::kNorm, "the norm before attention"));
        BATON_TRY_ASSIGN(parts.qkv, products(Slot::kNorm, {Slot::kQ, Slot::kK, Slot::kV}, false));
        BATON_TRY(qk_norms(parts));
        BATON_TRY(expect<ApplyRope>("the rotation of q and k"));
        BATON_TRY(expect<KvAppend>("the append of k and v"));
        BATON_TRY(expect<Attention>("attention"));
        BATON_TRY_ASSIGN(parts.out, products(Slot::kAttn, {Slot::kHidden}, true));
        BATON_TRY_ASSIGN(parts.ffn_norm, norm(Slot::kHidden, Slot::kNorm, "the norm before the MLP"));
        BATON_TRY_ASSIGN(parts.gate_up, products(Slot::kNorm, {Slot::kGate, Slot::kUp}, false));
        BATON_TRY(expect<SwiGlu>("SwiGLU"));
        BATON_TRY_ASSIGN(parts.down, products(Slot::kAct, {Slot::kHidden}, true));
        if (at_ != steps_.size()) return mismatch("the end of the layer");
        return parts;
    }

  private:
    [[nodiscard]] tl::unexpected<Error> mismatch(const std::string& expected) const {
        const std::string found = at_ < steps_.size() ? name(steps_[at_]) : "the end of the layer";
        return fail(ErrorCode::kUnsupported, "the CUDA backend cannot run this plan: layer " + std::to_string(layer_) + ", step " +
                                                 std::to_string(at_) + ": " + found + " where " + expected + " was expected");
    }
    template <class T>
    const T* take() {
        const T* step = at_ < steps_.size() ? std::get_if<T>(&steps_[at_]) : nullptr;
        if (step != nullptr) ++at_;
        return step;
    }
    template <class T>
    Expected<void> expect(const char* what) {
        if (take<T>() == nullptr) return mismatch(what);
        return {};
    }
    Expected<RmsNorm> norm(Slot in, Slot out, const char* what) {
        const RmsNorm* step = take<RmsNorm>();
        if (step == nullptr) return mismatch(what);
        if (step->in != in || step->out != out || step->groups != 1) {
            --at_;
            return mismatch(what);
        }
        if (!holds(step->weight, 1, width(shape_, in))) return invalid("norm " + step->weight.name + " does not fit its slots");
        return *step;
    }
    Expected<void> qk_norms(LayerParts& parts) {
        while (const RmsNorm* step = take<RmsNorm>()) {
            const bool q = step->in == Slot::kQ;
            const uint32_t groups = q ? shape_.heads : shape_.kv_heads;
            tensor::TensorView& target = q ? parts.q_norm : parts.k_norm;
            if ((!q && step->in != Slot::kK) || step->out != step->in || step->groups != groups || target ||
                (parts.qk_eps != 0 && parts.qk_eps != step->eps)) {
                --at_;
                return mismatch("a norm of q's or k's heads");
            }
            if (!holds(step->weight, 1, shape_.head_dim)) return invalid("norm " + step->weight.name + " does not fit its slots");
            target = step->weight;
            parts.qk_eps = step->eps;
        }
        if (static_cast<bool>(parts.q_norm) != static_cast<bool>(parts.k_norm)) return mismatch("norms of both q and k, or of neither,");
        return {};
    }
    /// As many products as `outs` names, in any order, from the same input.
    Expected<Projection> products(Slot in, const std::vector<Slot>& outs, bool add) {
        std::vector<std::optional<MatMul>> found(outs.size());
        for (size_t n = 0; n < outs.size(); ++n) {
            const MatMul* step = take<MatMul>();
            if (step == nullptr) return mismatch("a matrix product");
            size_t i = 0;
            while (i < outs.size() && (outs[i] != step->out || found[i])) ++i;
            if (i == outs.size() || step->in != in || step->add != add) {
                --at_;
                return mismatch(add ? "a matrix product added to the residual stream" : "a matrix product of the same input");
            }
            if (!holds(step->weight, width(shape_, step->out), width(shape_, in)))
                return invalid("matrix " + step->weight.name + " does not fit its slots");
            if (step->bias && !holds(step->bias, 1, width(shape_, step->out)))
                return invalid("bias " + step->bias.name + " does not fit its slot");
            found[i] = *step;
        }
        Projection p;
        p.columns = width(shape_, in);
        bool biased = false;
        for (const auto& m : found) biased = biased || static_cast<bool>(m->bias);
        for (const auto& m : found) {
            p.rows += static_cast<uint32_t>(m->weight.shape[0]);
            p.weights.push_back(m->weight);
            if (biased) p.biases.push_back(m->bias);  // an absent one is zero
        }
        return p;
    }

    const ModelShape& shape_;
    uint32_t layer_;
    const std::vector<Step>& steps_;
    size_t at_ = 0;
};

Expected<void> check_shape(const ModelShape& s) {
    if (s.layers == 0 || s.hidden == 0 || s.heads == 0 || s.kv_heads == 0 || s.ffn == 0 || s.vocab == 0 || s.context == 0)
        return invalid("a size of the model is 0");
    if (s.heads % s.kv_heads != 0) return invalid("kv heads do not divide heads");
    const auto unsupported = [](const char* what, uint32_t value, const char* why) {
        return fail(ErrorCode::kUnsupported, std::string("the CUDA backend runs no ") + what + " of " + std::to_string(value) + ": " + why);
    };
    if (s.head_dim != 64 && s.head_dim != 128) return unsupported("head dimension", s.head_dim, "only 64 and 128");
    if (s.heads / s.kv_heads > 8) return unsupported("group of query heads", s.heads / s.kv_heads, "at most 8 share a key head");
    if (s.hidden % 8 != 0) return unsupported("hidden size", s.hidden, "only multiples of 8");
    if (s.ffn % 8 != 0) return unsupported("MLP width", s.ffn, "only multiples of 8");
    return {};
}

}  // namespace

Expected<Lowered> lower(const Plan& plan) {
    const ModelShape& s = plan.shape;
    BATON_TRY(check_shape(s));
    if (plan.rope.inv_freq.size() != s.head_dim / 2) return invalid("rope has the wrong number of frequencies");
    if (plan.layers.size() != s.layers) return invalid("the plan's number of layers is not its shape's");
    if (!holds(plan.embedding, s.vocab, s.hidden)) return invalid("the embedding does not fit vocabulary and hidden size");
    if (!holds(plan.head, s.vocab, s.hidden)) return invalid("the head does not fit vocabulary and hidden size");
    if (plan.final_norm.in != Slot::kHidden || plan.final_norm.out != Slot::kNorm || plan.final_norm.groups != 1 ||
        !holds(plan.final_norm.weight, 1, s.hidden))
        return invalid("the final norm must read the hidden rows");
    Lowered lowered;
    lowered.shape = s;
    for (uint32_t layer = 0; layer < s.layers; ++layer) {
        BATON_TRY_ASSIGN(LayerParts parts, LayerMatch(s, layer, plan.layers[layer]).run());
        lowered.layers.push_back(std::move(parts));
    }
    lowered.final_norm = plan.final_norm;
    lowered.embedding = plan.embedding;
    lowered.head = plan.head;
    lowered.tied = plan.head.bytes.data() == plan.embedding.bytes.data() && plan.head.dtype == plan.embedding.dtype;
    return lowered;
}

}  // namespace baton::backend::cuda
