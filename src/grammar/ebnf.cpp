#include "grammar/ebnf.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "baton/base/utf8.hpp"
#include "grammar/descent.hpp"
#include "grammar/json_schema.hpp"
#include "grammar/regex.hpp"

namespace baton::grammar {
namespace {

constexpr const char* kTooLarge = "the grammar is too large";

bool is_name(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

/// name ::= alternatives, one after another. White space and #-comments lie between any two parts; a rule ends where the
/// next one begins.
class Reader final : Descent {
  public:
    Reader(ExprPool& pool, std::string_view text, const Limits& limits) : Descent(pool, text, limits, kTooLarge) {}

    Expected<RuleId> read() {
        std::optional<RuleId> first;
        for (skip(); more(); skip()) {
            const auto name = rule_head();
            if (!name) return bad("a rule (name ::= …) is expected");
            const RuleId rule = rule_of(*name);
            if (!first) first = rule;
            if (defined_[*name]++ > 0) return bad("rule " + *name + " is there twice");
            BATON_TRY_ASSIGN(const ExprId body, alternatives(0));
            (void)take(";");
            pool_.define(rule, body);
            if (pool_.full()) return bad(kTooLarge);
        }
        if (!first) return bad("there is no rule");
        for (const auto& [name, rule] : rules_)
            if (!defined_.contains(name)) return bad("rule " + name + " is used and not there");
        const auto root = rules_.find("root");
        return root != rules_.end() ? root->second : *first;
    }

  private:
    tl::unexpected<Error> bad(const std::string& why) const override {
        const auto line = 1 + std::ranges::count(text_.substr(0, at_), '\n');
        return fail(ErrorCode::kInvalidArgument, "grammar line " + std::to_string(line) + ": " + why);
    }
    void skip() {
        while (more()) {
            const char c = text_[at_];
            if (c == '#') {
                while (more() && text_[at_] != '\n') ++at_;
            } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
                ++at_;
            } else {
                return;
            }
        }
    }
    std::string name() {
        const size_t begin = at_;
        while (more() && is_name(text_[at_])) ++at_;
        return std::string(text_.substr(begin, at_ - begin));
    }
    /// "name ::=", or nothing, and then nothing is read.
    std::optional<std::string> rule_head() {
        const size_t before = at_;
        std::string n = name();
        skip();
        if (!n.empty() && (take("::=") || take(":=") || take("="))) return n;
        at_ = before;
        return std::nullopt;
    }
    RuleId rule_of(const std::string& n) {
        const auto it = rules_.find(n);
        if (it != rules_.end()) return it->second;
        const RuleId rule = pool_.add_rule(n);
        rules_.emplace(n, rule);
        return rule;
    }

    Expected<ExprId> sequence(uint32_t depth) override {
        std::vector<ExprId> parts;
        for (skip(); more(); skip()) {
            const char c = text_[at_];
            if (c == '|' || c == ')' || c == ';') break;
            if (is_name(c)) {
                const size_t before = at_;
                const bool next_rule = rule_head().has_value();
                at_ = before;
                if (next_rule) break;
            }
            BATON_TRY_ASSIGN(const ExprId part, quantified(depth));
            parts.push_back(part);
            if (pool_.full()) return bad(kTooLarge);
        }
        return pool_.seq(parts);
    }

    Expected<ExprId> quantified(uint32_t depth) {
        BATON_TRY_ASSIGN(ExprId e, atom(depth));
        for (skip(); more(); skip()) {
            if (take("*")) e = pool_.any_number(e);
            else if (take("+")) e = pool_.repeat(e, 1, kUnbounded);
            else if (take("?")) e = pool_.optional(e);
            else if (take("{")) {
                uint32_t least = 0, most = kUnbounded;
                BATON_TRY(counts(least, most));
                e = pool_.repeat(e, least, most);
            } else {
                break;
            }
        }
        return e;
    }

    /// Behind {.
    Expected<void> counts(uint32_t& least, uint32_t& most) {
        skip();
        const auto first = number();
        skip();
        if (take("}")) {
            if (!first) return bad("a count is expected");
            least = most = *first;
        } else {
            if (!take(",")) return bad("a count is expected");
            skip();
            const auto last = number();
            skip();
            if (!take("}")) return bad("a missing }");
            least = first.value_or(0);
            most = last.value_or(kUnbounded);
        }
        return check_counts(least, most);
    }

    Expected<ExprId> atom(uint32_t depth) {
        if (take("(")) {
            BATON_TRY_ASSIGN(const ExprId inner, alternatives(depth + 1));
            if (!take(")")) return bad("a missing )");
            return inner;
        }
        const char c = text_[at_];
        if (c == '"' || c == '\'') {
            BATON_TRY_ASSIGN(const std::string text, literal());
            return pool_.bytes(text);
        }
        if (take("@")) {
            if (!more() || (text_[at_] != '"' && text_[at_] != '\'')) return bad("@ stands before a token's quoted spelling");
            BATON_TRY_ASSIGN(const std::string text, literal());
            if (text.empty()) return bad("an empty token");
            return pool_.bytes("\xFF" + text + "\xFF");  // as Vocabulary spells them
        }
        if (c == '[') return char_class();
        if (take(".")) return pool_.chars(CharSet::all());
        if (c == '/') return regex();
        if (take("%json")) return schema();
        if (is_name(c)) return pool_.rule(rule_of(name()));
        return bad(std::string("an unexpected '") + (c >= ' ' && c < 0x7F ? c : '?') + "'");
    }

    Expected<std::string> literal() {
        const char quote = text_[at_++];
        std::string out;
        while (more() && text_[at_] != quote) {
            BATON_TRY_ASSIGN(const uint32_t c, character());
            append_utf8(out, c);
        }
        if (!more()) return bad("a text without its closing quote");
        ++at_;
        return out;
    }
    Expected<uint32_t> character() {
        if (take("\\")) {
            if (!more()) return bad("a backslash at the end");
            const char c = text_[at_++];
            switch (c) {
                case 'n': return '\n';
                case 'r': return '\r';
                case 't': return '\t';
                case 'f': return '\f';
                case 'v': return '\v';
                case 'b': return '\b';
                case '0': return 0;
                case 'x': return hex(2);
                case 'u': return hex(4);
                case 'U': return hex(8);
                default: break;
            }
            if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) return bad(std::string("an unknown escape \\") + c);
            --at_;
        }
        const uint32_t c = next_char(text_, at_);
        if (c == kNoChar) return bad("invalid UTF-8");
        return c;
    }

    Expected<ExprId> char_class() {
        ++at_;
        const bool negated = take("^");
        CharSet set;
        while (more() && text_[at_] != ']') {
            BATON_TRY_ASSIGN(const uint32_t low, character());
            uint32_t high = low;
            if (text_.substr(at_, 1) == "-" && text_.substr(at_, 2) != "-]") {
                ++at_;
                if (!more()) return bad("a missing ]");
                BATON_TRY_ASSIGN(high, character());
                if (high < low) return bad("a range out of order");
            }
            set.add(low, high);
        }
        if (!take("]")) return bad("a missing ]");
        return pool_.chars(negated ? set.complement() : set);
    }

    /// /…/, with \/ for a slash.
    Expected<ExprId> regex() {
        ++at_;
        std::string pattern;
        while (more() && text_[at_] != '/' && text_[at_] != '\n') {
            if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
                if (text_[at_ + 1] != '/') pattern += text_[at_];
                ++at_;
            }
            pattern += text_[at_++];
        }
        if (!take("/")) return bad("a regular expression without its closing /");
        auto e = read_regex(pool_, pattern, false, limits_, spell_raw);
        if (!e) return bad(e.error().message);
        return *e;
    }

    /// A JSON value right behind %json.
    Expected<ExprId> schema() {
        skip();
        const size_t begin = at_;
        BATON_TRY(skip_json());
        auto e = read_json_schema(pool_, text_.substr(begin, at_ - begin), limits_);
        if (!e) return fail(e.error().code, "grammar %json: " + e.error().message);
        return *e;
    }
    /// To the end of a JSON object, or of a word such as true.
    Expected<void> skip_json() {
        uint32_t open = 0;
        for (bool quoted = false; more(); ++at_) {
            const char c = text_[at_];
            if (quoted) {
                if (c == '\\') ++at_;
                else if (c == '"') quoted = false;
            } else if (c == '"') {
                quoted = true;
            } else if (c == '{' || c == '[') {
                ++open;
            } else if (c == '}' || c == ']') {
                if (open == 0) return bad("%json wants a JSON schema");
                if (--open == 0) {
                    ++at_;
                    return {};
                }
            } else if (open == 0 && !is_name(c)) {
                return {};
            }
        }
        at_ = std::min(at_, text_.size());
        if (open > 0) return bad("%json: the schema has no end");
        return {};
    }

    std::map<std::string, RuleId> rules_;
    std::map<std::string, uint32_t> defined_;
};

}  // namespace

Expected<RuleId> read_ebnf(ExprPool& pool, std::string_view text, const Limits& limits) { return Reader(pool, text, limits).read(); }

}  // namespace baton::grammar
