#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/base/ids.hpp"
#include "baton/base/limits.hpp"
#include "baton/openai/tools.hpp"
#include "baton/wire/messages.hpp"

namespace baton::openai {

/// What the operator allows; from the configuration.
struct ParseOptions {
    std::string default_model = {};  ///< used when a request names none; "": that is an error
    std::string header_request_id =
        {};  ///< X-Request-Id of the HTTP request; the body's request_id wins
    size_t n_max = limits::kSequencesPerRequestMax;
    size_t prompts_max = 128;  ///< of one completions request; prompts x n may not exceed it either
    bool strict_fields = false;  ///< unknown fields are errors
};

/// The fields that chat and completions share, checked for type and range but not yet against a
/// model. Empty optionals were absent or null.
struct GenerationOptions {
    std::optional<int64_t> max_tokens;  ///< max_completion_tokens wins over max_tokens
    std::optional<double> temperature, top_p, min_p, presence_penalty, frequency_penalty,
        repetition_penalty;
    std::optional<int64_t> top_k;
    std::optional<int64_t> seed;  ///< -1 counts as absent
    uint32_t n = 1;
    uint32_t min_tokens = 0;
    std::vector<std::string> stop;
    std::vector<TokenId> stop_token_ids;
    std::vector<std::pair<TokenId, float>> logit_bias;
    bool include_stop_str_in_output = false;
    bool ignore_eos = false;
    bool skip_special_tokens = true;
    int32_t top_logprobs = -1;     ///< -1: no logprobs in the answer
    int32_t prompt_logprobs = -1;  ///< -1: none of the prompt's tokens
    bool stream = false;
    bool include_usage = false;
    bool continuous_usage = false;
    std::string request_id;            ///< "": none given
    bool timings = false;              ///< the answer says how long its parts took
    wire::Constraint constraint = {};  ///< what the answer must be
};

struct ChatRequest {
    std::string model;
    GenerationOptions options;
    std::string messages_json;  ///< array; roles checked, developer is system, content parts joined
    std::string tools_json;     ///< array, or "" for none (also with tool_choice none)
    ToolUse tool_use;           ///< the same, for the answer
    std::string kwargs_json;  ///< object of chat_template_kwargs, enable_thinking, reasoning_effort
    bool add_generation_prompt = true;
    bool continue_final_message = false;
    std::string final_content;  ///< of the last message, for continue_final_message
};

using Prompt = std::variant<std::string, std::vector<TokenId>>;

struct CompletionRequest {
    std::string model;
    GenerationOptions options;
    std::vector<Prompt> prompts;
    bool echo = false;
    bool add_special_tokens = true;  ///< BOS before a text, where the model has one
};

/// Parse and check a body. Errors carry the field in `param`. Pure; any thread; not for an I/O
/// thread (megabytes).
[[nodiscard]] Expected<ChatRequest> parse_chat_request(std::string_view body,
                                                       const ParseOptions& options);
[[nodiscard]] Expected<CompletionRequest> parse_completion_request(std::string_view body,
                                                                   const ParseOptions& options);

/// What a request is checked against once its model is known.
struct ModelLimits {
    uint32_t vocab_size = 0;      ///< ids must be below
    uint32_t context_tokens = 0;  ///< prompt and output together
    std::vector<TokenId> eos_ids;
    /// The model's generation_config.
    std::optional<double> temperature, top_p, min_p, repetition_penalty;
    std::optional<int64_t> top_k;
};

/// Checks that prompt ids lie within the vocabulary and that the prompt is not empty (param
/// "prompt").
[[nodiscard]] Expected<void> check_prompt_ids(const std::vector<TokenId>& ids, uint32_t vocab_size);

/// The sampling settings of choice `choice` (0 … n-1): request over generation_config over
/// defaults, every id within the vocabulary, max_tokens clamped to the context. kContextTooLong
/// when the prompt fills the context (answer with to_api_error(error, prompt_tokens,
/// context_tokens)). max_tokens 0 comes from echo with max_tokens 0 only: there is nothing to run
/// then. Without a seed a random one is taken; with one, each choice derives its own from it and
/// choice 0 uses it unchanged.
[[nodiscard]] Expected<wire::Sampling> resolve(const GenerationOptions& options,
                                               const ModelLimits& model, size_t prompt_tokens,
                                               uint32_t choice = 0);

}  // namespace baton::openai
