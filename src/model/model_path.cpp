#include <cstdlib>
#include <memory>

#include "baton/model/model.hpp"

namespace baton::model {
namespace {

/// realpath(3), or empty when any part does not exist.
std::string real_path(const std::string& path) {
    struct Free {
        void operator()(char* p) const { std::free(p); }
    };
    const std::unique_ptr<char, Free> p(::realpath(path.c_str(), nullptr));
    return p ? std::string(p.get()) : std::string();
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
    return real;
}

}  // namespace baton::model
