#include "baton/base/encoding.hpp"

#include <openssl/evp.h>

#include "baton/base/check.hpp"

namespace baton {
namespace {

int value_of(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '-') return 62;
    return c == '_' ? 63 : -1;
}

}  // namespace

Digest pbkdf2_sha256(std::string_view password, std::string_view salt, uint32_t iterations) {
    Digest out{};
    BATON_CHECK(PKCS5_PBKDF2_HMAC(password.data(), static_cast<int>(password.size()),
                                  reinterpret_cast<const unsigned char*>(salt.data()), static_cast<int>(salt.size()),
                                  static_cast<int>(iterations), EVP_sha256(), static_cast<int>(out.size()), out.data()) == 1);
    return out;
}

std::string to_base64(std::span<const uint8_t> bytes) {
    std::string out((bytes.size() + 2) / 3 * 4 + 1, '\0');
    const int n = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data()), bytes.data(), static_cast<int>(bytes.size()));
    out.resize(static_cast<size_t>(n));
    return out;
}

std::string to_base64url(std::string_view bytes) {
    std::string out = to_base64({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    out.erase(out.find_last_not_of('=') + 1);
    for (char& c : out) c = c == '+' ? '-' : c == '/' ? '_' : c;
    return out;
}

std::optional<std::string> from_base64url(std::string_view text) {
    std::string out;
    uint32_t held = 0;
    int bits = 0;
    for (const char c : text) {
        const int value = value_of(c);
        if (value < 0) return std::nullopt;
        held = held << 6 | static_cast<uint32_t>(value);
        bits += 6;
        if (bits < 8) continue;
        bits -= 8;
        out.push_back(static_cast<char>(held >> bits & 0xff));
        held &= (1u << bits) - 1;
    }
    // Six left-over bits are no byte's beginning; others must be zero, or one value had two texts.
    if (bits == 6 || held != 0) return std::nullopt;
    return out;
}

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

size_t json_depth(std::string_view text) {
    size_t depth = 0, deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\') ++i;
            if (c == '"') in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            deepest = std::max(deepest, ++depth);
        } else if ((c == ']' || c == '}') && depth > 0) {
            --depth;
        }
    }
    return deepest;
}

}  // namespace baton
