#include "worker/pulls.hpp"

#include <boost/asio/post.hpp>
#include <system_error>

#include "baton/base/clock.hpp"
#include "baton/base/log.hpp"
#include "baton/hub/hub.hpp"
#include "baton/model/model.hpp"

namespace baton::worker {
namespace {

constexpr size_t kJobsMax = 32;
constexpr int64_t kProgressMs = 250;
constexpr size_t kFilesTold = 256;
constexpr size_t kSnapshotsTold = 2'000;

wire::PullDone failed(uint64_t pull, const Error& e) { return {pull, static_cast<uint8_t>(e.code), "", "", e.message, e.param}; }

wire::PullProgress told(uint64_t pull, const hub::Progress& p) {
    wire::PullProgress out{pull, p.bytes_done, p.bytes_total, {}};
    for (const hub::FileProgress& f : p.files)
        if (out.files.size() < kFilesTold) out.files.push_back({f.name, f.bytes_done, f.bytes_total, f.done});
    return out;
}

wire::PullDone pull_model(const wire::PullModel& ask, const std::function<void(const hub::Progress&)>& on_progress, std::stop_token stop) {
    auto settings = hub::settings_from_environment();
    if (!settings) return failed(ask.pull, settings.error());
    const auto request = hub::request_of(ask, model::check_config);
    if (!request) return failed(ask.pull, request.error());
    const auto result = hub::pull(*settings, *request, on_progress, std::move(stop));
    if (!result) return failed(ask.pull, result.error());
    return {ask.pull, 0, result->path, result->commit, "", ""};
}

}  // namespace

Pulls::Pulls(boost::asio::io_context& io, Send send) : io_(io), send_(std::move(send)) {}

Pulls::~Pulls() {
    *alive_ = false;
    cancel_all();
    for (auto& [key, job] : jobs_) job.thread.join();
}

void Pulls::post(std::function<void()> then) {
    boost::asio::post(io_, [alive = alive_, then = std::move(then)] {
        if (*alive) then();
    });
}

void Pulls::run(uint64_t key, wire::Message without_thread, std::function<wire::Message(std::stop_token)> work) {
    Job& job = jobs_[key];
    try {
        job.thread = std::thread([this, key, work = std::move(work), stop = job.stop.get_token()] {
            wire::Message answer = work(stop);
            post([this, key, answer = std::move(answer)] {
                send_(answer);
                const auto it = jobs_.find(key);
                it->second.thread.join();
                jobs_.erase(it);
                std::erase_if(keys_, [&](const auto& entry) { return entry.second == key; });
            });
        });
    } catch (const std::system_error&) {
        jobs_.erase(key);
        std::erase_if(keys_, [&](const auto& entry) { return entry.second == key; });
        log::error("download.no_thread");
        send_(without_thread);
    }
}

void Pulls::start(const wire::PullModel& ask) {
    if (jobs_.size() >= kJobsMax) return send_(failed(ask.pull, {ErrorCode::kUnavailable, "this worker downloads its most models already", ""}));
    const uint64_t key = next_key_++;
    keys_[ask.pull] = key;
    log::info("download.begin", {{"hub", ask.hub}, {"repo", ask.repo}, {"format", ask.format}, {"quantization", ask.quantization}});
    run(key, failed(ask.pull, {ErrorCode::kUnavailable, "this worker can start no thread for a download", ""}), [this, ask](std::stop_token stop) -> wire::Message {
        try {
            int64_t told_ms = 0;
            const auto on_progress = [&](const hub::Progress& p) {
                const int64_t now = steady_now().ms;
                if (now - told_ms < kProgressMs) return;
                told_ms = now;
                post([this, progress = told(ask.pull, p)] { send_(progress); });
            };
            wire::PullDone done = pull_model(ask, on_progress, stop);
            log::info("download.end", {{"repo", ask.repo}, {"commit", done.commit}, {"error", done.error}});
            return done;
        } catch (const std::exception& e) {
            return failed(ask.pull, {ErrorCode::kInternal, std::string("the download failed: ") + e.what(), ""});
        }
    });
}

void Pulls::cancel(uint64_t pull) {
    const auto key = keys_.find(pull);
    if (key != keys_.end()) jobs_[key->second].stop.request_stop();
}

void Pulls::cancel_all() {
    for (auto& [key, job] : jobs_) job.stop.request_stop();
}

void Pulls::list_cached(uint64_t ask) {
    if (jobs_.size() >= kJobsMax) return send_(wire::CachedList{ask, {}});
    run(next_key_++, wire::CachedList{ask, {}}, [ask](std::stop_token) -> wire::Message {
        wire::CachedList out{ask, {}};
        const auto settings = hub::settings_from_environment();
        if (!settings) return out;
        for (const hub::CachedModel& m : hub::list_cached(*settings)) {
            if (out.snapshots.size() == kSnapshotsTold) break;
            out.snapshots.push_back({std::string(to_string(m.hub)), m.repo, m.commit, m.snapshot_dir, m.files, m.bytes});
        }
        return out;
    });
}

}  // namespace baton::worker
