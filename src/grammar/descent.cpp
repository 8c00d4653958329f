#include "grammar/descent.hpp"

#include <algorithm>
#include <vector>

#include "baton/base/encoding.hpp"

namespace baton::grammar {
namespace {

constexpr uint32_t kCountMax = 100'000;
constexpr uint32_t kHexDigitsMax = 6;

}  // namespace

Expected<ExprId> Descent::alternatives(uint32_t depth) {
    if (depth > limits_.nesting) return bad("too many parentheses inside one another");
    std::vector<ExprId> all;
    do {
        BATON_TRY_ASSIGN(const ExprId one, sequence(depth));
        all.push_back(one);
        if (pool_.full()) return bad(too_large_);
    } while (take("|"));
    return pool_.alt(all);
}

std::optional<uint32_t> Descent::number() {
    const size_t begin = at_;
    uint32_t n = 0;
    for (; more() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) n = std::min(n * 10 + static_cast<uint32_t>(text_[at_] - '0'), kCountMax + 1);
    return at_ > begin ? std::optional(n) : std::nullopt;
}

Expected<void> Descent::check_counts(uint32_t least, uint32_t most) const {
    if (least > kCountMax || (most != kUnbounded && most > kCountMax)) return bad("a count beyond 100000");
    if (least > most) return bad("counts out of order");
    return {};
}

Expected<uint32_t> Descent::hex(uint32_t count) {
    uint32_t value = 0, n = 0;
    for (; more() && n < (count == 0 ? kHexDigitsMax : count); ++n, ++at_) {
        const int digit = hex_digit(text_[at_]);
        if (digit < 0) break;
        value = value * 16 + static_cast<uint32_t>(digit);
    }
    if (n == 0 || (count != 0 && n != count)) return bad("bad hexadecimal digits");
    if (value > kCharMax || (value >= 0xD800 && value <= 0xDFFF)) return bad("no such character");
    return value;
}

}  // namespace baton::grammar
