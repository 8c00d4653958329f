#include "baton/http/tls_stream.hpp"

#include <arpa/inet.h>
#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <limits>
#include <span>

#include "baton/base/encoding.hpp"
#include "baton/base/socket_bio.hpp"

namespace baton::http {
namespace {

constexpr std::array<unsigned char, 9> kAlpn = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
/// Of TLS 1.2: forward secrecy, and ciphers that authenticate what they encrypt. TLS 1.3 has no others.
constexpr const char* kCiphers = "ECDHE+AESGCM:ECDHE+CHACHA20";
constexpr int64_t kSoonSeconds = 14 * 24 * 3600;

TlsContext new_context(const SSL_METHOD* method) {
    TlsContext context(SSL_CTX_new(method), &SSL_CTX_free);
    if (context == nullptr) return context;
    SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
    SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    return context;
}

/// A client that offers protocols must offer ours: one that speaks HTTP/2 alone is told so in the handshake.
int choose_alpn(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* offered, unsigned int offered_size, void*) {
    unsigned char* chosen = nullptr;
    if (SSL_select_next_proto(&chosen, out_size, kAlpn.data(), kAlpn.size(), offered, offered_size) != OPENSSL_NPN_NEGOTIATED) return SSL_TLSEXT_ERR_ALERT_FATAL;
    *out = chosen;
    return SSL_TLSEXT_ERR_OK;
}

/// OpenSSL would ask on the terminal.
int no_password(char*, int, int, void*) { return -1; }

std::string openssl_words(unsigned long code) {
    const char* words = code == 0 ? nullptr : ERR_reason_error_string(code);
    return words == nullptr ? "not what it should be" : words;
}

/// Why a PEM file could not be taken, for who made it: the first fault in OpenSSL's queue is the cause, the last one only says "PEM lib".
std::string pem_words() {
    const unsigned long code = ERR_peek_error();
    if (ERR_GET_REASON(code) == ERR_R_INTERRUPTED_OR_CANCELLED) return "it is encrypted";  // asked for a password, got none
    if (ERR_GET_REASON(code) == ERR_R_UNSUPPORTED) return "it holds none";
    if (ERR_GET_LIB(code) == ERR_LIB_PEM) {
        switch (ERR_GET_REASON(code)) {
            case PEM_R_NO_START_LINE: return "it holds none";
            case PEM_R_BAD_PASSWORD_READ:
            case PEM_R_PROBLEMS_GETTING_PASSWORD:
            case PEM_R_BAD_DECRYPT: return "it is encrypted";
            case PEM_R_BAD_BASE64_DECODE:
            case PEM_R_BAD_END_LINE:
            case PEM_R_SHORT_HEADER: return "it is damaged or cut off";
            default: break;
        }
    }
    return openssl_words(code);
}

tl::unexpected<Error> bad_file(const char* setting, const std::string& path, const std::string& why) {
    return baton::fail(ErrorCode::kInvalidArgument, std::string(setting) + ": " + path + ": " + why, setting);
}

Expected<void> check_readable(const char* setting, const std::string& path) {
    if (::access(path.c_str(), R_OK) != 0) return bad_file(setting, path, std::string("cannot be read: ") + std::strerror(errno));
    struct stat info{};
    if (::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return bad_file(setting, path, "cannot be read: it is a folder");
    return {};
}

int64_t unix_time(const ASN1_TIME* time) {
    std::tm parts{};
    return time != nullptr && ASN1_TIME_to_tm(time, &parts) == 1 ? static_cast<int64_t>(::timegm(&parts)) : 0;
}

std::string one_line(const X509_NAME* name) {
    const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()), &BIO_free);
    if (!out || X509_NAME_print_ex(out.get(), name, 0, XN_FLAG_RFC2253 & ~ASN1_STRFLGS_ESC_MSB) < 0) return "";
    char* text = nullptr;
    const long size = BIO_get_mem_data(out.get(), &text);
    return size > 0 ? std::string(text, static_cast<size_t>(size)) : "";
}

std::vector<std::string> names_of(const X509* certificate) {
    std::vector<std::string> out;
    auto* list = static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
    for (int i = 0; i < sk_GENERAL_NAME_num(list); ++i) {
        const GENERAL_NAME* name = sk_GENERAL_NAME_value(list, i);
        if (name->type == GEN_DNS) {
            out.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)), static_cast<size_t>(ASN1_STRING_length(name->d.dNSName)));
        } else if (name->type == GEN_IPADD) {
            std::array<char, INET6_ADDRSTRLEN> text{};
            const int family = ASN1_STRING_length(name->d.iPAddress) == 4 ? AF_INET : AF_INET6;
            if (::inet_ntop(family, ASN1_STRING_get0_data(name->d.iPAddress), text.data(), text.size()) != nullptr) out.emplace_back(text.data());
        }
    }
    GENERAL_NAMES_free(list);
    return out;
}

CertificateFacts facts_of(const X509* certificate) {
    CertificateFacts out;
    out.subject = one_line(X509_get_subject_name(certificate));
    out.names = names_of(certificate);
    out.not_before = unix_time(X509_get0_notBefore(certificate));
    out.not_after = unix_time(X509_get0_notAfter(certificate));
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned int size = 0;
    if (X509_digest(certificate, EVP_sha256(), digest.data(), &size) == 1) out.sha256 = to_hex({reinterpret_cast<const uint8_t*>(digest.data()), size});
    return out;
}

bool is_address(const std::string& host) {
    in6_addr address{};
    return ::inet_pton(AF_INET, host.c_str(), &address) == 1 || ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

int bounded(size_t bytes) { return static_cast<int>(std::min<size_t>(bytes, std::numeric_limits<int>::max())); }

}  // namespace

std::string CertificateFacts::warning(int64_t unix_now) const {
    if (unix_now >= not_after) return "the certificate has expired";
    if (unix_now < not_before) return "the certificate is not valid yet";
    if (unix_now + kSoonSeconds >= not_after) return "the certificate expires within " + std::to_string((not_after - unix_now) / (24 * 3600) + 1) + " days";
    return "";
}

Expected<ServerTls> load_server_tls(const std::string& certificate_file, const std::string& key_file) {
    BATON_TRY(check_readable("tls_certificate", certificate_file));
    BATON_TRY(check_readable("tls_key", key_file));
    ServerTls out{new_context(TLS_server_method()), {}};
    SSL_CTX* context = out.context.get();
    if (context == nullptr) return baton::fail(ErrorCode::kInternal, "OpenSSL gives no context");
    SSL_CTX_set_default_passwd_cb(context, &no_password);
    ERR_clear_error();
    if (SSL_CTX_use_certificate_chain_file(context, certificate_file.c_str()) != 1)
        return bad_file("tls_certificate", certificate_file, "no certificate in PEM that a server can use: " + pem_words());
    ERR_clear_error();
    if (SSL_CTX_use_PrivateKey_file(context, key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
        const unsigned long code = ERR_peek_last_error();
        const int reason = ERR_GET_REASON(code);
        if (ERR_GET_LIB(code) == ERR_LIB_X509 && (reason == X509_R_KEY_VALUES_MISMATCH || reason == X509_R_KEY_TYPE_MISMATCH))
            return bad_file("tls_key", key_file, "is not the key of " + certificate_file);
        return bad_file("tls_key", key_file, "no private key in PEM without a password: " + pem_words());
    }
    if (SSL_CTX_check_private_key(context) != 1) return bad_file("tls_key", key_file, "is not the key of " + certificate_file);
    out.certificate = facts_of(SSL_CTX_get0_certificate(context));
    if (SSL_CTX_set_cipher_list(context, kCiphers) != 1) return baton::fail(ErrorCode::kInternal, "OpenSSL knows none of the ciphers");
    // Without tickets and a cache every connection has keys of its own, and none outlives it. A client that ends the TCP stream without the
    // closing alert has ended it: where a request ends is told by HTTP.
    SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET | SSL_OP_IGNORE_UNEXPECTED_EOF);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_num_tickets(context, 0);
    // One record a call, whatever it is for: no client keeps a thread by sending those that carry nothing.
    SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
    SSL_CTX_set_alpn_select_cb(context, &choose_alpn, nullptr);
    ERR_clear_error();
    return out;
}

Expected<CertificateFacts> inspect_certificate(const std::string& certificate_file, const std::string& key_file) {
    BATON_TRY_ASSIGN(const ServerTls tls, load_server_tls(certificate_file, key_file));
    return tls.certificate;
}

Expected<TlsContext> load_client_tls(const std::string& ca_file) {
    TlsContext context = new_context(TLS_client_method());
    if (context == nullptr) return baton::fail(ErrorCode::kInternal, "OpenSSL gives no context");
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    ERR_clear_error();
    if (ca_file.empty()) SSL_CTX_set_default_verify_paths(context.get());
    else if (SSL_CTX_load_verify_locations(context.get(), ca_file.c_str(), nullptr) != 1)
        return baton::fail(ErrorCode::kInvalidArgument, "no trusted certificates can be read from " + ca_file, "ca_file");
    ERR_clear_error();
    return context;
}

void TlsStream::Free::operator()(ssl_st* tls) const { SSL_free(tls); }

std::unique_ptr<TlsStream> TlsStream::over(const TlsContext& context, int fd) {
    SSL* tls = SSL_new(context.get());
    if (tls == nullptr) return nullptr;
    std::unique_ptr<TlsStream> out(new TlsStream(tls));
    BIO* bio = new_socket_bio(fd);
    if (bio == nullptr) return nullptr;
    SSL_set_bio(tls, bio, bio);
    return out;
}

std::unique_ptr<TlsStream> TlsStream::accept(const TlsContext& context, int fd) {
    auto out = over(context, fd);
    if (out != nullptr) SSL_set_accept_state(out->tls_.get());
    return out;
}

std::unique_ptr<TlsStream> TlsStream::connect(const TlsContext& context, int fd, const std::string& host) {
    auto out = over(context, fd);
    if (out == nullptr) return out;
    SSL* tls = out->tls_.get();
    SSL_set_connect_state(tls);
    X509_VERIFY_PARAM* verify = SSL_get0_param(tls);
    X509_VERIFY_PARAM_set_hostflags(verify, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    if (is_address(host)) {
        X509_VERIFY_PARAM_set1_ip_asc(verify, host.c_str());
    } else {
        X509_VERIFY_PARAM_set1_host(verify, host.c_str(), 0);
        SSL_set_tlsext_host_name(tls, host.c_str());
    }
    SSL_set_alpn_protos(tls, kAlpn.data(), kAlpn.size());
    return out;
}

TlsStream::Outcome TlsStream::judge(int result) {
    if (result > 0) return Outcome::kDone;
    switch (SSL_get_error(tls_.get(), result)) {
        case SSL_ERROR_WANT_READ: return Outcome::kWantRead;
        case SSL_ERROR_WANT_WRITE: return Outcome::kWantWrite;
        case SSL_ERROR_ZERO_RETURN: return Outcome::kEnd;
        default: error_ = ERR_peek_last_error(); return Outcome::kBroken;
    }
}

TlsStream::Outcome TlsStream::handshake() {
    ERR_clear_error();
    return judge(SSL_do_handshake(tls_.get()));
}

TlsStream::Moved TlsStream::read(void* into, size_t bytes) {
    ERR_clear_error();
    const int n = SSL_read(tls_.get(), into, bounded(bytes));
    return {judge(n), n > 0 ? static_cast<size_t>(n) : 0};
}

TlsStream::Moved TlsStream::write(const void* from, size_t bytes) {
    ERR_clear_error();
    const int n = SSL_write(tls_.get(), from, bounded(bytes));
    return {judge(n), n > 0 ? static_cast<size_t>(n) : 0};
}

void TlsStream::say_end() {
    ERR_clear_error();
    (void)SSL_shutdown(tls_.get());
    ERR_clear_error();
}

std::string TlsStream::reason() const {
    const long verified = SSL_get_verify_result(tls_.get());
    if (verified != X509_V_OK) return std::string("its certificate is not trusted: ") + X509_verify_cert_error_string(verified);
    if (error_ == 0 || ERR_GET_REASON(error_) == SSL_R_UNEXPECTED_EOF_WHILE_READING) return "the connection was closed";
    return openssl_words(error_);
}

}  // namespace baton::http
