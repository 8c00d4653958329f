#pragma once

#include <memory>
#include <string>
#include <vector>

#include "baton/text/tokenizer.hpp"
#include "text/added_tokens.hpp"
#include "text/bpe.hpp"
#include "text/normalizer.hpp"
#include "text/pretokenizer.hpp"
#include "text/token_decoder.hpp"

namespace baton::text {

inline constexpr TokenId kTokenIdMax = (1 << 22) - 1;
inline constexpr size_t kAddedTokenBytesMax = 512;
inline constexpr size_t kAddedTokensMax = 65'536;

/// The checked components a loader hands to the tokenizer.
struct TokenizerParts {
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
    Bpe bpe;
    std::vector<AddedToken> added;
    TokenDecoder decoder;
    std::vector<TokenId> prefix;  ///< put before the text when special tokens are added
    std::vector<TokenId> suffix;
};

/// Checks the added tokens (ids, sizes, duplicates) and puts the tokenizer together.
[[nodiscard]] Expected<std::shared_ptr<const Tokenizer>> make_tokenizer(TokenizerParts parts);

}  // namespace baton::text
