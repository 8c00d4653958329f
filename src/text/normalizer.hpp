#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "baton/base/error.hpp"
#include "text/json.hpp"
#include "text/split_scanner.hpp"
#include "text/unicode.hpp"

namespace baton::text {

/// Rewrites text before it is cut (`normalizer` of tokenizer.json). Immutable.
class Normalizer {
  public:
    struct Step {
        enum class Kind : uint8_t { kForm, kPrepend, kReplace, kLowercase, kStrip };
        Kind kind = Kind::kForm;
        NormalForm form = NormalForm::kNfc;
        std::string from;
        std::string to;
        std::shared_ptr<const SplitScanner>
            pattern;  ///< kReplace: what is replaced, where not `from`
        bool left = false;
        bool right = false;
    };

    Normalizer() = default;
    explicit Normalizer(std::vector<Step> steps) : steps_(std::move(steps)) {}
    /// From JSON; null changes nothing. Refuses unknown types by name.
    static Expected<Normalizer> from_json(const JsonValue* config);

    /// The rewritten form of `text` (valid UTF-8).
    [[nodiscard]] std::string apply(std::string_view text) const;
    [[nodiscard]] bool empty() const { return steps_.empty(); }

  private:
    std::vector<Step> steps_;
};

}  // namespace baton::text
