/// pull(): list → choose → configuration and tokenizer → weights → ref. What needs a hub's answer is asked once, pinned to
/// a commit; every file is then found in the cache or downloaded into it.

#include <algorithm>
#include <filesystem>
#include <set>

#include "baton/base/log.hpp"
#include "baton/hub/hub.hpp"
#include "cache.hpp"
#include "download.hpp"
#include "listing.hpp"
#include "names.hpp"
#include "plan.hpp"
#include "session.hpp"

namespace baton::hub {
namespace {

constexpr uint64_t kSpareBytes = 64u << 20;  ///< of the disk that downloads leave free
constexpr size_t kIndexBytesMax = 64u << 20;
constexpr size_t kConfigBytesMax = 4u << 20;

Expected<void> check_request(const PullRequest& request) {
    BATON_TRY(check_repo(request.repo));
    if (!request.revision.empty()) BATON_TRY(check_revision(request.revision));
    for (const std::string& file : request.files)
        if (!check_file_path(file)) return fail(ErrorCode::kInvalidArgument, in_quotes(file) + " is not the path of a file in a repository", "files");
    return {};
}

const std::string& cache_dir(const Settings& settings, Hub hub) { return hub == Hub::kModelScope ? settings.modelscope_cache_dir : settings.cache_dir; }

PullResult result_of(const RepoCache& cache, const std::string& commit, const Plan& plan) {
    PullResult out;
    out.commit = commit;
    out.snapshot_dir = cache.snapshot_dir(commit);
    out.format = plan.format;
    out.split = plan.split;
    out.files = plan.first;
    if (!plan.index.empty()) out.files.push_back(plan.index);
    out.files.insert(out.files.end(), plan.weights.begin(), plan.weights.end());
    const bool one_gguf = plan.format == "ggufv2" || (out.files.size() == 1 && out.files.front().ends_with(".gguf"));
    out.path = one_gguf ? out.snapshot_dir + "/" + (plan.weights.empty() ? out.files.front() : plan.weights.front()) : out.snapshot_dir;
    return out;
}

/// One pull over the network.
class Pull {
  public:
    Pull(const Settings& settings, const PullRequest& request, const std::function<void(const Progress&)>& on_progress, const CancelSignal& cancel)
        : settings_(settings), request_(request), on_progress_(on_progress), cancel_(cancel), cache_(cache_dir(settings, request.hub), request.repo),
          shared_{settings, nullptr, cancel, {}, {}} {}

    Expected<PullResult> run();

  private:
    Expected<void> prepare();
    Expected<Listing> list();
    Expected<std::string> get_text(const Url& url, std::string_view file, size_t bytes_max);
    Expected<Download::Item> item(const std::string& path);
    Expected<void> describe(Session& session, RemoteFile& file, const Url& url);
    Expected<void> bring(const std::vector<std::string>& paths);
    Expected<void> check_space(const std::vector<Download::Item>& items) const;
    void report(const Download* running);

    const Settings& settings_;
    const PullRequest& request_;
    const std::function<void(const Progress&)>& on_progress_;
    const CancelSignal& cancel_;
    RepoCache cache_;
    Shared shared_;
    Listing listing_;
    Plan plan_;
    Progress before_;                  ///< of the files that are through
    std::vector<std::string> after_;   ///< files not begun yet
    uint64_t downloaded_ = 0;
};

Expected<void> Pull::prepare() {
    BATON_TRY_ASSIGN(shared_.roots, TlsRoots::load(settings_.ca_file));
    const Addresses addresses{settings_, request_};
    BATON_TRY_ASSIGN(shared_.credentials_for, addresses.endpoint());
    const bool modelscope = request_.hub == Hub::kModelScope;
    const std::string& token = modelscope ? settings_.modelscope_token : settings_.token;
    if (token.empty()) return {};
    shared_.credentials.emplace_back("Authorization", "Bearer " + token);
    if (modelscope) shared_.credentials.emplace_back("Cookie", "m_session_id=" + token);
    if (!shared_.credentials_for.tls) log::warn("hub.token_without_tls", {{"endpoint", shared_.credentials_for.origin()}});
    return {};
}

Expected<std::string> Pull::get_text(const Url& url, std::string_view file, size_t bytes_max) {
    Session session(shared_);
    Patience patience(shared_);
    for (;;) {
        std::string text;
        bool good = false;
        const auto on_head = [&](const ResponseHead& head) -> Attempt<void> {
            good = head.status == 200;
            if (good) return {};
            return tl::unexpected<Failure>(Failure{status_error(head, request_, file, url, !shared_.credentials.empty()), is_passing(head.status), retry_after_ms(head), head.status});
        };
        const auto on_body = [&](std::string_view part) -> Expected<void> {
            if (text.size() + part.size() > bytes_max) return fail(ErrorCode::kCorrupt, "the hub's answer is too long");
            text.append(part);
            return {};
        };
        auto head = session.request({"GET", url, {}}, on_head, on_body);
        if (head) return text;
        if (patience.again(head.error())) continue;
        if (cancel_.requested()) return cancelled();
        return fail(head.error().error);
    }
}

Expected<Listing> Pull::list() {
    const Addresses addresses{settings_, request_};
    BATON_TRY_ASSIGN(const Url url, addresses.listing());
    BATON_TRY_ASSIGN(const std::string text, get_text(url, "", kListingBytesMax));
    if (request_.hub == Hub::kModelScope) return parse_modelscope_listing(text);
    BATON_TRY_ASSIGN(Listing listing, parse_huggingface_listing(text));
    if (is_commit(request_.revision) && listing.commit != request_.revision)
        return fail(ErrorCode::kCorrupt, "the hub answers with another commit than asked for");
    return listing;
}

/// Size and digest from a HEAD of the file, for hubs whose list does not tell them.
Expected<void> Pull::describe(Session& session, RemoteFile& file, const Url& url) {
    Patience patience(shared_);
    Url at = url;
    for (int hop = 0; hop < kRedirectsMax;) {
        // Not followed to other hosts: the hub's own answer describes the file, and its redirect too.
        auto head = session.exchange({"HEAD", at, {}}, nullptr, nullptr);
        Failure failure;
        if (head) {
            const bool redirect = head->status / 100 == 3 && head->status != 304;
            const auto next = redirect ? resolve_location(at, head->field("location")) : Expected<Url>(at);
            if (redirect && head->field("x-linked-etag").empty() && next && next->same_origin(at)) {
                at = *next;
                ++hop;
                continue;
            }
            if (head->status / 100 == 2 || redirect) return describe_from_head(*head, request_.hub == Hub::kHuggingFace ? listing_.commit : "", file);
            failure = {status_error(*head, request_, file.path, at, !shared_.credentials.empty()), is_passing(head->status), retry_after_ms(*head), head->status};
        } else {
            failure = head.error();
        }
        if (patience.again(failure)) continue;
        if (cancel_.requested()) return cancelled();
        return fail(failure.error);
    }
    return fail(ErrorCode::kCorrupt, "the server redirects in circles");
}

Expected<Download::Item> Pull::item(const std::string& path) {
    const RemoteFile* file = listing_.find(path);
    if (file == nullptr) return fail(ErrorCode::kNotFound, request_.repo + " has no " + path, "model_name");
    const Addresses addresses{settings_, request_};
    BATON_TRY_ASSIGN(Url url, addresses.file(listing_.commit, path));
    Download::Item out{*file, std::move(url)};
    if (out.file.blob.empty()) {
        Session session(shared_);
        BATON_TRY(describe(session, out.file, out.url));
    }
    return out;
}

Expected<void> Pull::check_space(const std::vector<Download::Item>& items) const {
    uint64_t needed = 0;
    std::set<std::string> seen;
    for (const Download::Item& i : items) {
        if (!seen.insert(i.file.blob).second || cache_.has_blob(i.file.blob, i.file.size)) continue;
        std::error_code none;
        const auto there = std::filesystem::file_size(cache_.incomplete_path(i.file.blob), none);
        needed += i.file.size - (none ? 0 : std::min<uint64_t>(there, i.file.size));
    }
    BATON_TRY_ASSIGN(const uint64_t free, cache_.free_bytes());
    if (needed == 0 || (needed <= free && free - needed >= kSpareBytes)) return {};
    return fail(ErrorCode::kIo, request_.repo + " needs " + std::to_string(needed) + " bytes more in " + cache_.root() + ", where " + std::to_string(free) + " are free");
}

void Pull::report(const Download* running) {
    if (!on_progress_) return;
    Progress now = before_;
    if (running != nullptr) running->report(now);
    for (const std::string& path : after_) {
        const RemoteFile* file = listing_.find(path);
        const uint64_t size = file == nullptr ? 0 : file->size;
        now.files.push_back({path, 0, size, false});
        now.bytes_total += size;
    }
    on_progress_(now);
}

Expected<void> Pull::bring(const std::vector<std::string>& paths) {
    std::vector<Download::Item> items;
    for (const std::string& path : paths) {
        BATON_TRY_ASSIGN(Download::Item one, item(path));
        items.push_back(std::move(one));
    }
    BATON_TRY(check_space(items));
    std::erase_if(after_, [&](const std::string& path) { return std::find(paths.begin(), paths.end(), path) != paths.end(); });
    Download download(shared_, cache_, listing_.commit, request_, std::move(items));
    auto done = download.run([&] { report(&download); });
    downloaded_ += download.bytes_downloaded();
    if (!done) return done;
    download.report(before_);
    return {};
}

Expected<PullResult> Pull::run() {
    BATON_TRY(prepare());
    BATON_TRY_ASSIGN(listing_, list());
    std::vector<std::string> names;
    for (const RemoteFile& f : listing_.files) names.push_back(f.path);
    BATON_TRY_ASSIGN(plan_, plan_files(names, request_));
    BATON_TRY(cache_.prepare());
    const std::string dir = cache_.snapshot_dir(listing_.commit);
    after_ = plan_.weights;
    std::vector<std::string> first = plan_.first;
    if (!plan_.index.empty()) first.push_back(plan_.index);
    if (!first.empty()) BATON_TRY(bring(first));
    if (request_.check_config && plan_.format == "pytorch") {
        BATON_TRY_ASSIGN(const std::string config, read_text(dir + "/config.json", kConfigBytesMax));
        BATON_TRY(request_.check_config(config));
    }
    if (!plan_.index.empty()) {
        BATON_TRY_ASSIGN(const std::string index, read_text(dir + "/" + plan_.index, kIndexBytesMax));
        BATON_TRY_ASSIGN(plan_.weights, shards_of_index(index));
        after_ = plan_.weights;
    }
    if (!plan_.weights.empty()) BATON_TRY(bring(plan_.weights));
    BATON_TRY(cache_.set_ref(Addresses{settings_, request_}.revision(), listing_.commit));
    report(nullptr);
    PullResult out = result_of(cache_, listing_.commit, plan_);
    out.bytes_downloaded = downloaded_;
    return out;
}

}  // namespace

Expected<PullResult> find_cached(const Settings& settings, const PullRequest& request) {
    BATON_TRY(check_request(request));
    const RepoCache cache(cache_dir(settings, request.hub), request.repo);
    const std::string revision = Addresses{settings, request}.revision();
    const auto commit = cache.commit_of(revision);
    const std::vector<std::string> names = commit ? cache.files_of(*commit) : std::vector<std::string>();
    if (names.empty())
        return fail(ErrorCode::kNotFound, request.repo + " (revision " + revision + ") is not in the cache " + cache_dir(settings, request.hub), "model_name");
    BATON_TRY_ASSIGN(Plan plan, plan_files(names, request));
    if (!plan.index.empty()) {
        BATON_TRY_ASSIGN(const std::string index, read_text(cache.snapshot_dir(*commit) + "/" + plan.index, kIndexBytesMax));
        BATON_TRY_ASSIGN(plan.weights, shards_of_index(index));
        for (const std::string& shard : plan.weights)
            if (!std::binary_search(names.begin(), names.end(), shard)) return fail(ErrorCode::kNotFound, request.repo + " has no " + shard + " in the cache", "model_name");
    }
    return result_of(cache, *commit, plan);
}

Expected<PullResult> pull(const Settings& settings, const PullRequest& request, const std::function<void(const Progress&)>& on_progress, std::stop_token cancel) {
    BATON_TRY(check_request(request));
    Expected<PullResult> cached = fail(ErrorCode::kNotFound, "");
    if (request.cached_is_enough || settings.offline) cached = find_cached(settings, request);
    if (cached) return cached;
    if (settings.offline) {
        Error e = cached.error();
        e.message += "; nothing is downloaded in offline mode (HF_HUB_OFFLINE)";
        if (e.code == ErrorCode::kNotFound) e.code = ErrorCode::kUnavailable;
        return fail(std::move(e));
    }
    const CancelSignal signal(std::move(cancel));
    Pull pull(settings, request, on_progress, signal);
    auto result = pull.run();
    if (result) {
        log::info("hub.pulled", {{"repo", request.repo}, {"commit", result->commit}, {"files", result->files.size()}, {"bytes", result->bytes_downloaded}});
        return result;
    }
    // Without a way to the hub what was complete yesterday still is.
    if (result.error().code == ErrorCode::kUnavailable || result.error().code == ErrorCode::kTimeout) {
        if (auto there = find_cached(settings, request)) {
            log::warn("hub.unreachable", {{"repo", request.repo}, {"reason", result.error().message}, {"cached", there->commit}});
            return there;
        }
    }
    return result;
}

std::vector<CachedModel> list_cached(const Settings& settings) {
    std::vector<CachedModel> out = scan_cache(settings.cache_dir, Hub::kHuggingFace);
    std::vector<CachedModel> more = scan_cache(settings.modelscope_cache_dir, Hub::kModelScope);
    out.insert(out.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
    return out;
}

}  // namespace baton::hub
