#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "config/json_text.hpp"

namespace baton::config {

inline constexpr size_t kLinkSecretMin = 16;  ///< bytes of the secret of the links between hosts

/// What a setting's value must be beside its type. The check, the JSON schema and the table of docs/CONFIG.md are made of it.
struct Rule {
    enum class Form : uint8_t {
        kAny,
        kNotEmpty,
        kWord,          ///< not empty, no spaces, no control characters
        kAbsolutePath,  ///< or empty
        kIpAddress,     ///< one that others can reach, or empty
        kIpPort,        ///< IP:PORT, or empty
        kSecret,        ///< of links, long enough; or empty
    };
    uint64_t min = 0, max = 0;               ///< of a number; max 0: what its type holds
    std::vector<std::string_view> choices{}; ///< of a text; empty: any. "" among them: it may be empty
    bool any_case = false;                   ///< of the choices
    Form form = Form::kAny;                  ///< of a text, and of each text of a list
};

/// Why `text` breaks the rule, as the end of a sentence that begins with the setting's name; "" where it keeps it.
[[nodiscard]] std::string why_broken(const Rule& rule, std::string_view text);
/// The same of a number.
template <std::integral T>
[[nodiscard]] std::string why_broken(const Rule& rule, T number) {
    if constexpr (std::is_signed_v<T>)
        if (number < 0) return "must not be negative, got " + std::to_string(number);
    const auto n = static_cast<uint64_t>(number);
    if (n >= rule.min && (rule.max == 0 || n <= rule.max)) return {};
    return (rule.max == 0 ? "must be at least " + std::to_string(rule.min) : "must be within " + std::to_string(rule.min) + ".." + std::to_string(rule.max)) + ", got " + std::to_string(number);
}

/// The part of a JSON schema (draft 2020-12) that says "a text that keeps the rule".
[[nodiscard]] Json text_schema(const Rule& rule);
/// And of a number whose type holds at most `type_max`.
[[nodiscard]] Json number_schema(const Rule& rule, uint64_t type_max);
/// A regular expression that one of `names` matches, however its letters are written.
[[nodiscard]] std::string any_case_pattern(const std::vector<std::string_view>& names);
/// "`text` or `json`", "`a`, `b` or `c`"; an empty choice is left out.
[[nodiscard]] std::string choices_text(const Rule& rule, std::string_view quote);
[[nodiscard]] bool equal_any_case(std::string_view a, std::string_view b);

}  // namespace baton::config
