#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baton/base/error.hpp"
#include "text/json.hpp"

namespace baton::text {

/// The byte of a token spelled "<0xHH>", strictly, or -1.
[[nodiscard]] int byte_of_token(std::string_view spelling);

/// Turns a token's spelling into the bytes it stands for (`decoder` of tokenizer.json). Immutable.
class TokenDecoder {
  public:
    /// ByteLevel, for GGUF.
    static TokenDecoder byte_level();
    /// "▁" is a space and <0xHH> a byte; `strip`: one space at the start is dropped. For GGUF.
    static TokenDecoder sentencepiece(bool strip);
    /// From JSON; refuses unknown types by name. `byte_level_model`: what to assume where the
    /// decoder is null.
    static Expected<TokenDecoder> from_json(const JsonValue* config, bool byte_level_model);

    /// The bytes of one token; `literal`: an added token, which keeps its spelling where the
    /// alphabet fails.
    [[nodiscard]] std::string bytes(std::string_view spelling, bool literal) const;
    /// Those of the first token of a text, which loses the space that the decoder drops.
    [[nodiscard]] std::string first_bytes(std::string_view spelling, bool literal) const;
    /// True where each byte that is part of no character becomes a U+FFFD of its own.
    [[nodiscard]] bool replaces_single_bytes() const { return byte_fallback_; }
    /// True where one space at the very start of a decoded text is dropped (SentencePiece style).
    [[nodiscard]] bool strips_leading_space() const { return strip_ || !first_drops_.empty(); }

  private:
    Expected<void> add(const JsonValue& config, int depth);

    bool byte_level_ = false;
    bool byte_fallback_ = false;
    bool strip_ = false;
    std::string first_drops_;  ///< Metaspace: what is dropped from the first token, wherever it is
    std::vector<std::pair<std::string, std::string>> replacements_;
};

}  // namespace baton::text
