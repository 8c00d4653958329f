#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "baton/base/split_name.hpp"
#include "baton/model/model.hpp"

namespace baton::model {
namespace {

constexpr uint32_t kPartsLooked = 4096;

/// realpath(3), or empty when any part does not exist.
std::string real_path(const std::string& path) {
    struct Free {
        void operator()(char* p) const { std::free(p); }
    };
    const std::unique_ptr<char, Free> p(::realpath(path.c_str(), nullptr));
    return p ? std::string(p.get()) : std::string();
}

}  // namespace

namespace {

/// A file of a GGUF in several parts under its own name in its real folder, each part inside of `fence` ("" none).
/// Nothing for other files.
std::optional<Expected<std::string>> split_path(const std::string& full, const std::string& fence) {
    const auto name = parse_split_name(full);
    std::error_code error;
    if (!name || !std::filesystem::is_regular_file(full, error)) return std::nullopt;
    const size_t slash = full.rfind('/');
    const std::string folder = real_path(slash == std::string::npos ? "." : full.substr(0, slash + 1));
    const auto parts = SplitName{(folder == "/" ? "" : folder) + "/" + name->stem.substr(slash == std::string::npos ? 0 : slash + 1), name->number, name->count};
    for (uint32_t i = 1; !fence.empty() && i <= std::min(parts.count, kPartsLooked); ++i) {
        const std::string real = real_path(parts.part(i));
        if (!real.empty() && !real.starts_with(fence)) return fail(ErrorCode::kInvalidArgument, "model path is outside the model root", "model_path");
    }
    // The file as it was named: ".GGUF" too.
    return folder + "/" + full.substr(slash == std::string::npos ? 0 : slash + 1);
}

}  // namespace

Expected<std::string> resolve_model_path(const std::string& path, const std::string& root) {
    const auto refuse = [](ErrorCode code, const char* why) {
        return fail(code, std::string("model path ") + why, "model_path");
    };
    if (path.empty() || path.find('\0') != std::string::npos) {
        return refuse(ErrorCode::kInvalidArgument, "is not usable");
    }
    if (root.empty()) {
        std::string real = real_path(path);
        if (real.empty()) return refuse(ErrorCode::kNotFound, "does not exist");
        if (auto split = split_path(path, "")) return *split;
        return real;
    }
    const std::string real_root = real_path(root);
    if (real_root.empty()) return fail(ErrorCode::kNotFound, "model root does not exist");
    const std::string fence = real_root == "/" ? real_root : real_root + "/";
    const std::string full = path.front() == '/' ? path : fence + path;
    std::string real = real_path(full);
    // Missing and outside are told apart only inside the fence: the answer must not map the rest of
    // the disk.
    if (real.empty() && full.starts_with(fence) && full.find("..") == std::string::npos) {
        return refuse(ErrorCode::kNotFound, "does not exist");
    }
    if (real != real_root && !real.starts_with(fence)) {
        return refuse(ErrorCode::kInvalidArgument, "is outside the model root");
    }
    if (auto split = split_path(full, fence)) return *split;
    return real;
}

}  // namespace baton::model
