#pragma once

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rsa.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

namespace baton::http::test {

/// A folder of this test program that goes with it.
class TestFolder {
  public:
    TestFolder() {
        std::string pattern = (std::filesystem::temp_directory_path() / "baton-http-XXXXXX").string();
        path_ = ::mkdtemp(pattern.data()) == nullptr ? "" : pattern;
        EXPECT_FALSE(path_.empty());
    }
    ~TestFolder() {
        std::error_code ignored;
        if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
    }
    TestFolder(const TestFolder&) = delete;
    TestFolder& operator=(const TestFolder&) = delete;
    [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }

  private:
    std::string path_;
};

/// What make_certificate() writes.
struct CertificateFiles {
    std::string certificate, key;
};

/// A certificate for 127.0.0.1 and localhost that signs itself, and its key. `days` may be in the past.
inline CertificateFiles make_certificate(const TestFolder& folder, const std::string& name, long days = 2, int rsa_bits = 0,
                                         const char* password = nullptr) {
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
        rsa_bits != 0 ? EVP_RSA_gen(static_cast<size_t>(rsa_bits)) : EVP_EC_gen("P-256"), &EVP_PKEY_free);
    const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), &X509_free);
    X509* x = certificate.get();
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -40L * 24 * 3600);
    X509_gmtime_adj(X509_getm_notAfter(x), days * 24 * 3600);
    X509_set_pubkey(x, key.get());
    X509_NAME* subject = X509_get_subject_name(x);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(x, subject);
    for (const auto& [nid, value] : {std::pair(NID_basic_constraints, "critical,CA:TRUE"), std::pair(NID_subject_alt_name, "DNS:localhost,IP:127.0.0.1")}) {
        X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value);
        X509_add_ext(x, extension, -1);
        X509_EXTENSION_free(extension);
    }
    EXPECT_NE(X509_sign(x, key.get(), EVP_sha256()), 0);
    CertificateFiles out{folder.file(name + ".pem"), folder.file(name + ".key")};
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> cert_file(std::fopen(out.certificate.c_str(), "w"), &std::fclose);
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> key_file(std::fopen(out.key.c_str(), "w"), &std::fclose);
    EXPECT_EQ(PEM_write_X509(cert_file.get(), x), 1);
    EXPECT_EQ(PEM_write_PrivateKey(key_file.get(), key.get(), password != nullptr ? EVP_aes_128_cbc() : nullptr,
                                   nullptr, 0, nullptr, const_cast<char*>(password)), 1);
    return out;
}

/// The certificate of the tests of this program that do not care which.
inline const CertificateFiles& any_certificate() {
    static const TestFolder kFolder;
    static const CertificateFiles kFiles = make_certificate(kFolder, "any");
    return kFiles;
}

}  // namespace baton::http::test
