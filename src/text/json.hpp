#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baton/base/error.hpp"

namespace baton::text {

/// Receives the pieces of a JSON text in order. A method that returns false ends the parse with an
/// error.
class JsonHandler {
  public:
    virtual ~JsonHandler() = default;
    virtual bool on_null() = 0;
    virtual bool on_bool(bool value) = 0;
    /// `source` is the number exactly as written, already checked against the grammar.
    virtual bool on_number(std::string_view source) = 0;
    virtual bool on_string(std::string&& value) = 0;
    virtual bool on_key(std::string&& key) = 0;
    virtual bool begin_array() = 0;
    virtual bool end_array() = 0;
    virtual bool begin_object() = 0;
    virtual bool end_object() = 0;
};

/// Reads one JSON text (RFC 8259, strict: no comments, no NaN, valid UTF-8, no lone surrogates, no
/// raw control characters) of at most `depth_max` nested containers. Errors name the byte offset,
/// never the text.
[[nodiscard]] Expected<void> parse_json(std::string_view source, size_t depth_max,
                                        JsonHandler& handler);

/// A JSON document in memory; numbers keep their source text, objects keep their order.
struct JsonValue {
    enum class Kind : uint8_t { kNull, kFalse, kTrue, kNumber, kString, kArray, kObject };
    Kind kind = Kind::kNull;
    std::string text;  ///< string value, or the number as written
    std::vector<JsonValue> items;
    std::vector<std::pair<std::string, JsonValue>> members;

    [[nodiscard]] bool is_null() const { return kind == Kind::kNull; }
    [[nodiscard]] bool is_string() const { return kind == Kind::kString; }
    [[nodiscard]] bool is_array() const { return kind == Kind::kArray; }
    [[nodiscard]] bool is_object() const { return kind == Kind::kObject; }
    /// The member `key` (the last of that name), or null.
    [[nodiscard]] const JsonValue* find(std::string_view key) const;
    /// The member as a string, or "" where it is absent or another kind.
    [[nodiscard]] std::string_view string_or_empty(std::string_view key) const;
    /// The member as a bool, or `fallback` where it is absent or another kind.
    [[nodiscard]] bool bool_or(std::string_view key, bool fallback) const;
    /// The number as an exact int64, or `fallback` where it is not one.
    [[nodiscard]] int64_t int_or(int64_t fallback) const;
};

/// Reads a document into memory; at most `nodes_max` values.
[[nodiscard]] Expected<JsonValue> read_json(std::string_view source, size_t depth_max,
                                            size_t nodes_max);

}  // namespace baton::text
