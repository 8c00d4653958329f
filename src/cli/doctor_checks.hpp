#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "baton/config/settings.hpp"

namespace baton::cli {

/// One thing that was looked at.
struct Finding {
    enum class State { kGood, kNote, kWarning, kBad };
    State state = State::kGood;
    std::string what;    ///< e.g. "open files"
    std::string found;   ///< e.g. "1024 at most"
    std::string advice;  ///< what to do; "" where nothing is
};
[[nodiscard]] std::string_view to_string(Finding::State state);

/// Each looks at its part of this host and of these settings, changes nothing that stays, and takes less than a second (the GPUs:
/// some seconds where the driver is slow).
[[nodiscard]] std::vector<Finding> check_processor();
[[nodiscard]] std::vector<Finding> check_memory();
[[nodiscard]] std::vector<Finding> check_gpus();
[[nodiscard]] std::vector<Finding> check_limits();
[[nodiscard]] std::vector<Finding> check_folders(const config::SupervisorSettings& settings);
[[nodiscard]] std::vector<Finding> check_addresses(const config::SupervisorSettings& settings);
/// Certificate and key of TLS; none where it is not set up.
[[nodiscard]] std::vector<Finding> check_certificate(const config::SupervisorSettings& settings);
/// Users and keys of the auth file; none where there is no such file.
[[nodiscard]] std::vector<Finding> check_auth_file(const config::SupervisorSettings& settings);
/// The files of start-up deployments, one finding each; those by name are not looked for.
[[nodiscard]] std::vector<Finding> check_deployments(const config::SupervisorSettings& settings);
/// Everything that settings name and a server reads when it starts: the three above, and the model folder.
[[nodiscard]] std::vector<Finding> check_files(const config::SupervisorSettings& settings);
/// A model file or folder; none where `path` is "".
[[nodiscard]] std::vector<Finding> check_model(const std::string& path);

/// Looks at everything and prints it; kFailed where something is bad.
int report_doctor(const config::SupervisorSettings& settings, const std::string& model, bool json);

}  // namespace baton::cli
