#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "blob_writer.hpp"
#include "session.hpp"

namespace baton::hub {

/// Brings a set of files into one repository's cache: several connections, each taking the next range of the first file
/// that has one left. Files that another process downloads are waited for. One use.
class Download {
  public:
    struct Item {
        RemoteFile file;
        Url url;
    };
    Download(const Shared& shared, const RepoCache& cache, std::string commit, const PullRequest& request, std::vector<Item> items);
    ~Download();

    /// Returns when all files are there and linked into the snapshot, or with the first error. `on_tick` is called about ten
    /// times a second on the calling thread.
    [[nodiscard]] Expected<void> run(const std::function<void()>& on_tick);
    /// Adds this download's files to a report. Any thread.
    void report(Progress& progress) const;
    [[nodiscard]] uint64_t bytes_downloaded() const { return downloaded_; }

  private:
    enum class State : uint8_t { kWaiting, kOpening, kActive, kFinishing, kDone };
    struct Job {
        explicit Job(const RepoCache& cache, Item i) : item(std::move(i)), writer(cache, item.file) {}
        Item item;
        BlobWriter writer;
        UniqueFd lock;
        State state = State::kWaiting;
        uint64_t next = 0;      ///< first byte nobody was told to fetch
        uint32_t fetching = 0;  ///< ranges under way
        bool whole = false;     ///< the server knows no ranges: one request brings all
        bool fresh = false;     ///< what an earlier download left was wrong
        Url at;                 ///< where the redirects ended; host "" unknown
        std::atomic<uint64_t> received{0};
    };
    struct Range {
        Job* job = nullptr;
        uint64_t begin = 0, end = 0;
        bool whole = false;  ///< asked for without naming a range
    };

    void work();
    [[nodiscard]] bool step(Session& session);
    void open_job(Job& job);
    void fetch(Session& session, const Range& range);
    [[nodiscard]] Attempt<void> fetch_once(Session& session, const Range& range, std::string& bytes);
    [[nodiscard]] bool no_longer_wanted(const Range& range) const;
    void give_back(const Range& range);
    void start_over(Job& job);
    void finish_job(Job& job);
    void fail_with(Error error);
    [[nodiscard]] bool stopped() const { return stop_ || shared_.cancel.requested(); }

    const Shared& shared_;
    const RepoCache& cache_;
    std::string commit_;
    const PullRequest& request_;
    std::vector<std::unique_ptr<Job>> jobs_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<bool> stop_{false};
    std::atomic<uint64_t> downloaded_{0};
    size_t done_ = 0;
    size_t workers_ = 0;
    std::unique_ptr<Error> error_;
};

}  // namespace baton::hub
