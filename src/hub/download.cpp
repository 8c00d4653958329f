#include "download.hpp"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <thread>

namespace baton::hub {
namespace {

constexpr int64_t kTickMs = 100;
constexpr size_t kActiveMax = 4;               ///< files at the same time
constexpr size_t kProgressBytes = 64 * 1024;  ///< after so many a request counts as new

/// "bytes BEGIN-END/TOTAL" is exactly that range of a file of that size.
bool is_range(std::string_view field, uint64_t begin, uint64_t end, uint64_t total) {
    return field == "bytes " + std::to_string(begin) + "-" + std::to_string(end - 1) + "/" + std::to_string(total);
}

}  // namespace

Download::Download(const Shared& shared, const RepoCache& cache, std::string commit, const PullRequest& request, std::vector<Item> items)
    : shared_(shared), cache_(cache), commit_(std::move(commit)), request_(request) {
    for (Item& item : items) jobs_.push_back(std::make_unique<Job>(cache, std::move(item)));
}

Download::~Download() = default;

Expected<void> Download::run(const std::function<void()>& on_tick) {
    std::vector<std::thread> threads;
    const size_t wanted = std::clamp<size_t>(shared_.settings.connections, 1, 64);
    uint64_t ranges = 0;
    for (const auto& job : jobs_) ranges += 1 + job->item.file.size / std::max<uint64_t>(1, shared_.settings.range_bytes);
    {
        const std::lock_guard lock(mutex_);
        workers_ = 0;
        for (size_t i = 0; i < std::min<uint64_t>(wanted, ranges); ++i) {
            try {
                threads.emplace_back([this] { work(); });
                ++workers_;
            } catch (const std::system_error&) {
                break;
            }
        }
    }
    if (threads.empty() && !jobs_.empty()) return fail(ErrorCode::kIo, "no thread can be started");
    for (;;) {
        {
            std::unique_lock lock(mutex_);
            if (changed_.wait_for(lock, std::chrono::milliseconds(kTickMs), [this] { return workers_ == 0; })) break;
        }
        if (on_tick) on_tick();
    }
    for (std::thread& t : threads) t.join();
    if (on_tick) on_tick();
    if (shared_.cancel.requested() && done_ < jobs_.size()) return cancelled();
    if (error_) return fail(*error_);
    return {};
}

void Download::report(Progress& progress) const {
    const std::lock_guard lock(mutex_);
    for (const auto& job : jobs_) {
        const uint64_t total = job->item.file.size;
        const bool done = job->state == State::kDone;
        const uint64_t have = done ? total : std::min<uint64_t>(job->received, total);
        progress.files.push_back({job->item.file.path, have, total, done});
        progress.bytes_done += have;
        progress.bytes_total += total;
    }
}

void Download::fail_with(Error error) {
    const std::lock_guard lock(mutex_);
    // What a stop cuts short is no cause.
    if (!error_ && !(stop_ && error.code == ErrorCode::kCancelled)) error_ = std::make_unique<Error>(std::move(error));
    stop_ = true;
}

void Download::work() {
    try {
        Session session(shared_);
        while (!stopped() && step(session)) {
        }
    } catch (const std::exception& e) {
        fail_with({ErrorCode::kInternal, std::string("the download failed: ") + e.what(), ""});
    }
    const std::lock_guard lock(mutex_);
    --workers_;
    changed_.notify_all();
}

/// Does the next thing there is to do, or waits a moment. False when all is done.
bool Download::step(Session& session) {
    Job* to_open = nullptr;
    Range range;
    {
        const std::lock_guard lock(mutex_);
        if (done_ == jobs_.size()) return false;
        size_t active = 0;
        // At most two ranges a connection wait in memory for what lies before them.
        const uint64_t window = 2 * shared_.settings.range_bytes * std::max<uint32_t>(1, shared_.settings.connections);
        for (const auto& job : jobs_) {
            if (job->state == State::kOpening || job->state == State::kActive) ++active;
            if (job->state != State::kActive || job->next >= job->item.file.size) continue;
            if (job->whole && job->fetching > 0) continue;
            if (job->next - job->writer.written() >= window) continue;
            range.job = job.get();
            range.whole = job->whole;
            range.begin = job->next;
            range.end = job->whole ? job->item.file.size : std::min(job->item.file.size, job->next + std::max<uint64_t>(1, shared_.settings.range_bytes));
            job->next = range.end;
            ++job->fetching;
            break;
        }
        if (range.job == nullptr && active < kActiveMax)
            for (const auto& job : jobs_)
                if (job->state == State::kWaiting) {
                    to_open = job.get();
                    to_open->state = State::kOpening;
                    break;
                }
    }
    if (range.job != nullptr) fetch(session, range);
    else if (to_open != nullptr) open_job(*to_open);
    else (void)shared_.cancel.wait(20);
    return true;
}

/// Takes the lock of a file and looks at what is there; back to waiting while another process has it.
void Download::open_job(Job& job) {
    auto lock = cache_.try_lock(job.item.file.blob);
    if (!lock) return fail_with(lock.error());
    const auto set = [&](State state) {
        const std::lock_guard guard(mutex_);
        job.state = state;
        // The next one to be tried is another.
        const auto it = std::find_if(jobs_.begin(), jobs_.end(), [&](const auto& j) { return j.get() == &job; });
        if (state == State::kWaiting) std::rotate(it, it + 1, jobs_.end());
    };
    if (!*lock) {
        (void)shared_.cancel.wait(50);
        return set(State::kWaiting);
    }
    job.lock = std::move(*lock);
    if (cache_.has_blob(job.item.file.blob, job.item.file.size)) {
        if (auto ok = cache_.link(commit_, job.item.file.path, job.item.file.blob); !ok) return fail_with(ok.error());
        job.lock.reset();
        const std::lock_guard guard(mutex_);
        job.state = State::kDone;
        ++done_;
        return;
    }
    if (auto ok = job.writer.open(job.fresh, shared_.cancel); !ok) return fail_with(ok.error());
    job.received = job.writer.written();
    {
        const std::lock_guard guard(mutex_);
        job.next = job.writer.written();
        job.state = State::kActive;
    }
    if (job.writer.written() == job.item.file.size) finish_job(job);
}

/// Brings one range, as often as it takes; bytes that came are not asked for again.
void Download::fetch(Session& session, const Range& range) {
    Job& job = *range.job;
    Patience patience(shared_);
    std::string bytes;
    for (;;) {
        const size_t before = bytes.size();
        auto attempt = fetch_once(session, range, bytes);
        if (attempt) break;
        if (bytes.size() - before >= kProgressBytes) patience.progress();
        if (!stopped() && !no_longer_wanted(range) && patience.again(attempt.error())) continue;
        if (!stopped() && no_longer_wanted(range)) return give_back(range);
        if (!range.whole) job.writer.salvage(range.begin, bytes);
        if (shared_.cancel.requested()) return fail_with(cancelled().value());
        return fail_with(attempt.error().error);
    }
    downloaded_ += range.end - range.begin;
    if (!range.whole)
        if (auto ok = job.writer.put(range.begin, std::move(bytes)); !ok) return fail_with(ok.error());
    give_back(range);
}

/// The server turned out to know no ranges, so that this one is of no use.
bool Download::no_longer_wanted(const Range& range) const {
    const std::lock_guard lock(mutex_);
    return range.job->whole && !range.whole;
}

/// Nobody fetches this range any more: the last one out goes on with the file.
void Download::give_back(const Range& range) {
    Job& job = *range.job;
    {
        const std::lock_guard lock(mutex_);
        if (--job.fetching > 0) return;
        if (job.whole && !range.whole) {
            start_over(job);
            return;
        }
        if (job.next != job.item.file.size || job.writer.written() != job.item.file.size) return;
        job.state = State::kFinishing;
    }
    finish_job(job);
}

/// Under the lock: the file is begun anew, from its first byte.
void Download::start_over(Job& job) {
    job.fresh = true;
    job.received = 0;
    job.next = 0;
    job.lock.reset();
    job.state = State::kWaiting;
}

/// One request for what is left of a range. `bytes` grows by what came; a server without ranges writes the whole file.
Attempt<void> Download::fetch_once(Session& session, const Range& range, std::string& bytes) {
    Job& job = *range.job;
    const uint64_t size = job.item.file.size;
    Call call;
    const bool whole = range.whole;
    bool cached_place = false;
    {
        const std::lock_guard lock(mutex_);
        cached_place = !job.at.host.empty();
        call.url = cached_place ? job.at : job.item.url;
    }
    if (whole) {
        if (auto ok = job.writer.open(true, shared_.cancel); !ok) return give_up(ok.error());
        job.received = 0;
    }
    const uint64_t begin = range.begin + bytes.size();
    if (!whole) call.fields.emplace_back("Range", "bytes=" + std::to_string(begin) + "-" + std::to_string(range.end - 1));
    const auto on_head = [&](const ResponseHead& head) -> Attempt<void> {
        if (whole ? head.status == 200 : head.status == 206 && is_range(head.field("content-range"), begin, range.end, size)) {
            if (head.length && *head.length != (whole ? size : range.end - begin)) return give_up({ErrorCode::kCorrupt, "the server's length of " + job.item.file.path + " is not the hub's", ""});
            return {};
        }
        if (head.status == 200 && !whole) {
            if (begin == 0 && range.end == size && (!head.length || *head.length == size)) return {};  // all of it, as asked
            const std::lock_guard lock(mutex_);
            job.whole = true;
            return give_up({ErrorCode::kUnsupported, "the server knows no ranges", ""});
        }
        if (head.status == 206 || head.status == 416 || head.status == 200)
            return give_up({ErrorCode::kCorrupt, "the server answers with another part of " + job.item.file.path + " than asked for", ""});
        Failure failure{status_error(head, request_, job.item.file.path, call.url, !shared_.credentials.empty()), is_passing(head.status), retry_after_ms(head), head.status};
        if (cached_place) {
            // A signed address may have expired: ask the hub for another.
            const std::lock_guard lock(mutex_);
            job.at = {};
            failure.retry = true;
        }
        return tl::unexpected<Failure>(std::move(failure));
    };
    const auto on_body = [&](std::string_view part) -> Expected<void> {
        if (stopped()) return cancelled();
        const uint64_t room = whole ? size - job.writer.written() : range.end - range.begin - bytes.size();
        if (part.size() > room) return fail(ErrorCode::kCorrupt, job.item.file.path + " is longer than the hub says");
        job.received += part.size();
        if (whole) return job.writer.put(job.writer.written(), std::string(part));
        if (bytes.empty()) bytes.reserve(range.end - range.begin);
        bytes.append(part);
        return {};
    };
    Url at;
    auto head = session.request(std::move(call), on_head, on_body, &at);
    if (!head) return tl::unexpected<Failure>(head.error());
    if (whole ? job.writer.written() != size : range.begin + bytes.size() != range.end)
        return tl::unexpected<Failure>(Failure{{ErrorCode::kUnavailable, "the server sent less of " + job.item.file.path + " than it said", ""}, true, -1, head->status});
    const std::lock_guard lock(mutex_);
    if (job.at.host.empty()) job.at = std::move(at);
    return {};
}

void Download::finish_job(Job& job) {
    const bool resumed = job.writer.resumed();
    if (auto ok = job.writer.finish(); !ok) {
        if (ok.error().code != ErrorCode::kCorrupt || !resumed || job.fresh) return fail_with(ok.error());
        // What an earlier download left may have been wrong: once more from the start.
        const std::lock_guard lock(mutex_);
        return start_over(job);
    }
    if (auto ok = cache_.link(commit_, job.item.file.path, job.item.file.blob); !ok) return fail_with(ok.error());
    job.lock.reset();
    const std::lock_guard lock(mutex_);
    job.state = State::kDone;
    ++done_;
}

}  // namespace baton::hub
