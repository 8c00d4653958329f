#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baton/base/error.hpp"
#include "text/json.hpp"

namespace baton::text {

/// Turns a token's spelling into the bytes it stands for (`decoder` of tokenizer.json). Immutable.
class TokenDecoder {
  public:
    /// ByteLevel, for GGUF.
    static TokenDecoder byte_level();
    /// From JSON; refuses unknown types by name. `byte_level_model`: what to assume where the
    /// decoder is null.
    static Expected<TokenDecoder> from_json(const JsonValue* config, bool byte_level_model);

    /// The bytes of one token; `literal`: an added token, which keeps its spelling where the
    /// alphabet fails.
    [[nodiscard]] std::string bytes(std::string_view spelling, bool literal) const;
    /// True where one space at the very start of a decoded text is dropped (SentencePiece style).
    [[nodiscard]] bool strips_leading_space() const { return strip_; }

  private:
    Expected<void> add(const JsonValue& config, int depth);

    bool byte_level_ = false;
    bool byte_fallback_ = false;
    bool strip_ = false;
    std::vector<std::pair<std::string, std::string>> replacements_;
};

}  // namespace baton::text
