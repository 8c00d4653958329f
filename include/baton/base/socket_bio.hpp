#pragma once

struct bio_st;  // OpenSSL's BIO

namespace baton {

/// OpenSSL's way to a socket that does not block and that somebody else owns, for SSL_set_bio(). It never raises SIGPIPE, asks for another
/// try where the socket would block, and knows the end of the stream (SSL_OP_IGNORE_UNEXPECTED_EOF). The caller owns it; the socket must
/// outlive it. Null when there is no memory. Any thread.
[[nodiscard]] bio_st* new_socket_bio(int fd);

}  // namespace baton
