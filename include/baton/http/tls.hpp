#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "baton/base/error.hpp"

namespace baton::http {

/// What a certificate says of itself.
struct CertificateFacts {
    std::string subject;             ///< e.g. "CN=example.org"
    std::vector<std::string> names;  ///< the host names and addresses that it is for
    int64_t not_before = 0;          ///< Unix seconds
    int64_t not_after = 0;           ///< Unix seconds
    std::string sha256;              ///< of the whole certificate, in hexadecimal

    /// Why clients will refuse it at that time, or soon; "" where nothing speaks against it.
    [[nodiscard]] std::string warning(int64_t unix_now) const;
};

/// Reads both PEM files as a server does that is to use them: a chain with the server's certificate first, and its private key.
/// kInvalidArgument names the file and what is wrong (param "tls_certificate" or "tls_key"): it cannot be read, holds no such thing, needs
/// a password, is too weak, or the two do not belong together. Any thread.
[[nodiscard]] Expected<CertificateFacts> inspect_certificate(const std::string& certificate_file, const std::string& key_file);

}  // namespace baton::http
