#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/base/ids.hpp"

namespace baton::text {

/// Byte-pair merges over one piece of text, equal to Hugging Face tokenizers' BPE. Immutable after
/// build(), but for what it remembers of its own results; any thread may call it.
class Bpe {
  public:
    struct Options {
        bool byte_level = true;      ///< symbols are bytes in the GPT-2 alphabet; else characters
        bool byte_fallback = false;  ///< unknown characters become <0xHH> tokens
        bool fuse_unk = false;
        bool ignore_merges = false;  ///< a piece that is a token is that token
        std::string unk_token;
    };
    struct Merge {
        std::string left;
        std::string right;
    };

    Bpe() = default;
    Bpe(Bpe&&) = default;
    Bpe& operator=(Bpe&&) = default;
    Bpe(const Bpe&) = delete;  // ids_ views into tokens_
    Bpe& operator=(const Bpe&) = delete;
    ~Bpe() = default;

    /// `tokens[id]` is the spelling ("" for holes); `barred` ids never come out of merges or
    /// look-ups (special tokens: text alone must not make them). kCorrupt with the reason for a
    /// vocabulary that does not fit together.
    static Expected<Bpe> build(std::vector<std::string> tokens, const std::vector<Merge>& merges,
                               Options options, const std::unordered_set<TokenId>& barred);

    /// A vocabulary of SentencePiece's kind, which has no list of merges: any two neighbours that
    /// together are a token merge, the highest of `scores` first, then the leftmost. `barred` as
    /// above. Characters that are no token become <0xHH> tokens or `options.unk_token`.
    static Expected<Bpe> build_scored(std::vector<std::string> tokens,
                                      std::span<const float> scores, Options options,
                                      const std::unordered_set<TokenId>& barred);

    /// Appends the ids of `piece`. O(n log n).
    void encode(std::string_view piece, std::vector<TokenId>& out) const;
    /// Id of a spelling in the vocabulary, or -1.
    [[nodiscard]] TokenId find(std::string_view token) const;
    /// Spelling of an id, "" out of range.
    [[nodiscard]] std::string_view token(TokenId id) const;
    [[nodiscard]] size_t size() const { return tokens_.size(); }

  private:
    /// Open-addressing map from a pair of ids to the merge's rank and result.
    class MergeTable {
      public:
        struct Entry {
            uint64_t key = UINT64_MAX;
            uint32_t rank = UINT32_MAX;
            TokenId result = -1;
        };
        void reserve(size_t count);
        void put(TokenId left, TokenId right, uint32_t rank, TokenId result);
        [[nodiscard]] const Entry* get(TokenId left, TokenId right) const;

      private:
        std::vector<Entry> slots_;
        uint64_t mask_ = 0;
    };

    /// Finds the token that stands for just a piece's bytes, and remembers whether the piece
    /// becomes that token: most pieces of a text do, and need no merging then.
    class WholeTokens {
      public:
        void build(const std::vector<std::string>& tokens, bool byte_level);
        /// The token whose bytes are `piece`, or -1.
        [[nodiscard]] TokenId find(std::string_view piece) const;
        /// True where a piece of its bytes is known to become the token. Any thread: all find the
        /// same.
        [[nodiscard]] bool certain(TokenId id) const {
            return certain_[static_cast<size_t>(id)].load(std::memory_order_relaxed);
        }
        void make_certain(TokenId id) const {
            certain_[static_cast<size_t>(id)].store(true, std::memory_order_relaxed);
        }

      private:
        struct Slot {
            uint32_t hash = 0;
            TokenId id = -1;
        };
        [[nodiscard]] std::string_view bytes_of(TokenId id) const;

        std::string bytes_;             ///< of all tokens, in the order of ids
        std::vector<uint32_t> begins_;  ///< of each in `bytes_`, and their end
        std::vector<Slot> slots_;       ///< open addressing
        std::unique_ptr<std::atomic<bool>[]> certain_;
    };

    Expected<void> index_tokens(std::vector<std::string> tokens, Options options,
                                const std::unordered_set<TokenId>& barred);
    void find_cuts();
    void encode_part(std::string_view piece, std::vector<TokenId>& out) const;
    void encode_scored(std::string_view piece, std::vector<TokenId>& out) const;
    void push_unknown(std::string_view one, bool& unk_open, std::vector<TokenId>& out) const;
    void symbols(std::string_view piece, std::vector<TokenId>& out) const;
    void byte_symbols(std::string_view piece, std::vector<TokenId>& out) const;
    void char_symbols(std::string_view piece, std::vector<TokenId>& out) const;
    [[nodiscard]] size_t merge_short(std::span<TokenId> ids) const;
    [[nodiscard]] size_t merge_long(std::span<TokenId> ids) const;

    Options options_;
    std::vector<std::string> tokens_;
    std::unordered_map<std::string_view, TokenId> ids_;  // views into tokens_
    std::unordered_set<TokenId> barred_;
    MergeTable merges_;
    std::vector<uint32_t>
        ranks_;  ///< build_scored: of each token, UINT32_MAX for one that never merges
    size_t token_bytes_max_ = 0;  ///< build_scored: of those that merge
    bool cut_at_spaces_ = false;  ///< no token goes on behind a "▁" that follows another character
    WholeTokens whole_;
    std::array<TokenId, 256> byte_ids_{};
    std::array<TokenId, 256> byte_tokens_{};  // <0x00>..<0xFF>
    TokenId unk_ = -1;
};

/// The GPT-2 alphabet: the character that stands for a byte, and back (-1 where a character stands
/// for none).
[[nodiscard]] uint32_t byte_to_char(uint8_t byte);
[[nodiscard]] int char_to_byte(uint32_t code);
/// `bytes` spelled in that alphabet.
[[nodiscard]] std::string spell_bytes(std::string_view bytes);

}  // namespace baton::text
