#include "download_progress.hpp"

#include <algorithm>

namespace baton::supervisor {

void DownloadProgress::update(const std::string& worker, const wire::PullProgress& progress, TimeMs now) {
    Worker& w = workers_[worker];
    w.done_bytes = progress.bytes_done;
    w.total_bytes = progress.bytes_total;
    for (const wire::PulledFile& f : progress.files) {
        const auto [it, added] = w.files.try_emplace(f.name);
        File& file = it->second;
        if (added) {
            file.first_bytes = f.bytes_done;
            file.first = now;
        }
        if (!file.done) file.last = now;
        file.done_bytes = f.bytes_done;
        file.total_bytes = f.bytes_total;
        file.done = f.done;
    }
}

double DownloadProgress::fraction() const {
    double slowest = workers_.empty() ? 0.0 : 1.0;
    for (const auto& [name, w] : workers_)
        slowest = std::min(slowest, w.total_bytes == 0 ? 0.0 : static_cast<double>(w.done_bytes) / static_cast<double>(w.total_bytes));
    return slowest;
}

nlohmann::json DownloadProgress::rows(const std::string& worker, TimeMs now) const {
    std::map<std::string, const File*> shown;
    for (const auto& [name, w] : workers_) {
        if (!worker.empty() && name != worker) continue;
        for (const auto& [path, file] : w.files) {
            const File*& slowest = shown[path];
            if (slowest == nullptr || file.done_bytes < slowest->done_bytes) slowest = &file;
        }
    }
    nlohmann::json out = nlohmann::json::array();
    for (const auto& [path, f] : shown) {
        const double seconds = static_cast<double>((f->done ? f->last : now) - f->first) / 1000;
        const double came = static_cast<double>(f->done_bytes - std::min(f->first_bytes, f->done_bytes));
        const double speed = seconds > 0 ? came / seconds : 0;
        const double left = static_cast<double>(f->total_bytes - std::min(f->done_bytes, f->total_bytes));
        out.push_back({{"name", path},
                       {"downloaded_bytes", f->done_bytes},
                       {"total_bytes", f->total_bytes},
                       {"progress", f->total_bytes == 0 ? (f->done ? 1.0 : 0.0) : static_cast<double>(f->done_bytes) / static_cast<double>(f->total_bytes)},
                       {"speed_bytes_per_second", speed > 0 ? nlohmann::json(speed) : nlohmann::json(nullptr)},
                       {"elapsed_seconds", seconds},
                       {"eta_seconds", f->done ? nlohmann::json(0.0) : speed > 0 ? nlohmann::json(left / speed) : nlohmann::json(nullptr)},
                       {"status", f->done ? "completed" : "downloading"}});
    }
    return out;
}

}  // namespace baton::supervisor
