#include "grammar/regex.hpp"

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "baton/base/utf8.hpp"
#include "grammar/descent.hpp"

namespace baton::grammar {
namespace {

CharSet digits() { return CharSet::of('0', '9'); }
CharSet word() {
    CharSet s = digits();
    s.add('A', 'Z');
    s.add('a', 'z');
    s.add('_', '_');
    return s;
}
CharSet space() {
    CharSet s = CharSet::of('\t', '\r');
    s.add(' ', ' ');
    return s;
}

/// Recursive descent; offsets are bytes of the pattern.
class Reader final : Descent {
  public:
    Reader(ExprPool& pool, std::string_view pattern, bool search, const Limits& limits, const Spelling& spelling)
        : Descent(pool, pattern, limits, "too large"), search_(search), spelling_(spelling) {}

    Expected<ExprId> read() {
        BATON_TRY_ASSIGN(const ExprId all, alternatives(0));
        if (at_ < text_.size()) return bad("unmatched )");
        return all;
    }

  private:
    tl::unexpected<Error> bad(const std::string& why) const override {
        return fail(ErrorCode::kInvalidArgument, "regular expression at offset " + std::to_string(at_) + ": " + why);
    }
    tl::unexpected<Error> unsupported(const std::string& what) const {
        return fail(ErrorCode::kUnsupported, "regular expression at offset " + std::to_string(at_) + ": " + what + " is not supported");
    }
    [[nodiscard]] char peek() const { return text_[at_]; }

    [[nodiscard]] ExprId anything() {
        return pool_.any_number(spelling_(pool_, CharSet::all()));
    }

    /// At the outermost level a text that is searched goes on at both ends unless it is anchored.
    Expected<ExprId> sequence(uint32_t depth) override {
        const bool outer = depth == 0;
        std::vector<ExprId> parts;
        bool begins = false, ends = false;
        if (outer) {
            while (take("^") || take("\\A")) begins = true;
        }
        while (more() && peek() != '|' && peek() != ')') {
            if (peek() == '^' || text_.substr(at_, 2) == "\\A") return unsupported("an anchor that is not at the beginning");
            if (peek() == '$' || text_.substr(at_, 2) == "\\Z" || text_.substr(at_, 2) == "\\z") {
                at_ += peek() == '$' ? 1 : 2;
                ends = true;
                continue;
            }
            if (ends) return unsupported("an anchor that is not at the end");
            BATON_TRY_ASSIGN(const ExprId atom, quantified(depth));
            parts.push_back(atom);
        }
        if (ends && !outer) return unsupported("an anchor inside parentheses");
        if (outer && search_ && !begins) parts.insert(parts.begin(), anything());
        if (outer && search_ && !ends) parts.push_back(anything());
        return pool_.seq(parts);
    }

    Expected<ExprId> quantified(uint32_t depth) {
        BATON_TRY_ASSIGN(ExprId atom, this->atom(depth));
        bool repeated = false;
        while (more()) {
            uint32_t least = 0, most = kUnbounded;
            if (take("*")) {
            } else if (take("+")) {
                least = 1;
            } else if (take("?")) {
                most = 1;
            } else if (peek() == '{') {
                const size_t before = at_;
                BATON_TRY_ASSIGN(const bool counted, count(least, most));
                if (!counted) {
                    at_ = before;
                    break;  // a brace that is none is a character
                }
            } else {
                break;
            }
            if (repeated) return bad("a repetition of a repetition");
            repeated = true;
            if (more() && peek() == '+') return unsupported("a possessive repetition");
            (void)take("?");  // lazy: the same texts
            atom = pool_.repeat(atom, least, most);
        }
        return atom;
    }

    /// {m}, {m,}, {m,n}, {,n}
    Expected<bool> count(uint32_t& least, uint32_t& most) {
        ++at_;
        const auto first = number();
        if (take("}")) {
            if (!first) return false;
            least = most = *first;
        } else {
            if (!take(",")) return false;
            const auto last = number();
            if (!take("}") || (!first && !last)) return false;
            least = first.value_or(0);
            most = last.value_or(kUnbounded);
        }
        BATON_TRY(check_counts(least, most));
        return true;
    }

    Expected<ExprId> atom(uint32_t depth) {
        if (take("(")) return group(depth);
        if (take("[")) {
            BATON_TRY_ASSIGN(const CharSet set, char_class());
            return spelling_(pool_, set);
        }
        if (take(".")) {
            CharSet line_ends = CharSet::of('\n');
            line_ends.add('\r', '\r');
            return spelling_(pool_, line_ends.complement());
        }
        if (peek() == '*' || peek() == '+' || peek() == '?') return bad("nothing to repeat");
        if (take("\\")) {
            BATON_TRY_ASSIGN(const CharSet set, escape(false));
            return spelling_(pool_, set);
        }
        const uint32_t c = next_char(text_, at_);
        if (c == kNoChar) return bad("invalid UTF-8");
        return spelling_(pool_, CharSet::of(c));
    }

    Expected<ExprId> group(uint32_t depth) {
        if (take("?")) {
            if (take(":")) {
            } else if (take("P<") || (text_.substr(at_, 1) == "<" && text_.substr(at_, 2) != "<=" && text_.substr(at_, 2) != "<!" && take("<"))) {
                while (more() && peek() != '>') ++at_;
                if (!take(">")) return bad("a group's name has no end");
            } else if (take("=") || take("!") || take("<=") || take("<!")) {
                return unsupported("look-around");
            } else if (take("P=")) {
                return unsupported("a back reference");
            } else {
                return unsupported("this kind of group");
            }
        }
        BATON_TRY_ASSIGN(const ExprId inner, alternatives(depth + 1));
        if (!take(")")) return bad("a missing )");
        return inner;
    }

    /// Behind a backslash.
    Expected<CharSet> escape(bool in_class) {
        if (!more()) return bad("a backslash at the end");
        const char c = text_[at_];
        switch (c) {
            case 'd': return ++at_, digits();
            case 'D': return ++at_, digits().complement();
            case 'w': return ++at_, word();
            case 'W': return ++at_, word().complement();
            case 's': return ++at_, space();
            case 'S': return ++at_, space().complement();
            case 'n': return ++at_, CharSet::of('\n');
            case 'r': return ++at_, CharSet::of('\r');
            case 't': return ++at_, CharSet::of('\t');
            case 'f': return ++at_, CharSet::of('\f');
            case 'v': return ++at_, CharSet::of('\v');
            case '0': return ++at_, CharSet::of(0);
            case 'x': return ++at_, hex_set(2);
            case 'u':
                ++at_;
                if (take("{")) {
                    BATON_TRY_ASSIGN(const CharSet set, hex_set(0));
                    if (!take("}")) return bad("a missing }");
                    return set;
                }
                return hex_set(4);
            case 'b':
                if (in_class) return ++at_, CharSet::of('\b');
                return unsupported("\\b");
            case 'B': return unsupported("\\B");
            case 'p':
            case 'P': return unsupported("\\p");
            case 'k': return unsupported("a back reference");
            default: break;
        }
        if (c >= '1' && c <= '9') return unsupported("a back reference");
        if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return bad(std::string("an unknown escape \\") + c);
        const uint32_t literal = next_char(text_, at_);
        if (literal == kNoChar) return bad("invalid UTF-8");
        return CharSet::of(literal);
    }

    Expected<CharSet> hex_set(uint32_t count) {
        BATON_TRY_ASSIGN(const uint32_t c, hex(count));
        return CharSet::of(c);
    }

    /// Behind [.
    Expected<CharSet> char_class() {
        const bool negated = take("^");
        CharSet set;
        for (bool first = true; !take("]") || first; first = false) {
            if (!more()) return bad("a missing ]");
            if (first && text_[at_ - 1] == ']' && !negated) {
                set.add(']', ']');  // a bracket right at the beginning is a character
                continue;
            }
            if (text_.substr(at_, 2) == "[:") return unsupported("a POSIX class");
            bool single = true;
            BATON_TRY_ASSIGN(const CharSet low, class_item(single));
            if (!single || text_.substr(at_, 1) != "-" || text_.substr(at_, 2) == "-]") {
                set.add(low);
                continue;
            }
            ++at_;
            BATON_TRY_ASSIGN(const CharSet high, class_item(single));
            if (!single) return bad("a range that ends with a class");
            const uint32_t from = low.ranges().front().first, to = high.ranges().front().first;
            if (from > to) return bad("a range out of order");
            set.add(from, to);
        }
        return negated ? set.complement() : set;
    }
    Expected<CharSet> class_item(bool& single) {
        if (!more()) return bad("a missing ]");
        if (take("\\")) {
            BATON_TRY_ASSIGN(CharSet set, escape(true));
            single = set.ranges().size() == 1 && set.ranges().front().first == set.ranges().front().second;
            return set;
        }
        const uint32_t c = next_char(text_, at_);
        if (c == kNoChar) return bad("invalid UTF-8");
        if (c >= 0xD800 && c <= 0xDFFF) return bad("no such character");
        return CharSet::of(c);
    }

    bool search_;
    const Spelling& spelling_;
};

}  // namespace

uint32_t next_char(std::string_view text, size_t& at) {
    if (valid_utf8_length(text, at) == 0) return kNoChar;
    const CodePoint c = decode_utf8(text, at);
    at += c.length;
    return c.code;
}

ExprId spell_raw(ExprPool& pool, const CharSet& set) { return pool.chars(set); }

ExprId spell_in_json(ExprPool& pool, const CharSet& set) {
    CharSet special = CharSet::of(0, 0x1F);
    special.add('"', '"');
    special.add('\\', '\\');
    std::vector<std::string> escapes;
    const CharSet escaped = set.intersect(special);
    for (const auto& [first, last] : escaped.ranges()) {
        for (uint32_t c = first; c <= last; ++c) {
            constexpr std::string_view kShort = "\"\\\b\f\n\r\t", kNames = "\"\\bfnrt";
            constexpr std::string_view kHex = "0123456789abcdef";
            const size_t at = kShort.find(static_cast<char>(c));
            std::string& escape = escapes.emplace_back("\\");
            if (at != std::string_view::npos) {
                escape += kNames[at];
            } else {
                escape += "u00";
                escape += kHex[c >> 4];
                escape += kHex[c & 15];
            }
        }
    }
    return pool.alt({pool.chars(set.minus(special)), pool.literals(std::move(escapes))});
}

Expected<ExprId> read_regex(ExprPool& pool, std::string_view pattern, bool search, const Limits& limits, const Spelling& spelling) {
    return Reader(pool, pattern, search, limits, spelling).read();
}

}  // namespace baton::grammar
