#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baton/openai/chat_context.hpp"
#include "baton/openai/request.hpp"
#include "baton/text/tokenizer.hpp"
#include "baton/wire/messages.hpp"

namespace baton::openai {

inline constexpr std::string_view kDoneFrame = "data: [DONE]\r\n\r\n";

/// One prompt of the request as the answer needs it.
struct PromptUse {
    uint32_t tokens = 0;
    std::string echo = {};          ///< its text where the answer repeats it, else ""
    std::vector<TokenId> ids = {};  ///< where logprobs of the prompt are wanted, else empty
};

/// What the answer to one request looks like.
struct ResponseOptions {
    bool chat = true;  ///< else completions
    std::string id;    ///< "chatcmpl-…" / "cmpl-…": see response_id()
    std::string model;
    std::string system_fingerprint;
    int64_t created_s = 0;  ///< unix time
    GenerationOptions generation;
    std::vector<PromptUse> prompts;  ///< one for chat
    std::vector<TokenId> stop_ids;   ///< of the resolved sampling: such a last token is not shown
    Reasoning reasoning = Reasoning::kOff;
    ReasoningTags reasoning_tags = {};
    ToolFormat tool_format = ToolFormat::kNone;  ///< calls are looked for; chat alone
    ToolUse tool_use = {};
    /// With generation.timings: a JSON object, asked for when the end of the answer is written.
    std::function<std::string()> timings = {};
    bool echo = false;  ///< the answer repeats the prompt, with its logprobs where there are any
    /// How many of the best tokens each token of the prompt needs; -1: no logprobs of it are
    /// wanted.
    [[nodiscard]] int32_t prompt_top() const {
        return std::max(echo ? generation.top_logprobs : -1, generation.prompt_logprobs);
    }
};

struct Usage {
    uint64_t prompt_tokens = 0;
    uint64_t completion_tokens = 0;
    uint64_t cached_tokens = 0;
    uint64_t reasoning_tokens = 0;
};

/// Turns the tokens of a request's choices into its answer: one JSON body, or frames of a stream.
/// Choice `prompt_index * n + k` is the k-th of that prompt. The stream's text is the body's text
/// byte for byte, however the tokens were batched. Not thread-safe: one strand at a time.
class ResponseBuilder {
  public:
    ResponseBuilder(ResponseOptions options, std::shared_ptr<const text::Tokenizer> tokenizer);
    ~ResponseBuilder();
    ResponseBuilder(ResponseBuilder&&) noexcept;
    ResponseBuilder& operator=(ResponseBuilder&&) noexcept;

    struct Update {
        std::string frames;  ///< to write now; complete events; "" when there is nothing to send
                             ///< (or not a stream)
        bool stop_found = false;   ///< a stop string ended this choice: abort its sequence
        bool choice_done = false;  ///< this choice has its finish reason (now or before)
        bool all_done = false;     ///< every choice has; a stream's frames then end with [DONE]
    };
    /// Takes the next tokens of a choice, in order. `finish` other than kNone ends it.
    /// `cached_tokens` counts once a choice. Tokens for a choice that is done are ignored.
    [[nodiscard]] Update push(uint32_t choice, std::span<const wire::Token> tokens,
                              wire::Finish finish, uint32_t cached_tokens = 0);

    /// The logprobs of a prompt's tokens but the first, in order; before the first push() of its
    /// choices. Only where ResponseOptions::prompt_top() asks for them.
    void set_prompt_logprobs(uint32_t prompt, std::vector<wire::Token> tokens);
    [[nodiscard]] uint32_t choices() const;
    [[nodiscard]] bool all_done() const;
    /// The whole answer, once all_done() (not for streams).
    [[nodiscard]] std::string body() const;
    [[nodiscard]] Usage usage() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

/// "chatcmpl-" or "cmpl-" and the request id (a random one where it is empty).
[[nodiscard]] std::string response_id(bool chat, std::string_view request_id);
/// A fresh request id (32 hex digits).
[[nodiscard]] std::string new_request_id();
/// "fp_" and a hash over build, model identity and configuration.
[[nodiscard]] std::string system_fingerprint(std::string_view model_identity,
                                             std::string_view configuration);

/// The text of one token alone: a part of a character shows as U+FFFD.
[[nodiscard]] std::string piece_text(const text::Tokenizer& tokenizer, TokenId id);

}  // namespace baton::openai
