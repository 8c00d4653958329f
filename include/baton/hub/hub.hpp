#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>
#include <string_view>
#include <vector>

#include "baton/base/error.hpp"

namespace baton::wire {
struct PullModel;
}

/// Models from a hub (Hugging Face, ModelScope) into the standard Hugging Face cache layout, and what lies there already
/// (docs/MODELS.md).
namespace baton::hub {

inline constexpr std::string_view kDefaultEndpoint = "https://huggingface.co";
inline constexpr std::string_view kDefaultModelScopeEndpoint = "https://www.modelscope.cn";

enum class Hub : uint8_t { kHuggingFace, kModelScope };
[[nodiscard]] std::string_view to_string(Hub hub);  ///< "huggingface", "modelscope"
/// "" is huggingface. kInvalidArgument (param "download_hub") for any other name.
[[nodiscard]] Expected<Hub> parse_hub(std::string_view name);

/// Where hubs and the cache are. Filled from the environment by settings_from_environment().
struct Settings {
    std::string endpoint{kDefaultEndpoint};
    std::string modelscope_endpoint{kDefaultModelScopeEndpoint};
    std::string token;             ///< bearer token of the Hugging Face hub; sent to its endpoint only
    std::string modelscope_token;
    bool offline = false;          ///< no network: what is cached, or an error that names the missing file
    std::string cache_dir;         ///< of Hugging Face: holds models--org--name
    std::string modelscope_cache_dir;
    std::string ca_file;           ///< PEM file of trusted roots instead of the system's; "" the system's
    std::string https_proxy, http_proxy;  ///< http://[user:password@]host:port; "" none
    std::string no_proxy;          ///< hosts reached directly: names, .suffixes, addresses, *
    uint32_t connections = 8;      ///< at the same time
    uint64_t range_bytes = 8u << 20;  ///< of one request; at most twice as many bytes a connection wait in memory
    int64_t connect_timeout_ms = 10'000;
    int64_t silence_timeout_ms = 30'000;  ///< without a single byte from the server
    int64_t retry_pause_ms = 500;  ///< before the second try; doubles with each
    int retries_max = 5;           ///< of one request without progress
    std::string default_hub = "huggingface";  ///< where a launch names none
};

/// HF_ENDPOINT, HF_TOKEN (HUGGING_FACE_HUB_TOKEN, HF_TOKEN_PATH, $HF_HOME/token), HF_HUB_OFFLINE, HF_HUB_CACHE
/// (HUGGINGFACE_HUB_CACHE, HF_HOME, XDG_CACHE_HOME), MODELSCOPE_ENDPOINT, MODELSCOPE_API_TOKEN, BATON_CACHE_DIR,
/// BATON_HUB_CA_FILE (REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE), HTTPS_PROXY, HTTP_PROXY, ALL_PROXY, NO_PROXY,
/// BATON_DOWNLOAD_HUB. kInvalidArgument names the variable that is wrong.
[[nodiscard]] Expected<Settings> settings_from_environment();
/// The same over any source of variables; `get` gives nullptr for one that is not set.
[[nodiscard]] Expected<Settings> settings_from(const std::function<const char*(const char*)>& get);

struct PullRequest {
    Hub hub = Hub::kHuggingFace;
    std::string repo;          ///< org/name
    std::string revision;      ///< branch, tag or commit; "" the default branch
    std::string format;        ///< pytorch (safetensors), ggufv2, or "": safetensors where there are some
    std::string quantization;  ///< GGUF: picks the file; "" and none: the only one
    std::string gguf_file;     ///< GGUF: its name, instead of the quantization
    std::vector<std::string> files;  ///< exactly these instead of what a model needs
    bool cached_is_enough = false;   ///< a complete copy in the cache is taken without asking the hub
    /// Configuration and tokenizer alone: no safetensors, and of a GGUF in several files only the first.
    bool description_only = false;
    /// Looks at config.json before any weights are taken; its error ends the pull. May be null.
    std::function<Expected<void>(std::string_view config_json)> check_config;
};

/// What a supervisor asks a worker for: the model of a launch, from the cache where it is complete there, else from the hub
/// after a look at its configuration with `check_config`. kInvalidArgument for a hub that is not known.
[[nodiscard]] Expected<PullRequest> request_of(const wire::PullModel& ask, std::function<Expected<void>(std::string_view)> check_config);

struct FileProgress {
    std::string name;
    uint64_t bytes_done = 0, bytes_total = 0;
    bool done = false;
};
struct Progress {
    uint64_t bytes_done = 0, bytes_total = 0;
    std::vector<FileProgress> files;
};

struct PullResult {
    std::string path;          ///< what model_path takes: the snapshot's folder, or its GGUF file
    std::string snapshot_dir;
    std::string commit;
    std::string format;        ///< pytorch or ggufv2
    std::vector<std::string> files;
    uint64_t bytes_downloaded = 0;
    bool split = false;        ///< a GGUF in several files; `path` is the first
};

/// Brings the files of a model into the cache. `on_progress` (may be null) is called about ten times a second on the
/// calling thread, and once at the end. A stop request ends it within moments: kCancelled; what came is kept and resumed
/// by the next pull. Several processes and threads may pull at the same time. kNotFound (repository, revision, file),
/// kUnauthorized (private or gated), kUnavailable (no connection, offline), kTimeout, kCorrupt (wrong length or digest,
/// malformed answers), kUnsupported (formats baton does not read), kInvalidArgument, kIo (disk).
[[nodiscard]] Expected<PullResult> pull(const Settings& settings, const PullRequest& request,
                                        const std::function<void(const Progress&)>& on_progress = {}, std::stop_token cancel = {});

/// What the cache holds of it, without the network. kNotFound with the file that is missing.
[[nodiscard]] Expected<PullResult> find_cached(const Settings& settings, const PullRequest& request);

struct CachedModel {
    Hub hub = Hub::kHuggingFace;
    std::string repo, commit;
    std::vector<std::string> revisions;  ///< refs that name the commit
    std::string snapshot_dir;
    std::vector<std::string> files;
    uint64_t bytes = 0;
};
/// The snapshots of both caches, at most 10,000.
[[nodiscard]] std::vector<CachedModel> list_cached(const Settings& settings);

}  // namespace baton::hub
