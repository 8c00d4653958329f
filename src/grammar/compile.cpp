#include <nlohmann/json.hpp>

#include "grammar/ebnf.hpp"
#include "grammar/json_schema.hpp"
#include "grammar/program.hpp"
#include "grammar/regex.hpp"

namespace baton::grammar {
namespace {

constexpr size_t kMarkBytesMax = 256;
constexpr size_t kChoicesMax = 10'000;

Expected<ExprId> read_choice(ExprPool& pool, const std::string& text) {
    const nlohmann::json choices = nlohmann::json::parse(text, nullptr, false);
    if (!choices.is_array() || choices.empty() || choices.size() > kChoicesMax)
        return fail(ErrorCode::kInvalidArgument, "choices are an array of 1 to 10000 strings");
    std::vector<std::string> texts;
    for (const auto& choice : choices) {
        if (!choice.is_string() || choice.get_ref<const std::string&>().empty())
            return fail(ErrorCode::kInvalidArgument, "each choice is a string that is not empty");
        texts.push_back(choice.get<std::string>());
    }
    return pool.literals(std::move(texts));
}

Expected<ExprId> read(ExprPool& pool, const wire::Constraint& c, const Limits& limits) {
    switch (c.kind) {
        case wire::ConstraintKind::kJsonObject: return any_json_object(pool);
        case wire::ConstraintKind::kJsonSchema: return read_json_schema(pool, c.text, limits);
        case wire::ConstraintKind::kRegex: return read_regex(pool, c.text, false, limits, spell_raw);
        case wire::ConstraintKind::kChoice: return read_choice(pool, c.text);
        case wire::ConstraintKind::kGrammar: {
            BATON_TRY_ASSIGN(const RuleId root, read_ebnf(pool, c.text, limits));
            return pool.rule(root);
        }
        case wire::ConstraintKind::kNone: break;
    }
    return fail(ErrorCode::kInvalidArgument, "there is no such kind of constraint");
}

/// Any text up to the first `mark`, then `then`: the search of Knuth, Morris and Pratt, a rule for each number of the mark's
/// characters that the text ends with.
Expected<ExprId> free_up_to(ExprPool& pool, const std::string& mark, ExprId then) {
    std::vector<uint32_t> chars;
    for (size_t at = 0; at < mark.size();) {
        chars.push_back(next_char(mark, at));
        if (chars.back() == kNoChar) return fail(ErrorCode::kInvalidArgument, "the text that a constraint comes after is not UTF-8");
    }
    const size_t n = chars.size();
    /// How much of the mark a text ends with that ended with `have` of it and got `c`.
    const auto step = [&](size_t have, uint32_t c) {
        for (size_t longest = have + 1; longest > 0; --longest) {
            bool same = chars[longest - 1] == c;
            for (size_t k = 0; same && k + 1 < longest; ++k) same = chars[k] == chars[have - (longest - 1) + k];
            if (same) return longest;
        }
        return size_t{0};
    };
    std::vector<RuleId> rules;
    for (size_t i = 0; i < n; ++i) rules.push_back(pool.add_rule("free text"));
    for (size_t i = 0; i < n; ++i) {
        CharSet others = CharSet::all();
        std::vector<ExprId> parts;
        for (size_t k = 0; k < n; ++k) {
            if (!others.has(chars[k])) continue;  // was there before
            others = others.minus(CharSet::of(chars[k]));
            const size_t to = step(i, chars[k]);
            parts.push_back(pool.seq({pool.chars(CharSet::of(chars[k])), to == n ? then : pool.rule(rules[to])}));
        }
        parts.push_back(pool.seq({pool.chars(others), pool.rule(rules[0])}));
        pool.define(rules[i], pool.alt(parts));
    }
    return pool.rule(rules[0]);
}

}  // namespace

Expected<Program> compile(const wire::Constraint& constraint, const Limits& limits) {
    if (constraint.text.size() > limits.text_bytes || constraint.after.size() > kMarkBytesMax || constraint.opening.size() > kMarkBytesMax)
        return too_large();
    ExprPool pool(limits);
    const RuleId root = pool.add_rule("the constraint");
    BATON_TRY_ASSIGN(ExprId body, read(pool, constraint, limits));
    if (!constraint.after.empty()) {
        // Models put an empty line between what they think and what they say.
        const ExprId answer = pool.seq({pool.repeat(pool.bytes("\n"), 0, 2), body});
        BATON_TRY_ASSIGN(const ExprId free, free_up_to(pool, constraint.after, answer));
        body = constraint.opening.empty() ? free : pool.alt({pool.seq({pool.bytes(constraint.opening), free}), answer});
    }
    pool.define(root, body);
    return make_program(pool, root, limits);
}

Expected<void> check(const wire::Constraint& constraint) {
    BATON_TRY(compile(constraint));
    return {};
}

}  // namespace baton::grammar
