#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/base/ids.hpp"

namespace baton::text {

/// A run of prompt text. Text that came from a user never becomes a control token.
struct Segment {
    std::string text;
    bool from_user = false;
};

/// The tokenizer fields of a GGUF file (docs of GGUF, tokenizer.ggml.*). Spans outlive the call
/// only.
struct GgufTokenizer {
    std::string model;  ///< "gpt2" (byte-level BPE), "llama" (SentencePiece's BPE, by scores),
                        ///< "gemma4" (its characters, by merges); others are refused by name
    std::string
        pre;  ///< pre-tokenizer name: "smollm", "qwen2", "llama-bpe", …; unknown is refused by name
    std::vector<std::string> tokens;
    std::vector<int32_t>
        token_type;  ///< 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte
    std::vector<float> scores;  ///< of "llama": one a token
    std::vector<std::string> merges;
    int64_t bos = -1, eos = -1, eot = -1, unk = -1;
    bool add_bos = false;
    bool add_eos = false;
    bool add_space_prefix = true;  ///< not of "gpt2"
};

/// Turns text into token ids, equal to Hugging Face `tokenizers` on the same files, and ids back
/// into bytes. Immutable after loading; any thread may call it.
class Tokenizer {
  public:
    /// From `tokenizer.json`. Unknown components are refused by name, never skipped.
    static Expected<std::shared_ptr<const Tokenizer>> from_json(std::string_view tokenizer_json);
    static Expected<std::shared_ptr<const Tokenizer>> from_gguf(GgufTokenizer fields);
    virtual ~Tokenizer() = default;

    /// Ids of `text`. `parse_special`: added tokens spelled in the text become their ids
    /// (completions prompts, template text); without it only non-special added tokens match.
    /// `add_special`: run the post-processor (BOS).
    [[nodiscard]] virtual std::vector<TokenId> encode(std::string_view text, bool parse_special,
                                                      bool add_special) const = 0;
    /// Ids of a rendered chat prompt: the segments are tokenised as one text, as Hugging Face does,
    /// except that a special added token is recognised only where none of its characters is from a
    /// user. No BOS is added.
    [[nodiscard]] virtual std::vector<TokenId> encode_segments(
        std::span<const Segment> segments) const = 0;
    /// The raw bytes a token stands for ("" for ids out of range). Concatenating them gives the
    /// text before any decoder clean-up. Special tokens give their spelling.
    [[nodiscard]] virtual std::string token_bytes(TokenId id) const = 0;
    /// True for added tokens with special = true (skipped by skip_special_tokens).
    [[nodiscard]] virtual bool is_special(TokenId id) const = 0;
    /// Id of an exact token spelling, or -1.
    [[nodiscard]] virtual TokenId find(std::string_view token) const = 0;
    /// One more than the largest id.
    [[nodiscard]] virtual uint32_t vocab_size() const = 0;
    /// Text of `ids` as valid UTF-8, with the decoder's leading-space rule. Ids out of range give
    /// nothing.
    [[nodiscard]] virtual std::string decode(std::span<const TokenId> ids,
                                             bool skip_special) const = 0;
    /// True for SentencePiece-style decoders, which drop one space at the very start of a decoded
    /// text: a stream that starts with an id's token_bytes must drop it too.
    [[nodiscard]] virtual bool strips_leading_space() const = 0;
    /// What a token stands for as the first of a decoded text: token_bytes() without the space that
    /// SentencePiece-style decoders drop.
    [[nodiscard]] virtual std::string first_token_bytes(TokenId id) const {
        std::string bytes = token_bytes(id);
        if (strips_leading_space() && bytes.starts_with(' ')) bytes.erase(0, 1);
        return bytes;
    }
    /// True where each byte that is part of no character becomes a U+FFFD of its own (<0xHH>
    /// tokens), and not each maximal subpart.
    [[nodiscard]] virtual bool replaces_single_bytes() const { return false; }
    /// The most bytes one token stands for: text longer than this times the context cannot fit.
    [[nodiscard]] virtual size_t max_token_bytes() const = 0;
};

/// Joins token bytes into valid UTF-8 piece by piece: an incomplete tail is held back until it
/// completes, and an invalid maximal subpart becomes one U+FFFD. The concatenation of all pieces
/// equals decoding all ids at once.
class Utf8Assembler {
  public:
    /// `single_bytes`: an invalid maximal subpart becomes one U+FFFD a byte.
    explicit Utf8Assembler(bool single_bytes = false) : single_bytes_(single_bytes) {}
    /// Text that is certain after these bytes.
    [[nodiscard]] std::string push(std::string_view bytes);
    /// What is left at the end (U+FFFD for an incomplete character).
    [[nodiscard]] std::string finish();
    [[nodiscard]] bool empty() const { return tail_.empty(); }

  private:
    std::string tail_;
    bool single_bytes_;
};

/// Turns ids into text one by one; what the pieces join to is Tokenizer::decode() of all ids. One
/// per sequence; the tokenizer outlives it.
class StreamDecoder {
  public:
    /// `at_start`: the first id begins a text, and loses the space that the tokenizer's decoder
    /// drops there.
    StreamDecoder(const Tokenizer& tokenizer, bool at_start)
        : tokenizer_(tokenizer),
          assembler_(tokenizer.replaces_single_bytes()),
          at_start_(at_start) {}
    /// Text that is certain after this id.
    [[nodiscard]] std::string push(TokenId id);
    /// What is left at the end.
    [[nodiscard]] std::string finish() { return assembler_.finish(); }
    /// True where nothing is held back.
    [[nodiscard]] bool empty() const { return assembler_.empty(); }

  private:
    const Tokenizer& tokenizer_;
    Utf8Assembler assembler_;
    bool at_start_;
};

/// Finds stop strings in a growing text. Holds back any suffix that may be the start of one. One
/// per sequence.
class StopMatcher {
  public:
    StopMatcher() = default;
    StopMatcher(std::vector<std::string> stops, bool include_in_output);
    struct Result {
        std::string text;      ///< safe to send now
        bool stopped = false;  ///< a stop string was found; nothing after it will be sent
        std::string matched;
    };
    [[nodiscard]] Result push(std::string_view text);
    /// Releases what was held back (the sequence ended otherwise).
    [[nodiscard]] std::string finish();

  private:
    std::vector<std::string> stops_;
    bool include_ = false;
    bool stopped_ = false;
    std::string held_;
};

}  // namespace baton::text
