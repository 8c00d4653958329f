#include "baton/cli/cli.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <csignal>
#include <optional>
#include <string_view>

#include "baton/base/build_info.hpp"
#include "cli/options.hpp"
#include "cli/usage_error.hpp"

/// Declares every command and its options (options.hpp), then calls what was named.
namespace baton::cli {
namespace {

/// An option whose text goes to the setting `key`.
void add_setting(CLI::App& app, Options& o, const std::string& names, const std::string& key, const std::string& help) {
    app.add_option_function<std::string>(names, [&o, key](const std::string& v) { o.serve.settings[key] = v; }, help);
}

void add_settings(CLI::App& app, Options& o) {
    app.add_option("--config", o.serve.config_file, "JSON file of settings (docs/CONFIG.md)");
    add_setting(app, o, "-H,--host", "host", "address to serve HTTP on");
    add_setting(app, o, "-p,--port", "port", "HTTP port");
    add_setting(app, o, "--tls-certificate", "tls_certificate", "PEM file of the server's certificate: HTTPS instead of HTTP");
    add_setting(app, o, "--tls-key", "tls_key", "PEM file of its private key");
    add_setting(app, o, "--state-dir", "state_dir", "folder for deployments and sockets");
    add_setting(app, o, "--cache-dir", "cache_dir", "folder for downloads");
    add_setting(app, o, "--model-root", "model_root", "only models inside this folder may be launched");
    add_setting(app, o, "--default-model", "default_model", "model uid of requests that name none");
    add_setting(app, o, "--log-format", "log_format", "text or json");
    add_setting(app, o, "--log-level", "log_level", "trace, debug, info, warn or error");
    add_setting(app, o, "--advertise-address", "advertise_address", "ip of the local worker's registered address");
    add_setting(app, o, "--link-address", "link_address", "IP:PORT for workers of other hosts");
    add_setting(app, o, "--auth-file,--auth-config", "auth_file", "JSON file of users, passwords, permissions and keys");
    add_setting(app, o, "--snapshot-bytes", "snapshot_bytes", "bound of the local worker's snapshot store");
    app.add_option("--api-key", o.serve.api_keys, "bearer key, repeatable (better in the file or BATON_API_KEYS)")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_servers(CLI::App& app, Options& o) {
    CLI::App* serve = app.add_subcommand("serve", "run everything on this host: supervisor, worker, replicas");
    add_settings(*serve, o);
    serve->add_option("--model", o.serve.model_path, "launch this model at start (file or folder)");
    serve->add_option("--model-uid", o.serve.model_uid, "its uid; default: the file's name")->needs("--model");
    serve->add_option("--prefill", o.serve.prefill, "number of prefill replicas")->needs("--model")->check(CLI::Range(1, 128));
    serve->add_option("--decode", o.serve.decode, "number of decode replicas")->needs("--model")->check(CLI::Range(1, 128));
    serve->add_option("--replica", o.serve.replica, "number of hybrid replicas, without roles")
        ->needs("--model")
        ->check(CLI::Range(1, 128))
        ->excludes("--prefill");
    serve->callback([&o] { o.command = [&o] { return run_serve(o.serve); }; });

    CLI::App* doctor = app.add_subcommand("doctor", "check whether this host can serve, and say what to do");
    add_settings(*doctor, o);
    doctor->add_option("--model", o.serve.model_path, "look at this model too (file or folder)");
    doctor->add_flag("--json", o.doctor_json, "print the findings as JSON");
    add_split(*doctor, o);
    doctor->callback([&o, doctor] {  // comes after the one of a command under it
        if (doctor->get_subcommands().empty()) o.command = [&o] { return run_doctor(o.serve, o.doctor_json); };
    });

    CLI::App* supervisor = app.add_subcommand("supervisor", "run the supervisor alone; workers join it");
    add_settings(*supervisor, o);
    supervisor->callback([&o] {
        o.serve.local_worker = false;
        o.command = [&o] { return run_serve(o.serve); };
    });

    CLI::App* worker = app.add_subcommand(
        "worker", "run the agent of this host: --supervisor HOST:PORT, BATON_LINK_SECRET (docs/CONFIG.md)");
    worker->footer("--supervisor HOST:PORT   the supervisor's link address (or --supervisor-socket PATH on the same host)\n"
                   "--advertise-address IP   address this host is known by; --worker-port N its port\n"
                   "--run-dir DIR, --host-id TEXT, --snapshot-bytes N, --supervisor-grace-ms N, --log-level L, --log-format F\n"
                   "The link secret comes from BATON_LINK_SECRET. See docs/CONFIG.md.");
    worker->prefix_command();
    worker->callback([&o, worker] {
        o.rest = worker->remaining();
        o.command = [&o] { return run_worker(o.rest); };
    });
    CLI::App* replica = app.add_subcommand("replica", "run one engine process; started by a worker only")->group("");
    replica->prefix_command();
    replica->callback([&o, replica] {
        o.rest = replica->remaining();
        o.command = [&o] { return run_replica(o.rest); };
    });
}

void add_config(CLI::App& app, Options& o) {
    CLI::App* config = app.add_subcommand("config", "check or show settings");
    config->require_subcommand(1);
    for (const bool show : {false, true}) {
        CLI::App* sub = config->add_subcommand(show ? "show" : "check",
                                               show ? "print the settings a server would use" : "check the settings and the files that they name (`baton doctor` checks ports, folders and the host too)");
        add_settings(*sub, o);
        if (!show) sub->add_flag("--values-only", o.serve.values_only, "do not look at the files that they name: certificate and key, auth file, models");
        sub->callback([&o, show] { o.command = [&o, show] { return run_config(o.serve, show); }; });
    }
    CLI::App* schema = config->add_subcommand("schema", "print the JSON schema of the settings file, of a launch body or of its replica_config");
    schema->add_option("what", o.schema, "settings, launch or replica_config")->capture_default_str()->check(CLI::IsMember({"settings", "launch", "replica_config"}));
    schema->callback([&o] { o.command = [&o] { return run_config_schema(o.schema); }; });
    config->add_subcommand("docs", "print docs/CONFIG.md")->group("")->callback([&o] { o.command = run_config_docs; });
}

/// The command that the arguments name, with the one under it (`bench serve`).
const CLI::App* find_command(const CLI::App& app, int argc, char** argv) {
    const CLI::App* command = &app;
    for (int i = 1; i < argc && i < 3; ++i) {
        const auto below = command->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == argv[i]; });
        if (below.empty()) break;
        command = below.front();
    }
    return command;
}

/// `--replica_config` is `--replica-config`: an option's name in the spelling that the command knows, where it knows one.
std::string known_spelling(const CLI::App& command, const std::string& arg) {
    if (!arg.starts_with("--")) return arg;
    const size_t end = std::min(arg.find('='), arg.size());
    std::string name = arg.substr(0, end);
    if (command.get_option_no_throw(name) != nullptr) return arg;
    for (const auto& [from, to] : {std::pair('_', '-'), std::pair('-', '_')}) {
        std::string other = name;
        std::replace(other.begin() + 2, other.end(), from, to);
        if (command.get_option_no_throw(other) != nullptr) return other + arg.substr(end);
    }
    return arg;
}

/// `--thinking` alone is `--thinking=true`; a word behind it is its value only where it can be one.
std::vector<std::string> with_truths(const CLI::App& command, const std::vector<std::string>& args) {
    static constexpr auto kWords = std::to_array<std::string_view>({"true", "false", "True", "False", "on", "off", "yes", "no"});
    std::vector<std::string> out;
    for (size_t i = 0; i < args.size(); ++i) {
        const CLI::Option* option = args[i].starts_with("--") ? command.get_option_no_throw(args[i]) : nullptr;
        if (option == nullptr || !is_truth(*option)) {
            out.push_back(args[i]);
            continue;
        }
        const bool given = i + 1 < args.size() && std::find(kWords.begin(), kWords.end(), args[i + 1]) != kWords.end();
        out.push_back(args[i] + "=" + (given ? args[i + 1] : "true"));
        i += given ? 1 : 0;
    }
    return out;
}

/// How many letters have to change for one word to become the other.
size_t distance(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t corner = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t above = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, corner + (a[i - 1] == b[j - 1] ? 0 : 1)});
            corner = above;
        }
    }
    return row[b.size()];
}

/// What to say of a command that there is not; nothing where there is one, or none was named.
std::optional<std::string> unknown_command(const CLI::App& app, int argc, char** argv) {
    const CLI::App* above = &app;
    for (int i = 1; i < argc && argv[i][0] != '-'; ++i) {
        const std::string word = argv[i];
        const auto all = above->get_subcommands([](const CLI::App*) { return true; });
        if (all.empty()) return std::nullopt;
        const CLI::App* found = nullptr;
        std::string nearest;
        size_t changes = std::max<size_t>(1, word.size() / 3) + 1;
        for (const CLI::App* sub : all) {
            if (sub->get_name() == word) found = sub;
            if (sub->get_group().empty()) continue;  // not for users
            const size_t n = distance(word, sub->get_name());
            if (n < changes || (sub->get_name().starts_with(word) && nearest.empty())) {
                changes = std::min(changes, n);
                nearest = sub->get_name();
            }
        }
        if (found == nullptr) {
            const std::string before = above == &app ? "" : above->get_name() + " ";
            return "there is no command '" + before + word + "'" + (nearest.empty() ? "" : "; did you mean '" + before + nearest + "'?") + " (`baton " + before + "--help` lists them)";
        }
        above = found;
    }
    return std::nullopt;
}

/// Arguments as CLI11 wants them, last first. The reference's client has short options of two letters and takes underscores
/// for dashes; replica and worker read their arguments themselves.
std::vector<std::string> rewrite(const CLI::App& app, int argc, char** argv) {
    static const std::map<std::string, std::string> kLong = {
        {"-en", "--model-engine"}, {"-mp", "--model-path"}, {"-ak", "--api-key"},
        {"-lm", "--lora-modules"}, {"-ev", "--env"},        {"-qc", "--quantization-config"},
        {"-vp", "--virtual-env-package"}};
    const bool verbatim = argc > 1 && (std::string_view(argv[1]) == "replica" || std::string_view(argv[1]) == "worker");
    const CLI::App* command = find_command(app, argc, argv);
    std::vector<std::string> args;
    for (int i = 1; i < argc; ++i) {
        const auto it = verbatim ? kLong.end() : kLong.find(argv[i]);
        args.push_back(it != kLong.end() ? it->second : verbatim ? argv[i] : known_spelling(*command, argv[i]));
    }
    if (!verbatim) args = with_truths(*command, args);
    std::reverse(args.begin(), args.end());
    return args;
}

}  // namespace

int run(int argc, char** argv) {
    CLI::App app{"baton serves large language models with prefill and decode on separate replicas.", "baton"};
    app.set_version_flag("--version", "baton " + build_info().text());
    app.require_subcommand(1);
    app.failure_message([](const CLI::App*, const CLI::Error& e) { return "baton: " + plain_usage_error(e.what()) + "\nRun with --help for more information.\n"; });
    Options options;
    add_servers(app, options);
    add_client_commands(app, options);
    add_bench(app, options);
    add_config(app, options);
    // A reader that closes its end (head) ends us by a failed write, not by a signal that looks like a crash.
    std::signal(SIGPIPE, SIG_IGN);
    if (const auto unknown = unknown_command(app, argc, argv)) {
        complain(*unknown);
        return kUsage;
    }
    try {
        app.parse(rewrite(app, argc, argv));
    } catch (const CLI::ParseError& e) {
        return app.exit(e) != 0 ? kUsage : flush_output() ? kDone : kFailed;
    }
    if (app.get_subcommands().front()->get_option_no_throw("--endpoint") != nullptr) {
        if (auto ok = check_endpoint(options.server); !ok) {
            complain(ok.error().message);
            return kUsage;
        }
    }
    const int code = options.command ? options.command() : kUsage;
    return flush_output() || code != kDone ? code : kFailed;
}

}  // namespace baton::cli
