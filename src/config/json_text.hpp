#pragma once

#include <cstdint>
#include <limits>
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
/// True for a JSON integer that an int64_t holds; a bool or a float is none.
[[nodiscard]] inline bool is_integer(const Json& v) {
    return v.is_number_integer() && (!v.is_number_unsigned() || v.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
}
/// `text` between quotes with control characters replaced and cut to limits::kErrorEchoBytesMax bytes, for messages.
[[nodiscard]] std::string in_quotes(std::string_view text);
/// "true", "a string", "an object", … for messages.
[[nodiscard]] std::string kind_of(const Json& v);

}  // namespace baton::config
