#include "model_pulls.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <system_error>

#include "baton/base/log.hpp"
#include "baton/hub/hub.hpp"
#include "baton/model/model.hpp"

namespace baton::supervisor {
namespace {

constexpr int64_t kListMs = 5'000;

Expected<std::string> pull_on_this_host(const wire::PullModel& what, bool description_only, std::stop_token stop) {
    BATON_TRY_ASSIGN(const hub::Settings settings, hub::settings_from_environment());
    BATON_TRY_ASSIGN(hub::PullRequest request, hub::request_of(what, model::check_config));
    request.description_only = description_only;
    BATON_TRY_ASSIGN(hub::PullResult result, hub::pull(settings, request, {}, std::move(stop)));
    return std::move(result.path);
}

}  // namespace

ModelPulls::~ModelPulls() {
    *alive_ = false;
    for (auto& [id, job] : threads_) job.first.request_stop();
    for (auto& [id, job] : threads_) job.second.join();
}

uint64_t ModelPulls::start(const registry::Resolved& model, const std::set<std::string>& on_workers, OnProgress progress, OnDone done) {
    const uint64_t id = next_++;
    Pull& pull = pulls_[id];
    pull.what = {id, model.hub, model.repo, model.revision, model.format, model.quantization, model.gguf_file};
    pull.progress = std::move(progress);
    pull.done = std::move(done);
    pull.waiting_for = on_workers;
    pull.pulled.described_only = std::none_of(on_workers.begin(), on_workers.end(), [&](const std::string& w) { return workers_.on_this_host(w); });
    for (const std::string& worker : on_workers) {
        if (workers_.send(worker, pull.what)) continue;
        // The caller must know the number before it hears of the end.
        boost::asio::post(io_, [this, alive = alive_, id, worker] {
            if (*alive) finish(id, fail(ErrorCode::kUnavailable, "worker " + worker + " is not registered"));
        });
        break;
    }
    return id;
}

void ModelPulls::cancel(uint64_t id) {
    const auto it = pulls_.find(id);
    if (it == pulls_.end()) return;
    for (const std::string& worker : it->second.waiting_for) workers_.send(worker, wire::CancelPull{id});
    if (const auto here = threads_.find(id); here != threads_.end()) here->second.first.request_stop();
    pulls_.erase(it);
}

void ModelPulls::finish(uint64_t id, Expected<Pulled> result) {
    const auto it = pulls_.find(id);
    if (it == pulls_.end()) return;
    const OnDone done = std::move(it->second.done);
    cancel(id);
    done(std::move(result));
}

void ModelPulls::on_message(const std::string& worker, const wire::Message& message) {
    if (const auto* p = std::get_if<wire::PullProgress>(&message)) {
        const auto it = pulls_.find(p->pull);
        if (it != pulls_.end() && it->second.waiting_for.contains(worker) && it->second.progress) it->second.progress(worker, *p);
    } else if (const auto* d = std::get_if<wire::PullDone>(&message)) {
        worker_done(worker, *d);
    } else if (const auto* l = std::get_if<wire::CachedList>(&message)) {
        worker_listed(worker, *l);
    }
}

void ModelPulls::worker_done(const std::string& worker, const wire::PullDone& done) {
    const auto it = pulls_.find(done.pull);
    if (it == pulls_.end() || it->second.waiting_for.erase(worker) == 0) return;
    if (done.code != 0) return finish(done.pull, fail(static_cast<ErrorCode>(done.code), done.error, done.param));
    it->second.pulled.paths[worker] = done.path;
    if (it->second.waiting_for.empty()) pull_here(done.pull, it->second);
}

/// Where a worker runs on this host the files are there by now; else this host needs those that describe the model.
void ModelPulls::pull_here(uint64_t id, Pull& pull) {
    auto& [stop, thread] = threads_[id];
    const auto work = [this, id, alive = alive_, what = pull.what, description_only = pull.pulled.described_only, token = stop.get_token()] {
        auto path = pull_on_this_host(what, description_only, token);
        boost::asio::post(io_, [this, id, alive, path = std::move(path)]() mutable {
            if (!*alive) return;
            const auto job = threads_.find(id);
            job->second.second.join();
            threads_.erase(job);
            const auto it = pulls_.find(id);
            if (it == pulls_.end()) return;
            if (!path) return finish(id, fail(path.error()));
            Pulled pulled = std::move(it->second.pulled);
            pulled.path = std::move(*path);
            finish(id, std::move(pulled));
        });
    };
    try {
        thread = std::thread(work);
    } catch (const std::system_error&) {
        threads_.erase(id);
        finish(id, fail(ErrorCode::kUnavailable, "no thread can be started for a download"));
    }
}

void ModelPulls::worker_lost(const std::string& address) {
    std::vector<uint64_t> ended;
    for (auto& [id, pull] : pulls_)
        if (pull.waiting_for.erase(address) > 0) ended.push_back(id);
    for (const uint64_t id : ended) finish(id, fail(ErrorCode::kUnavailable, "worker " + address + " was lost during the download"));
    std::vector<uint64_t> listed;
    for (auto& [ask, listing] : listings_)
        if (listing.waiting_for.erase(address) > 0 && listing.waiting_for.empty()) listed.push_back(ask);
    for (const uint64_t ask : listed) finish_listing(ask);
}

void ModelPulls::list_cached(const std::string& only, std::function<void(Cached)> done) {
    const uint64_t ask = next_++;
    Listing& listing = listings_[ask];
    listing.done = std::move(done);
    for (const auto& [address, w] : workers_.all())
        if ((only.empty() || only == address) && workers_.send(address, wire::ListCached{ask})) listing.waiting_for.insert(address);
    if (listing.waiting_for.empty()) return finish_listing(ask);
    listing.deadline = std::make_shared<boost::asio::steady_timer>(io_, std::chrono::milliseconds(kListMs));
    listing.deadline->async_wait([this, alive = alive_, ask](const boost::system::error_code& cancelled) {
        if (!cancelled && *alive) finish_listing(ask);
    });
}

void ModelPulls::worker_listed(const std::string& worker, const wire::CachedList& list) {
    const auto it = listings_.find(list.ask);
    if (it == listings_.end() || it->second.waiting_for.erase(worker) == 0) return;
    for (const wire::CachedSnapshot& s : list.snapshots) it->second.found.emplace_back(worker, s);
    if (it->second.waiting_for.empty()) finish_listing(list.ask);
}

void ModelPulls::finish_listing(uint64_t ask) {
    const auto it = listings_.find(ask);
    if (it == listings_.end()) return;
    auto listing = std::move(it->second);
    listings_.erase(it);
    if (listing.deadline) listing.deadline->cancel();
    listing.done(std::move(listing.found));
}

}  // namespace baton::supervisor
