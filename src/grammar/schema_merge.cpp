#include "grammar/schema_merge.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "baton/base/encoding.hpp"

namespace baton::grammar {
namespace {

constexpr size_t kCopiedMax = 1'000'000;  ///< values copied while putting schemas together
constexpr size_t kPathBytesMax = 160;

constexpr std::array<std::string_view, 18> kAnnotations{
    "title", "description", "default", "examples", "example", "$comment", "$schema", "$id", "id", "deprecated", "readOnly",
    "writeOnly", "$defs", "definitions", "contentMediaType", "contentEncoding", "discriminator", "externalDocs"};

struct TypeName {
    const char* name;
    uint8_t bits;
};
constexpr std::array<TypeName, 7> kTypes{{{"null", kNull}, {"boolean", kBoolean}, {"integer", kInteger}, {"number", kInteger | kNumber},
                                          {"string", kString}, {"array", kArray}, {"object", kObject}}};
struct TypeKeyword {
    const char* key;
    uint8_t bits;
};
constexpr std::array<TypeKeyword, 23> kTypeKeywords{{{"properties", kObject}, {"required", kObject}, {"additionalProperties", kObject},
                                                     {"patternProperties", kObject}, {"minProperties", kObject}, {"maxProperties", kObject},
                                                     {"propertyNames", kObject}, {"unevaluatedProperties", kObject}, {"items", kArray}, {"prefixItems", kArray}, {"minItems", kArray},
                                                     {"maxItems", kArray}, {"uniqueItems", kArray}, {"additionalItems", kArray}, {"minLength", kString}, {"maxLength", kString},
                                                     {"pattern", kString}, {"format", kString}, {"minimum", kInteger | kNumber},
                                                     {"maximum", kInteger | kNumber}, {"exclusiveMinimum", kInteger | kNumber}, {"exclusiveMaximum", kInteger | kNumber}, {"multipleOf", kInteger | kNumber}}};

/// How many values a value has in it, counted up to `most`.
size_t weight(const Json& v, size_t most) {
    size_t n = 1;
    if (!v.is_structured()) return n;
    for (const Json& item : v) {
        if (n >= most) break;
        n += weight(item, most - n);
    }
    return n;
}

std::string shown(const std::string& path) {
    std::string out = path.empty() ? "#" : path;
    if (out.size() > kPathBytesMax) out = out.substr(0, kPathBytesMax) + "…";
    return out;
}

}  // namespace

tl::unexpected<Error> schema_unsupported(const std::string& path, const std::string& what) {
    return fail(ErrorCode::kUnsupported, "schema at " + shown(path) + ": " + what + " is not supported");
}
tl::unexpected<Error> schema_bad(const std::string& path, const std::string& what) {
    return fail(ErrorCode::kInvalidArgument, "schema at " + shown(path) + ": " + what);
}

bool is_annotation(std::string_view key) { return std::ranges::find(kAnnotations, key) != kAnnotations.end() || key.starts_with("x-"); }

uint8_t type_of(const Json& v) {
    if (v.is_null()) return kNull;
    if (v.is_boolean()) return kBoolean;
    if (v.is_number_integer()) return kInteger;
    if (v.is_number()) return std::floor(v.get<double>()) == v.get<double>() ? kInteger : kNumber;
    if (v.is_string()) return kString;
    return v.is_array() ? kArray : kObject;
}

bool same_value(const Json& a, const Json& b) {
    if (a.is_object() && b.is_object()) {
        if (a.size() != b.size()) return false;
        for (const auto& [key, value] : a.items()) {
            const auto it = b.find(key);
            if (it == b.end() || !same_value(value, *it)) return false;
        }
        return true;
    }
    if (a.is_array() && b.is_array())
        return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const Json& x, const Json& y) { return same_value(x, y); });
    return a == b;
}

Expected<uint8_t> declared_types(const Json& schema, const std::string& path) {
    const auto it = schema.find("type");
    if (it == schema.end()) return kAllTypes;
    uint8_t bits = 0;
    const auto add = [&](const Json& name) {
        for (const TypeName& t : kTypes) {
            if (!name.is_string() || name.get_ref<const std::string&>() != t.name) continue;
            bits = static_cast<uint8_t>(bits | t.bits);
            return true;
        }
        return false;
    };
    if (it->is_array()) {
        for (const Json& name : *it)
            if (!add(name)) return schema_bad(path, "type names no JSON type");
    } else if (!add(*it)) {
        return schema_bad(path, "type names no JSON type");
    }
    const auto nullable = schema.find("nullable");  // OpenAPI 3.0
    if (nullable != schema.end() && *nullable == true) bits = static_cast<uint8_t>(bits | kNull);
    return bits;
}

uint8_t made_types(const Json& schema) {
    const auto declared = declared_types(schema, "");
    if (!declared) return 0;
    if (schema.contains("type")) return *declared;
    uint8_t bits = 0;
    for (const TypeKeyword& k : kTypeKeywords)
        if (schema.contains(k.key)) bits = static_cast<uint8_t>(bits | k.bits);
    return bits == 0 ? uint8_t{kAllTypes} : bits;
}

SchemaResolver::SchemaResolver(const Json& root, const Limits& limits) : root_(root), limits_(limits), budget_(kCopiedMax) {}

Expected<void> SchemaResolver::spend(const Json& copied) {
    const size_t cost = 8 + weight(copied, budget_ + 1);
    if (cost > budget_) return fail(ErrorCode::kInvalidArgument, "the schema combines too many parts (allOf, anyOf, references with neighbours)");
    budget_ -= cost;
    return {};
}

Expected<const Json*> SchemaResolver::find(const std::string& reference, const std::string& path) const {
    if (reference.empty() || reference[0] != '#') return schema_unsupported(path, "a $ref to another document");
    if (reference == "#") return &root_;
    if (reference[1] != '/') return schema_unsupported(path, "a $ref to an anchor");
    const Json* at = &root_;
    for (size_t begin = 2; begin <= reference.size();) {
        const size_t end = std::min(reference.find('/', begin), reference.size());
        std::string part;
        for (size_t i = begin; i < end; ++i) {
            const std::string_view rest = std::string_view(reference).substr(i, end - i);
            if (rest.starts_with("~0") || rest.starts_with("~1")) {
                part += rest[1] == '0' ? '~' : '/';
                ++i;
            } else if (rest[0] == '%' && rest.size() >= 3 && hex_digit(rest[1]) >= 0 && hex_digit(rest[2]) >= 0) {
                part += static_cast<char>(hex_digit(rest[1]) * 16 + hex_digit(rest[2]));
                i += 2;
            } else {
                part += rest[0];
            }
        }
        if (at->is_object() && at->contains(part)) {
            at = &*at->find(part);
        } else if (at->is_array() && !part.empty() && part.size() < 6 && part.find_first_not_of("0123456789") == std::string::npos &&
                   static_cast<size_t>(std::stoul(part)) < at->size()) {
            at = &(*at)[static_cast<size_t>(std::stoul(part))];
        } else {
            return schema_bad(path, "$ref points to nothing");
        }
        begin = end + 1;
    }
    return at;
}

Expected<Json> SchemaResolver::flatten(const Json& schema, const std::string& path, uint32_t depth) {
    if (schema.is_boolean()) return schema.get<bool>() ? Json(Json::object()) : Json(false);
    if (!schema.is_object()) return schema_bad(path, "a schema is an object or a boolean");
    if (depth > limits_.nesting) return schema_bad(path, "references and allOf lead into one another without end");
    BATON_TRY(spend(schema));
    Json out = Json::object();
    Json groups = Json::array();
    std::vector<Json> more;
    for (const auto& [key, value] : schema.items()) {
        if (is_annotation(key)) continue;
        if (key == "$ref") {
            if (!value.is_string()) return schema_bad(path, "$ref is a string");
            BATON_TRY_ASSIGN(const Json* target, find(value.get<std::string>(), path));
            BATON_TRY_ASSIGN(Json flat, flatten(*target, path, depth + 1));
            more.push_back(std::move(flat));
        } else if (key == "allOf") {
            if (!value.is_array() || value.empty()) return schema_bad(path, "allOf is an array of schemas");
            for (const Json& part : value) {
                BATON_TRY_ASSIGN(Json flat, flatten(part, path + "/allOf", depth + 1));
                more.push_back(std::move(flat));
            }
        } else if (key == "anyOf" || key == "oneOf") {
            if (!value.is_array() || value.empty()) return schema_bad(path, key + " is an array of schemas");
            groups.push_back(Json{{"kind", key}, {"branches", value}});
        } else {
            out[key] = value;
        }
    }
    if (!groups.empty()) out[kGroups] = std::move(groups);
    for (const Json& part : more) {
        BATON_TRY_ASSIGN(out, merge(out, part, path, depth + 1));
        if (out.is_boolean()) return out;
    }
    return out;
}

Expected<Json> SchemaResolver::merge(const Json& a, const Json& b, const std::string& path, uint32_t depth) {
    if (a.is_boolean() || b.is_boolean()) return Json(false);
    if (depth > limits_.nesting) return schema_bad(path, "references and allOf lead into one another without end");
    BATON_TRY(spend(a));
    BATON_TRY(spend(b));
    Json out = a;
    BATON_TRY(merge_properties(out, a, b, path, depth));
    for (const auto& [key, value] : b.items()) {
        if (key == "properties" || key == "additionalProperties" || key == "patternProperties") continue;
        if (!out.contains(key)) out[key] = value;
        else if (key == "required" || key == kGroups) {
            for (const Json& item : value)
                if (key == kGroups || std::ranges::find(out[key], item) == out[key].end()) out[key].push_back(item);
        } else if (!(out[key] == value)) {
            BATON_TRY(merge_keyword(out, key, value, path, depth));
        }
    }
    return out;
}

/// Two values of one keyword, neither properties nor required.
Expected<void> SchemaResolver::merge_keyword(Json& out, const std::string& key, const Json& value, const std::string& path, uint32_t depth) {
    Json& own = out[key];
    if (key == "minimum" || key == "exclusiveMinimum" || key == "minLength" || key == "minItems" || key == "minProperties") {
        if (own.is_number() && value.is_number() && value.get<double>() > own.get<double>()) own = value;
    } else if (key == "maximum" || key == "exclusiveMaximum" || key == "maxLength" || key == "maxItems" || key == "maxProperties") {
        if (own.is_number() && value.is_number() && value.get<double>() < own.get<double>()) own = value;
    } else if (key == "type") {
        BATON_TRY_ASSIGN(const uint8_t mine, declared_types(Json{{"type", own}}, path));
        BATON_TRY_ASSIGN(const uint8_t other, declared_types(Json{{"type", value}}, path));
        own = Json::array();
        const int both = mine & other;
        if ((both & kNumber) != 0) own.push_back("number");
        else if ((both & kInteger) != 0) own.push_back("integer");
        for (const TypeName& t : kTypes)
            if ((t.bits & (kInteger | kNumber)) == 0 && (both & t.bits) != 0) own.push_back(t.name);
    } else if (key == "enum") {
        Json kept = Json::array();
        for (const Json& v : own)
            if (std::ranges::any_of(value, [&](const Json& w) { return same_value(v, w); })) kept.push_back(v);
        own = std::move(kept);
    } else if (key == "const") {
        if (!same_value(own, value)) out["enum"] = Json::array();
    } else if (key == "items") {
        BATON_TRY_ASSIGN(const Json x, flatten(own, path + "/items", depth + 1));
        BATON_TRY_ASSIGN(const Json y, flatten(value, path + "/items", depth + 1));
        BATON_TRY_ASSIGN(out[key], merge(x, y, path + "/items", depth + 1));
    } else if (key == "nullable") {
        own = own == true && value == true;
    } else {
        return schema_unsupported(path, "two different values of " + key + " for one place (allOf)");
    }
    return {};
}

/// Properties of both, and what both say of others.
Expected<void> SchemaResolver::merge_properties(Json& out, const Json& a, const Json& b, const std::string& path, uint32_t depth) {
    const Json none = Json::object();
    const auto field = [&](const Json& of, const char* key) -> const Json* { return of.contains(key) ? &of[key] : nullptr; };
    if (field(a, "patternProperties") != nullptr || field(b, "patternProperties") != nullptr) {
        const bool other = field(a, "patternProperties") != nullptr ? field(b, "properties") || field(b, "additionalProperties") || field(b, "patternProperties")
                                                                    : field(a, "properties") || field(a, "additionalProperties");
        if (other) return schema_unsupported(path, "patternProperties put together with other properties");
        if (field(b, "patternProperties") != nullptr) out["patternProperties"] = b["patternProperties"];
    }
    const Json& mine = field(a, "properties") ? a["properties"] : none;
    const Json& theirs = field(b, "properties") ? b["properties"] : none;
    if (!mine.is_object() || !theirs.is_object()) return schema_bad(path, "properties is an object");
    const Json* rest_a = field(a, "additionalProperties");
    const Json* rest_b = field(b, "additionalProperties");
    const auto both = [&](const Json& x, const Json& y, const std::string& at) -> Expected<Json> {
        BATON_TRY_ASSIGN(const Json fx, flatten(x, at, depth + 1));
        BATON_TRY_ASSIGN(const Json fy, flatten(y, at, depth + 1));
        return merge(fx, fy, at, depth + 1);
    };
    Json all = Json::object();
    for (const auto& [name, schema] : mine.items()) {
        const Json* other = theirs.contains(name) ? &theirs[name] : rest_b;
        all[name] = schema;
        if (other == nullptr) continue;
        BATON_TRY_ASSIGN(all[name], both(schema, *other, path + "/properties/" + name));
    }
    for (const auto& [name, schema] : theirs.items()) {
        if (mine.contains(name)) continue;
        all[name] = schema;
        if (rest_a == nullptr) continue;
        BATON_TRY_ASSIGN(all[name], both(schema, *rest_a, path + "/properties/" + name));
    }
    if (!all.empty()) out["properties"] = std::move(all);
    if (rest_b == nullptr) return {};
    if (rest_a == nullptr) {
        out["additionalProperties"] = *rest_b;
        return {};
    }
    BATON_TRY_ASSIGN(out["additionalProperties"], both(*rest_a, *rest_b, path + "/additionalProperties"));
    return {};
}

bool SchemaResolver::excludes(const Json& other, const Json& made, uint32_t depth) {
    if (other.is_boolean() || made.is_boolean()) return true;  // false: no value at all
    if (depth > 8) return false;
    const auto values = [](const Json& s) -> std::vector<Json> {
        if (s.contains("const")) return {s["const"]};
        if (s.contains("enum") && s["enum"].is_array()) return s["enum"].get<std::vector<Json>>();
        return {};
    };
    const std::vector<Json> mine = values(made), theirs = values(other);
    const auto declared = declared_types(other, "");
    if (!declared) return false;
    if (!mine.empty()) {
        return std::ranges::all_of(mine, [&](const Json& v) {
            if ((type_of(v) & *declared) == 0) return true;
            return !theirs.empty() && std::ranges::none_of(theirs, [&](const Json& w) { return same_value(v, w); });
        });
    }
    const bool grouped = made.contains(kGroups);  // what is made follows from its alternatives too
    const uint8_t types = grouped && !made.contains("type") ? uint8_t{kAllTypes} : made_types(made);
    if ((types & *declared) == 0) return true;
    if (!theirs.empty() && std::ranges::all_of(theirs, [&](const Json& w) { return (type_of(w) & types) == 0; })) return true;
    if (types != kObject) return false;
    // Objects: what one must have the other may not, or a property that both must agree on.
    const auto has = [](const Json& s, const char* key, const std::string& name) { return s.contains(key) && s[key].is_object() && s[key].contains(name); };
    const auto required = [](const Json& s) { return s.contains("required") && s["required"].is_array() ? s["required"] : Json::array(); };
    const auto needs = required(made);
    const bool named = made.contains("properties") || !needs.empty();
    const bool closed = !grouped && !made.contains("patternProperties") &&
                        (made.contains("additionalProperties") ? made["additionalProperties"] == false : named);
    for (const Json& p : required(other)) {
        if (!p.is_string()) return false;
        const auto& name = p.get_ref<const std::string&>();
        if (closed && !has(made, "properties", name) && std::ranges::find(needs, p) == needs.end()) return true;
    }
    for (const Json& p : needs) {
        if (!p.is_string()) return false;
        const auto& name = p.get_ref<const std::string&>();
        if (!has(other, "properties", name)) {
            if (other.contains("additionalProperties") && other["additionalProperties"] == false && !other.contains("patternProperties")) return true;
            continue;
        }
        if (!has(made, "properties", name)) continue;
        const auto x = flatten(other["properties"][name], "", depth + 1);
        const auto y = flatten(made["properties"][name], "", depth + 1);
        if (x && y && excludes(*x, *y, depth + 1)) return true;
    }
    return false;
}

}  // namespace baton::grammar
