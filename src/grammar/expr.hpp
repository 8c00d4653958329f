#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baton/grammar/grammar.hpp"
#include "grammar/charset.hpp"

/// What the readers of regular expressions, grammars and schemas build: rules whose bodies are expressions over bytes.
namespace baton::grammar {

using ExprId = uint32_t;
using RuleId = uint32_t;
inline constexpr uint32_t kUnbounded = UINT32_MAX;

enum class Op : uint8_t { kNothing, kEmpty, kBytes, kChars, kSeq, kAlt, kRepeat, kRule };

struct Expr {
    Op op = Op::kNothing;
    uint32_t a = 0;     ///< kBytes, kChars, kSeq, kAlt: where in their pool; kRepeat: the body; kRule: the rule
    uint32_t n = 0;     ///< kBytes, kSeq, kAlt: how many; kRepeat: least
    uint32_t most = 0;  ///< kRepeat: most, or kUnbounded
    uint32_t cost = 0;  ///< about how many states it makes
};

/// Builds expressions. Over its limits it remembers that (`full`) and makes kNothing: builders need not check each call.
class ExprPool {
  public:
    explicit ExprPool(const Limits& limits);

    [[nodiscard]] ExprId nothing() const { return 0; }  ///< matches no text
    [[nodiscard]] ExprId empty() const { return 1; }    ///< matches ""
    [[nodiscard]] ExprId bytes(std::string_view text);
    [[nodiscard]] ExprId chars(const CharSet& set);
    [[nodiscard]] ExprId seq(std::span<const ExprId> parts);
    [[nodiscard]] ExprId seq(std::initializer_list<ExprId> parts) { return seq(std::span(parts.begin(), parts.size())); }
    [[nodiscard]] ExprId alt(std::span<const ExprId> parts);
    [[nodiscard]] ExprId alt(std::initializer_list<ExprId> parts) { return alt(std::span(parts.begin(), parts.size())); }
    /// One of these texts, as a tree of their common beginnings.
    [[nodiscard]] ExprId literals(std::vector<std::string> texts);
    [[nodiscard]] ExprId repeat(ExprId body, uint32_t least, uint32_t most);
    [[nodiscard]] ExprId optional(ExprId body) { return repeat(body, 0, 1); }
    [[nodiscard]] ExprId any_number(ExprId body) { return repeat(body, 0, kUnbounded); }
    [[nodiscard]] ExprId rule(RuleId rule);

    [[nodiscard]] RuleId add_rule(std::string name);
    void define(RuleId rule, ExprId body) {
        if (rule < bodies_.size()) bodies_[rule] = body;
    }

    [[nodiscard]] bool full() const { return full_; }
    [[nodiscard]] const Expr& at(ExprId id) const { return exprs_[id]; }
    [[nodiscard]] std::string_view text(const Expr& e) const { return std::string_view(text_).substr(e.a, e.n); }
    [[nodiscard]] const CharSet& set(const Expr& e) const { return sets_[e.a]; }
    [[nodiscard]] std::span<const ExprId> parts(const Expr& e) const { return std::span(parts_).subspan(e.a, e.n); }
    [[nodiscard]] size_t rules() const { return bodies_.size(); }
    [[nodiscard]] ExprId body(RuleId rule) const { return bodies_[rule]; }
    [[nodiscard]] const std::string& name(RuleId rule) const { return names_[rule]; }

  private:
    ExprId add(Expr e);
    ExprId tree(std::span<const std::string> sorted, size_t from);

    Limits limits_;
    bool full_ = false;
    std::vector<Expr> exprs_;
    std::string text_;
    std::vector<CharSet> sets_;
    std::vector<ExprId> parts_;
    std::vector<ExprId> bodies_;
    std::vector<std::string> names_;
};

}  // namespace baton::grammar
