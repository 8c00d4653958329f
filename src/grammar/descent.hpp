#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "baton/base/error.hpp"
#include "grammar/expr.hpp"

namespace baton::grammar {

/// What the readers of regular expressions and of grammars share: a place in a text, numbers, hexadecimal digits, alternatives
/// between bars.
class Descent {
  protected:
    /// `too_large`: what is said where the pool is full. All of it outlives this.
    Descent(ExprPool& pool, std::string_view text, const Limits& limits, const char* too_large)
        : pool_(pool), text_(text), limits_(limits), too_large_(too_large) {}
    ~Descent() = default;

    /// kInvalidArgument that says where.
    [[nodiscard]] virtual tl::unexpected<Error> bad(const std::string& why) const = 0;
    /// What stands between two bars.
    virtual Expected<ExprId> sequence(uint32_t depth) = 0;

    [[nodiscard]] bool more() const { return at_ < text_.size(); }
    bool take(std::string_view what) {
        if (text_.substr(at_, what.size()) != what) return false;
        at_ += what.size();
        return true;
    }
    Expected<ExprId> alternatives(uint32_t depth);
    /// Decimal digits, if there are some; no more than just beyond what counts() allows.
    std::optional<uint32_t> number();
    /// kInvalidArgument where a repetition's counts are too large or in the wrong order; `most` may be kUnbounded.
    [[nodiscard]] Expected<void> check_counts(uint32_t least, uint32_t most) const;
    /// The character that `count` hexadecimal digits name; 0: as many as there are, up to six.
    Expected<uint32_t> hex(uint32_t count);

    ExprPool& pool_;
    const std::string_view text_;
    const Limits& limits_;
    size_t at_ = 0;

  private:
    const char* too_large_;
};

}  // namespace baton::grammar
