#include "baton/base/socket_bio.hpp"

#include <openssl/bio.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace baton {
namespace {

int fd_of(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

int bio_write(BIO* bio, const char* bytes, int size) {
    BIO_clear_retry_flags(bio);
    const auto n = ::send(fd_of(bio), bytes, static_cast<size_t>(size), MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
    return static_cast<int>(n);
}

int bio_read(BIO* bio, char* bytes, int size) {
    BIO_clear_retry_flags(bio);
    const auto n = ::recv(fd_of(bio), bytes, static_cast<size_t>(size), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
    if (n == 0 && size > 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
    return static_cast<int>(n);
}

long bio_control(BIO* bio, int command, long, void*) {
    if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
}

const BIO_METHOD* bio_method() {
    static BIO_METHOD* const kMethod = [] {
        BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "baton socket");
        if (method == nullptr) return method;
        BIO_meth_set_write(method, &bio_write);
        BIO_meth_set_read(method, &bio_read);
        BIO_meth_set_ctrl(method, &bio_control);
        return method;
    }();
    return kMethod;
}

}  // namespace

BIO* new_socket_bio(int fd) {
    const BIO_METHOD* method = bio_method();
    BIO* bio = method != nullptr ? BIO_new(method) : nullptr;
    if (bio == nullptr) return nullptr;
    BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
    BIO_set_init(bio, 1);
    return bio;
}

}  // namespace baton
