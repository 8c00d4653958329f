#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "baton/base/fd.hpp"
#include "baton/hub/hub.hpp"
#include "stream.hpp"

namespace baton::hub {

/// One repository in a cache of the standard layout: models--org--name/{blobs,refs,snapshots}, locks beside it under
/// .locks, as huggingface_hub reads and writes it. Any thread; processes are kept apart by the locks.
class RepoCache {
  public:
    /// `repo` is a checked id.
    RepoCache(std::string cache_dir, const std::string& repo);

    [[nodiscard]] const std::string& root() const { return root_; }
    [[nodiscard]] std::string blob_path(const std::string& blob) const { return root_ + "/blobs/" + blob; }
    [[nodiscard]] std::string incomplete_path(const std::string& blob) const { return blob_path(blob) + ".incomplete"; }
    [[nodiscard]] std::string snapshot_dir(const std::string& commit) const { return root_ + "/snapshots/" + commit; }

    /// Makes the folders. kIo.
    [[nodiscard]] Expected<void> prepare() const;
    /// Free bytes where the blobs lie. kIo.
    [[nodiscard]] Expected<uint64_t> free_bytes() const;
    /// Whether the blob is there in that size.
    [[nodiscard]] bool has_blob(const std::string& blob, uint64_t size) const;
    /// The lock of a blob, or none while another process or thread has it. kIo.
    [[nodiscard]] Expected<UniqueFd> try_lock(const std::string& blob) const;
    /// Links snapshots/COMMIT/PATH to the blob, in one step. kIo.
    [[nodiscard]] Expected<void> link(const std::string& commit, const std::string& path, const std::string& blob) const;
    /// Records that `revision` is `commit`, in one step. Nothing for a revision that is the commit. kIo.
    [[nodiscard]] Expected<void> set_ref(const std::string& revision, const std::string& commit) const;
    /// The commit of a revision: itself, or what its ref says. kNotFound.
    [[nodiscard]] Expected<std::string> commit_of(const std::string& revision) const;
    /// Paths of the snapshot whose content is there, sorted.
    [[nodiscard]] std::vector<std::string> files_of(const std::string& commit) const;

  private:
    std::string cache_dir_, folder_, root_;
};

/// The snapshots of a cache.
[[nodiscard]] std::vector<CachedModel> scan_cache(const std::string& cache_dir, Hub hub);
/// A file of at most `bytes_max` bytes as text. kNotFound, kIo, kCorrupt when it is longer.
[[nodiscard]] Expected<std::string> read_text(const std::string& path, size_t bytes_max);

}  // namespace baton::hub
