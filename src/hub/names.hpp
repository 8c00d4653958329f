#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "baton/base/error.hpp"

/// Names and JSON that come from outside: a hub's answers become paths on this machine.
namespace baton::hub {

using Json = nlohmann::json;

inline constexpr size_t kPathBytesMax = 1024;
inline constexpr size_t kPathPartBytesMax = 255;
inline constexpr size_t kPathDepthMax = 16;
inline constexpr size_t kJsonDepthMax = 32;

/// `text` between quotes, control characters replaced, at most 200 bytes: for messages.
[[nodiscard]] std::string in_quotes(std::string_view text);
/// org/name (or a bare name) of letters, digits, '.', '_' and '-', as the hub's own rule has it. kInvalidArgument.
[[nodiscard]] Expected<void> check_repo(std::string_view repo);
/// A branch, tag, commit, or refs/pr/N. kInvalidArgument.
[[nodiscard]] Expected<void> check_revision(std::string_view revision);
/// A relative path that stays below the folder it is joined to. kCorrupt.
[[nodiscard]] Expected<void> check_file_path(std::string_view path);
/// 40 lower-case hex digits.
[[nodiscard]] bool is_commit(std::string_view text);
/// 64 lower-case hex digits.
[[nodiscard]] bool is_sha256(std::string_view text);
/// The name of a blob from an ETag header: without W/ and quotes; "" unless it is safe as a file's name.
[[nodiscard]] std::string blob_name(std::string_view etag);
/// `text` in lower case (ASCII).
[[nodiscard]] std::string lower(std::string_view text);
/// Parses one JSON text of bounded depth. kCorrupt names `what`.
[[nodiscard]] Expected<Json> parse_json(std::string_view text, std::string_view what);

}  // namespace baton::hub
