#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "baton/base/error.hpp"

namespace baton::text {

/// A half-open range of bytes.
struct Span {
    size_t begin = 0;
    size_t end = 0;
};

/// Finds the matches of a split pattern, in order, without overlap; matches are never empty.
class SplitScanner {
  public:
    virtual ~SplitScanner() = default;
    /// Appends the matches in `text` (valid UTF-8) to `out`.
    virtual void find_all(std::string_view text, std::vector<Span>& out) const = 0;
};

/// The GPT-2 pattern (ByteLevel with use_regex): contractions, letters, numbers, others, white
/// space.
[[nodiscard]] std::shared_ptr<const SplitScanner> gpt2_scanner();

/// The pattern of GPT-4 and its kin: case-insensitive contractions, letters with one leading
/// symbol, numbers in runs of at most `digits_max`, symbols with trailing newlines, white space.
struct ModernPattern {
    size_t digits_max = 1;
    bool marks_are_letters = false;  ///< Qwen3.5: [\p{L}\p{M}]+
};
[[nodiscard]] std::shared_ptr<const SplitScanner> modern_scanner(ModernPattern pattern);

/// A scanner for a `tokenizer.json` split regex: hand-written for the known ones, PCRE2 with a
/// match limit for the rest. kUnsupported with the pattern where it does not compile.
[[nodiscard]] Expected<std::shared_ptr<const SplitScanner>> regex_scanner(
    const std::string& pattern);
/// PCRE2 always; the tests compare the hand-written scanners with it.
[[nodiscard]] Expected<std::shared_ptr<const SplitScanner>> pcre_scanner(
    const std::string& pattern);
/// Each single character of a class (kNumber: Digits with individual_digits), or each run.
[[nodiscard]] std::shared_ptr<const SplitScanner> class_scanner(uint8_t mask, bool runs = false);
/// Each punctuation character: \p{P} and the ASCII symbols.
[[nodiscard]] std::shared_ptr<const SplitScanner> punctuation_scanner();
/// Finds a literal string.
[[nodiscard]] std::shared_ptr<const SplitScanner> literal_scanner(std::string literal);

}  // namespace baton::text
