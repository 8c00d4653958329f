// ModelSpec from a Hugging Face config.json, in the spellings of transformers 4 (rope_theta,
// rope_scaling) and 5 (rope_parameters).

#include "layout_check.hpp"
#include "spec.hpp"

namespace baton::model {
namespace {

Expected<uint32_t> size_member(const Json& config, const char* key,
                               std::optional<uint64_t> fallback = {}) {
    BATON_TRY_ASSIGN(const uint64_t v, uint_member(config, key, kSizeMax, fallback));
    return static_cast<uint32_t>(v);
}

/// The class name must be the causal language model of `model_type`: heads for other tasks share
/// the type.
Expected<void> check_class(const Json& config, const std::string& model_type) {
    const Json* classes = member(config, "architectures");
    if (classes == nullptr) return {};
    if (!classes->is_array() || classes->size() != 1 || !(*classes)[0].is_string()) {
        return fail(ErrorCode::kCorrupt, "'architectures' is not an array of one string",
                    "architectures");
    }
    const auto& name = (*classes)[0].get_ref<const std::string&>();
    std::string expected = model_type + "ForCausalLM";
    expected[0] = static_cast<char>(expected[0] - 'a' + 'A');
    if (name != expected) return not_supported("architecture '" + printable(name) + "'");
    return {};
}

Expected<void> read_scaling(const Json& source, RopeSpec& rope) {
    for (const auto& [key, value] : source.items()) {
        if (value.is_object()) return not_supported("rope parameters per layer type");
    }
    BATON_TRY_ASSIGN(const std::string legacy, string_member(source, "type", "default"));
    BATON_TRY_ASSIGN(const std::string type, string_member(source, "rope_type", legacy));
    BATON_TRY_ASSIGN(const double partial, float_member(source, "partial_rotary_factor", 1.0));
    if (partial != 1.0) return not_supported("partial rotary embedding");
    if (type == "default") return {};
    BATON_TRY_ASSIGN(rope.factor, float_member(source, "factor"));
    BATON_TRY_ASSIGN(rope.original_context,
                     uint_member(source, "original_max_position_embeddings", kSizeMax, 0));
    if (type == "linear") {
        rope.scaling = RopeScaling::kLinear;
    } else if (type == "llama3") {
        rope.scaling = RopeScaling::kLlama3;
        BATON_TRY_ASSIGN(rope.low_freq_factor, float_member(source, "low_freq_factor"));
        BATON_TRY_ASSIGN(rope.high_freq_factor, float_member(source, "high_freq_factor"));
    } else if (type == "yarn") {
        rope.scaling = RopeScaling::kYarn;
        BATON_TRY_ASSIGN(rope.beta_fast, float_member(source, "beta_fast", 32.0));
        BATON_TRY_ASSIGN(rope.beta_slow, float_member(source, "beta_slow", 1.0));
        BATON_TRY_ASSIGN(rope.attention_factor, float_member(source, "attention_factor", 0.0));
        for (const char* key : {"mscale", "mscale_all_dim", "truncate"}) {
            if (member(source, key) != nullptr)
                return not_supported(std::string("rope scaling with '") + key + "'");
        }
    } else {
        return not_supported("rope scaling '" + printable(type) + "'");
    }
    return {};
}

Expected<void> read_rope(const Json& config, RopeSpec& rope) {
    BATON_TRY_ASSIGN(rope.theta, float_member(config, "rope_theta", 10000.0));
    BATON_TRY_ASSIGN(const double partial, float_member(config, "partial_rotary_factor", 1.0));
    if (partial != 1.0) return not_supported("partial rotary embedding");
    const Json* parameters = member(config, "rope_parameters");
    if (parameters != nullptr) {
        if (!parameters->is_object())
            return fail(ErrorCode::kCorrupt, "'rope_parameters' is not an object");
        BATON_TRY_ASSIGN(rope.theta, float_member(*parameters, "rope_theta", rope.theta));
        return read_scaling(*parameters, rope);
    }
    const Json* scaling = member(config, "rope_scaling");
    if (scaling == nullptr) return {};
    if (!scaling->is_object()) return fail(ErrorCode::kCorrupt, "'rope_scaling' is not an object");
    return read_scaling(*scaling, rope);
}

/// The attention window, 0 for none. Mistral's is on unless null (4096 when the key is missing, as
/// in transformers); Qwen's is off unless use_sliding_window or layer_types say otherwise.
Expected<uint32_t> read_window(const Json& config, const std::string& family) {
    constexpr uint64_t kMistralDefault = 4096;
    bool on = family == "mistral";
    if (family == "qwen2" || family == "qwen3") {
        BATON_TRY_ASSIGN(on, bool_member(config, "use_sliding_window", false));
    }
    if (const Json* types = member(config, "layer_types"); types != nullptr) {
        if (!types->is_array())
            return fail(ErrorCode::kCorrupt, "'layer_types' is not an array", "layer_types");
        for (const Json& t : *types) {
            if (t == "sliding_attention") {
                on = true;
            } else if (t != "full_attention") {
                return not_supported("layer type " +
                                     printable(t.is_string() ? t.get<std::string>() : "?"));
            }
        }
    }
    if (!on) return 0;
    const bool missing = !config.contains("sliding_window");
    return size_member(config, "sliding_window",
                       missing && family == "mistral" ? kMistralDefault : 0);
}

Expected<void> read_biases(const Json& config, ModelSpec& spec) {
    BATON_TRY_ASSIGN(const bool attention, bool_member(config, "attention_bias", false));
    BATON_TRY_ASSIGN(const bool mlp, bool_member(config, "mlp_bias", false));
    if (spec.family == "qwen2") {
        spec.qkv_bias = Bias::kRequired;
    } else if (attention) {
        spec.qkv_bias = Bias::kRequired;
        spec.out_bias = Bias::kRequired;
    }
    if (mlp) spec.mlp_bias = Bias::kRequired;
    return {};
}

}  // namespace

namespace {

Expected<ModelSpec> read_config(const Json& config) {
    ModelSpec spec;
    BATON_TRY_ASSIGN(spec.architecture, string_member(config, "model_type"));
    BATON_TRY(check_architecture(spec.architecture));
    BATON_TRY(check_class(config, spec.architecture));
    if (member(config, "quantization_config") != nullptr)
        return not_supported("quantization_config in config.json");
    spec.family = spec.architecture;
    backend::ModelShape& s = spec.shape;
    BATON_TRY_ASSIGN(s.layers, size_member(config, "num_hidden_layers"));
    BATON_TRY_ASSIGN(s.hidden, size_member(config, "hidden_size"));
    BATON_TRY_ASSIGN(s.heads, size_member(config, "num_attention_heads"));
    BATON_TRY_ASSIGN(s.kv_heads, size_member(config, "num_key_value_heads", s.heads));
    // transformers' Qwen3 has head_dim 128 unless the file says otherwise.
    const uint64_t head_dim = spec.family == "qwen3" ? 128 : s.heads == 0 ? 0 : s.hidden / s.heads;
    BATON_TRY_ASSIGN(s.head_dim, size_member(config, "head_dim", head_dim));
    BATON_TRY_ASSIGN(s.ffn, size_member(config, "intermediate_size"));
    BATON_TRY_ASSIGN(s.vocab, size_member(config, "vocab_size"));
    BATON_TRY_ASSIGN(s.context, size_member(config, "max_position_embeddings"));
    BATON_TRY_ASSIGN(const double eps, float_member(config, "rms_norm_eps", 1e-6));
    spec.eps = static_cast<float>(eps);
    BATON_TRY_ASSIGN(spec.tied, bool_member(config, "tie_word_embeddings", false));
    BATON_TRY_ASSIGN(const std::string act, string_member(config, "hidden_act", "silu"));
    if (act != "silu") return not_supported("activation '" + printable(act) + "'");
    spec.qk_norm = spec.family == "qwen3";
    BATON_TRY(read_biases(config, spec));
    BATON_TRY(read_rope(config, spec.rope));
    BATON_TRY_ASSIGN(spec.sliding_window, read_window(config, spec.family));
    BATON_TRY(finish_spec(spec));
    return spec;
}

}  // namespace

Expected<ModelSpec> spec_from_config(const Json& config) {
    if (!config.is_object()) return fail(ErrorCode::kCorrupt, "config.json is not an object");
    auto spec = read_config(config);
    // What is not supported names itself; a field that is missing or wrong is looked for in its file.
    if (!spec && spec.error().code == ErrorCode::kCorrupt)
        return fail(ErrorCode::kCorrupt, "config.json: " + spec.error().message);
    return spec;
}

}  // namespace baton::model
