#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "baton/config/settings.hpp"
#include "baton/hub/hub.hpp"
#include "names.hpp"
#include "url.hpp"

namespace baton::hub {
namespace {

constexpr size_t kTokenBytesMax = 4096;

bool is_true(std::string_view value) {
    const std::string v = lower(value);
    return v == "1" || v == "on" || v == "yes" || v == "true";
}

/// ~ at the beginning stands for the home folder.
std::string expanded(const std::string& path, const std::string& home) {
    return path == "~" || path.starts_with("~/") ? home + path.substr(1) : path;
}

std::string trimmed(std::string text) {
    const auto blank = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
    text.erase(std::find_if_not(text.rbegin(), text.rend(), blank).base(), text.end());
    text.erase(text.begin(), std::find_if_not(text.begin(), text.end(), blank));
    return text;
}

std::string first_line(const std::string& path) {
    std::string line;
    std::ifstream file(path);
    std::getline(file, line);
    return line;
}

Expected<std::string> endpoint(std::string text, std::string_view variable) {
    while (text.ends_with('/')) text.pop_back();
    const auto url = parse_url(text);
    if (!url || !url->user_info.empty() || url->target.find('?') != std::string::npos)
        return fail(ErrorCode::kInvalidArgument, std::string(variable) + " must look like https://host[:port][/path]", std::string(variable));
    return text;
}

Expected<std::string> checked_token(std::string token, std::string_view variable) {
    token = trimmed(std::move(token));
    const auto odd = [](char c) { return static_cast<unsigned char>(c) <= 0x20 || static_cast<unsigned char>(c) >= 0x7f; };
    if (token.size() > kTokenBytesMax || std::any_of(token.begin(), token.end(), odd))
        return fail(ErrorCode::kInvalidArgument, std::string(variable) + " is not a token", std::string(variable));
    return token;
}

}  // namespace

std::string_view to_string(Hub hub) { return hub == Hub::kModelScope ? "modelscope" : "huggingface"; }

Expected<Hub> parse_hub(std::string_view name) {
    const std::string n = lower(name);
    if (n.empty() || n == "huggingface") return Hub::kHuggingFace;
    if (n == "modelscope") return Hub::kModelScope;
    return fail(ErrorCode::kInvalidArgument, "download_hub " + in_quotes(name) + " is not supported by baton; use huggingface or modelscope", "download_hub");
}

Expected<Settings> settings_from_environment() {
    return settings_from([](const char* name) -> const char* { return std::getenv(name); });
}

Expected<Settings> settings_from(const std::function<const char*(const char*)>& get) {
    // The first of these variables that is set and not empty.
    const auto first = [&](std::initializer_list<const char*> names) {
        for (const char* name : names)
            if (const char* value = get(name); value != nullptr && *value != '\0') return std::string(value);
        return std::string();
    };
    Settings s;
    if (const std::string e = first({"HF_ENDPOINT"}); !e.empty()) {
        BATON_TRY_ASSIGN(s.endpoint, endpoint(e, "HF_ENDPOINT"));
    }
    if (const std::string e = first({"MODELSCOPE_ENDPOINT"}); !e.empty()) {
        BATON_TRY_ASSIGN(s.modelscope_endpoint, endpoint(e, "MODELSCOPE_ENDPOINT"));
    }
    const std::string home = first({"HOME"});
    std::string hf_home = first({"HF_HOME"});
    if (hf_home.empty()) {
        const std::string base = first({"XDG_CACHE_HOME"});
        hf_home = !base.empty() ? base + "/huggingface" : home.empty() ? config::default_cache_dir() + "/huggingface" : home + "/.cache/huggingface";
    }
    hf_home = expanded(hf_home, home);
    s.cache_dir = expanded(first({"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}), home);
    if (s.cache_dir.empty()) s.cache_dir = hf_home + "/hub";
    std::string own = first({"BATON_CACHE_DIR"});
    if (own.empty()) own = config::default_cache_dir();
    s.modelscope_cache_dir = own + "/modelscope";

    BATON_TRY_ASSIGN(s.token, checked_token(first({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}), "HF_TOKEN"));
    if (s.token.empty() && !is_true(first({"HF_HUB_DISABLE_IMPLICIT_TOKEN"}))) {
        std::string path = expanded(first({"HF_TOKEN_PATH"}), home);
        if (path.empty()) path = hf_home + "/token";
        BATON_TRY_ASSIGN(s.token, checked_token(first_line(path), path));
    }
    BATON_TRY_ASSIGN(s.modelscope_token, checked_token(first({"MODELSCOPE_API_TOKEN"}), "MODELSCOPE_API_TOKEN"));
    s.offline = is_true(first({"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}));
    s.ca_file = first({"BATON_HUB_CA_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"});
    s.https_proxy = first({"https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"});
    s.http_proxy = first({"http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"});
    s.no_proxy = first({"no_proxy", "NO_PROXY"});
    if (const std::string hub = first({"BATON_DOWNLOAD_HUB"}); !hub.empty()) {
        BATON_TRY_ASSIGN(const Hub parsed, parse_hub(hub));
        s.default_hub = to_string(parsed);
    }
    return s;
}

}  // namespace baton::hub
