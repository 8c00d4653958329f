#include "names.hpp"

#include <algorithm>
#include <cctype>

#include "baton/base/encoding.hpp"

namespace baton::hub {
namespace {

bool is_name_char(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
}

bool is_lower_hex(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool is_repo_part(std::string_view part) {
    if (part.empty() || !std::all_of(part.begin(), part.end(), is_name_char)) return false;
    if (part.front() == '.' || part.front() == '-' || part.back() == '.' || part.back() == '-') return false;
    return part.find("--") == std::string_view::npos && part.find("..") == std::string_view::npos;
}

/// Why a path is not one that may be joined to a folder; "" where it is.
std::string path_fault(std::string_view path) {
    if (path.empty()) return "is empty";
    if (path.size() > kPathBytesMax) return "is too long";
    size_t depth = 0;
    for (size_t begin = 0; begin <= path.size();) {
        const size_t end = std::min(path.find('/', begin), path.size());
        const std::string_view part = path.substr(begin, end - begin);
        if (part.empty() || part == "." || part == "..") return "leaves its folder";
        if (part.size() > kPathPartBytesMax) return "is too long";
        if (++depth > kPathDepthMax) return "is too deep";
        begin = end + 1;
    }
    const auto odd = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\'; };
    return std::any_of(path.begin(), path.end(), odd) ? "has odd characters" : "";
}

}  // namespace

std::string in_quotes(std::string_view text) {
    std::string out = "'";
    for (const char c : text.substr(0, 200)) out += static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e ? '?' : c;
    return out + (text.size() > 200 ? "…'" : "'");
}

Expected<void> check_repo(std::string_view repo) {
    const size_t slash = repo.find('/');
    const std::string_view name = slash == std::string_view::npos ? repo : repo.substr(slash + 1);
    if (repo.size() <= 96 && (slash == std::string_view::npos || is_repo_part(repo.substr(0, slash))) && is_repo_part(name)) return {};
    return fail(ErrorCode::kInvalidArgument, in_quotes(repo) + " is not the id of a repository: it must look like org/name", "model_name");
}

Expected<void> check_revision(std::string_view revision) {
    const bool clean = std::all_of(revision.begin(), revision.end(), [](char c) { return is_name_char(c) || c == '/' || c == '+'; });
    if (clean && path_fault(revision).empty() && !revision.ends_with(".lock")) return {};
    return fail(ErrorCode::kInvalidArgument, in_quotes(revision) + " is not a revision: it must be a branch, tag or commit", "revision");
}

Expected<void> check_file_path(std::string_view path) {
    const std::string fault = path_fault(path);
    if (fault.empty()) return {};
    return fail(ErrorCode::kCorrupt, "the hub names a file whose path " + fault + ": " + in_quotes(path));
}

bool is_commit(std::string_view text) { return text.size() == 40 && is_lower_hex(text); }
bool is_sha256(std::string_view text) { return text.size() == 64 && is_lower_hex(text); }

std::string blob_name(std::string_view etag) {
    if (etag.starts_with("W/")) etag.remove_prefix(2);
    if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
    const bool safe = !etag.empty() && etag.size() <= 128 && etag.front() != '.' && std::all_of(etag.begin(), etag.end(), is_name_char) &&
                      !etag.ends_with(".incomplete");
    return safe ? std::string(etag) : std::string();
}

std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return out;
}

Expected<Json> parse_json(std::string_view text, std::string_view what) {
    if (json_depth(text) > kJsonDepthMax) return fail(ErrorCode::kCorrupt, std::string(what) + " is nested too deeply");
    Json json = Json::parse(text.begin(), text.end(), nullptr, false);
    if (json.is_discarded()) return fail(ErrorCode::kCorrupt, std::string(what) + " is not valid JSON");
    return json;
}

}  // namespace baton::hub
