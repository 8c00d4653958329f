#pragma once

#include <openssl/evp.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "baton/base/fd.hpp"
#include "cache.hpp"
#include "listing.hpp"

namespace baton::hub {

/// Digest of a blob as its hub defines it: SHA-256 of the bytes, or git's SHA-1.
class BlobDigest {
  public:
    explicit BlobDigest(const RemoteFile& file);
    void add(std::string_view bytes);
    /// Whether the bytes so far are the file. The message names both digests. kCorrupt.
    [[nodiscard]] Expected<void> check(const RemoteFile& file);

  private:
    std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

/// Writes one blob from ranges that may come in any order: what lies in BLOB.incomplete is at every moment a beginning of
/// the file, so that a later process, of ours or of huggingface_hub, may go on from its end. Any thread.
class BlobWriter {
  public:
    BlobWriter(const RepoCache& cache, const RemoteFile& file) : cache_(cache), file_(file) {}

    /// Opens BLOB.incomplete and reads what it holds already. `fresh`: throws that away. kIo.
    [[nodiscard]] Expected<void> open(bool fresh, const CancelSignal& cancel);
    /// Bytes that need not be asked for any more.
    [[nodiscard]] uint64_t written() const { return written_; }
    /// Takes the bytes at `offset`; written at once, or when what lies before them has come. kIo, kCorrupt beyond the end.
    [[nodiscard]] Expected<void> put(uint64_t offset, std::string bytes);
    /// Takes the beginning of a range that will not be finished, where it can be written at once.
    void salvage(uint64_t offset, std::string_view bytes);
    /// All is there: checks it and gives it its name. kCorrupt removes what was written.
    [[nodiscard]] Expected<void> finish();
    [[nodiscard]] bool resumed() const { return resumed_; }

  private:
    Expected<void> append(std::string_view bytes);

    const RepoCache& cache_;
    const RemoteFile& file_;
    mutable std::mutex mutex_;
    UniqueFd fd_;
    std::unique_ptr<BlobDigest> digest_;
    std::atomic<uint64_t> written_{0};
    bool resumed_ = false;
    std::map<uint64_t, std::string> waiting_;
};

}  // namespace baton::hub
