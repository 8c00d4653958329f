#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/options.hpp"
#include "cli/sampling_settings.hpp"

/// The options of the commands that talk to a server.
namespace baton::cli {
namespace {

/// "" given where a name is asked for is a variable that was not set, not the default.
CLI::Validator not_empty() {
    return {[](const std::string& text) { return text.find_first_not_of(" \t") == std::string::npos ? std::string("must not be empty") : std::string(); }, "", "not empty"};
}

void add_endpoint(CLI::App& app, Options& o) {
    app.add_option("-e,--endpoint", o.server.endpoint, "URL of the server (else BATON_ENDPOINT, XINFERENCE_ENDPOINT)")->check(not_empty());
    app.add_option("--ca-file", o.server.ca_file, "PEM file that an https server's certificate is checked with (else BATON_CA_FILE,\nthe system's)");
}

/// An option that takes two words, as often as it is given.
void add_pairs(CLI::App& app, const std::string& names, std::vector<std::string>& into, const std::string& help) {
    app.add_option(names, into, help)->type_size(2)->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void add_many(CLI::App& app, const std::string& names, std::vector<std::string>& into, const std::string& help) {
    app.add_option(names, into, help)->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

constexpr const char* kLaunchFooter =
    "Any other --key VALUE is a keyword for the engine, e.g. --max_model_len 2048 --kv_dtype f32 (docs/API.md lists them);\n"
    "numbers, true, false, None and JSON are understood. Ctrl-C cancels the launch.\n\n"
    "Examples:\n"
    "  baton launch -n qwen2.5-instruct -s 0_5 -en vLLM\n"
    "  baton launch --model-path /models/my-model --replica 2\n"
    "  baton launch --model-path /models/my-model --prefill 1 --decode 1\n"
    "  baton launch -n my-model -mp /models/my-model --replica-config '[\n"
    "    {\"role\": \"prefill\", \"devices\": [{\"worker_ip\": \"10.0.0.1:41001\"}]},\n"
    "    {\"role\": \"decode\", \"devices\": [{\"worker_ip\": \"10.0.0.2:41001\"}]}]'\n"
    "  baton launch -n my-model -mp /models/my-model --replica-config @replicas.json";

void add_launch_placement(CLI::App& launch, LaunchOptions& l) {
    launch.add_option("-r,--replica", l.replica, "number of replicas; default 1, or as many as --replica-config names");
    launch.add_option("--replica-config", l.replica_config, "JSON list of replicas with role, worker and GPUs, or @FILE");
    CLI::Option* prefill = launch.add_option("--prefill", l.prefill, "prefill replicas, placed by the server; with --decode")->check(CLI::Range(1, 128));
    CLI::Option* decode = launch.add_option("--decode", l.decode, "decode replicas")->check(CLI::Range(1, 128))->needs(prefill);
    prefill->needs(decode);
    launch.add_option("--n-gpu", l.n_gpu, "auto, none (the CPU) or the number of GPUs of a replica");
    launch.add_option("--gpu-idx", l.gpu_idx, "GPU numbers, e.g. 0,1");
    launch.add_option("--worker-ip", l.worker_ip, "IP:PORT of the worker (see `baton workers`)");
    launch.add_option("--n-worker", l.n_worker, "workers of one replica: 1");
}

/// A flag and its opposite; `out` stays empty where neither is given.
void add_choice(CLI::App& app, const std::string& names, std::optional<bool>& out, const std::string& help) {
    app.add_flag_function(names, [&out](int64_t count) { out = count > 0; }, help);
}

void add_launch(CLI::App& app, Options& o) {
    CLI::App* launch = app.add_subcommand("launch", "launch a model and wait until it is ready");
    LaunchOptions& l = o.launch;
    add_server(*launch, o);
    launch->add_option("-n,--model-name", l.model_name, "name of the model, or its hub id (org/name); default: the file's name");
    launch->add_option("-u,--model-uid", l.model_uid, "uid to serve it under; default: its name")->check(not_empty());
    launch->add_option("--model-path", l.model_path, "file or folder on the worker (also -mp)");
    launch->add_option("--model-engine", l.model_engine, "baton; the names vLLM, SGLang, Transformers, … mean it too (also -en)");
    launch->add_option("-t,--model-type", l.model_type, "LLM");
    launch->add_option("-s,--size-in-billions,--model-size-in-billions", l.size_in_billions, "of a model known by name, e.g. 0_5 or 7");
    launch->add_option("-f,--model-format", l.model_format, "pytorch or ggufv2");
    launch->add_option("-q,--quantization", l.quantization, "e.g. none, Q4_K_M");
    launch->add_option("--context-length", l.context_length, "tokens a request may have, prompt and answer")->check(CLI::Range(int64_t{1}, int64_t{1} << 31));
    add_launch_placement(*launch, l);
    add_choice(*launch, "--enable-thinking,!--disable-thinking", l.enable_thinking, "whether a reasoning model thinks unless a request says so");
    add_pairs(*launch, "--env", l.env, "KEY VALUE of the replicas' environment (also -ev)");
    add_pairs(*launch, "--lora-modules", l.lora_modules, "refused: NAME PATH (also -lm)");
    add_pairs(*launch, "--quantization-config", l.quantization_config, "passed on: KEY VALUE (also -qc)");
    launch->add_option("--trust-remote-code", l.trust_remote_code, "passed on; baton runs no code of a model");
    add_choice(*launch, "--enable-virtual-env,!--disable-virtual-env", l.enable_virtual_env, "passed on; means nothing here");
    add_many(*launch, "--virtual-env-package", l.virtual_env_packages, "passed on (also -vp)");
    add_many(*launch, "--virtual-env-find-link", l.virtual_env_find_links, "passed on");
    launch->add_flag("--wait,!--no-wait", l.wait, "wait until it is ready (the default), or return at once");
    launch->add_flag("--json", l.json, "print uid and replicas as JSON");
    launch->allow_extras();
    launch->footer(kLaunchFooter);
    launch->callback([&o, launch] {
        o.launch.server = o.server;
        o.launch.extras = launch->remaining();
        o.command = [&o] { return run_launch(o.launch); };
    });
}

CLI::App* add_command(CLI::App& app, Options& o, const char* name, const char* help, int (*run)(const ModelOptions&)) {
    CLI::App* sub = app.add_subcommand(name, help);
    add_server(*sub, o);
    sub->callback([&o, run] {
        o.model.server = o.server;
        o.command = [&o, run] { return run(o.model); };
    });
    return sub;
}

void add_json(CLI::App& app, Options& o) { app.add_flag("--json", o.model.json, "print the server's answer"); }

void add_models(CLI::App& app, Options& o) {
    ModelOptions& m = o.model;
    add_json(*add_command(app, o, "list", "list running models", run_list), o);
    add_json(*add_command(app, o, "workers", "list workers and what they run", run_workers), o);
    add_json(*add_command(app, o, "status", "show workers, models and replicas", run_status), o);
    CLI::App* terminate = add_command(app, o, "terminate", "end a model", run_terminate);
    add_json(*terminate, o);
    terminate->add_option("-u,--model-uid", m.model_uid, "uid")->required()->check(not_empty());
    CLI::App* stop = add_command(app, o, "stop-cluster", "end the server with all its models", run_stop_cluster);
    add_json(*stop, o);
    stop->add_flag("--check,-y,--yes", m.check, "do not ask");
}

void add_top(CLI::App& app, Options& o) {
    CLI::App* top = app.add_subcommand("top", "watch load, latencies and replicas");
    add_server(*top, o);
    top->add_option("--interval", o.top.interval_ms, "milliseconds between two looks")->check(CLI::Range(100, 60'000))->capture_default_str();
    top->add_flag("--once", o.top.once, "one table over one interval");
    top->add_flag("--json", o.top.json, "the same as JSON");
    top->callback([&o] {
        o.top.server = o.server;
        o.command = [&o] { return run_top(o.top); };
    });
}

void add_registry(CLI::App& app, Options& o) {
    ModelOptions& m = o.model;
    CLI::App* registrations = add_command(app, o, "registrations", "list the models that can be launched by name", run_registrations);
    add_json(*registrations, o);
    registrations->add_option("-t,--model-type", m.model_type, "LLM");
    CLI::App* add = add_command(app, o, "register", "make a model known by name", run_register);
    add->add_option("-t,--model-type", m.model_type, "LLM");
    add->add_option("-f,--file", m.file, "JSON description of the family")->required();
    add->add_option("-w,--worker-ip", m.worker_ip, "worker to register it on");
    add->add_flag("-p,--persist", m.persist, "keep it when the server ends");
    CLI::App* remove = add_command(app, o, "unregister", "forget a registered model", run_unregister);
    remove->add_option("-t,--model-type", m.model_type, "LLM");
    remove->add_option("-n,--model-name", m.model_name, "its name")->required();
    CLI::App* engine = add_command(app, o, "engine", "list how a model known by name can be launched", run_engine);
    add_json(*engine, o);
    engine->add_option("-n,--model-name", m.model_name, "its name")->required();
    engine->add_option("-t,--model-type", m.model_type, "LLM");
    engine->add_option("--model-engine", m.model_engine, "only this engine (also -en)");
    engine->add_option("-f,--model-format", m.model_format, "only this format");
    engine->add_option("-s,--model-size-in-billions,--size-in-billions", m.size_in_billions, "only this size");
    engine->add_option("-q,--quantization", m.quantization, "only this quantization");
    CLI::App* cached = add_command(app, o, "cached", "list model files that are there already", run_cached);
    add_json(*cached, o);
    cached->add_option("-n,--model-name", m.model_name, "only this model");
    cached->add_option("--worker-ip", m.worker_ip, "only this worker");
}

void add_login(CLI::App& app, Options& o) {
    const auto add = [&](const char* name, const char* help, int (*run)(const LoginOptions&)) {
        CLI::App* sub = app.add_subcommand(name, help);
        add_endpoint(*sub, o);
        sub->callback([&o, run] {
            o.login.server = o.server;
            o.command = [&o, run] { return run(o.login); };
        });
        return sub;
    };
    CLI::App* login = add("login", "get a token with user name and password, for later commands", run_login);
    login->add_option("--username", o.login.username, "asked for where absent");
    login->add_option("--password", o.login.password, "asked for without echo where absent, which is safer; without a terminal a line of\nstandard input");
    login->footer("The token is kept in <config folder>/baton/tokens (XDG_CONFIG_HOME, else ~/.config), readable by you alone.");
    add("logout", "forget the token", run_logout);
}

constexpr const char* kPullFooter =
    "The files go into the Hugging Face cache (HF_HOME, HF_HUB_CACHE), where every program finds them; what is there already\n"
    "is not fetched again. HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE and the usual proxy variables are respected. Prints the path\n"
    "that --model-path takes. Ctrl-C stops; the next pull goes on from there.\n\n"
    "Examples:\n"
    "  baton pull Qwen/Qwen2.5-0.5B-Instruct\n"
    "  baton pull bartowski/SmolLM2-135M-Instruct-GGUF -f ggufv2 -q Q4_K_M";

void add_pull(CLI::App& app, Options& o) {
    CLI::App* pull = app.add_subcommand("pull", "download a model into this host's cache");
    PullOptions& p = o.pull;
    pull->add_option("model", p.model, "a name that baton knows, or a hub's org/name")->required();
    pull->add_option("-s,--size-in-billions,--model-size-in-billions", p.size_in_billions, "of a model known by name");
    pull->add_option("-f,--model-format", p.format, "pytorch or ggufv2");
    pull->add_option("-q,--quantization", p.quantization, "of a GGUF file, e.g. Q4_K_M");
    pull->add_option("--revision", p.revision, "branch, tag or commit");
    pull->add_option("--hub,--download-hub", p.hub, "huggingface or modelscope");
    add_many(*pull, "--include", p.files, "this file alone, repeatable");
    pull->add_flag("--json", p.json, "print path, commit and files as JSON");
    pull->footer(kPullFooter);
    pull->callback([&o] { o.command = [&o] { return run_pull(o.pull); }; });
}

constexpr const char* kTrueOrFalse = "[true|false]";  // what the help shows, and is_truth() looks for

constexpr const char* kChatFooter =
    "Without PROMPT: a conversation on a terminal (/help lists its commands), else all of standard input is one message.\n\n"
    "Examples:\n"
    "  baton chat \"What is the capital of France?\"\n"
    "  git diff | baton chat --system \"Review this change.\"\n"
    "  baton chat --temperature 0 --stats";
constexpr const char* kGenerateFooter =
    "The model goes on with PROMPT as it stands, without a chat template. Without PROMPT: texts entered on a terminal, else\n"
    "all of standard input.";

void add_chat(CLI::App& app, Options& o) {
    const auto add = [&](const char* name, const char* help, const char* footer, int (*run)(const ChatOptions&)) {
        CLI::App* sub = app.add_subcommand(name, help);
        add_server(*sub, o);
        ChatOptions& c = o.chat;
        sub->add_option("-u,--model-uid", c.model_uid, "uid; default: the only running model")->check(not_empty());
        // Not into the optional itself: CLI11 would take "" for none.
        sub->add_option_function<std::string>("prompt", [&c](const std::string& v) { c.prompt = v; }, "what to send; what comes through a pipe or a file follows it");
        for (const auto& setting : SamplingSettings::names()) {
            std::string option(setting.name);
            std::replace(option.begin(), option.end(), '_', '-');
            CLI::Option* added = sub->add_option_function<std::string>(
                "--" + option, [&c, key = std::string(setting.name)](const std::string& v) { c.settings.emplace_back(key, v); },
                std::string(setting.meaning) + (setting.name == "max_tokens" ? "; default 512" : ""));
            if (setting.flag) added->option_text(kTrueOrFalse);
        }
        sub->add_option("--stream", c.stream, "print tokens as they come; default true")->option_text(kTrueOrFalse);
        sub->add_option("--request-id", c.request_id, "names the request in logs");
        sub->add_flag("-i,--interactive", c.interactive, "a conversation also where standard input is no terminal: a message a line");
        sub->add_flag("--stats", c.stats, "print tokens, time to the first one and tokens/s after each answer");
        sub->add_flag("--json", c.json, "print the server's answer");
        sub->footer(footer);
        sub->callback([&o, run] {
            o.chat.server = o.server;
            o.command = [&o, run] { return run(o.chat); };
        });
        return sub;
    };
    add("chat", "chat with a model", kChatFooter, run_chat)->add_option("--system", o.chat.system, "system message");
    add("generate", "complete a text", kGenerateFooter, run_generate);
}

}  // namespace

bool is_truth(const CLI::Option& option) { return option.get_option_text() == kTrueOrFalse; }

void add_server(CLI::App& app, Options& o) {
    add_endpoint(app, o);
    app.add_option("--api-key", o.server.api_key, "bearer key (else BATON_API_KEY, XINFERENCE_API_KEY, the token of `baton login`; also -ak)");
}

void add_client_commands(CLI::App& app, Options& options) {
    add_launch(app, options);
    add_models(app, options);
    add_top(app, options);
    add_registry(app, options);
    add_pull(app, options);
    add_login(app, options);
    add_chat(app, options);
}

}  // namespace baton::cli
