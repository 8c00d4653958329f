#pragma once

#include <optional>
#include <string>

#include "baton/base/error.hpp"

namespace baton::cli {

/// What `baton login` got from a server, kept for later commands.
struct Credentials {
    std::string access_token;
    std::string refresh_token;  ///< "" where the server gives none
};

/// The file of a server's tokens: <config folder>/baton/tokens/<SHA-256 of its URL>; the config folder is XDG_CONFIG_HOME,
/// else ~/.config. "" where there is neither.
[[nodiscard]] std::string credentials_path(const std::string& endpoint);
/// None where there is no file, or one that cannot be understood.
[[nodiscard]] std::optional<Credentials> load_credentials(const std::string& endpoint);
/// Writes the file, readable by its owner alone. kIo with the path.
[[nodiscard]] Expected<void> store_credentials(const std::string& endpoint, const Credentials& credentials);
/// Whether there was one to forget.
bool forget_credentials(const std::string& endpoint);

}  // namespace baton::cli
