#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/grammar/grammar.hpp"

namespace baton::grammar {

using Json = nlohmann::ordered_json;

/// The JSON types of a schema's values, a bit each.
enum TypeBits : uint8_t { kNull = 1, kBoolean = 2, kInteger = 4, kNumber = 8, kString = 16, kArray = 32, kObject = 64, kAllTypes = 127 };

/// Brings schemas into one object each: references followed, allOf and neighbours of a reference put together. What is left are
/// keywords of a type, enum, const, and groups of alternatives under kGroups.
class SchemaResolver {
  public:
    /// An array of {"kind": "anyOf" | "oneOf", "branches": […]}; all of them hold.
    static constexpr const char* kGroups = "\x01groups";

    SchemaResolver(const Json& root, const Limits& limits);

    /// The schema (true, false or an object) without references and allOf at its outermost level. `false` is given as it is,
    /// true as {}.
    [[nodiscard]] Expected<Json> flatten(const Json& schema, const std::string& path, uint32_t depth = 0);
    /// Both must hold; arguments and result as flatten gives them.
    [[nodiscard]] Expected<Json> merge(const Json& a, const Json& b, const std::string& path, uint32_t depth = 0);
    /// What a "$ref" points to.
    [[nodiscard]] Expected<const Json*> find(const std::string& reference, const std::string& path) const;
    /// True where no value that is made for `made` is valid under `other` (both flattened): then alternatives exclude each other.
    [[nodiscard]] bool excludes(const Json& other, const Json& made, uint32_t depth = 0);

  private:
    [[nodiscard]] Expected<void> spend(const Json& copied);
    [[nodiscard]] Expected<void> merge_properties(Json& out, const Json& a, const Json& b, const std::string& path, uint32_t depth);
    [[nodiscard]] Expected<void> merge_keyword(Json& out, const std::string& key, const Json& value, const std::string& path, uint32_t depth);

    const Json& root_;
    const Limits& limits_;
    size_t budget_;  ///< values that may still be copied
};

/// kUnsupported or kInvalidArgument about a place in a schema.
[[nodiscard]] tl::unexpected<Error> schema_unsupported(const std::string& path, const std::string& what);
[[nodiscard]] tl::unexpected<Error> schema_bad(const std::string& path, const std::string& what);

/// Types that "type" names, kAllTypes without it; an integer is no number here. Errors for an unknown one.
[[nodiscard]] Expected<uint8_t> declared_types(const Json& schema, const std::string& path);
/// Types of the values that are made: the declared ones, or those that its keywords are about.
[[nodiscard]] uint8_t made_types(const Json& schema);
[[nodiscard]] uint8_t type_of(const Json& value);
/// True for keywords that say nothing of validity.
[[nodiscard]] bool is_annotation(std::string_view key);
/// Equal as JSON schema compares: 1 and 1.0 are.
[[nodiscard]] bool same_value(const Json& a, const Json& b);

}  // namespace baton::grammar
