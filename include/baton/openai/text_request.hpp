#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "baton/openai/request.hpp"

namespace baton::openai {

/// POST /tokenize, in vLLM's shape (prompt, or messages as for chat) or llama.cpp's (content).
struct TokenizeRequest {
    std::string model;
    bool chat = false;        ///< there are messages: parse the body as a chat request
    std::string text;         ///< else
    bool add_special = true;  ///< BOS, where the model has one; content: only on request
    bool parse_special = true;
    bool with_pieces = false;  ///< tokens as objects with their text
    bool token_strs = false;   ///< a list of the tokens' texts beside their ids
};
[[nodiscard]] Expected<TokenizeRequest> parse_tokenize_request(std::string_view body,
                                                               const ParseOptions& options);

/// POST /detokenize.
struct DetokenizeRequest {
    std::string model;
    std::vector<TokenId> tokens;
    bool skip_special_tokens = false;
};
[[nodiscard]] Expected<DetokenizeRequest> parse_detokenize_request(std::string_view body,
                                                                   const ParseOptions& options);

}  // namespace baton::openai
