#include "listing.hpp"

#include <algorithm>
#include <charconv>
#include <set>
#include <span>

#include "baton/base/digest.hpp"
#include "names.hpp"

namespace baton::hub {
namespace {

const Json* member(const Json& object, const char* key) {
    const auto it = object.find(key);
    return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string text_of(const Json& object, const char* key) {
    const Json* v = member(object, key);
    return v != nullptr && v->is_string() ? v->get<std::string>() : std::string();
}

/// A size; false for anything but a number of bytes that a file can have.
bool size_of(const Json& object, const char* key, uint64_t& out) {
    const Json* v = member(object, key);
    if (v == nullptr || !v->is_number_unsigned() || v->get<uint64_t>() > kFileBytesMax) return false;
    out = v->get<uint64_t>();
    return true;
}

tl::unexpected<Error> odd(const std::string& why) { return fail(ErrorCode::kCorrupt, "the hub's list of files " + why); }

Expected<void> add_file(Listing& listing, std::set<std::string>& seen, RemoteFile file) {
    BATON_TRY(check_file_path(file.path));
    if (!seen.insert(file.path).second) return odd("names a file twice: " + in_quotes(file.path));
    if (listing.files.size() == kFilesMax) return odd("is too long");
    listing.files.push_back(std::move(file));
    return {};
}

Expected<RemoteFile> huggingface_file(const Json& item) {
    if (!item.is_object()) return odd("has an item that is no object");
    RemoteFile file;
    file.path = text_of(item, "rfilename");
    const Json* lfs = member(item, "lfs");
    if (lfs != nullptr && lfs->is_object()) {
        const std::string digest = lower(text_of(*lfs, "sha256").empty() ? text_of(*lfs, "oid") : text_of(*lfs, "sha256"));
        if (is_sha256(digest) && size_of(*lfs, "size", file.size)) file.blob = file.sha256 = digest;
        return file;
    }
    const std::string blob = text_of(item, "blobId");
    if (is_commit(blob) && size_of(item, "size", file.size)) file.blob = file.git_sha1 = blob;
    return file;
}

}  // namespace

const RemoteFile* Listing::find(std::string_view path) const {
    const auto it = std::find_if(files.begin(), files.end(), [&](const RemoteFile& f) { return f.path == path; });
    return it == files.end() ? nullptr : &*it;
}

Expected<Listing> parse_huggingface_listing(std::string_view text) {
    BATON_TRY_ASSIGN(const Json json, parse_json(text, "the hub's list of files"));
    Listing out;
    if (json.is_object()) out.commit = text_of(json, "sha");
    if (!is_commit(out.commit)) return odd("names no commit");
    const Json* siblings = member(json, "siblings");
    if (siblings == nullptr || !siblings->is_array()) return odd("has no files");
    std::set<std::string> seen;
    for (const Json& item : *siblings) {
        BATON_TRY_ASSIGN(RemoteFile file, huggingface_file(item));
        BATON_TRY(add_file(out, seen, std::move(file)));
    }
    return out;
}

Expected<Listing> parse_modelscope_listing(std::string_view text) {
    BATON_TRY_ASSIGN(const Json json, parse_json(text, "the hub's list of files"));
    const Json* data = json.is_object() ? member(json, "Data") : nullptr;
    const Json* files = data != nullptr && data->is_object() ? member(*data, "Files") : nullptr;
    if (files == nullptr || !files->is_array()) return odd("has no files");
    Listing out;
    std::set<std::string> seen;
    std::string all;
    for (const Json& item : *files) {
        if (!item.is_object()) return odd("has an item that is no object");
        if (text_of(item, "Type") == "tree") continue;
        RemoteFile file;
        file.path = text_of(item, "Path");
        file.sha256 = file.blob = lower(text_of(item, "Sha256"));
        if (!is_sha256(file.sha256) || !size_of(item, "Size", file.size)) return odd("gives no size and digest of " + in_quotes(file.path));
        all += file.path + '\n' + file.sha256 + '\n';
        BATON_TRY(add_file(out, seen, std::move(file)));
    }
    const Digest digest = sha256(all);
    out.commit = to_hex(std::span(digest).first(20));
    return out;
}

Expected<void> describe_from_head(const ResponseHead& head, const std::string& commit, RemoteFile& file) {
    if (const auto named = head.field("x-repo-commit"); !named.empty() && !commit.empty() && named != commit)
        return fail(ErrorCode::kCorrupt, "the hub answers with another commit than asked for: " + in_quotes(named));
    const std::string_view linked = head.field("x-linked-etag");
    file.blob = blob_name(linked.empty() ? head.field("etag") : linked);
    if (file.blob.empty()) return fail(ErrorCode::kCorrupt, "the hub gives no usable ETag of " + in_quotes(file.path));
    const std::string_view size = head.field("x-linked-size");
    if (!size.empty()) {
        const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), file.size);
        if (error != std::errc() || end != size.data() + size.size()) file.size = kFileBytesMax + 1;
    } else {
        file.size = head.status < 300 && head.length ? *head.length : kFileBytesMax + 1;
    }
    if (file.size > kFileBytesMax) return fail(ErrorCode::kCorrupt, "the hub gives no usable size of " + in_quotes(file.path));
    if (is_sha256(file.blob)) file.sha256 = file.blob;
    else if (is_commit(file.blob)) file.git_sha1 = file.blob;
    return {};
}

std::string Addresses::revision() const {
    if (!request.revision.empty()) return request.revision;
    return request.hub == Hub::kModelScope ? "master" : "main";
}

Expected<Url> Addresses::endpoint() const {
    return parse_url(request.hub == Hub::kModelScope ? settings.modelscope_endpoint : settings.endpoint);
}

Expected<Url> Addresses::listing() const {
    if (request.hub == Hub::kModelScope)
        return parse_url(settings.modelscope_endpoint + "/api/v1/models/" + request.repo + "/repo/files?Revision=" + percent_encode(revision(), true) + "&Recursive=True");
    return parse_url(settings.endpoint + "/api/models/" + request.repo + "/revision/" + percent_encode(revision(), true) + "?blobs=true");
}

Expected<Url> Addresses::file(const std::string& commit, const std::string& path) const {
    if (request.hub == Hub::kModelScope)
        return parse_url(settings.modelscope_endpoint + "/api/v1/models/" + request.repo + "/repo?Revision=" + percent_encode(revision(), true) + "&FilePath=" + percent_encode(path, true));
    return parse_url(settings.endpoint + "/" + request.repo + "/resolve/" + commit + "/" + percent_encode(path));
}

Error status_error(const ResponseHead& head, const PullRequest& request, std::string_view file, const Url& asked, bool with_token) {
    const int status = head.status;
    const std::string what = file.empty() ? "repository " + request.repo : std::string(file) + " of " + request.repo;
    const std::string where = " on " + asked.host;
    const std::string code = lower(head.field("x-error-code"));
    const std::string token = with_token ? "the token gives no access to it" : "no token is set (HF_TOKEN)";
    if (code == "gatedrepo" || status == 403)
        return {ErrorCode::kUnauthorized, what + where + " is gated: its conditions must be accepted on the hub's page, and " + token, "model_name"};
    if (code == "revisionnotfound") return {ErrorCode::kNotFound, "revision " + request.revision + " of " + request.repo + " does not exist" + where, "revision"};
    if (code == "entrynotfound") return {ErrorCode::kNotFound, what + " does not exist" + where, "model_name"};
    if (status == 401 || code == "reponotfound")
        return {status == 401 ? ErrorCode::kUnauthorized : ErrorCode::kNotFound, what + where + " does not exist, or is private and " + token, "model_name"};
    if (status == 404) return {ErrorCode::kNotFound, what + (request.revision.empty() ? "" : " at revision " + request.revision) + " does not exist" + where, "model_name"};
    if (status == 429) return {ErrorCode::kUnavailable, asked.host + " refuses further requests for now (status 429)", ""};
    return {status >= 500 ? ErrorCode::kUnavailable : ErrorCode::kCorrupt, asked.host + " answers with status " + std::to_string(status) + " for " + what, ""};
}

}  // namespace baton::hub
