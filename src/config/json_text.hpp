#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "baton/base/error.hpp"

namespace baton::config {

using Json = nlohmann::ordered_json;

/// Parses one JSON text whose nesting is at most limits::kJsonDepthMax. Never throws; the error says where the text
/// stops being JSON and never repeats it.
[[nodiscard]] Expected<Json> parse_json_text(std::string_view text);
/// The same for a file that somebody writes by hand: a key that stands twice in one object is refused with its path.
[[nodiscard]] Expected<Json> parse_json_file(std::string_view text);
/// True for a JSON integer; a bool or a float is none.
[[nodiscard]] inline bool is_integer(const Json& v) { return v.is_number_integer(); }
/// `text` between quotes with control characters replaced and cut to limits::kErrorEchoBytesMax bytes, for messages.
[[nodiscard]] std::string in_quotes(std::string_view text);
/// "true", "a string", "an object", … for messages.
[[nodiscard]] std::string kind_of(const Json& v);

}  // namespace baton::config
