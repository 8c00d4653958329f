#pragma once

#include <cstdint>
#include <string>

#include "baton/base/error.hpp"

namespace baton::cli {

/// XDG_CONFIG_HOME/baton, else ~/.config/baton; "" where there is no home.
[[nodiscard]] std::string user_config_dir();
/// XDG_STATE_HOME/baton, else ~/.local/state/baton; "" where there is no home.
[[nodiscard]] std::string user_state_dir();
enum class Folders : uint8_t {
    kMade,    ///< those that are missing, each for its owner alone
    kNeeded,  ///< one that is missing is an error
};
/// Replaces a file at once, readable by its owner alone. kIo names the path.
[[nodiscard]] Expected<void> write_private_file(const std::string& path, const std::string& text, Folders folders = Folders::kMade);
/// The whole file. kNotFound names the path and the reason.
[[nodiscard]] Expected<std::string> read_text_file(const std::string& path);

}  // namespace baton::cli
