#include "cache.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <tuple>

#include "baton/base/digest.hpp"
#include "names.hpp"

namespace baton::hub {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSnapshotsMax = 10'000;
constexpr size_t kSnapshotFilesMax = 20'000;
constexpr std::string_view kFolderPrefix = "models--";

Expected<void> make_folder(const std::string& path) {
    std::error_code error;
    fs::create_directories(path, error);
    if (!error) return {};
    return fail(ErrorCode::kIo, "cannot make the folder " + path + ": " + error.message());
}

tl::unexpected<Error> cannot(const char* what, const std::string& path) {
    return fail(ErrorCode::kIo, std::string("cannot ") + what + " " + path + ": " + std::strerror(errno));
}

/// Writes a small file under another name first.
Expected<void> write_text(const std::string& path, std::string_view text) {
    const std::string other = path + "." + random_hex(4) + ".tmp";
    const UniqueFd fd(::open(other.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
    if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) || ::rename(other.c_str(), path.c_str()) != 0) {
        auto error = cannot("write", path);
        ::unlink(other.c_str());
        return error;
    }
    return {};
}

/// models--org--name → org/name; "" for anything else.
std::string repo_of_folder(const std::string& folder) {
    if (!folder.starts_with(kFolderPrefix)) return "";
    std::string repo = folder.substr(kFolderPrefix.size());
    if (const size_t at = repo.find("--"); at != std::string::npos) repo.replace(at, 2, "/");
    return check_repo(repo) ? repo : "";
}

/// Revisions by the commit they stand for.
std::map<std::string, std::vector<std::string>> refs_of(const std::string& root) {
    std::map<std::string, std::vector<std::string>> out;
    std::error_code error;
    const std::string refs = root + "/refs";
    size_t seen = 0;
    for (fs::recursive_directory_iterator it(refs, error), end; !error && it != end && ++seen < kSnapshotsMax; it.increment(error)) {
        if (!it->is_regular_file(error)) continue;
        if (const auto commit = read_text(it->path(), 64)) out[*commit].push_back(fs::path(it->path()).lexically_relative(refs).string());
    }
    return out;
}

}  // namespace

Expected<std::string> read_text(const std::string& path, size_t bytes_max) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) return errno == ENOENT ? fail(ErrorCode::kNotFound, path + " does not exist") : cannot("read", path);
    std::string out(bytes_max + 1, '\0');
    size_t size = 0;
    while (size < out.size()) {
        const auto n = ::read(fd.get(), out.data() + size, out.size() - size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return cannot("read", path);
        if (n == 0) break;
        size += static_cast<size_t>(n);
    }
    if (size > bytes_max) return fail(ErrorCode::kCorrupt, path + " is too long");
    out.resize(size);
    return out;
}

RepoCache::RepoCache(std::string cache_dir, const std::string& repo) : cache_dir_(std::move(cache_dir)), folder_(kFolderPrefix) {
    for (const char c : repo) {
        if (c == '/') folder_ += "--";
        else folder_ += c;
    }
    root_ = cache_dir_ + "/" + folder_;
}

Expected<void> RepoCache::prepare() const {
    BATON_TRY(make_folder(root_ + "/blobs"));
    BATON_TRY(make_folder(root_ + "/refs"));
    BATON_TRY(make_folder(root_ + "/snapshots"));
    return make_folder(cache_dir_ + "/.locks/" + folder_);
}

Expected<uint64_t> RepoCache::free_bytes() const {
    struct statvfs space {};
    if (::statvfs((root_ + "/blobs").c_str(), &space) != 0) return cannot("see the free space of", root_);
    return static_cast<uint64_t>(space.f_bavail) * space.f_frsize;
}

bool RepoCache::has_blob(const std::string& blob, uint64_t size) const {
    struct stat file {};
    return ::stat(blob_path(blob).c_str(), &file) == 0 && S_ISREG(file.st_mode) && static_cast<uint64_t>(file.st_size) == size;
}

Expected<UniqueFd> RepoCache::try_lock(const std::string& blob) const {
    const std::string path = cache_dir_ + "/.locks/" + folder_ + "/" + blob + ".lock";
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0664));
    if (!fd) return cannot("open the lock", path);
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK || errno == EINTR) return UniqueFd();
        return cannot("lock", path);
    }
    // Whoever had it may have removed the file with its release: then ours is nobody else's.
    struct stat ours {}, there {};
    if (::fstat(fd.get(), &ours) != 0 || ::stat(path.c_str(), &there) != 0 || ours.st_ino != there.st_ino) return UniqueFd();
    return fd;
}

Expected<void> RepoCache::link(const std::string& commit, const std::string& path, const std::string& blob) const {
    const std::string place = snapshot_dir(commit) + "/" + path;
    BATON_TRY(make_folder(place.substr(0, place.rfind('/'))));
    std::string target = "../../blobs/" + blob;
    for (const char c : path)
        if (c == '/') target.insert(0, "../");
    std::error_code error;
    if (fs::is_symlink(place, error) && fs::read_symlink(place, error) == target) return {};
    const std::string other = place + "." + random_hex(4) + ".tmp";
    if (::symlink(target.c_str(), other.c_str()) != 0) return cannot("link", place);
    if (::rename(other.c_str(), place.c_str()) != 0) {
        auto failed = cannot("link", place);
        ::unlink(other.c_str());
        return failed;
    }
    return {};
}

Expected<void> RepoCache::set_ref(const std::string& revision, const std::string& commit) const {
    if (revision == commit) return {};
    const std::string path = root_ + "/refs/" + revision;
    if (const auto now = read_text(path, 64); now && *now == commit) return {};
    BATON_TRY(make_folder(path.substr(0, path.rfind('/'))));
    return write_text(path, commit);
}

Expected<std::string> RepoCache::commit_of(const std::string& revision) const {
    if (is_commit(revision)) return revision;
    auto commit = read_text(root_ + "/refs/" + revision, 64);
    while (commit && !commit->empty() && commit->back() == '\n') commit->pop_back();
    if (commit && is_commit(*commit)) return commit;
    return fail(ErrorCode::kNotFound, "revision " + revision + " is not in the cache");
}

std::vector<std::string> RepoCache::files_of(const std::string& commit) const {
    std::vector<std::string> out;
    const std::string dir = snapshot_dir(commit);
    std::error_code error;
    for (fs::recursive_directory_iterator it(dir, error), end; !error && it != end && out.size() < kSnapshotFilesMax; it.increment(error)) {
        std::error_code gone;
        if (fs::is_regular_file(it->path(), gone) && !gone) out.push_back(it->path().lexically_relative(dir).string());
    }
    std::sort(out.begin(), out.end());
    return out;
}

std::vector<CachedModel> scan_cache(const std::string& cache_dir, Hub hub) {
    std::vector<CachedModel> out;
    std::error_code error;
    for (fs::directory_iterator it(cache_dir, error), end; !error && it != end; it.increment(error)) {
        const std::string repo = repo_of_folder(it->path().filename().string());
        if (repo.empty()) continue;
        const RepoCache cache(cache_dir, repo);
        auto refs = refs_of(cache.root());
        std::error_code inner;
        for (fs::directory_iterator s(cache.root() + "/snapshots", inner), none; !inner && s != none; s.increment(inner)) {
            if (out.size() == kSnapshotsMax) return out;
            CachedModel model{hub, repo, s->path().filename().string(), {}, s->path().string(), {}, 0};
            model.files = cache.files_of(model.commit);
            model.revisions = refs[model.commit];
            for (const std::string& f : model.files) {
                std::error_code gone;
                const auto size = fs::file_size(model.snapshot_dir + "/" + f, gone);
                if (!gone) model.bytes += size;
            }
            if (!model.files.empty()) out.push_back(std::move(model));
        }
    }
    std::sort(out.begin(), out.end(), [](const CachedModel& a, const CachedModel& b) { return std::tie(a.repo, a.commit) < std::tie(b.repo, b.commit); });
    return out;
}

}  // namespace baton::hub
