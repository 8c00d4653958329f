#include "cli/user_files.hpp"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "baton/base/fd.hpp"

namespace baton::cli {
namespace {

std::string xdg_dir(const char* variable, const char* under_home) {
    if (const char* dir = std::getenv(variable); dir != nullptr && *dir == '/') return std::string(dir) + "/baton";
    const char* home = std::getenv("HOME");
    if (home == nullptr || *home == '\0') {
        const passwd* user = ::getpwuid(::getuid());
        home = user == nullptr ? nullptr : user->pw_dir;
    }
    return home == nullptr || *home == '\0' ? "" : std::string(home) + under_home + "/baton";
}

tl::unexpected<Error> failed(const std::string& what, const std::string& path) {
    return fail(ErrorCode::kIo, "cannot " + what + " " + path + ": " + std::strerror(errno));
}

/// Makes the folders that are missing, each for its owner alone.
Expected<void> make_folders(const std::filesystem::path& folder) {
    std::filesystem::path path;
    for (const auto& part : folder) {
        path /= part;
        if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return failed("make the folder", path.string());
    }
    return {};
}

}  // namespace

std::string user_config_dir() { return xdg_dir("XDG_CONFIG_HOME", "/.config"); }
std::string user_state_dir() { return xdg_dir("XDG_STATE_HOME", "/.local/state"); }

Expected<void> write_private_file(const std::string& path, const std::string& text, Folders folders) {
    if (folders == Folders::kMade) BATON_TRY(make_folders(std::filesystem::path(path).parent_path()));
    const std::string temporary = path + "." + std::to_string(::getpid()) + ".new";
    ::unlink(temporary.c_str());
    UniqueFd fd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd) return failed("write", path);
    for (size_t written = 0; written < text.size();) {
        const ssize_t n = ::write(fd.get(), text.data() + written, text.size() - written);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            const auto error = failed("write", temporary);
            ::unlink(temporary.c_str());
            return error;
        }
        written += static_cast<size_t>(n);
    }
    if (std::rename(temporary.c_str(), path.c_str()) != 0) {
        const auto error = failed("write", path);
        ::unlink(temporary.c_str());
        return error;
    }
    return {};
}

Expected<std::string> read_text_file(const std::string& path) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    std::string all;
    for (char some[16 * 1024];;) {
        const ssize_t n = fd ? ::read(fd.get(), some, sizeof some) : -1;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail(ErrorCode::kNotFound, "cannot read " + path + ": " + std::strerror(errno));
        if (n == 0) return all;
        all.append(some, static_cast<size_t>(n));
    }
}

}  // namespace baton::cli
