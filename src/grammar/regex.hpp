#pragma once

#include <functional>
#include <string_view>

#include "baton/base/error.hpp"
#include "grammar/expr.hpp"

namespace baton::grammar {

/// How one character of a set is spelled: as it is, or as in a JSON string.
using Spelling = std::function<ExprId(ExprPool&, const CharSet&)>;
[[nodiscard]] ExprId spell_raw(ExprPool& pool, const CharSet& set);
/// Inside a JSON string, each character in one way: as it is, or by its short escape, or as \u00xx.
[[nodiscard]] ExprId spell_in_json(ExprPool& pool, const CharSet& set);

/// An expression for a regular expression over Unicode characters: literals, ., classes with ranges and \d \w \s, groups (also
/// named and (?:)), |, * + ? {m,n} and their lazy forms, ^ and $ at the ends. `search`: it may match anywhere in the text, as
/// JSON schema's pattern; else it is the whole text and the anchors may be left out. kInvalidArgument for a bad one (with the
/// offset), kUnsupported for look-around, back references, \b, \p, flags.
[[nodiscard]] Expected<ExprId> read_regex(ExprPool& pool, std::string_view pattern, bool search, const Limits& limits,
                                          const Spelling& spelling);

inline constexpr uint32_t kNoChar = UINT32_MAX;
/// The character at `at` of UTF-8 text, and moves on; kNoChar where it is none.
[[nodiscard]] uint32_t next_char(std::string_view text, size_t& at);

}  // namespace baton::grammar
