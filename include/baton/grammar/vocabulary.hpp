#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "baton/base/ids.hpp"

namespace baton::grammar {

/// The tokens of a model as a tree of their bytes, with those set apart that are nothing but plain text: most of a
/// vocabulary, of which a text that is free for a while allows all or none. Immutable; any thread.
class Vocabulary {
  public:
    struct Token {
        std::string bytes;     ///< "": never allowed
        bool special = false;  ///< a control token: only named by its spelling, or as the end
    };
    /// `tokens` [vocab]; `mask_size`: the model's vocabulary, which may be larger.
    [[nodiscard]] static std::shared_ptr<const Vocabulary> make(std::span<const Token> tokens, uint32_t mask_size);

    /// A tree in preorder. A node's children lie behind it, up to its end.
    struct Tree {
        struct Node {
            uint32_t end = 0;     ///< behind its last descendant
            uint32_t tokens = 0;  ///< in `ids`: of the tokens that end here
            uint16_t depth = 0;   ///< of the node above; the root is not there
            uint8_t byte = 0;
            uint8_t count = 0;    ///< of those tokens
        };
        std::vector<Node> nodes;
        std::vector<TokenId> ids;
        uint32_t depth_max = 0;
    };
    /// Plain: whole characters from U+0020 on but for the quote, the backslash and U+007F.
    [[nodiscard]] const Tree& plain() const { return plain_; }
    [[nodiscard]] const Tree& rest() const { return rest_; }
    /// Mask of the plain tokens of at most `chars` characters.
    [[nodiscard]] std::span<const uint32_t> plain_mask(uint32_t chars) const;
    /// The most characters a plain token has.
    [[nodiscard]] uint32_t plain_chars_max() const { return chars_max_; }
    /// Plain tokens by number of characters, and where those of more than `chars` begin.
    [[nodiscard]] std::span<const TokenId> longer_than(uint32_t chars) const;

    [[nodiscard]] std::span<const uint8_t> bytes_of(TokenId id) const;
    [[nodiscard]] uint32_t size() const { return size_; }          ///< ids are below
    [[nodiscard]] uint32_t words() const { return (size_ + 31) / 32; }  ///< of a mask
    [[nodiscard]] uint32_t token_bytes_max() const { return token_bytes_max_; }
    [[nodiscard]] size_t memory() const;  ///< bytes

  private:
    static Tree make_tree(std::vector<TokenId> ids, const Vocabulary& of);

    uint32_t size_ = 0;
    uint32_t token_bytes_max_ = 0;
    uint32_t chars_max_ = 0;
    std::vector<uint32_t> bytes_at_;  ///< [size + 1]
    std::vector<uint8_t> bytes_;
    Tree plain_, rest_;
    std::vector<TokenId> by_chars_;      ///< plain tokens, fewest characters first
    std::vector<uint32_t> chars_at_;     ///< [chars_max + 2]: where those of that many characters begin
    std::vector<uint32_t> plain_masks_;  ///< [chars_max + 1, words]
};

}  // namespace baton::grammar
