#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace baton {

using Digest = std::array<uint8_t, 32>;

[[nodiscard]] Digest sha256(std::span<const std::byte> bytes);
[[nodiscard]] inline Digest sha256(std::string_view text) {
    return sha256(std::as_bytes(std::span(text.data(), text.size())));
}
/// HMAC-SHA-256 (RFC 2104).
[[nodiscard]] Digest hmac_sha256(std::string_view key, std::span<const std::byte> bytes);
/// True when equal; takes the same time wherever the first difference is.
[[nodiscard]] bool equal_constant_time(std::string_view a, std::string_view b);
[[nodiscard]] std::string to_hex(std::span<const uint8_t> bytes);
/// `bytes` random bytes as lower-case hex, from the operating system.
[[nodiscard]] std::string random_hex(size_t bytes);
[[nodiscard]] uint64_t random_u64();
/// XXH3-64: a checksum against accidents, never an identity.
[[nodiscard]] uint64_t checksum64(std::span<const std::byte> bytes, uint64_t seed = 0);

}  // namespace baton

template <>
struct std::hash<baton::Digest> {
    size_t operator()(const baton::Digest& d) const noexcept {
        size_t h = 0;
        for (size_t i = 0; i < sizeof(h); ++i) h = (h << 8) | d[i];
        return h;
    }
};
