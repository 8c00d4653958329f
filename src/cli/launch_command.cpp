#include <chrono>
#include <cstdio>
#include <thread>

#include "cli/commands.hpp"
#include "cli/progress_line.hpp"

namespace baton::cli {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kPoll{200};
/// Polls that fail one after the other until the launch counts as lost.
constexpr int kFailuresMax = 10;

/// How a launch ended.
enum class Settled : uint8_t { kReady, kFailed, kCancelled };

/// "1/2 replicas ready", or "12.0 MB of 98.4 MB, 3.1 MB/s" while files are fetched.
std::string detail_of(const Json& progress, const Json& replicas) {
    double done = 0, total = 0, rate = 0;
    if (const Json* files = member_of(progress, "download_files"); files != nullptr && files->is_array())
        for (const Json& file : *files) {
            const auto number = [&](const char* key) {
                const Json* value = member_of(file, key);
                return value != nullptr && value->is_number() ? value->get<double>() : 0.0;
            };
            done += number("downloaded_bytes");
            total += number("total_bytes");
            rate += number("speed_bytes_per_second");
        }
    if (total > 0 && done < total)
        return format_bytes(done) + " of " + format_bytes(total) + (rate > 0 ? ", " + format_bytes(rate) + "/s" : "");
    size_t ready = 0, all = 0;
    if (replicas.is_array())
        for (const Json& r : replicas) {
            ++all;
            ready += text_of(r, "status") == "READY" || text_of(r, "status") == "LOADED" ? 1u : 0u;
        }
    return all == 0 ? "" : std::to_string(ready) + "/" + std::to_string(all) + " replicas ready";
}

/// Why a launch failed: its error events, else what its replicas say.
void explain_failure(ClientSession& session, const std::string& uid) {
    const std::string path = "/v1/models/" + encode_path(uid);
    complain("launch of " + uid + " failed");
    bool said = false;
    if (const auto events = session.ask("GET", path + "/events"); events && events->is_array())
        for (const Json& e : *events)
            if (text_of(e, "event_type") == "ERROR") {
                complain(text_of(e, "event_content"));
                said = true;
            }
    if (said) return;
    if (const auto replicas = session.ask("GET", path + "/replicas"); replicas && replicas->is_array())
        for (const Json& r : *replicas)
            if (member_of(r, "error_message") != nullptr) complain(text_of(r, "replica_uid") + ": " + text_of(r, "error_message"));
}

/// Watches one launch until it is settled.
class LaunchWatch {
  public:
    LaunchWatch(ClientSession& session, std::string uid)
        : session_(session), uid_(std::move(uid)), path_("/v1/models/" + encode_path(uid_)), line_(uid_) {}

    Settled wait() {
        for (;;) {
            if (InterruptWatch::pending() && !cancelled_) cancel();
            if (const auto settled = look()) {
                line_.clear();
                return *settled;
            }
            std::this_thread::sleep_for(kPoll);
        }
    }

  private:
    std::optional<Settled> look() {
        const auto instances = session_.ask("GET", "/v1/models/instances?model_uid=" + encode_path(uid_));
        if (!instances) {
            if (++failures_ < kFailuresMax) return std::nullopt;
            line_.clear();
            complain(instances.error().message);
            return Settled::kFailed;
        }
        failures_ = 0;
        const std::string status = instances->is_array() && !instances->empty() ? text_of((*instances)[0], "status") : "gone";
        if (status == "READY") return InterruptWatch::pending() ? terminate() : Settled::kReady;
        if (status == "ERROR" || status == "TERMINATED" || status == "gone") {
            line_.clear();
            if (cancelled_) return Settled::kCancelled;
            explain_failure(session_, uid_);
            return Settled::kFailed;
        }
        draw();
        return std::nullopt;
    }

    void draw() {
        const auto progress = session_.ask("GET", path_ + "/progress");
        const auto replicas = session_.ask("GET", path_ + "/replicas");
        if (!progress) return;
        ProgressLine::State state;
        state.stage = cancelled_ ? "cancelling" : text_of(*progress, "stage");
        const Json* fraction = member_of(*progress, "progress");
        state.fraction = fraction != nullptr && fraction->is_number() ? fraction->get<double>() : 0.0;
        state.detail = detail_of(*progress, replicas ? *replicas : Json());
        state.elapsed_s = std::chrono::duration_cast<std::chrono::seconds>(steady_clock::now() - started_).count();
        line_.show(state);
    }

    void cancel() {
        cancelled_ = true;
        line_.clear();
        std::fprintf(stderr, "cancelling the launch of %s\n", printable(uid_).c_str());
        // What is refused because the model is running already is seen by look().
        if (const auto done = session_.ask("POST", path_ + "/cancel"); !done && done.error().code != ErrorCode::kInvalidArgument)
            complain(done.error().message);
    }

    /// The signal came too late to cancel.
    Settled terminate() {
        line_.clear();
        complain("the model is running already: terminating it");
        const auto done = session_.ask("DELETE", path_);
        if (done || done.error().code == ErrorCode::kInvalidArgument || done.error().code == ErrorCode::kNotFound) return Settled::kCancelled;
        complain(done.error().message);
        return Settled::kFailed;
    }

    ClientSession& session_;
    const std::string uid_, path_;
    ProgressLine line_;
    const steady_clock::time_point started_ = steady_clock::now();
    bool cancelled_ = false;
    int failures_ = 0;
};

void warn_of_ignored(const Json& answer) {
    if (const Json* warnings = member_of(answer, "warnings"); warnings != nullptr && warnings->is_array())
        for (const Json& w : *warnings) complain("warning: " + printable(w.is_string() ? w.get<std::string>() : w.dump()));
    const Json* ignored = member_of(answer, "ignored_keywords");
    if (ignored == nullptr || !ignored->is_array()) return;
    for (const Json& key : *ignored) complain("warning: " + key.dump() + " means nothing to this server and is ignored");
}

int print_launched(ClientSession& session, const std::string& uid, bool json) {
    if (!json) {
        std::printf("Model uid: %s\n", printable(uid).c_str());
        return kDone;
    }
    Json replicas;
    if (!session.get("/v1/models/" + encode_path(uid) + "/replicas", replicas)) return kFailed;
    return print_json({{"model_uid", uid}, {"replicas", replicas}});
}

}  // namespace

int run_launch(const LaunchOptions& options) {
    const auto body = make_launch_body(options);
    if (!body) {
        complain(body.error().message);
        return kUsage;
    }
    ClientSession session(options.server);
    // A signal while the server checks the launch is remembered, and cancels it once its uid is known.
    const InterruptWatch watch(InterruptWatch::Of::kEveryEnd);
    Json answer;
    if (!session.call("POST", "/v1/models?wait_ready=false", body->dump(-1, ' ', false, Json::error_handler_t::replace), answer))
        return kFailed;
    const std::string uid = text_of(answer, "model_uid");
    warn_of_ignored(answer);
    if (!options.wait && !InterruptWatch::pending()) return print_launched(session, uid, options.json);
    switch (LaunchWatch(session, uid).wait()) {
        case Settled::kReady: return print_launched(session, uid, options.json);
        case Settled::kCancelled: complain("the launch of " + uid + " was cancelled"); return kFailed;
        case Settled::kFailed: break;
    }
    return kFailed;
}

}  // namespace baton::cli
