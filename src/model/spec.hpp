#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baton/backend/plan.hpp"
#include "baton/base/error.hpp"
#include "baton/model/gguf_file.hpp"
#include "baton/model/model.hpp"
#include "json.hpp"

namespace baton::model {

/// Largest size a configuration may name; products of two fit 64 bits.
inline constexpr uint64_t kSizeMax = INT32_MAX;

/// kUnsupported "WHAT is not supported by baton yet".
[[nodiscard]] tl::unexpected<Error> not_supported(const std::string& what);

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };

/// How positions turn into angles, as the configuration says it.
struct RopeSpec {
    double theta = 10000.0;
    RopeScaling scaling = RopeScaling::kNone;
    double factor = 1.0;
    double low_freq_factor = 1.0;   ///< llama3
    double high_freq_factor = 4.0;  ///< llama3
    double beta_fast = 32.0;        ///< yarn
    double beta_slow = 1.0;         ///< yarn
    double attention_factor = 0.0;  ///< yarn; 0: 0.1 · ln(factor) + 1
    uint64_t original_context =
        0;  ///< llama3, yarn; finish_spec puts the model's context where it is 0
};

enum class Bias : uint8_t { kNone, kRequired, kIfPresent };

/// A model family's switches, filled from config.json or GGUF metadata; the plan builder needs
/// nothing else.
struct ModelSpec {
    std::string architecture;
    std::string family;
    backend::ModelShape shape;
    float eps = 1e-6f;
    RopeSpec rope;
    bool tied = false;     ///< the head is the embedding
    bool qk_norm = false;  ///< RMS norm of each head of q and k before RoPE
    Bias qkv_bias = Bias::kNone;
    Bias out_bias = Bias::kNone;
    Bias mlp_bias = Bias::kNone;
    bool interleaved_qk =
        false;  ///< q and k rows stand in pairs (2i, 2i + 1) a head instead of (i, i + head_dim/2)
    uint32_t sliding_window = 0;  ///< 0: none
};

/// kUnsupported "architecture 'X' is not supported by baton yet" unless `name` is a family that
/// baton runs.
[[nodiscard]] Expected<void> check_architecture(std::string_view name);

/// Checks the sizes of `spec` against each other and limits the context to window and
/// kContextTokensMax.
[[nodiscard]] Expected<void> finish_spec(ModelSpec& spec);

/// The spec of a Hugging Face config.json.
[[nodiscard]] Expected<ModelSpec> spec_from_config(const Json& config);
/// The spec of a GGUF's metadata, in its first file; `tensors` are those of all files. The vocabulary
/// is the embedding's, or the tokenizer's where that tensor is not among them.
[[nodiscard]] Expected<ModelSpec> spec_from_gguf(const GgufFile& file,
                                                 const std::vector<const StoredTensor*>& tensors,
                                                 Weights weights);

/// Inverse frequencies and attention scale of `spec`. `divisors` (GGUF rope_freqs.weight, [head_dim
/// / 2]) divide the frequencies; empty: none.
[[nodiscard]] Expected<backend::Rope> make_rope(const RopeSpec& spec, uint32_t head_dim,
                                                const std::vector<float>& divisors);

}  // namespace baton::model
