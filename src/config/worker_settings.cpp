#include <cstdlib>

#include "baton/config/settings.hpp"
#include "config/arguments.hpp"
#include "config/rule.hpp"

namespace baton::config {
namespace {

using S = WorkerSettings;

const std::vector<Argument<S>>& table() {
    static const std::vector<Argument<S>> kTable = {
        {"--supervisor", &S::supervisor_tcp},
        {"--supervisor-socket", &S::supervisor_unix},
        {"--run-dir", &S::run_dir},
        {"--advertise-address", &S::advertise_ip},
        {"--worker-port", &S::worker_port},
        {"--host-id", &S::host_id},
        {"--snapshot-bytes", &S::snapshot_bytes},
        {"--share-weights", &S::share_weights},
        {"--supervisor-grace-ms", &S::supervisor_grace_ms},
        {"--child-of-supervisor", &S::child_of_supervisor},
        {"--listen-for-hosts", &S::listen_for_hosts},
        {"--log-level", &S::log_level, false, {"trace", "debug", "info", "warn", "error"}},
        {"--log-format", &S::log_format, false, {"text", "json"}},
    };
    return kTable;
}

}  // namespace

std::vector<std::string> to_args(const WorkerSettings& settings) { return write_arguments<S>(table(), settings); }

Expected<WorkerSettings> parse_worker_args(const std::vector<std::string>& args) {
    return read_arguments<S>(table(), args);
}

Expected<void> apply_environment(WorkerSettings& s) {
    const char* text = std::getenv("BATON_SHARE_WEIGHTS");
    if (text == nullptr) return {};
    bool share = true;
    if (!read(std::string_view(text), share))
        return fail(ErrorCode::kInvalidArgument, "BATON_SHARE_WEIGHTS must be true or false", "BATON_SHARE_WEIGHTS");
    s.share_weights = s.share_weights && share;
    return {};
}

Expected<void> check(const WorkerSettings& s) {
    const auto bad = [](const char* name, const std::string& why) {
        return fail(ErrorCode::kInvalidArgument, std::string(name) + " " + why, name);
    };
    if (s.supervisor_unix.empty() == s.supervisor_tcp.empty())
        return bad("--supervisor", "or --supervisor-socket must be given, one of them");
    if (!s.supervisor_tcp.empty()) {
        const size_t colon = s.supervisor_tcp.rfind(':');
        uint16_t port = 0;
        if (colon == std::string::npos || colon == 0 ||
            !parse_number(std::string_view(s.supervisor_tcp).substr(colon + 1), port) || port == 0)
            return bad("--supervisor", "must be HOST:PORT (the supervisor's link address, not its HTTP port)");
        if (s.link_secret.empty())
            return bad("BATON_LINK_SECRET", "must be set for a supervisor on another host, to the supervisor's link_secret");
        if (const std::string why = why_broken({.form = Rule::Form::kSecret}, s.link_secret); !why.empty())
            return bad("BATON_LINK_SECRET", why + ", as the supervisor's link_secret has");
    }
    if (s.advertise_ip == "0.0.0.0" || s.advertise_ip == "::")
        return bad("--advertise-address", "must be an address other hosts can reach, not " + s.advertise_ip);
    if (s.supervisor_grace_ms < 0) return bad("--supervisor-grace-ms", "must not be negative");
    return {};
}

}  // namespace baton::config
