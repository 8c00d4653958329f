#pragma once

#include <array>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/base/ids.hpp"
#include "text/normalizer.hpp"
#include "text/split_scanner.hpp"

namespace baton::text {

/// A token that is matched in the text itself, before BPE.
struct AddedToken {
    TokenId id = -1;
    std::string content;
    bool single_word = false;
    bool lstrip = false;
    bool rstrip = false;
    bool normalized = false;
    bool special = false;
};

/// A run of text, or one added token (`id` >= 0).
struct AddedSplit {
    Span span;
    TokenId id = -1;
};

/// Leftmost-longest matching of added tokens, with the flags as in Hugging Face tokenizers: those
/// with normalized = false in the raw text, the others in the normalised text. Immutable after
/// build().
class AddedTokens {
  public:
    /// Takes the tokens (ids already checked) and prepares both tries.
    void build(std::vector<AddedToken> tokens, const Normalizer& normalizer);

    /// Whether a special token may be recognised in these bytes; null means always.
    using Allowed = std::function<bool(Span)>;
    /// Splits `text` by the tokens matched before (`normalized` = false) or after normalisation.
    /// `retry`: after a refused match, search again one byte on, so that a refused one cannot hide
    /// another.
    void split(std::string_view text, bool normalized, const Allowed& special_allowed, bool retry,
               std::vector<AddedSplit>& out) const;

    [[nodiscard]] const std::vector<AddedToken>& tokens() const { return tokens_; }
    [[nodiscard]] const AddedToken* find(TokenId id) const;
    /// True when some special token is matched in normalised text.
    [[nodiscard]] bool empty(bool normalized) const {
        return tries_[normalized ? 1 : 0].nodes.size() <= 1;
    }

  private:
    struct Node {
        int32_t token = -1;
        std::vector<std::pair<uint8_t, uint32_t>> next;  // sorted by byte
    };
    struct Trie {
        std::vector<Node> nodes{Node{}};
        std::array<uint32_t, 256> root{};
        void add(std::string_view content, int32_t token);
        void finish();
        [[nodiscard]] bool begins_with(char byte) const {
            return root[static_cast<uint8_t>(byte)] != 0;
        }
        /// Index of the longest token at `pos`, or -1.
        [[nodiscard]] int32_t longest(std::string_view text, size_t pos, size_t& end) const;
    };

    std::vector<AddedToken> tokens_;
    std::unordered_map<TokenId, size_t> by_id_;
    std::array<Trie, 2> tries_;
};

}  // namespace baton::text
