#include "blob_writer.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <vector>

#include "baton/base/digest.hpp"

namespace baton::hub {
namespace {

tl::unexpected<Error> cannot(const char* what, const std::string& path) {
    return fail(ErrorCode::kIo, std::string("cannot ") + what + " " + path + ": " + std::strerror(errno));
}

}  // namespace

BlobDigest::BlobDigest(const RemoteFile& file) : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    const bool git = file.sha256.empty() && !file.git_sha1.empty();
    EVP_DigestInit_ex(context_.get(), git ? EVP_sha1() : EVP_sha256(), nullptr);
    if (git) {
        const std::string head = "blob " + std::to_string(file.size);
        EVP_DigestUpdate(context_.get(), head.c_str(), head.size() + 1);
    }
}

void BlobDigest::add(std::string_view bytes) { EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()); }

Expected<void> BlobDigest::check(const RemoteFile& file) {
    std::array<uint8_t, EVP_MAX_MD_SIZE> bytes{};
    unsigned size = 0;
    EVP_DigestFinal_ex(context_.get(), bytes.data(), &size);
    const std::string have = to_hex(std::span(bytes).first(size));
    const bool git = file.sha256.empty() && !file.git_sha1.empty();
    const std::string& want = git ? file.git_sha1 : file.sha256;
    if (want.empty() || have == want) return {};  // some mirrors name blobs otherwise: then the length is all there is
    return fail(ErrorCode::kCorrupt, file.path + " has the " + (git ? "git SHA-1 " : "SHA-256 ") + have + ", but the hub says " + want);
}

Expected<void> BlobWriter::open(bool fresh, const CancelSignal& cancel) {
    const std::lock_guard lock(mutex_);
    const std::string path = cache_.incomplete_path(file_.blob);
    fd_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
    struct stat there {};
    if (!fd_ || ::fstat(fd_.get(), &there) != 0) return cannot("write", path);
    uint64_t have = static_cast<uint64_t>(there.st_size);
    if (fresh || have > file_.size) have = 0;
    if (::ftruncate(fd_.get(), static_cast<off_t>(have)) != 0) return cannot("write", path);
    waiting_.clear();
    digest_ = std::make_unique<BlobDigest>(file_);
    written_ = 0;
    resumed_ = have > 0;
    std::vector<char> buffer(1 << 20);
    while (written_ < have) {
        if (cancel.requested()) return cancelled();
        const auto n = ::pread(fd_.get(), buffer.data(), buffer.size(), static_cast<off_t>(written_));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return cannot("read", path);
        digest_->add({buffer.data(), static_cast<size_t>(n)});
        written_ += static_cast<uint64_t>(n);
    }
    return {};
}

Expected<void> BlobWriter::append(std::string_view bytes) {
    if (bytes.size() > file_.size - written_) return fail(ErrorCode::kCorrupt, file_.path + " is longer than the hub says");
    if (!fd_) return fail(ErrorCode::kInternal, "a blob is written that is not open");
    digest_->add(bytes);
    while (!bytes.empty()) {
        const auto n = ::pwrite(fd_.get(), bytes.data(), bytes.size(), static_cast<off_t>(written_));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return cannot("write", cache_.incomplete_path(file_.blob));
        bytes.remove_prefix(static_cast<size_t>(n));
        written_ += static_cast<uint64_t>(n);
    }
    return {};
}

Expected<void> BlobWriter::put(uint64_t offset, std::string bytes) {
    const std::lock_guard lock(mutex_);
    waiting_.emplace(offset, std::move(bytes));
    while (!waiting_.empty() && waiting_.begin()->first == written_) {
        const std::string next = std::move(waiting_.begin()->second);
        waiting_.erase(waiting_.begin());
        BATON_TRY(append(next));
    }
    return {};
}

void BlobWriter::salvage(uint64_t offset, std::string_view bytes) {
    const std::lock_guard lock(mutex_);
    if (fd_ && digest_ && offset == written_) (void)append(bytes);
}

Expected<void> BlobWriter::finish() {
    const std::lock_guard lock(mutex_);
    const std::string path = cache_.incomplete_path(file_.blob);
    Expected<void> whole;
    if (written_ != file_.size) whole = fail(ErrorCode::kCorrupt, file_.path + " has " + std::to_string(written_) + " bytes, but the hub says " + std::to_string(file_.size));
    if (whole) whole = digest_->check(file_);
    if (!whole) {
        ::unlink(path.c_str());
        fd_.reset();
        return whole;
    }
    if (::fsync(fd_.get()) != 0) return cannot("write", path);
    fd_.reset();
    if (::rename(path.c_str(), cache_.blob_path(file_.blob).c_str()) != 0) return cannot("rename", path);
    return {};
}

}  // namespace baton::hub
