#include "grammar/expr.hpp"

#include <algorithm>

namespace baton::grammar {
namespace {

uint32_t add_saturated(uint32_t a, uint64_t b) {
    return static_cast<uint32_t>(std::min<uint64_t>(a + b, 1u << 30));
}

}  // namespace

ExprPool::ExprPool(const Limits& limits) : limits_(limits) {
    exprs_.push_back({Op::kNothing, 0, 0, 0, 0});
    exprs_.push_back({Op::kEmpty, 0, 0, 0, 0});
}

ExprId ExprPool::add(Expr e) {
    if (exprs_.size() >= limits_.nodes) full_ = true;
    if (full_) return nothing();
    exprs_.push_back(e);
    return static_cast<ExprId>(exprs_.size() - 1);
}

ExprId ExprPool::bytes(std::string_view text) {
    if (text.empty()) return empty();
    if (text_.size() + text.size() > 8 * limits_.text_bytes) full_ = true;
    if (full_) return nothing();
    const auto at = static_cast<uint32_t>(text_.size()), n = static_cast<uint32_t>(text.size());
    text_ += text;
    return add({Op::kBytes, at, n, 0, n});
}

ExprId ExprPool::chars(const CharSet& set) {
    if (set.empty()) return nothing();
    sets_.push_back(set);
    return add({Op::kChars, static_cast<uint32_t>(sets_.size() - 1), 0, 0, static_cast<uint32_t>(2 + 2 * set.ranges().size())});
}

ExprId ExprPool::seq(std::span<const ExprId> parts) {
    if (std::ranges::find(parts, nothing()) != parts.end()) return nothing();
    std::vector<ExprId> kept;
    std::ranges::copy_if(parts, std::back_inserter(kept), [this](ExprId e) { return e != empty(); });
    if (kept.empty()) return empty();
    if (kept.size() == 1) return kept.front();
    Expr e{Op::kSeq, static_cast<uint32_t>(parts_.size()), static_cast<uint32_t>(kept.size()), 0, 0};
    for (const ExprId p : kept) e.cost = add_saturated(e.cost, exprs_[p].cost + 1);
    parts_.insert(parts_.end(), kept.begin(), kept.end());
    return add(e);
}

ExprId ExprPool::alt(std::span<const ExprId> parts) {
    std::vector<ExprId> kept;
    std::ranges::copy_if(parts, std::back_inserter(kept), [this](ExprId e) { return e != nothing(); });
    if (kept.empty()) return nothing();
    if (kept.size() == 1) return kept.front();
    Expr e{Op::kAlt, static_cast<uint32_t>(parts_.size()), static_cast<uint32_t>(kept.size()), 0, 0};
    for (const ExprId p : kept) e.cost = add_saturated(e.cost, exprs_[p].cost);
    parts_.insert(parts_.end(), kept.begin(), kept.end());
    return add(e);
}

ExprId ExprPool::literals(std::vector<std::string> texts) {
    std::ranges::sort(texts);
    const auto same = std::ranges::unique(texts);
    texts.erase(same.begin(), same.end());
    return texts.empty() ? nothing() : tree(texts, 0);
}

/// The texts from their byte `from` on; all are equal before it.
ExprId ExprPool::tree(std::span<const std::string> sorted, size_t from) {
    if (full_) return nothing();
    const std::string &first = sorted.front(), &last = sorted.back();
    size_t to = from;
    while (to < first.size() && to < last.size() && first[to] == last[to]) ++to;
    const ExprId head = bytes(std::string_view(first).substr(from, to - from));
    if (sorted.size() == 1) return head;
    std::vector<ExprId> tails;
    size_t at = 0;
    if (first.size() == to) {
        tails.push_back(empty());
        ++at;
    }
    while (at < sorted.size()) {
        size_t end = at + 1;
        while (end < sorted.size() && sorted[end][to] == sorted[at][to]) ++end;
        tails.push_back(tree(sorted.subspan(at, end - at), to));
        at = end;
    }
    return seq({head, alt(tails)});
}

ExprId ExprPool::repeat(ExprId body, uint32_t least, uint32_t most) {
    if (least > most) return nothing();
    if (most == 0 || body == empty()) return empty();
    if (body == nothing()) return least == 0 ? empty() : nothing();
    if (least == 1 && most == 1) return body;
    // A repetition of a repetition is one, where that has no gaps: it would be followed in many ways otherwise.
    if (const Expr inner = exprs_[body]; inner.op == Op::kRepeat && inner.n <= 1) {
        const bool unbounded = most == kUnbounded || inner.most == kUnbounded;
        const uint64_t product = unbounded ? kUnbounded : uint64_t{most} * inner.most;
        if (unbounded || product < kUnbounded) {
            body = inner.a;
            least *= inner.n;
            most = static_cast<uint32_t>(product);
        }
    }
    return add({Op::kRepeat, body, least, most, add_saturated(exprs_[body].cost, 2)});
}

ExprId ExprPool::rule(RuleId rule) { return add({Op::kRule, rule, 0, 0, 1}); }

RuleId ExprPool::add_rule(std::string name) {
    if (bodies_.size() >= limits_.rules) full_ = true;
    if (full_) return bodies_.empty() ? 0 : static_cast<RuleId>(bodies_.size() - 1);
    bodies_.push_back(nothing());
    names_.push_back(std::move(name));
    return static_cast<RuleId>(bodies_.size() - 1);
}

}  // namespace baton::grammar
