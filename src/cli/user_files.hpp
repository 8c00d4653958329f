#pragma once

#include <string>

#include "baton/base/error.hpp"

namespace baton::cli {

/// XDG_CONFIG_HOME/baton, else ~/.config/baton; "" where there is no home.
[[nodiscard]] std::string user_config_dir();
/// XDG_STATE_HOME/baton, else ~/.local/state/baton; "" where there is no home.
[[nodiscard]] std::string user_state_dir();
/// Replaces a file at once, readable by its owner alone; makes its folders, which are its owner's alone too. kIo names the path.
[[nodiscard]] Expected<void> write_private_file(const std::string& path, const std::string& text);
/// The whole file. kNotFound names the path.
[[nodiscard]] Expected<std::string> read_text_file(const std::string& path);

}  // namespace baton::cli
