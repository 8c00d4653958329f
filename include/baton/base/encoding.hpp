#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "baton/base/digest.hpp"

namespace baton {

/// PBKDF2 with HMAC-SHA-256 (RFC 8018), one block.
[[nodiscard]] Digest pbkdf2_sha256(std::string_view password, std::string_view salt, uint32_t iterations);
/// RFC 4648, with padding.
[[nodiscard]] std::string to_base64(std::span<const uint8_t> bytes);
/// RFC 4648, section 5: for URLs, without padding.
[[nodiscard]] std::string to_base64url(std::string_view bytes);
/// The reverse; nothing when `text` is no canonical base64url without padding.
[[nodiscard]] std::optional<std::string> from_base64url(std::string_view text);
/// The value of a hexadecimal digit, or -1.
[[nodiscard]] int hex_digit(char c);
/// Deepest nesting of brackets outside strings of a JSON text, valid or not, without recursion.
[[nodiscard]] size_t json_depth(std::string_view text);

}  // namespace baton
