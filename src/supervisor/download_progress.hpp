#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "baton/base/clock.hpp"
#include "baton/wire/messages.hpp"

namespace baton::supervisor {

/// How far the downloads of one launch are, over all workers that take part. One thread.
class DownloadProgress {
  public:
    void update(const std::string& worker, const wire::PullProgress& progress, TimeMs now);
    [[nodiscard]] bool begun() const { return !workers_.empty(); }
    /// 0…1, of the slowest worker.
    [[nodiscard]] double fraction() const;
    /// `download_files` of the API, sorted by name; of one worker, or the slowest for each file where `worker` is "".
    [[nodiscard]] nlohmann::json rows(const std::string& worker, TimeMs now) const;

  private:
    struct File {
        uint64_t done_bytes = 0, total_bytes = 0, first_bytes = 0;
        TimeMs first{}, last{};  ///< news of it
        bool done = false;
    };
    struct Worker {
        uint64_t done_bytes = 0, total_bytes = 0;
        std::map<std::string, File> files;
    };
    std::map<std::string, Worker> workers_;
};

}  // namespace baton::supervisor
