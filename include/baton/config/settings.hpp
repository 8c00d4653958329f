#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baton/base/error.hpp"

namespace baton::config {

/// Settings of `baton serve` and `baton supervisor`, from defaults, then the JSON file, then the environment table, then the
/// command line. Every door checks the same way; an unknown key is refused with its JSON path.
struct SupervisorSettings {
    std::string host = "127.0.0.1";
    uint16_t port = 9997;
    std::string tls_certificate, tls_key;  ///< PEM files; both or neither
    std::string state_dir;               ///< deployments and run files; default under $XDG_STATE_HOME or /var/lib/baton as root
    std::string cache_dir;
    std::string model_root;              ///< "" no fence
    std::vector<std::string> api_keys;
    std::vector<std::string> inference_api_keys;
    std::string auth_file;               ///< "" none; Xinference's format (config/auth_file.hpp)
    uint32_t auth_failures_max = 10;     ///< wrong keys of one address within five minutes that get it banned; 0: never
    uint32_t auth_ban_seconds = 600;
    std::string log_format = "text";
    std::string log_level = "info";
    std::string advertise_address;       ///< "" the default route's when not loopback
    std::string link_address;            ///< ip:port where workers of other hosts connect; "" none
    std::string link_secret;             ///< needed with link_address
    uint64_t snapshot_bytes = 0;         ///< 0: a quarter of memory
    uint32_t http_threads = 2;
    uint32_t text_threads = 2;
    int64_t shutdown_timeout_ms = 30'000;
    int64_t supervisor_grace_ms = 60'000;
    int64_t replacement_wait_ms = 3'000;
    bool allow_fault_hooks = false;
    bool share_gpus = true;              ///< several replicas may use one GPU
    // Where models come from by name; "" what the environment says (baton/hub/hub.hpp).
    std::string hub_endpoint, hub_token, hub_cache_dir, hub_ca_file, download_hub;
    bool hub_offline = false;
    bool strict_fields = false;
    std::string default_model;
    std::vector<std::string> cors_origins;
    std::vector<std::string> deployments;  ///< start-up launches: each a launch body as JSON text
    bool local_worker = true;              ///< serve: true, supervisor: false
};

struct WorkerSettings {
    std::string supervisor_unix, supervisor_tcp;
    std::string run_dir;
    std::string advertise_ip;      ///< of worker_ip; port is its link port
    uint16_t worker_port = 0;
    std::string host_id;           ///< "" the default
    uint64_t snapshot_bytes = 0;
    int64_t supervisor_grace_ms = 60'000;
    bool share_weights = true;     ///< replicas of one model read the packed weights from one memory file
    bool child_of_supervisor = false;  ///< ends with its parent
    bool listen_for_hosts = false;     ///< replicas of a worker on the supervisor's host listen for those of other hosts too
    std::string log_format = "text", log_level = "info";
    std::string link_secret;       ///< from the environment or the config file
};

/// Arguments after `baton worker`: only what differs from the defaults. Without link_secret, which travels in the
/// environment (BATON_LINK_SECRET).
[[nodiscard]] std::vector<std::string> to_args(const WorkerSettings& settings);
/// BATON_SHARE_WEIGHTS: whether `false` stands there or on the command line, nothing is shared. The one setting that a worker
/// takes from its environment, which `baton serve` passes on.
[[nodiscard]] Expected<void> apply_environment(WorkerSettings& settings);
/// The reverse. kInvalidArgument names the argument that is wrong.
[[nodiscard]] Expected<WorkerSettings> parse_worker_args(const std::vector<std::string>& args);
/// Checks between the fields of a worker: where the supervisor is, a secret for TCP, a usable address.
[[nodiscard]] Expected<void> check(const WorkerSettings& settings);

/// Folder for downloads: BATON_CACHE_DIR, $XDG_CACHE_HOME/baton, /var/cache/baton as root, else ~/.cache/baton.
[[nodiscard]] std::string default_cache_dir();
/// Folder for deployments and sockets: $XDG_STATE_HOME/baton, /var/lib/baton as root, else ~/.local/state/baton.
[[nodiscard]] std::string default_state_dir();

/// Reads and applies a JSON file. kInvalidArgument with the path of the key.
[[nodiscard]] Expected<void> apply_file(SupervisorSettings& settings, std::string_view json_text);
/// BATON_HOST, BATON_PORT, … (docs/CONFIG.md).
[[nodiscard]] Expected<void> apply_environment(SupervisorSettings& settings);
/// Applies one setting by its key (as in the JSON file) from text: what the command line and the environment do.
[[nodiscard]] Expected<void> apply_text(SupervisorSettings& settings, std::string_view key, std::string_view value);
/// Last checks between fields; fills the default folders and replaces "${cache_dir}" in the model paths of start-up
/// deployments.
[[nodiscard]] Expected<void> check(SupervisorSettings& settings);
/// Keys of the settings that differ, in the order of docs/CONFIG.md.
[[nodiscard]] std::vector<std::string> changed_settings(const SupervisorSettings& before, const SupervisorSettings& now);
/// The text of docs/CONFIG.md.
[[nodiscard]] std::string describe_settings_markdown();
/// JSON schemas (draft 2020-12), from the tables that the parsers read: of the settings file, of a launch body (a start-up
/// deployment) and of its replica_config. They say what a field may be by itself, and little of how fields go together.
enum class SchemaOf : uint8_t { kSettings, kLaunch, kReplicaConfig };
[[nodiscard]] std::string json_schema(SchemaOf what);
/// Every setting with its value, as indented JSON; of keys and secrets only how many there are, or whether there is one.
[[nodiscard]] std::string show_settings(const SupervisorSettings& settings);

}  // namespace baton::config
