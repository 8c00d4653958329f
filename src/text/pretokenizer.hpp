#pragma once

#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "baton/base/error.hpp"
#include "text/json.hpp"
#include "text/split_scanner.hpp"

namespace baton::text {

/// The pieces of one text, in order; pieces view the text or `storage`.
struct Pieces {
    std::vector<std::string_view> list;
    std::deque<std::string> storage;
};

/// Cuts normalised text into the pieces that BPE merges within (`pre_tokenizer` of tokenizer.json).
/// Immutable.
class PreTokenizer {
  public:
    enum class Behavior : uint8_t {
        kIsolated,
        kRemoved,
        kMergedWithPrevious,
        kMergedWithNext,
        kContiguous
    };
    enum class Prepend : uint8_t { kNever, kFirst, kAlways };
    struct Step {
        enum class Kind : uint8_t { kSplit, kPrefixSpace, kMetaspace, kSpellBytes };
        Kind kind = Kind::kSplit;
        std::shared_ptr<const SplitScanner> scanner;
        Behavior behavior = Behavior::kIsolated;
        bool invert = false;
        std::string replacement;
        Prepend prepend = Prepend::kNever;
        bool split = true;
    };

    PreTokenizer() = default;
    /// `byte_level`: the pieces are then read as bytes.
    PreTokenizer(std::vector<Step> steps, bool byte_level)
        : steps_(std::move(steps)), byte_level_(byte_level) {}
    /// From JSON; null means one piece. Refuses unknown types by name.
    static Expected<PreTokenizer> from_json(const JsonValue* config);

    /// Cuts `text`, which stays alive as long as the pieces; `at_start`: it begins the whole input.
    void cut(std::string_view text, bool at_start, Pieces& out) const;
    /// True where pieces are then read as bytes (ByteLevel). False where steps follow ByteLevel:
    /// they see the bytes' spelling, and so does BPE.
    [[nodiscard]] bool byte_level() const { return byte_level_; }

  private:
    std::vector<Step> steps_;
    bool byte_level_ = false;
};

}  // namespace baton::text
