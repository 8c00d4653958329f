#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "baton/base/error.hpp"

namespace baton::text::jinja {

enum class TokenKind : uint8_t {
    kData,
    kBlockBegin,
    kBlockEnd,
    kVariableBegin,
    kVariableEnd,
    kName,
    kString,    // text: unescaped
    kInteger,   // text: digits, decimal unless 0x/0o/0b
    kFloat,     // text: without underscores
    kOperator,  // text: the operator
    kEnd,
};

struct Token {
    TokenKind kind = TokenKind::kEnd;
    int line = 1;
    std::string text;
};

/// Cuts a template into tokens, with jinja2's rules for trim_blocks, lstrip_blocks, the +/- marks,
/// comments and raw blocks; one trailing newline of the source is dropped. Linear in the source.
[[nodiscard]] Expected<std::vector<Token>> tokenize(std::string_view source);

/// "line N: what" as an invalid-argument error of a template.
[[nodiscard]] tl::unexpected<Error> template_error(int line, const std::string& what);

}  // namespace baton::text::jinja
