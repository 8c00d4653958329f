// ModelSpec from GGUF metadata.
#include <algorithm>

#include "layout_check.hpp"
#include "spec.hpp"

namespace baton::model {
namespace {

/// Metadata of one architecture: keys are "ARCHITECTURE.name".
class Keys {
  public:
    Keys(const GgufFile& file, std::string architecture)
        : file_(file), prefix_(std::move(architecture) + ".") {}
    [[nodiscard]] std::string full(const char* name) const { return prefix_ + name; }
    [[nodiscard]] bool has(const char* name) const { return file_.has(full(name)); }

    [[nodiscard]] Expected<uint32_t> size(const char* name,
                                          std::optional<uint64_t> fallback = {}) const {
        const std::string key = full(name);
        if (!file_.has(key) && fallback) return static_cast<uint32_t>(*fallback);
        if (file_.is_array(key)) return same_for_all_layers(key);
        BATON_TRY_ASSIGN(const uint64_t v, file_.get_uint(key));
        if (v > kSizeMax)
            return fail(ErrorCode::kCorrupt, "GGUF metadata '" + printable(key) + "' is too large");
        return static_cast<uint32_t>(v);
    }
    [[nodiscard]] Expected<double> number(const char* name, double fallback) const {
        if (!has(name)) return fallback;
        return file_.get_float(full(name));
    }

  private:
    /// Some writers give one value a layer; baton's families have one for all.
    [[nodiscard]] Expected<uint32_t> same_for_all_layers(const std::string& key) const {
        BATON_TRY_ASSIGN(const auto values, file_.get_ints(key));
        if (values.empty() || values[0] < 0) {
            return fail(ErrorCode::kCorrupt,
                        "GGUF metadata '" + printable(key) + "' is not usable");
        }
        if (!std::all_of(values.begin(), values.end(), [&](int32_t v) { return v == values[0]; })) {
            return not_supported("metadata '" + printable(key) + "' that differs between layers");
        }
        return static_cast<uint32_t>(values[0]);
    }

    const GgufFile& file_;
    std::string prefix_;
};

Expected<void> read_rope(const GgufFile& file, const Keys& keys, ModelSpec& spec) {
    BATON_TRY_ASSIGN(spec.rope.theta, keys.number("rope.freq_base", 10000.0));
    BATON_TRY_ASSIGN(const uint32_t rotated,
                     keys.size("rope.dimension_count", spec.shape.head_dim));
    if (rotated != spec.shape.head_dim) return not_supported("partial rotary embedding");
    std::string type = "none";
    if (keys.has("rope.scaling.type")) {
        BATON_TRY_ASSIGN(type, file.get_string(keys.full("rope.scaling.type")));
    } else if (keys.has("rope.scale_linear")) {
        type = "linear";
    }
    if (type == "none") return {};
    BATON_TRY_ASSIGN(const double legacy, keys.number("rope.scale_linear", 1.0));
    BATON_TRY_ASSIGN(spec.rope.factor, keys.number("rope.scaling.factor", legacy));
    BATON_TRY_ASSIGN(spec.rope.original_context,
                     keys.size("rope.scaling.original_context_length", 0));
    if (type == "linear") {
        spec.rope.scaling = RopeScaling::kLinear;
    } else if (type == "yarn") {
        spec.rope.scaling = RopeScaling::kYarn;
        for (const char* name : {"rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier",
                                 "rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"}) {
            if (keys.has(name)) return not_supported(std::string("'") + name + "'");
        }
        BATON_TRY_ASSIGN(spec.rope.beta_fast, keys.number("rope.scaling.yarn_beta_fast", 32.0));
        BATON_TRY_ASSIGN(spec.rope.beta_slow, keys.number("rope.scaling.yarn_beta_slow", 1.0));
    } else {
        return not_supported("rope scaling '" + printable(type) + "'");
    }
    return {};
}

const StoredTensor* find_tensor(const std::vector<const StoredTensor*>& tensors,
                                std::string_view name) {
    const auto it = std::find_if(tensors.begin(), tensors.end(),
                                 [&](const StoredTensor* t) { return t->name == name; });
    return it == tensors.end() ? nullptr : *it;
}

/// Rows of the embedding; without it the tokens that the metadata lists.
Expected<uint32_t> vocabulary(const GgufFile& file, const StoredTensor* embedding, Weights weights) {
    if (embedding == nullptr && weights == Weights::kAbsent) {
        BATON_TRY_ASSIGN(const auto tokens, file.get_strings("tokenizer.ggml.tokens"));
        return static_cast<uint32_t>(std::min<size_t>(tokens.size(), kSizeMax));
    }
    if (embedding == nullptr || embedding->shape.size() != 2 || embedding->shape[0] > kSizeMax) {
        return fail(ErrorCode::kCorrupt,
                    "GGUF tensor 'token_embd.weight' is missing or not a matrix");
    }
    return static_cast<uint32_t>(embedding->shape[0]);
}

}  // namespace

Expected<ModelSpec> spec_from_gguf(const GgufFile& file,
                                   const std::vector<const StoredTensor*>& tensors,
                                   Weights weights) {
    ModelSpec spec;
    BATON_TRY_ASSIGN(spec.architecture, file.get_string("general.architecture"));
    // A recurrent file must be told so before its other metadata can confuse the reader.
    BATON_TRY(check_architecture(spec.architecture));
    if (spec.architecture == "mistral") return not_supported("GGUF architecture 'mistral'");
    spec.family = spec.architecture;
    const Keys keys(file, spec.architecture);
    BATON_TRY_ASSIGN(const uint32_t experts, keys.size("expert_count", 0));
    if (experts > 0) return not_supported("mixture of experts");
    backend::ModelShape& s = spec.shape;
    BATON_TRY_ASSIGN(s.layers, keys.size("block_count"));
    BATON_TRY_ASSIGN(s.hidden, keys.size("embedding_length"));
    BATON_TRY_ASSIGN(s.heads, keys.size("attention.head_count"));
    BATON_TRY_ASSIGN(s.kv_heads, keys.size("attention.head_count_kv", s.heads));
    BATON_TRY_ASSIGN(s.head_dim,
                     keys.size("attention.key_length", s.heads == 0 ? 0 : s.hidden / s.heads));
    BATON_TRY_ASSIGN(const uint32_t value_dim, keys.size("attention.value_length", s.head_dim));
    if (value_dim != s.head_dim)
        return not_supported("a value dimension other than the key dimension");
    BATON_TRY_ASSIGN(s.ffn, keys.size("feed_forward_length"));
    BATON_TRY_ASSIGN(s.context, keys.size("context_length"));
    BATON_TRY_ASSIGN(s.vocab, vocabulary(file, find_tensor(tensors, "token_embd.weight"), weights));
    if (!keys.has("attention.layer_norm_rms_epsilon")) {
        return fail(ErrorCode::kCorrupt,
                    "GGUF metadata 'attention.layer_norm_rms_epsilon' is missing");
    }
    BATON_TRY_ASSIGN(const double eps, keys.number("attention.layer_norm_rms_epsilon", 0.0));
    spec.eps = static_cast<float>(eps);
    BATON_TRY_ASSIGN(spec.sliding_window, keys.size("attention.sliding_window", 0));
    spec.tied = find_tensor(tensors, "output.weight") == nullptr;
    spec.qk_norm = spec.family == "qwen3";
    spec.qkv_bias = spec.family == "qwen2" ? Bias::kRequired : Bias::kIfPresent;
    spec.out_bias = Bias::kIfPresent;
    spec.mlp_bias = Bias::kIfPresent;
    // Writers store q and k of llama (and Mistral, which is "llama" there) for RoPE on neighbouring
    // pairs.
    spec.interleaved_qk = spec.family == "llama";
    BATON_TRY(read_rope(file, keys, spec));
    BATON_TRY(finish_spec(spec));
    return spec;
}

}  // namespace baton::model
