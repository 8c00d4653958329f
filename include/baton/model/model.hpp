#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baton/backend/plan.hpp"
#include "baton/base/digest.hpp"
#include "baton/base/error.hpp"
#include "baton/base/ids.hpp"
#include "baton/text/chat_template.hpp"
#include "baton/text/tokenizer.hpp"

namespace baton::model {

/// Sampling defaults the model's authors recommend (generation_config.json, general.sampling.* of
/// GGUF).
struct GenerationDefaults {
    std::optional<float> temperature;
    std::optional<float> top_p;
    std::optional<int32_t> top_k;
    std::optional<float> repetition_penalty;
};

/// Everything about a model but its weights.
struct ModelInfo {
    std::string architecture;  ///< as the files call it: "llama", "qwen2", "qwen3", "mistral"
    std::string family;        ///< the plan it runs: "llama", "qwen2", "qwen3", "mistral"
    backend::ModelShape shape;
    /// SHA-256 over configuration, tokenizer, tensor names, shapes and types, file sizes and
    /// samples of every tensor: equal for copies of one model wherever they lie; cheap, so no
    /// defence against a crafted collision.
    Digest identity{};
    std::vector<TokenId>
        eos;  ///< tokens that end a generation, without repeats; the first is the tokenizer's own
    TokenId bos = -1;       ///< -1: none
    std::string bos_token;  ///< spellings as the chat template expects them; empty: none
    std::string eos_token;
    std::shared_ptr<const text::Tokenizer> tokenizer;
    std::string chat_template_source;  ///< empty: the model has none
    std::shared_ptr<const text::ChatTemplate>
        chat_template;                ///< null: none, or it does not compile
    std::string chat_template_error;  ///< why chat_template_source does not compile
    std::string quantization;  ///< type that holds most of the weight bytes: "Q4_1", "BF16", …
    std::string format;        ///< "gguf" or "safetensors"
    uint64_t weight_bytes = 0;
    uint64_t parameters = 0;  ///< elements of the weights
    /// Positions that may be used: the model's context, limited to its attention window where it
    /// has one (attention inside one window equals full attention) and to
    /// limits::kContextTokensMax.
    uint32_t context_length = 0;
    uint32_t sliding_window = 0;  ///< the window that limited context_length; 0: full attention
    GenerationDefaults generation;
};

/// Whether the weights of a model that is only described have to be there.
enum class Weights : uint8_t {
    kChecked,  ///< all of them, each tensor in its right shape
    kAbsent,   ///< not even that: of safetensors none is looked at, of a GGUF in several files only the first is
};

/// Reads a model's description: a .gguf file (of one in several files any part, named
/// NAME-00001-of-0000N.gguf), a directory with exactly one .gguf, or a directory with config.json and
/// safetensors (and tokenizer.json, tokenizer_config.json, generation_config.json). Opens the weight
/// files to check their headers and that every tensor of the architecture is there in the right
/// shape, but reads no weights. With kAbsent `weight_bytes` and `identity` cover what was looked at.
/// kNotFound, kIo, kCorrupt (a malformed file) or kUnsupported (an architecture, type or tokenizer
/// by its name).
[[nodiscard]] Expected<ModelInfo> inspect_model(const std::string& path, Weights weights = Weights::kChecked);

/// Maps the weights at `path` and builds the plan of the family. Norm weights and biases come as
/// F32; matrices stay in their type, mapped, except q/k projections of GGUF llama files, whose rows
/// are copied into the order of half-rotation RoPE. Errors as inspect_model.
[[nodiscard]] Expected<backend::Plan> load_plan(const std::string& path);

/// Whether a config.json describes a model that can run here: what inspect_model says of it, before
/// there are weights. kCorrupt, kUnsupported.
[[nodiscard]] Expected<void> check_config(std::string_view config_json);

/// The real path of `path` when it lies inside the real path of `root` (relative paths start at
/// `root`). The file of a GGUF in several parts keeps its name, which leads to the others: its folder
/// is real, and all parts lie inside. An empty `root` fences nothing. kNotFound when it does not exist, kInvalidArgument
/// (param "model_path") when it is outside.
[[nodiscard]] Expected<std::string> resolve_model_path(const std::string& path,
                                                       const std::string& root);

/// True for architectures whose layers carry a recurrent state (state space, linear attention,
/// hybrids), by Hugging Face model_type, class name or GGUF name: "qwen3_5",
/// "Qwen3NextForCausalLM", "mamba2", "rwkv7", "falcon-h1", ….
[[nodiscard]] bool is_recurrent_architecture(std::string_view name);

}  // namespace baton::model
