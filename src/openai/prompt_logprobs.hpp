#pragma once

#include <span>
#include <string>
#include <vector>

#include "openai/choice.hpp"

namespace baton::openai {

/// The entries of a repeated prompt's tokens. `tokens` are those after the first, which has no
/// logprob.
[[nodiscard]] std::vector<LogprobEntry> prompt_entries(const text::Tokenizer& tokenizer,
                                                       std::span<const TokenId> ids,
                                                       std::span<const wire::Token> tokens);

/// vLLM's prompt_logprobs: a list with null for the first token and, for each other one, an object
/// of the `top` best tokens and the prompt's own, by id: logprob, rank (null where it is not among
/// the best) and text.
void append_prompt_logprobs(std::string& out, const text::Tokenizer& tokenizer,
                            std::span<const TokenId> ids, std::span<const wire::Token> tokens,
                            size_t top);

}  // namespace baton::openai
