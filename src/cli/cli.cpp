#include "baton/cli/cli.hpp"

#include <CLI/CLI.hpp>
#include <csignal>

#include "baton/cli/bench.hpp"
#include "cli/commands.hpp"

/// The only file that knows CLI11: declares every command and its options, then calls what was named.
namespace baton::cli {
namespace {

/// Everything the commands fill; one of them runs.
struct Options {
    ServeOptions serve;
    LaunchOptions launch;
    ModelOptions model;
    ChatOptions chat;
    BenchServeOptions bench_serve;
    BenchEngineOptions bench_engine;
    BenchHandoffOptions bench_handoff;
    Server server;
    std::vector<std::string> rest;
    std::function<int()> command;
};

void add_server(CLI::App& app, Options& o) {
    app.add_option("-e,--endpoint", o.server.endpoint, "URL of the server (else BATON_ENDPOINT, XINFERENCE_ENDPOINT)");
    app.add_option("--api-key", o.server.api_key, "bearer key (else BATON_API_KEY)");
}

/// An option whose text goes to the setting `key`.
void add_setting(CLI::App& app, Options& o, const std::string& names, const std::string& key, const std::string& help) {
    app.add_option_function<std::string>(names, [&o, key](const std::string& v) { o.serve.settings[key] = v; }, help);
}

void add_settings(CLI::App& app, Options& o) {
    app.add_option("--config", o.serve.config_file, "JSON file of settings (docs/CONFIG.md)");
    add_setting(app, o, "-H,--host", "host", "address to serve HTTP on");
    add_setting(app, o, "-p,--port", "port", "HTTP port");
    add_setting(app, o, "--state-dir", "state_dir", "folder for deployments and sockets");
    add_setting(app, o, "--cache-dir", "cache_dir", "folder for downloads");
    add_setting(app, o, "--model-root", "model_root", "only models inside this folder may be launched");
    add_setting(app, o, "--default-model", "default_model", "model uid of requests that name none");
    add_setting(app, o, "--log-format", "log_format", "text or json");
    add_setting(app, o, "--log-level", "log_level", "trace, debug, info, warn or error");
    add_setting(app, o, "--advertise-address", "advertise_address", "ip of the local worker's registered address");
    add_setting(app, o, "--link-address", "link_address", "IP:PORT for workers of other hosts");
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
                                               show ? "print the settings a server would use" : "check the settings");
        add_settings(*sub, o);
        sub->callback([&o, show] { o.command = [&o, show] { return run_config(o.serve, show); }; });
    }
    config->add_subcommand("docs", "print docs/CONFIG.md")->group("")->callback([&o] { o.command = run_config_docs; });
}

void add_launch(CLI::App& app, Options& o) {
    CLI::App* launch = app.add_subcommand("launch", "launch a model and wait until it is ready");
    LaunchOptions& l = o.launch;
    add_server(*launch, o);
    launch->add_option("-n,--model-name", l.model_name, "name of the model; default: the file's name");
    launch->add_option("-u,--model-uid", l.model_uid, "uid to serve it under; default: its name");
    launch->add_option("--model-path", l.model_path, "file or folder on the worker");
    launch->add_option("--model-engine", l.model_engine, "baton; the reference's engine names are accepted too");
    launch->add_option("-t,--model-type", l.model_type, "LLM");
    launch->add_option("-s,--size-in-billions", l.size_in_billions, "kept for descriptions");
    launch->add_option("-f,--model-format", l.model_format, "kept for descriptions");
    launch->add_option("-q,--quantization", l.quantization, "kept for descriptions");
    launch->add_option("-r,--replica", l.replica, "number of replicas");
    launch->add_option("--n-worker", l.n_worker, "1");
    launch->add_option("--n-gpu", l.n_gpu, "auto, none or a number");
    launch->add_option("--worker-ip", l.worker_ip, "IP:PORT of the worker");
    launch->add_option("--gpu-idx", l.gpu_idx, "GPU numbers, e.g. 0,1");
    launch->add_option("--replica-config,--replica_config", l.replica_config, "JSON list of replicas, or @FILE");
    launch->add_option("--env", l.env, "name and value")->type_size(2)->expected(1)->multi_option_policy(
        CLI::MultiOptionPolicy::TakeAll);
    launch->add_option("--lora-modules", l.lora_modules, "name and path")
        ->type_size(2)
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    launch->add_flag("--wait,!--no-wait", l.wait, "return at once instead of waiting until it is ready");
    launch->allow_extras();
    launch->footer("Any other --key VALUE goes to the engine, e.g. --max_model_len 2048 --kv_dtype f32.");
    launch->callback([&o, launch] {
        o.launch.server = o.server;
        o.launch.extras = launch->remaining();
        o.command = [&o] { return run_launch(o.launch); };
    });
}

void add_models(CLI::App& app, Options& o) {
    const auto add = [&](const char* name, const char* help, int (*run)(const ModelOptions&)) {
        CLI::App* sub = app.add_subcommand(name, help);
        add_server(*sub, o);
        sub->callback([&o, run] {
            o.model.server = o.server;
            o.command = [&o, run] { return run(o.model); };
        });
        return sub;
    };
    add("list", "list running models", run_list)->add_flag("--json", o.model.json, "print the server's answer");
    add("workers", "list workers", run_workers)->add_flag("--json", o.model.json, "print the server's answer");
    add("status", "show workers and replicas", run_status)->add_flag("--json", o.model.json, "print the server's answer");
    add("terminate", "end a model", run_terminate)->add_option("-u,--model-uid", o.model.model_uid, "uid")->required();
}

void add_chat(CLI::App& app, Options& o) {
    const auto add = [&](const char* name, const char* help, int (*run)(const ChatOptions&)) {
        CLI::App* sub = app.add_subcommand(name, help);
        add_server(*sub, o);
        sub->add_option("-u,--model-uid", o.chat.model_uid, "uid")->required();
        sub->add_option("--max_tokens,--max-tokens", o.chat.max_tokens, "tokens to generate at most");
        sub->add_option("--stream", o.chat.stream, "print tokens as they come");
        sub->add_option("--temperature", o.chat.temperature, "0 is greedy");
        sub->add_option("--seed", o.chat.seed, "of sampling");
        sub->add_option("--request-id", o.chat.request_id, "names the request in logs");
        sub->add_option("prompt", o.chat.prompt, "what to send; default: standard input");
        sub->callback([&o, run] {
            o.chat.server = o.server;
            o.command = [&o, run] { return run(o.chat); };
        });
        return sub;
    };
    add("chat", "chat with a model", run_chat)->add_option("--system", o.chat.system, "system message");
    add("generate", "complete a text", run_generate);
}

void add_bench_handoff(CLI::App& bench, Options& o) {
    CLI::App* sub = bench.add_subcommand("handoff", "KV hand-off between two processes, or through a server (--url)");
    BenchHandoffOptions& h = o.bench_handoff;
    sub->add_option("--devices", h.devices, "GPUs of prefill and decode, e.g. 0,1 or 0,0; default: pools in host memory");
    sub->add_option("--movers", h.movers, "cuda_ipc, nccl, tcp, shm; default: all that the pools can use")->delimiter(',');
    sub->add_option("--sizes", h.sizes_mib, "MiB of the pulls; 0: none")->delimiter(',')->check(CLI::Range(0u, 16'384u));
    sub->add_option("--prompts", h.prompts, "lengths of prompts whose exposed time is measured; 0: none")->delimiter(',')->check(CLI::Range(0u, 65'536u));
    sub->add_option("--rounds", h.rounds, "of each measurement")->check(CLI::Range(1u, 1000u));
    sub->add_option("--concurrent", h.concurrent, "hand-offs open at once; 0: none")->check(CLI::Range(0u, 512u));
    sub->add_option("--concurrent-tokens", h.concurrent_tokens, "of each; default 512 on GPUs, 64 in host memory")->check(CLI::Range(0u, 65'536u));
    sub->add_option("--layer-us", h.layer_us, "host memory: microseconds between two layers")->check(CLI::Range(0u, 1'000'000u));
    sub->add_option("--chunk", h.chunk_tokens, "tokens of a prefill step")->check(CLI::Range(1u, 65'536u));
    sub->add_option("--block-tokens", h.block_tokens, "16, 32 or 64")->check(CLI::IsMember({16, 32, 64}));
    sub->add_option("--shape", h.shape, "GPU: sizes of the model");
    sub->add_option("--decode-batch", h.decode_batch, "GPU: sequences that decode beside pulls; 0: none")->check(CLI::Range(0u, 512u));
    sub->add_option("--decode-context", h.decode_context, "GPU: of those")->check(CLI::Range(64u, 65'536u));
    sub->add_option("--beside-ctas", h.beside_ctas, "GPU: CTAs of the copy kernels beside the batch, each tried; 0: the default")->delimiter(',');
    sub->add_option("--ctas", h.ctas, "GPU: CTAs of the copy kernels; 0: the default")->check(CLI::Range(0u, 1024u));
    sub->add_option("--engine-run-kib", h.engine_run_kib, "GPUs: runs from that size on go by copy engine; 0: the default")->check(CLI::Range(0u, 1u << 30));
    sub->add_option("--nccl-ctas", h.nccl_ctas, "0: the default")->check(CLI::Range(0u, 64u));
    sub->add_option("--nccl-buffers", h.nccl_buffers, "staging buffers a side; 0: the default")->check(CLI::Range(0u, 16u));
    sub->add_option("--nccl-buffer-mib", h.nccl_buffer_mib, "MiB of each; 0: the default")->check(CLI::Range(0u, 1024u));
    sub->add_option("--nccl-copy-ctas", h.nccl_copy_ctas, "of the copies into and out of them; 0: the default")->check(CLI::Range(0u, 1024u));
    sub->add_option("--link-gb-per-s", h.link_gb_per_s, "of the way between two GPUs, for the floors")->check(CLI::PositiveNumber);
    sub->add_option("--url,-e,--endpoint", h.url, "measure the gap between token 1 and 2 through this server instead");
    sub->add_option("--model", h.model, "server: uid; default: the only one it has");
    sub->add_option("--api-key", h.api_key, "server: bearer key");
    sub->add_option("--requests", h.requests, "server: requests, one after the other")->check(CLI::Range(1u, 100'000u));
    sub->add_option("--input-tokens", h.input_tokens, "server: of a prompt")->check(CLI::Range(1u, 1'000'000u));
    sub->add_option("--output-tokens", h.output_tokens, "server: of an answer")->check(CLI::Range(2u, 100'000u));
    sub->add_option("--streams", h.streams, "server: other streams that run meanwhile")->check(CLI::Range(0u, 1024u));
    sub->add_option("--peer-fd", h.peer_fd, "")->group("");
    sub->add_flag("--json", h.json, "print JSON");
    sub->callback([&o] { o.command = [&o] { return run_bench_handoff(o.bench_handoff); }; });
}

void add_bench(CLI::App& app, Options& o) {
    CLI::App* bench = app.add_subcommand("bench", "measure");
    bench->require_subcommand(1);
    CLI::App* serve = bench->add_subcommand("serve", "load a server: TTFT, TPOT, ITL, E2E, goodput");
    BenchServeOptions& s = o.bench_serve;
    serve->add_option("--url,-e,--endpoint", o.server.endpoint, "URL of the server");
    serve->add_option("--model", s.model, "uid; default: the only one it has");
    serve->add_option("--api-key", o.server.api_key, "bearer key");
    serve->add_option("--requests", s.requests, "measured requests; default 100, with --duration unlimited")->check(CLI::Range(1u, 1'000'000u));
    serve->add_option("--duration", s.duration_s, "seconds in which requests are started")->check(CLI::Range(0.0, 86'400.0));
    serve->add_option("--drain", s.drain_s, "seconds after --duration until what still runs is given up")->check(CLI::Range(0.0, 86'400.0));
    serve->add_option("--warmup", s.warmup, "requests ahead of the measured ones")->check(CLI::Range(0u, 1'000'000u));
    serve->add_option("--rate", s.rate, "requests a second, Poisson arrivals; 0: fixed concurrency")->check(CLI::Range(0.0, 1e6));
    serve->add_option("--interval-ms", s.interval_ms, "a request every so many milliseconds")->check(CLI::Range(0.001, 1e7))->excludes("--rate");
    serve->add_option("--concurrency", s.concurrency, "requests in flight; default 8, with --rate unlimited")->check(CLI::Range(0u, 16384u));
    serve->add_option("--input-tokens", s.input_tokens, "words of a generated prompt, about its tokens")->check(CLI::Range(1u, 1'000'000u));
    serve->add_option("--output-tokens", s.output_tokens, "of each answer")->check(CLI::Range(1u, 1'000'000u));
    serve->add_option("--token-ids", s.token_ids, "prompts of random token ids below this")->check(CLI::Range(2u, 1'000'000u));
    serve->add_option("--prefix-share", s.prefix_share, "part of each prompt that all share")->check(CLI::Range(0.0, 1.0));
    serve->add_option("--slo-ttft-ms", s.slo_ttft_ms, "goodput limit; 0: none")->check(CLI::NonNegativeNumber);
    serve->add_option("--slo-itl-ms", s.slo_itl_ms, "goodput limit of a request's mean gap; 0: none")->check(CLI::NonNegativeNumber);
    serve->add_option("--slo", s.slos, "further goodput limits in ms, TTFT:ITL, repeatable");
    serve->add_option("--background", s.background, "streams kept running beside the measured requests")->check(CLI::Range(0u, 4096u));
    serve->add_option("--background-input", s.background_input, "words of their prompts")->check(CLI::Range(1u, 1'000'000u));
    serve->add_option("--background-output", s.background_output, "tokens of their answers")->check(CLI::Range(2u, 1'000'000u));
    serve->add_option("--settle", s.settle_s, "seconds they run before the first request")->check(CLI::Range(0.0, 3600.0));
    serve->add_option("--threads", s.threads, "of the client; default a quarter of the cores")->check(CLI::Range(0u, 64u));
    serve->add_option("--seed", s.seed, "of prompts and arrivals");
    serve->add_option("--dataset", s.dataset, "prompts, one JSON value a line");
    serve->add_flag("--json", s.json, "print JSON");
    serve->callback([&o] {
        o.bench_serve.url = resolve_endpoint(o.server);
        o.bench_serve.api_key = resolve_api_key(o.server);
        o.command = [&o] { return run_bench_serve(o.bench_serve); };
    });
    CLI::App* engine = bench->add_subcommand("engine", "prefill and decode speed of one replica, without HTTP");
    BenchEngineOptions& e = o.bench_engine;
    engine->add_option("--model-path", e.model_path, "file or folder");
    engine->add_option("--shape", e.shape, "random weights of a known model's sizes instead, e.g. qwen3-0.6b");
    engine->add_option("--device", e.device, "cpu, cuda or cuda:N");
    engine->add_option("--batches", e.batches, "GPU: decode batches")->delimiter(',')->check(CLI::Range(1u, 1024u));
    engine->add_option("--contexts", e.contexts, "GPU: contexts of the decode steps")->delimiter(',')->check(CLI::Range(2u, 1'000'000u));
    engine->add_option("--prompts", e.prompts, "GPU: lengths of prompts")->delimiter(',')->check(CLI::Range(1u, 65'536u));
    engine->add_option("--block-tokens", e.block_tokens, "GPU: 16, 32 or 64")->check(CLI::IsMember({16, 32, 64}));
    engine->add_flag("--deterministic", e.deterministic, "GPU: bits that do not depend on the batch");
    engine->add_flag("--tuning", e.tuning, "GPU: print which kernels were chosen");
    engine->add_flag("--cached", e.cached, "GPU: use and fill the cache of what was tuned, as a replica does");
    engine->add_option("--prompt-tokens", e.prompt_tokens, "")->check(CLI::Range(1u, 1'000'000u));
    engine->add_option("--decode-tokens", e.decode_tokens, "")->check(CLI::Range(1u, 1'000'000u));
    engine->add_option("--threads", e.threads, "0: one per core")->check(CLI::Range(0u, 1024u));
    engine->add_option("--batch", e.batch, "sequences decoded together")->check(CLI::Range(1u, 1024u));
    engine->add_option("--repeat", e.repeat, "runs, of which the best counts")->check(CLI::Range(1u, 1000u));
    engine->add_option("--isa", e.isa, "portable, avx2, avx512, avx512bf16; default: the best");
    engine->add_flag("--json", e.json, "print JSON");
    engine->callback([&o] { o.command = [&o] { return run_bench_engine(o.bench_engine); }; });
    add_bench_handoff(*bench, o);
}

/// The reference's client has short options of two letters, which CLI11 does not know.
std::vector<std::string> rewrite(int argc, char** argv) {
    static const std::map<std::string, std::string> kLong = {
        {"-en", "--model-engine"}, {"-mp", "--model-path"}, {"-ak", "--api-key"}, {"-lm", "--lora-modules"}, {"-ev", "--env"}};
    std::vector<std::string> args;
    // CLI11 takes them last first; replica and worker read their arguments themselves.
    const bool verbatim = argc > 1 && (std::string_view(argv[1]) == "replica" || std::string_view(argv[1]) == "worker");
    for (int i = argc - 1; i > 0; --i) {
        const auto it = kLong.find(argv[i]);
        args.push_back(!verbatim && it != kLong.end() ? it->second : argv[i]);
    }
    return args;
}

}  // namespace

int run(int argc, char** argv) {
    CLI::App app{"baton serves large language models with prefill and decode on separate replicas.", "baton"};
    app.set_version_flag("--version", "baton " BATON_VERSION);
    app.require_subcommand(1);
    app.failure_message(CLI::FailureMessage::simple);
    Options options;
    add_servers(app, options);
    add_launch(app, options);
    add_models(app, options);
    add_chat(app, options);
    add_bench(app, options);
    add_config(app, options);
    // A reader that closes its end (head) ends us by a failed write, not by a signal that looks like a crash.
    std::signal(SIGPIPE, SIG_IGN);
    try {
        app.parse(rewrite(argc, argv));
    } catch (const CLI::ParseError& e) {
        return app.exit(e) == 0 ? kDone : kUsage;
    }
    return options.command ? options.command() : kUsage;
}

}  // namespace baton::cli
