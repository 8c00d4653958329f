#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "baton/base/error.hpp"

namespace baton::model {

using Json = nlohmann::json;

/// Parses JSON of a model directory: bounded depth, no duplicate keys, valid UTF-8. kCorrupt,
/// naming `what`.
[[nodiscard]] Expected<Json> parse_json(std::string_view text, const std::string& what);
/// Reads a whole file of at most `bytes_max`. kNotFound when it is not there.
[[nodiscard]] Expected<std::string> read_file(const std::string& path, size_t bytes_max);

/// Member `key` of an object, or nullptr when it is missing or null.
[[nodiscard]] const Json* member(const Json& object, const char* key);
/// A non-negative integer up to `max`; `fallback` when missing; kCorrupt for anything else (and
/// when missing without a fallback).
[[nodiscard]] Expected<uint64_t> uint_member(const Json& object, const char* key, uint64_t max,
                                             std::optional<uint64_t> fallback = {});
[[nodiscard]] Expected<double> float_member(const Json& object, const char* key,
                                            std::optional<double> fallback = {});
[[nodiscard]] Expected<bool> bool_member(const Json& object, const char* key,
                                         std::optional<bool> fallback = {});
[[nodiscard]] Expected<std::string> string_member(const Json& object, const char* key,
                                                  std::optional<std::string> fallback = {});

}  // namespace baton::model
