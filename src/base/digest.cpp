#include "baton/base/digest.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <xxhash.h>

#include <vector>

#include "baton/base/check.hpp"

namespace baton {

Digest sha256(std::span<const std::byte> bytes) {
    // Looked up once: for a short text that would take longer than the digest.
    static EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    Digest out{};
    unsigned int n = 0;
    BATON_CHECK(EVP_Digest(bytes.data(), bytes.size(), out.data(), &n, algorithm, nullptr) == 1);
    return out;
}

Digest hmac_sha256(std::string_view key, std::span<const std::byte> bytes) {
    Digest out{};
    unsigned int n = 0;
    BATON_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                     reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), out.data(),
                     &n) != nullptr);
    return out;
}

bool equal_constant_time(std::string_view a, std::string_view b) {
    // Comparing digests hides the lengths as well.
    const Digest da = sha256(a);
    const Digest db = sha256(b);
    return CRYPTO_memcmp(da.data(), db.data(), da.size()) == 0;
}

std::string to_hex(std::span<const uint8_t> bytes) {
    static constexpr char kDigits[] = "0123456789abcdef";
    std::string out;
    out.reserve(bytes.size() * 2);
    for (const uint8_t b : bytes) {
        out.push_back(kDigits[b >> 4]);
        out.push_back(kDigits[b & 15]);
    }
    return out;
}

std::string random_hex(size_t bytes) {
    std::vector<uint8_t> raw(bytes);
    size_t done = 0;
    while (done < bytes) {
        const ssize_t n = getrandom(raw.data() + done, bytes - done, 0);
        BATON_CHECK(n > 0);
        done += static_cast<size_t>(n);
    }
    return to_hex(raw);
}

uint64_t random_u64() {
    uint64_t v = 0;
    BATON_CHECK(getrandom(&v, sizeof v, 0) == static_cast<ssize_t>(sizeof v));
    return v;
}

uint64_t checksum64(std::span<const std::byte> bytes, uint64_t seed) {
    return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

}  // namespace baton
