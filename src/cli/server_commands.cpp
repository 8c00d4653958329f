#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "baton/config/replica_settings.hpp"
#include "baton/config/settings.hpp"
#include "baton/hub/hub.hpp"
#include "baton/replica/replica.hpp"
#include "baton/supervisor/supervisor.hpp"
#include "baton/worker/worker.hpp"
#include "cli/commands.hpp"
#include "cli/doctor_checks.hpp"
#include "cli/user_files.hpp"

namespace baton::cli {
namespace {

/// The launch body of `serve --model PATH [--prefill N --decode N]`.
Expected<std::string> one_line_deployment(const ServeOptions& o) {
    std::error_code ignored;
    if (!std::filesystem::exists(o.model_path, ignored))
        return fail(ErrorCode::kInvalidArgument, "--model: " + o.model_path + " does not exist");
    if ((o.prefill == 0) != (o.decode == 0))
        return fail(ErrorCode::kInvalidArgument, "--prefill and --decode go together");
    const std::filesystem::path path = std::filesystem::absolute(o.model_path).lexically_normal();
    // A folder given with a slash at its end has no last name of its own.
    std::string name = (path.has_filename() ? path : path.parent_path()).filename().string();
    if (name.ends_with(".gguf")) name.resize(name.size() - 5);
    Json body{{"model_name", name}, {"model_uid", o.model_uid.empty() ? name : o.model_uid}, {"model_engine", "baton"},
              {"model_path", path.string()}};
    if (o.prefill == 0) {
        body["replica"] = o.replica;
        return body.dump();
    }
    body["replica_config"] = roles_config(o.prefill, o.decode);
    return body.dump();
}

/// An error about the deployment of --model, the last one, names the option: no file has it.
Error with_option(Error e, const ServeOptions& o, size_t deployments) {
    const std::string place = "deployments[" + std::to_string(deployments - 1) + "]";
    if (!o.model_path.empty() && e.param == place) e.message.replace(0, place.size(), "--model");
    return e;
}

/// The hub's settings of the environment, which workers and launches by name read: what is wrong with them is told at the start,
/// not at the first download.
Expected<void> check_hub_environment() {
    const auto hub = hub::settings_from_environment();
    if (hub) return {};
    const bool named = hub.error().param != "download_hub";  // that is what the setting is called
    return fail(ErrorCode::kInvalidArgument, (named ? "" : "BATON_DOWNLOAD_HUB: ") + hub.error().message, hub.error().param);
}

Expected<config::SupervisorSettings> collect(const ServeOptions& o) {
    config::SupervisorSettings settings;
    settings.local_worker = o.local_worker;
    if (!o.config_file.empty()) {
        BATON_TRY_ASSIGN(const std::string text, read_text_file(o.config_file));
        if (auto ok = config::apply_file(settings, text); !ok)
            return fail(ErrorCode::kInvalidArgument, o.config_file + ": " + ok.error().message);
    }
    BATON_TRY(config::apply_environment(settings));
    for (const auto& [key, value] : o.settings) BATON_TRY(config::apply_text(settings, key, value));
    if (!o.api_keys.empty()) settings.api_keys = o.api_keys;
    if (!o.model_path.empty()) {
        BATON_TRY_ASSIGN(std::string body, one_line_deployment(o));
        settings.deployments.push_back(std::move(body));
    }
    if (auto ok = config::check(settings); !ok) return fail(with_option(ok.error(), o, settings.deployments.size()));
    BATON_TRY(check_hub_environment());
    return settings;
}

std::string secret_from_environment() {
    const char* secret = std::getenv("BATON_LINK_SECRET");
    return secret == nullptr ? "" : secret;
}

/// Every client connection and link is a descriptor, and the soft limit of a shell (often 1024) is below what we serve
/// (limits::kConnectionsMax): asks for all that the system allows. Replicas inherit it. Where it is refused the server
/// serves as many connections as fit.
void raise_open_files_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == limit.rlim_max) return;
    limit.rlim_cur = limit.rlim_max;
    (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int run_serve(const ServeOptions& options) {
    const auto settings = collect(options);
    if (!settings) {
        complain(settings.error().message);
        return kUsage;
    }
    raise_open_files_limit();
    return supervisor::run(*settings, [options] { return collect(options); });
}

int run_config(const ServeOptions& options, bool show) {
    const auto settings = collect(options);
    if (!settings) {
        complain(settings.error().message);
        return kUsage;
    }
    if (show) {
        std::printf("%s\n", config::show_settings(*settings).c_str());
        return kDone;
    }
    bool bad = false;
    for (const Finding& f : options.values_only ? std::vector<Finding>() : check_files(*settings)) {
        if (f.state == Finding::State::kGood) continue;
        complain(f.what + ": " + f.found);
        bad = bad || f.state == Finding::State::kBad;
    }
    if (bad) return kUsage;
    std::printf("good\n");
    return kDone;
}

int run_doctor(const ServeOptions& options, bool json) {
    ServeOptions o = options;
    o.model_path.clear();  // looked at, not launched
    const auto settings = collect(o);
    if (!settings) {
        complain(settings.error().message);
        return kUsage;
    }
    return report_doctor(*settings, options.model_path, json);
}

int run_config_docs() {
    std::printf("%s", config::describe_settings_markdown().c_str());
    return kDone;
}

int run_config_schema(const std::string& what) {
    using config::SchemaOf;
    const SchemaOf of = what == "launch" ? SchemaOf::kLaunch : what == "replica_config" ? SchemaOf::kReplicaConfig : SchemaOf::kSettings;
    std::printf("%s\n", config::json_schema(of).c_str());
    return kDone;
}

int run_worker(const std::vector<std::string>& args) {
    auto settings = config::parse_worker_args(args);
    if (settings) {
        settings->link_secret = secret_from_environment();
        if (auto ok = config::check(*settings); !ok) settings = fail(ok.error());
    }
    if (!settings) {
        complain(settings.error().message);
        return kUsage;
    }
    raise_open_files_limit();
    return worker::run(*settings);
}

int run_replica(const std::vector<std::string>& args) {
    const auto settings = config::parse_replica_args(args);
    if (!settings) {
        complain(settings.error().message);
        return kUsage;
    }
    return replica::run(*settings);
}

}  // namespace baton::cli
