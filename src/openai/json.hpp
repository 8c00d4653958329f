#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "baton/base/error.hpp"

namespace baton::openai {

/// Objects keep the order of their keys: a template that prints a tool prints it as the client
/// wrote it.
using Json = nlohmann::ordered_json;

/// Parses one JSON text under the rules of check_json_object(), with no key twice in any object.
[[nodiscard]] Expected<Json> parse_json(std::string_view text);
/// The same, and it must be an object.
[[nodiscard]] Expected<Json> parse_json_object(std::string_view text);

/// Member `name` of an object, or nullptr when it is absent or null.
[[nodiscard]] const Json* find(const Json& object, std::string_view name);

/// A closed or half-open range of numbers and the words for it ("a number within 0..2").
struct NumberRange {
    double low;
    double high;
    const char* words;
    bool low_open = false;
};
/// Field readers: nothing where the field is absent or null, kInvalidArgument with the field's name
/// as param where it has another type or lies outside. A bool is never a number, a fraction never
/// an integer.
[[nodiscard]] Expected<std::optional<double>> number_field(const Json& object, const char* name,
                                                           NumberRange range);
[[nodiscard]] Expected<std::optional<int64_t>> int_field(const Json& object, const char* name,
                                                         int64_t low, int64_t high);
[[nodiscard]] Expected<std::optional<bool>> bool_field(const Json& object, const char* name);
[[nodiscard]] Expected<std::optional<std::string>> string_field(const Json& object,
                                                                const char* name);
/// The exact integer a JSON value is, or nothing.
[[nodiscard]] std::optional<int64_t> exact_int(const Json& value);

/// kInvalidArgument about field `param`.
[[nodiscard]] tl::unexpected<Error> bad_field(std::string message, std::string param);
/// A value for an error message: its JSON, cut to a few dozen bytes.
[[nodiscard]] std::string shown(const Json& value);
/// Prints with invalid UTF-8 replaced, never throwing.
[[nodiscard]] std::string dump(const Json& value);

}  // namespace baton::openai
