#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baton/hub/hub.hpp"
#include "response_parser.hpp"
#include "url.hpp"

namespace baton::hub {

inline constexpr size_t kListingBytesMax = 32u << 20;
inline constexpr size_t kFilesMax = 20'000;
inline constexpr uint64_t kFileBytesMax = uint64_t{1} << 44;

/// A file of a repository as its hub describes it. At most one of the digests is set.
struct RemoteFile {
    std::string path;
    uint64_t size = 0;
    std::string blob;      ///< name under blobs/ ("" when the listing does not tell: ask with HEAD)
    std::string sha256;    ///< of the content
    std::string git_sha1;  ///< of "blob <size>\0" and the content
};
struct Listing {
    std::string commit;
    std::vector<RemoteFile> files;
    [[nodiscard]] const RemoteFile* find(std::string_view path) const;
};

/// The answer of /api/models/REPO/revision/REV?blobs=true. kCorrupt for anything that is not one, paths that leave their
/// folder, double names, and more files than kFilesMax.
[[nodiscard]] Expected<Listing> parse_huggingface_listing(std::string_view json);
/// The answer of /api/v1/models/REPO/repo/files. It names no commit: one is made of the files' digests.
[[nodiscard]] Expected<Listing> parse_modelscope_listing(std::string_view json);
/// Fills in what the head of an answer to HEAD (or to the redirect it gives) says of a file. kCorrupt without a usable ETag
/// and length, or when it names another commit.
[[nodiscard]] Expected<void> describe_from_head(const ResponseHead& head, const std::string& commit, RemoteFile& file);

/// Where things are on a hub.
struct Addresses {
    const Settings& settings;
    const PullRequest& request;
    [[nodiscard]] std::string revision() const;  ///< as asked, or the hub's default
    [[nodiscard]] Expected<Url> endpoint() const;
    [[nodiscard]] Expected<Url> listing() const;
    [[nodiscard]] Expected<Url> file(const std::string& commit, const std::string& path) const;
};

/// What an answer other than 2xx means: `file` is the one asked for, "" for the repository itself.
[[nodiscard]] Error status_error(const ResponseHead& head, const PullRequest& request, std::string_view file, const Url& asked, bool with_token);

}  // namespace baton::hub
