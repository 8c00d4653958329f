#include <chrono>
#include <cstdio>
#include <stop_token>

#include "baton/hub/hub.hpp"
#include "baton/registry/registry.hpp"
#include "cli/commands.hpp"
#include "cli/progress_line.hpp"

/// `baton pull`: a model's files into this host's cache, without a server.
namespace baton::cli {
namespace {

using std::chrono::steady_clock;

/// Draws how far a download is, and stops it after Ctrl-C.
class PullWatch {
  public:
    explicit PullWatch(const std::string& name) : line_(name) {}
    [[nodiscard]] std::stop_token token() const { return stop_.get_token(); }

    void show(const hub::Progress& progress) {
        if (InterruptWatch::pending()) stop_.request_stop();
        const auto now = steady_clock::now();
        measure(progress.bytes_done, now);
        ProgressLine::State state;
        state.stage = "downloading";
        const auto done = static_cast<double>(progress.bytes_done), total = static_cast<double>(progress.bytes_total);
        state.fraction = total > 0 ? done / total : 0;
        size_t files = 0;
        for (const hub::FileProgress& f : progress.files) files += f.done ? 1u : 0u;
        state.detail = format_bytes(done) + " of " + format_bytes(total) + ", " + std::to_string(files) + "/" + std::to_string(progress.files.size()) + " files";
        if (rate_ > 0) state.detail += ", " + format_bytes(rate_) + "/s";
        state.elapsed_s = std::chrono::duration_cast<std::chrono::seconds>(now - started_).count();
        line_.show(state);
    }
    void clear() { line_.clear(); }

  private:
    /// Bytes a second, over the last second or so.
    void measure(uint64_t bytes, steady_clock::time_point now) {
        const double seconds = std::chrono::duration<double>(now - measured_).count();
        if (seconds < 1) return;
        rate_ = bytes >= measured_bytes_ && measured_bytes_ > 0 ? static_cast<double>(bytes - measured_bytes_) / seconds : 0;
        measured_bytes_ = bytes;
        measured_ = now;
    }

    ProgressLine line_;
    std::stop_source stop_;
    const steady_clock::time_point started_ = steady_clock::now();
    steady_clock::time_point measured_ = started_;
    uint64_t measured_bytes_ = 0;
    double rate_ = 0;
};

/// What is to be pulled: an id of a hub as it stands, or a name that baton knows.
Expected<hub::PullRequest> make_request(const PullOptions& o, const hub::Settings& settings) {
    const registry::Registry built_in;
    BATON_TRY_ASSIGN(const registry::Resolved found,
                     built_in.resolve({o.model, o.size_in_billions, o.format, o.quantization, o.hub}, settings.default_hub));
    hub::PullRequest request;
    BATON_TRY_ASSIGN(request.hub, hub::parse_hub(found.hub));
    request.repo = found.repo;
    request.revision = o.revision.empty() ? found.revision : o.revision;
    request.format = found.format;
    request.quantization = found.quantization;
    request.gguf_file = found.gguf_file;
    request.files = o.files;
    return request;
}

}  // namespace

int run_pull(const PullOptions& options) {
    const auto settings = hub::settings_from_environment();
    if (!settings) {
        complain(settings.error().message);
        return kUsage;
    }
    const auto request = make_request(options, *settings);
    if (!request) {
        complain(request.error().message);
        return kUsage;
    }
    const InterruptWatch interrupts;
    PullWatch watch(options.model);
    const auto result = hub::pull(*settings, *request, [&](const hub::Progress& p) { watch.show(p); }, watch.token());
    watch.clear();
    if (!result) {
        complain(InterruptWatch::pending() ? "stopped; the next pull goes on from here" : result.error().message);
        return kFailed;
    }
    if (options.json)
        return print_json({{"path", result->path}, {"commit", result->commit}, {"format", result->format}, {"files", result->files},
                           {"bytes_downloaded", result->bytes_downloaded}});
    std::fprintf(stderr, "%s\n", result->bytes_downloaded == 0 ? "everything was there already" : (format_bytes(static_cast<double>(result->bytes_downloaded)) + " downloaded").c_str());
    std::printf("%s\n", result->path.c_str());
    return kDone;
}

}  // namespace baton::cli
