#include "cli/credentials.hpp"

#include <nlohmann/json.hpp>
#include <unistd.h>

#include "baton/base/digest.hpp"
#include "cli/user_files.hpp"

namespace baton::cli {
namespace {

std::string member(const nlohmann::json& object, const char* key) {
    const auto it = object.find(key);
    return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

}  // namespace

std::string credentials_path(const std::string& endpoint) {
    const std::string folder = user_config_dir();
    std::string url = endpoint;
    while (url.ends_with('/')) url.pop_back();
    return folder.empty() ? "" : folder + "/tokens/" + to_hex(sha256(url));
}

std::optional<Credentials> load_credentials(const std::string& endpoint) {
    const std::string path = credentials_path(endpoint);
    const auto text = path.empty() ? fail(ErrorCode::kNotFound, "") : read_text_file(path);
    if (!text) return std::nullopt;
    const auto json = nlohmann::json::parse(*text, nullptr, false);
    if (!json.is_object()) return std::nullopt;
    Credentials out{member(json, "access_token"), member(json, "refresh_token")};
    if (out.access_token.empty()) return std::nullopt;
    return out;
}

Expected<void> store_credentials(const std::string& endpoint, const Credentials& credentials) {
    const std::string path = credentials_path(endpoint);
    if (path.empty()) return fail(ErrorCode::kIo, "no folder to keep the token in: set HOME or XDG_CONFIG_HOME");
    const nlohmann::json json{{"endpoint", endpoint}, {"access_token", credentials.access_token}, {"refresh_token", credentials.refresh_token}};
    return write_private_file(path, json.dump(2) + "\n");
}

bool forget_credentials(const std::string& endpoint) {
    const std::string path = credentials_path(endpoint);
    return !path.empty() && ::unlink(path.c_str()) == 0;
}

}  // namespace baton::cli
