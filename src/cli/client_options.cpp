#include <CLI/CLI.hpp>

#include "cli/options.hpp"

/// The options of the commands that talk to a server.
namespace baton::cli {
namespace {

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

}  // namespace

void add_server(CLI::App& app, Options& o) {
    app.add_option("-e,--endpoint", o.server.endpoint, "URL of the server (else BATON_ENDPOINT, XINFERENCE_ENDPOINT)");
    app.add_option("--api-key", o.server.api_key, "bearer key (else BATON_API_KEY)");
}

void add_client_commands(CLI::App& app, Options& options) {
    add_launch(app, options);
    add_models(app, options);
    add_chat(app, options);
}

}  // namespace baton::cli
