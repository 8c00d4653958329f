#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "baton/grammar/grammar.hpp"
#include "baton/grammar/matcher.hpp"

namespace baton::grammar {

inline wire::Constraint constraint(wire::ConstraintKind kind, std::string text) { return {kind, std::move(text), "", ""}; }
inline wire::Constraint schema(std::string text) { return constraint(wire::ConstraintKind::kJsonSchema, std::move(text)); }
inline wire::Constraint regex(std::string text) { return constraint(wire::ConstraintKind::kRegex, std::move(text)); }
inline wire::Constraint ebnf(std::string text) { return constraint(wire::ConstraintKind::kGrammar, std::move(text)); }

/// Every byte is a token, 0 to 255; then some longer ones, control tokens last.
inline std::shared_ptr<const Vocabulary> byte_vocabulary(std::vector<std::string> more = {}, std::vector<std::string> special = {}) {
    std::vector<Vocabulary::Token> tokens;
    for (int b = 0; b < 256; ++b) tokens.push_back({std::string(1, static_cast<char>(b)), false});
    for (std::string& m : more) tokens.push_back({std::move(m), false});
    for (std::string& s : special) tokens.push_back({std::move(s), true});
    const auto n = static_cast<uint32_t>(tokens.size());
    return Vocabulary::make(tokens, n + 3);
}

inline bool allowed(std::span<const uint32_t> mask, TokenId id) {
    return (mask[static_cast<size_t>(id) / 32] >> (static_cast<uint32_t>(id) % 32) & 1) != 0;
}

/// Whether the whole text is one the constraint allows, byte by byte, asking for the mask before each.
inline bool matches(const wire::Constraint& c, std::string_view text) {
    auto program = compile(c);
    if (!program) {
        ADD_FAILURE() << program.error().message;
        return false;
    }
    Runner runner(std::move(*program), byte_vocabulary());
    Matcher matcher(runner);
    for (const char byte : text) {
        const auto mask = matcher.mask();
        if (!mask) {
            ADD_FAILURE() << mask.error().message;
            return false;
        }
        const TokenId id = static_cast<uint8_t>(byte);
        const bool may = allowed(*mask, id);
        if (!matcher.accept(id)) return false;
        if (!may) {
            EXPECT_TRUE(matcher.must_end()) << "a byte that the mask forbids was followed";
            return false;
        }
    }
    return matcher.may_end();
}

inline std::string refused(const wire::Constraint& c) {
    const auto result = check(c);
    return result ? "" : result.error().message;
}

}  // namespace baton::grammar
