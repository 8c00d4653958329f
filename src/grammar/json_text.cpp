#include "grammar/json_text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

namespace baton::grammar {
namespace {

constexpr uint32_t kIntegerDigits = 18;
constexpr uint32_t kNumberDigits = 15;   ///< before the point: a double holds them exactly
constexpr uint32_t kFraction = 8;        ///< digits behind those of a bound: far more than a double's rounding
constexpr int64_t kIntegerMax = 999'999'999'999'999'999;
constexpr int64_t kNumberMax = 999'999'999'999'999;
constexpr int64_t kExactMax = 1'000'000; ///< an excluded bound beyond that is moved by one instead
constexpr uint32_t kSpacesMax = 20;

ExprId digit(ExprPool& pool, char from, char to) {
    return from > to ? pool.nothing() : pool.chars(CharSet::of(static_cast<uint32_t>(from), static_cast<uint32_t>(to)));
}
ExprId digits(ExprPool& pool, uint32_t least, uint32_t most) { return pool.repeat(digit(pool, '0', '9'), least, most); }
char after(char d) { return static_cast<char>(d + 1); }
char before(char d) { return static_cast<char>(d - 1); }
ExprId one(ExprPool& pool, char d) { return pool.bytes(std::string_view(&d, 1)); }

// ---- integers of one length ----

ExprId at_least(ExprPool& pool, std::string_view s) {
    if (s.empty()) return pool.empty();
    const auto rest = static_cast<uint32_t>(s.size() - 1);
    return pool.alt({pool.seq({one(pool, s[0]), at_least(pool, s.substr(1))}),
                     pool.seq({digit(pool, after(s[0]), '9'), digits(pool, rest, rest)})});
}
ExprId at_most(ExprPool& pool, std::string_view s) {
    if (s.empty()) return pool.empty();
    const auto rest = static_cast<uint32_t>(s.size() - 1);
    return pool.alt({pool.seq({one(pool, s[0]), at_most(pool, s.substr(1))}),
                     pool.seq({digit(pool, '0', before(s[0])), digits(pool, rest, rest)})});
}
ExprId same_length(ExprPool& pool, std::string_view low, std::string_view high) {
    if (low.empty()) return pool.empty();
    if (low[0] == high[0]) return pool.seq({one(pool, low[0]), same_length(pool, low.substr(1), high.substr(1))});
    const auto rest = static_cast<uint32_t>(low.size() - 1);
    return pool.alt({pool.seq({one(pool, low[0]), at_least(pool, low.substr(1))}),
                     pool.seq({digit(pool, after(low[0]), before(high[0])), digits(pool, rest, rest)}),
                     pool.seq({one(pool, high[0]), at_most(pool, high.substr(1))})});
}

/// Whole numbers of at least 0 within [low, high].
ExprId whole_between(ExprPool& pool, int64_t low, int64_t high) {
    std::vector<ExprId> lengths;
    int64_t first = 0;
    for (int64_t last = 9; first <= high; first = last + 1, last = last * 10 + 9) {
        const int64_t from = std::max(low, first), to = std::min(high, last);
        if (from <= to) lengths.push_back(same_length(pool, std::to_string(from), std::to_string(to)));
        if (last >= kIntegerMax) break;
    }
    return pool.alt(lengths);
}

// ---- fractions: digits behind the point, of bounds without trailing zeros ----

ExprId nonzero_fraction(ExprPool& pool) {
    return pool.seq({pool.repeat(one(pool, '0'), 0, kFraction - 1), digit(pool, '1', '9'), digits(pool, 0, kFraction)});
}
ExprId zeros(ExprPool& pool) { return pool.repeat(one(pool, '0'), 0, 2); }

ExprId fraction_above(ExprPool& pool, std::string_view s, bool exclusive) {
    if (s.empty()) return exclusive ? nonzero_fraction(pool) : digits(pool, 0, kFraction);
    return pool.alt({pool.seq({one(pool, s[0]), fraction_above(pool, s.substr(1), exclusive)}),
                     pool.seq({digit(pool, after(s[0]), '9'), digits(pool, 0, kFraction)})});
}
ExprId fraction_below(ExprPool& pool, std::string_view s, bool exclusive);
/// What may follow when all digits so far equal those of the upper bound.
ExprId below_rest(ExprPool& pool, std::string_view rest, bool exclusive) {
    if (rest.empty()) return exclusive ? pool.nothing() : zeros(pool);
    return pool.optional(fraction_below(pool, rest, exclusive));
}
ExprId fraction_below(ExprPool& pool, std::string_view s, bool exclusive) {
    return pool.alt({pool.seq({digit(pool, '0', before(s[0])), digits(pool, 0, kFraction)}),
                     pool.seq({one(pool, s[0]), below_rest(pool, s.substr(1), exclusive)})});
}
/// Above 0 and below `s`.
ExprId fraction_inside(ExprPool& pool, std::string_view s, bool exclusive) {
    if (s[0] == '0') return pool.seq({one(pool, '0'), fraction_inside(pool, s.substr(1), exclusive)});
    return pool.alt({pool.seq({one(pool, '0'), nonzero_fraction(pool)}),
                     pool.seq({digit(pool, '1', before(s[0])), digits(pool, 0, kFraction)}),
                     pool.seq({one(pool, s[0]), below_rest(pool, s.substr(1), exclusive)})});
}

struct Decimal {
    int64_t whole = 0;
    std::string fraction;  ///< without trailing zeros
    bool exclusive = false;
    [[nodiscard]] bool is_zero() const { return whole == 0 && fraction.empty(); }
    friend bool operator<(const Decimal& a, const Decimal& b) {
        return a.whole != b.whole ? a.whole < b.whole : a.fraction < b.fraction;
    }
};

ExprId fraction_between(ExprPool& pool, std::string_view low, bool low_excl, std::string_view high, bool high_excl) {
    if (high.empty()) return low.empty() && !low_excl && !high_excl ? zeros(pool) : pool.nothing();
    if (low.empty()) return low_excl ? fraction_inside(pool, high, high_excl) : fraction_below(pool, high, high_excl);
    if (low[0] == high[0])
        return pool.seq({one(pool, low[0]), fraction_between(pool, low.substr(1), low_excl, high.substr(1), high_excl)});
    if (low[0] > high[0]) return pool.nothing();
    return pool.alt({pool.seq({one(pool, low[0]), fraction_above(pool, low.substr(1), low_excl)}),
                     pool.seq({digit(pool, after(low[0]), before(high[0])), digits(pool, 0, kFraction)}),
                     pool.seq({one(pool, high[0]), below_rest(pool, high.substr(1), high_excl)})});
}

ExprId point(ExprPool& pool) { return pool.bytes("."); }
ExprId any_fraction(ExprPool& pool) { return pool.optional(pool.seq({point(pool), digits(pool, 1, kFraction)})); }
ExprId whole_text(ExprPool& pool, int64_t whole) { return pool.bytes(std::to_string(whole)); }

ExprId from_low(ExprPool& pool, const Decimal& low) {
    ExprId tail = pool.seq({point(pool), fraction_above(pool, low.fraction, low.exclusive)});
    if (low.fraction.empty()) tail = low.exclusive ? pool.seq({point(pool), nonzero_fraction(pool)}) : any_fraction(pool);
    return pool.seq({whole_text(pool, low.whole), tail});
}
ExprId up_to_high(ExprPool& pool, const Decimal& high) {
    ExprId tail = high.exclusive ? pool.nothing() : pool.optional(pool.bytes(".0"));
    if (!high.fraction.empty()) tail = pool.optional(pool.seq({point(pool), fraction_below(pool, high.fraction, high.exclusive)}));
    return pool.seq({whole_text(pool, high.whole), tail});
}

/// Numbers of at least 0.
ExprId positive_between(ExprPool& pool, const Decimal& low, const Decimal& high) {
    if (high < low) return pool.nothing();
    if (low.whole == high.whole) {
        ExprId tail = pool.seq({point(pool), fraction_between(pool, low.fraction, low.exclusive, high.fraction, high.exclusive)});
        if (high.fraction.empty()) tail = low.fraction.empty() && !low.exclusive && !high.exclusive ? pool.optional(pool.bytes(".0")) : pool.nothing();
        else if (low.fraction.empty() && !low.exclusive) tail = pool.optional(tail);
        return pool.seq({whole_text(pool, low.whole), tail});
    }
    return pool.alt({from_low(pool, low), pool.seq({whole_between(pool, low.whole + 1, high.whole - 1), any_fraction(pool)}), up_to_high(pool, high)});
}

Decimal magnitude(const Bound& bound) {
    std::string_view s = bound.decimal;
    if (!s.empty() && s[0] == '-') s.remove_prefix(1);
    Decimal d;
    d.exclusive = bound.exclusive;
    const size_t dot = s.find('.');
    const std::string_view whole = s.substr(0, dot);
    if (std::from_chars(whole.data(), whole.data() + whole.size(), d.whole).ec != std::errc() || d.whole > kIntegerMax) d.whole = kIntegerMax;
    if (dot != std::string_view::npos) d.fraction = s.substr(dot + 1);
    while (!d.fraction.empty() && d.fraction.back() == '0') d.fraction.pop_back();
    return d;
}
bool negative(const Bound& b) { return !b.decimal.empty() && b.decimal[0] == '-' && !magnitude(b).is_zero(); }

/// The least or largest integer within a bound.
int64_t integer_bound(const Bound& bound, bool is_low) {
    const Decimal d = magnitude(bound);
    const bool minus = negative(bound);
    // Away from zero is down for negative numbers.
    const bool away = is_low != minus;
    int64_t whole = d.whole;
    if (!d.fraction.empty()) whole += away ? 1 : 0;
    else if (bound.exclusive) whole += away ? 1 : -1;
    return minus ? -whole : whole;
}

/// An excluded bound that is large is moved by one into the range: doubles near it may be equal to it.
void loosen(Decimal& d, bool towards_zero) {
    if (!d.exclusive || d.whole < kExactMax) return;
    d.exclusive = false;
    d.fraction.clear();
    d.whole += towards_zero ? -1 : 1;
}

}  // namespace

ExprId json_space(ExprPool& pool) {
    CharSet blank = CharSet::of(' ');
    blank.add('\t', '\t');
    return pool.optional(pool.alt({pool.bytes(" "), pool.seq({pool.bytes("\n"), pool.repeat(pool.chars(blank), 0, kSpacesMax)})}));
}

ExprId integer_between(ExprPool& pool, const std::optional<Bound>& low, const std::optional<Bound>& high) {
    if (!low && !high) {
        return pool.seq({pool.optional(pool.bytes("-")), pool.alt({pool.bytes("0"), pool.seq({digit(pool, '1', '9'), digits(pool, 0, kIntegerDigits - 1)})})});
    }
    const int64_t from = std::max(low ? integer_bound(*low, true) : -kIntegerMax, -kIntegerMax);
    const int64_t to = std::min(high ? integer_bound(*high, false) : kIntegerMax, kIntegerMax);
    if (from > to) return pool.nothing();
    std::vector<ExprId> parts;
    if (from < 0) parts.push_back(pool.seq({pool.bytes("-"), whole_between(pool, to < 0 ? -to : 1, -from)}));
    if (to >= 0) parts.push_back(whole_between(pool, std::max<int64_t>(from, 0), to));
    return pool.alt(parts);
}

ExprId number_between(ExprPool& pool, const std::optional<Bound>& low, const std::optional<Bound>& high) {
    if (!low && !high) {
        CharSet e = CharSet::of('e');
        e.add('E', 'E');
        CharSet sign = CharSet::of('+');
        sign.add('-', '-');
        return pool.seq({pool.optional(pool.bytes("-")), pool.alt({pool.bytes("0"), pool.seq({digit(pool, '1', '9'), digits(pool, 0, kNumberDigits - 1)})}),
                         pool.optional(pool.seq({point(pool), digits(pool, 1, 16)})),
                         pool.optional(pool.seq({pool.chars(e), pool.optional(pool.chars(sign)), digits(pool, 1, 2)}))});
    }
    const Decimal zero, most{kNumberMax, "", false};
    std::vector<ExprId> parts;
    if (!low || negative(*low)) {
        // Below zero: the magnitudes, with the bounds' parts swapped.
        Decimal from = high && negative(*high) ? magnitude(*high) : zero;
        Decimal to = low ? magnitude(*low) : most;
        if (high && magnitude(*high).is_zero()) from.exclusive = high->exclusive;
        loosen(from, false);
        loosen(to, true);
        if (to.whole > kNumberMax) to = most;
        parts.push_back(pool.seq({pool.bytes("-"), positive_between(pool, from, to)}));
    }
    if (!high || !negative(*high)) {
        Decimal from = low && !negative(*low) ? magnitude(*low) : zero;
        Decimal to = high ? magnitude(*high) : most;
        loosen(from, false);
        loosen(to, true);
        if (to.whole > kNumberMax) to = most;
        parts.push_back(positive_between(pool, from, to));
    }
    return pool.alt(parts);
}

std::optional<std::string> plain_decimal(std::string_view printed) {
    const bool minus = !printed.empty() && printed[0] == '-';
    if (minus) printed.remove_prefix(1);
    const size_t e = printed.find_first_of("eE");
    int exponent = 0;
    if (e != std::string_view::npos) {
        std::string_view digits = printed.substr(e + 1);
        if (!digits.empty() && digits[0] == '+') digits.remove_prefix(1);
        if (std::from_chars(digits.data(), digits.data() + digits.size(), exponent).ec != std::errc()) return std::nullopt;
        printed = printed.substr(0, e);
    }
    const size_t dot = printed.find('.');
    std::string whole(printed.substr(0, dot)), fraction(dot == std::string_view::npos ? "" : printed.substr(dot + 1));
    if (std::abs(exponent) > 40) return std::nullopt;
    for (; exponent > 0; --exponent) {
        whole += fraction.empty() ? '0' : fraction[0];
        if (!fraction.empty()) fraction.erase(0, 1);
    }
    for (; exponent < 0; ++exponent) {
        fraction.insert(0, 1, whole.empty() ? '0' : whole.back());
        if (!whole.empty()) whole.pop_back();
    }
    whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
    if (whole.empty()) whole = "0";
    while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
    if (whole.size() > kIntegerDigits || fraction.size() > kIntegerDigits) return std::nullopt;
    return (minus ? "-" : "") + whole + (fraction.empty() ? "" : "." + fraction);
}

const char* format_regex(std::string_view format) {
#define BATON_DATE "([12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])))"
#define BATON_TIME "(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))"
#define BATON_OCTET "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define BATON_HOST "([a-zA-Z0-9]([a-zA-Z0-9-]{0,20}[a-zA-Z0-9])?(\\.[a-zA-Z0-9]([a-zA-Z0-9-]{0,20}[a-zA-Z0-9])?){0,5})"
    static constexpr std::array<std::pair<std::string_view, const char*>, 10> kFormats{{
        {"date", BATON_DATE},
        {"time", BATON_TIME},
        {"date-time", BATON_DATE "T" BATON_TIME},
        {"duration", "P([0-9]{1,4}D(T[0-9]{1,4}H)?|T[0-9]{1,4}H([0-9]{1,4}M)?|T[0-9]{1,4}[MS]|[0-9]{1,4}[YMW])"},
        {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
        {"email", "[a-zA-Z0-9_+-]{1,30}(\\.[a-zA-Z0-9_+-]{1,20}){0,2}@" BATON_HOST "\\.[a-zA-Z]{2,10}"},
        {"hostname", BATON_HOST},
        {"ipv4", BATON_OCTET "(\\." BATON_OCTET "){3}"},
        {"ipv6", "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}"},
        {"uri", "https?://" BATON_HOST "(/[a-zA-Z0-9._~-]{0,40}){0,8}(\\?[a-zA-Z0-9._~=&-]{1,80})?(#[a-zA-Z0-9._~-]{1,40})?"},
    }};
#undef BATON_DATE
#undef BATON_TIME
#undef BATON_OCTET
#undef BATON_HOST
    for (const auto& [name, regex] : kFormats)
        if (name == format) return regex;
    return nullptr;
}

}  // namespace baton::grammar
