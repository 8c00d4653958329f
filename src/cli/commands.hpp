#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/client_session.hpp"

/// One options struct and one function a command; the functions return the exit code. cli.cpp fills the options.
namespace baton::cli {

/// `serve` and `supervisor`.
struct ServeOptions {
    std::string config_file;
    std::map<std::string, std::string> settings;  ///< by setting key, from the command line
    std::vector<std::string> api_keys;
    bool local_worker = true;
    // The one-liner: a deployment at start.
    std::string model_path;
    std::string model_uid;
    uint32_t prefill = 0, decode = 0, replica = 1;
};
int run_serve(const ServeOptions& options);
/// `config check|show`: what `serve` with these options would use.
int run_config(const ServeOptions& options, bool show);
int run_config_docs();
int run_worker(const std::vector<std::string>& args);
int run_replica(const std::vector<std::string>& args);

struct LaunchOptions {
    Server server;
    std::string model_name, model_uid, model_type = "LLM", model_engine = "baton", model_path;
    std::string size_in_billions, model_format, quantization;
    std::optional<int64_t> replica;
    int64_t n_worker = 1;
    std::string n_gpu;  ///< "" not given, "auto", "none" or a number
    std::string worker_ip, gpu_idx, replica_config;
    std::vector<std::string> env;           ///< K V pairs, flat
    std::vector<std::string> lora_modules;  ///< NAME PATH pairs, flat
    std::vector<std::string> extras;        ///< unknown options and their values, as typed
    bool wait = true;
};
int run_launch(const LaunchOptions& options);
/// The body of POST /v1/models, or the message of a usage error.
[[nodiscard]] Expected<Json> make_launch_body(const LaunchOptions& options);
/// The typing rules of unknown options: None, booleans, integers, floats, JSON, else text.
[[nodiscard]] Json typed_value(const std::string& text);

struct ModelOptions {
    Server server;
    std::string model_uid;
    bool json = false;
};
int run_list(const ModelOptions& options);
int run_terminate(const ModelOptions& options);
int run_workers(const ModelOptions& options);
int run_status(const ModelOptions& options);

struct ChatOptions {
    Server server;
    std::string model_uid;
    std::string prompt;  ///< "" interactive, or standard input where that is no terminal
    std::string system;
    std::string request_id;
    int64_t max_tokens = 512;
    bool stream = true;
    std::optional<double> temperature;
    std::optional<int64_t> seed;
};
int run_chat(const ChatOptions& options);
int run_generate(const ChatOptions& options);

}  // namespace baton::cli
