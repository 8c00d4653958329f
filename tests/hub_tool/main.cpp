/// hub::pull() and its like from a command line, for tests/integration/test_hub.py: settings from the environment, one JSON
/// object on stdout; SIGINT cancels.

#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "baton/base/log.hpp"
#include "baton/hub/hub.hpp"

namespace {

using baton::Expected;
namespace hub = baton::hub;
using Json = nlohmann::json;

Json result_json(const Expected<hub::PullResult>& r) {
    if (!r) return {{"error", r.error().message}, {"code", std::string(baton::to_string(r.error().code))}, {"param", r.error().param}};
    return {{"path", r->path}, {"snapshot_dir", r->snapshot_dir}, {"commit", r->commit}, {"format", r->format},
            {"files", r->files}, {"bytes_downloaded", r->bytes_downloaded}, {"split", r->split}};
}

std::string take(std::map<std::string, std::string>& options, const char* name, const char* otherwise) {
    const auto it = options.find(name);
    return it == options.end() ? otherwise : it->second;
}

}  // namespace

int main(int argc, char** argv) {
    baton::log::init(baton::log::Level::kInfo, baton::log::Format::kText, {});
    std::map<std::string, std::string> options;
    for (int i = 1; i + 1 < argc; i += 2) options[argv[i]] = argv[i + 1];
    auto settings = hub::settings_from_environment();
    if (!settings) {
        std::printf("%s\n", result_json(baton::fail(settings.error())).dump().c_str());
        return 2;
    }
    settings->connections = static_cast<uint32_t>(std::stoul(take(options, "--connections", "4")));
    settings->range_bytes = std::stoull(take(options, "--range", "65536"));
    settings->retry_pause_ms = 20;
    settings->silence_timeout_ms = std::stoll(take(options, "--silence", "5000"));
    settings->connect_timeout_ms = std::stoll(take(options, "--silence", "5000"));
    if (take(options, "--list", "") == "1") {
        Json all = Json::array();
        for (const hub::CachedModel& m : hub::list_cached(*settings))
            all.push_back({{"hub", std::string(to_string(m.hub))}, {"repo", m.repo}, {"commit", m.commit}, {"revisions", m.revisions}, {"files", m.files}, {"bytes", m.bytes}});
        std::printf("%s\n", all.dump().c_str());
        return 0;
    }
    hub::PullRequest request;
    request.hub = take(options, "--hub", "") == "modelscope" ? hub::Hub::kModelScope : hub::Hub::kHuggingFace;
    request.repo = take(options, "--repo", "");
    request.revision = take(options, "--revision", "");
    request.format = take(options, "--format", "");
    request.quantization = take(options, "--quantization", "");
    request.cached_is_enough = take(options, "--cached", "") == "1";
    if (const std::string file = take(options, "--file", ""); !file.empty()) request.files = {file};
    if (take(options, "--refuse", "") == "1") request.check_config = [](std::string_view) { return baton::fail(baton::ErrorCode::kUnsupported, "refused"); };

    sigset_t interrupt;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    pthread_sigmask(SIG_BLOCK, &interrupt, nullptr);
    std::stop_source stop;
    std::thread([&] {
        int number = 0;
        sigwait(&interrupt, &number);
        stop.request_stop();
    }).detach();
    uint64_t last = 0;
    bool steady = true;
    size_t calls = 0;
    const auto result = hub::pull(*settings, request, [&](const hub::Progress& p) {
        ++calls;
        if (p.bytes_done > p.bytes_total) steady = false;
        last = p.bytes_done;
        if (take(options, "--progress", "") == "1") std::fprintf(stderr, "progress %llu of %llu\n", static_cast<unsigned long long>(p.bytes_done), static_cast<unsigned long long>(p.bytes_total));
    }, stop.get_token());
    Json out = result_json(result);
    out["progress"] = {{"bytes_done", last}, {"calls", calls}, {"steady", steady}};
    std::printf("%s\n", out.dump().c_str());
    std::fflush(stdout);
    std::_Exit(result ? 0 : 1);  // a thread waits for a signal
}
