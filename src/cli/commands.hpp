#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "baton/cli/bench.hpp"
#include "cli/client_session.hpp"

/// One options struct and one function a command; the functions return the exit code. cli.cpp fills the options.
namespace baton::cli {

/// `serve` and `supervisor`.
struct ServeOptions {
    std::string config_file;
    std::map<std::string, std::string> settings;  ///< by setting key, from the command line
    std::vector<std::string> api_keys;
    bool local_worker = true;
    bool values_only = false;  ///< `config check`: do not look at the files that settings name
    // The one-liner: a deployment at start.
    std::string model_path;
    std::string model_uid;
    uint32_t prefill = 0, decode = 0, replica = 1;
};
int run_serve(const ServeOptions& options);
/// `config check|show`: what `serve` with these options would use.
int run_config(const ServeOptions& options, bool show);
int run_config_docs();
/// `config schema`: `what` is settings, launch or replica_config.
int run_config_schema(const std::string& what);
/// `doctor`: looks at this host with the settings that `serve` with these options would use, and at the model `model_path` names.
int run_doctor(const ServeOptions& options, bool json);

/// `doctor split`: whether prefill and decode should be apart for a load, and how many of each.
struct SplitOptions {
    std::string model_path, shape, device = "cpu", isa;  ///< to measure
    uint32_t threads = 0;
    std::string rates_file, save_file;                   ///< an earlier measurement; where this one goes
    std::vector<std::string> prefill_ms, decode_ms;      ///< "TOKENS:MS", "BATCH@CONTEXT:MS" instead
    BenchServeOptions load;                              ///< lengths, rate or concurrency, shared prefix, requests, seed
    bool warmup_given = false;
    double ttft_ms = 0, tpot_ms = 0, itl_ms = 0;         ///< limits; 0: none
    uint32_t percentile = 99;                            ///< at which they hold
    uint32_t devices = 2;                                ///< GPUs; on the CPU replicas at most, which share the cores
    std::vector<std::string> topologies;                 ///< only these
    uint32_t step_tokens = 0, sequences = 0, block_tokens = 0;  ///< of a replica; 0: as measured, or a launch's default
    uint64_t kv_tokens = 0;                              ///< of a replica's pool; 0: as measured
    double handoff_ms = -1, handoff_gb_per_s = -1;       ///< below 0: as measured
    bool no_search = false;                              ///< do not look for the highest rate within the limits
    bool json = false;
};
/// Measures or reads the rates, simulates each topology, prints sums, table and advice. kFailed where nothing could be measured.
int run_split(const SplitOptions& options);
int run_worker(const std::vector<std::string>& args);
int run_replica(const std::vector<std::string>& args);

struct LaunchOptions {
    Server server;
    std::string model_name, model_uid, model_type = "LLM", model_engine = "baton", model_path;
    std::string size_in_billions, model_format, quantization;
    std::optional<int64_t> replica;
    int64_t n_worker = 1;
    std::string n_gpu;  ///< "" not given, "auto", "none" or a number
    std::string worker_ip, gpu_idx;
    std::string replica_config;             ///< JSON, or @FILE
    uint32_t prefill = 0, decode = 0;       ///< replicas of these roles, placed by the server
    std::optional<int64_t> context_length;
    std::optional<bool> trust_remote_code, enable_thinking, enable_virtual_env;
    std::vector<std::string> virtual_env_packages, virtual_env_find_links;
    std::vector<std::string> env, quantization_config;  ///< key and value pairs, flat
    std::vector<std::string> lora_modules;              ///< name and path pairs, flat
    std::vector<std::string> extras;                    ///< unknown options and their values, as typed
    bool wait = true;
    bool json = false;
};
int run_launch(const LaunchOptions& options);
/// The body of POST /v1/models, or the message of a usage error.
[[nodiscard]] Expected<Json> make_launch_body(const LaunchOptions& options);
/// The replica_config of so many prefill and decode replicas that the server places.
[[nodiscard]] Json roles_config(uint32_t prefill, uint32_t decode);
/// The typing rules of unknown options: None, booleans, integers, floats, JSON, else text.
[[nodiscard]] Json typed_value(const std::string& text);

/// The commands that ask a server about, or tell it, one thing.
struct ModelOptions {
    Server server;
    std::string model_uid;
    std::string model_type = "LLM", model_name, model_engine, model_format, size_in_billions, quantization;
    std::string worker_ip, file;
    bool persist = false;
    bool check = false;  ///< do not ask before stopping the cluster
    bool json = false;
};
int run_list(const ModelOptions& options);
int run_terminate(const ModelOptions& options);
int run_workers(const ModelOptions& options);
int run_status(const ModelOptions& options);
int run_registrations(const ModelOptions& options);
int run_register(const ModelOptions& options);
int run_unregister(const ModelOptions& options);
int run_engine(const ModelOptions& options);
int run_cached(const ModelOptions& options);
int run_stop_cluster(const ModelOptions& options);

/// `top`: what a server does now.
struct TopOptions {
    Server server;
    int64_t interval_ms = 1000;
    bool once = false;  ///< one table over one interval; so it is where there is no terminal
    bool json = false;  ///< the same as JSON
};
int run_top(const TopOptions& options);

struct LoginOptions {
    Server server;
    std::string username, password;  ///< "": asked for
};
int run_login(const LoginOptions& options);
int run_logout(const LoginOptions& options);

/// `pull`: a model's files into this host's cache.
struct PullOptions {
    std::string model;  ///< a name that baton knows, or a hub's org/name
    std::string size_in_billions, format, quantization, revision, hub;
    std::vector<std::string> files;  ///< exactly these
    bool json = false;
};
int run_pull(const PullOptions& options);

struct ChatOptions {
    Server server;
    std::string model_uid;  ///< "": the only running model
    std::optional<std::string> prompt;  ///< none: asked for on a terminal, else standard input
    std::string system;
    std::string request_id;
    std::vector<std::pair<std::string, std::string>> settings;  ///< as /set takes them
    bool stream = true;
    bool interactive = false;  ///< a conversation although standard input is no terminal
    bool stats = false;
    bool json = false;         ///< print the server's answer
};
int run_chat(const ChatOptions& options);
int run_generate(const ChatOptions& options);

}  // namespace baton::cli
