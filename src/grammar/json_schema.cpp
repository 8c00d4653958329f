#include "grammar/json_schema.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "baton/base/encoding.hpp"
#include "baton/base/utf8.hpp"
#include "grammar/json_text.hpp"
#include "grammar/regex.hpp"
#include "grammar/schema_merge.hpp"

namespace baton::grammar {
namespace {

constexpr uint32_t kCompiledMax = 20'000;  ///< schemas, counted as often as they are compiled
constexpr uint64_t kCountMax = 100'000;

/// Keywords that would have to be looked at and are not.
constexpr std::array<const char*, 14> kRefused{"not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "contains",
                                               "minContains", "maxContains", "$dynamicRef", "$recursiveRef", "extends", "disallow"};

/// Expressions of JSON values.
class SchemaReader {
  public:
    SchemaReader(ExprPool& pool, const Json& root, const Limits& limits)
        : pool_(pool), root_(root), limits_(limits), resolver_(root, limits) {}

    Expected<ExprId> read() { return compile(root_, "#", 0); }
    ExprId any_object() {
        make_any();
        return pool_.rule(object_);
    }

  private:
    // ---- parts of JSON ----

    ExprId space() {
        if (!space_) {
            space_ = pool_.add_rule("space");
            pool_.define(*space_, json_space(pool_));
        }
        return pool_.rule(*space_);
    }
    /// Behind a colon.
    ExprId gap() { return pool_.optional(pool_.bytes(" ")); }

    ExprId json_char() {
        if (char_ == 0) {
            CharSet plain = CharSet::of(0x20, kCharMax);
            plain = plain.minus(CharSet::of('"')).minus(CharSet::of('\\')).minus(CharSet::of(0x7F));
            CharSet hex = CharSet::of('0', '9');
            hex.add('a', 'f');
            hex.add('A', 'F');
            CharSet not_d = hex.minus(CharSet::of('d')).minus(CharSet::of('D')), d = CharSet::of('d');
            d.add('D', 'D');
            const ExprId h = pool_.chars(hex);
            // No surrogates: half of a pair is no text.
            const ExprId code = pool_.alt({pool_.seq({pool_.chars(not_d), h}), pool_.seq({pool_.chars(d), pool_.chars(CharSet::of('0', '7'))})});
            const ExprId escape = pool_.alt({pool_.literals({"\\\"", "\\\\", "\\/", "\\b", "\\f", "\\n", "\\r", "\\t"}), pool_.seq({pool_.bytes("\\u"), code, h, h})});
            char_ = pool_.alt({pool_.chars(plain), escape});
        }
        return char_;
    }
    ExprId quoted(ExprId inner) { return pool_.seq({pool_.bytes("\""), inner, pool_.bytes("\"")}); }
    ExprId text(uint32_t least, uint32_t most) { return quoted(pool_.repeat(json_char(), least, most)); }

    static std::string printed(const Json& value) { return value.dump(-1, ' ', false, Json::error_handler_t::replace); }

    /// open, then `members` with white space around, then close; `empty`: nothing may lie between.
    ExprId enclosed(const char* open, ExprId members, const char* close, bool empty) {
        const ExprId inner = pool_.seq({members, space()});
        return pool_.seq({pool_.bytes(open), space(), empty ? pool_.optional(inner) : inner, pool_.bytes(close)});
    }
    ExprId comma() { return pool_.seq({pool_.bytes(","), space()}); }

    /// The rules for values of any kind.
    void make_any() {
        if (any_made_) return;
        any_made_ = true;
        value_ = pool_.add_rule("value");
        object_ = pool_.add_rule("object");
        array_ = pool_.add_rule("array");
        const ExprId value = pool_.rule(value_);
        const ExprId member = pool_.seq({text(0, kUnbounded), pool_.bytes(":"), gap(), value});
        pool_.define(object_, enclosed("{", pool_.seq({member, pool_.any_number(pool_.seq({comma(), member}))}), "}", true));
        pool_.define(array_, enclosed("[", pool_.seq({value, pool_.any_number(pool_.seq({comma(), value}))}), "]", true));
        pool_.define(value_, pool_.alt({pool_.rule(object_), pool_.rule(array_), text(0, kUnbounded), number_between(pool_, {}, {}),
                                        pool_.literals({"true", "false", "null"})}));
    }

    // ---- schemas ----

    Expected<ExprId> compile(const Json& schema, const std::string& path, uint32_t depth) {
        if (schema.is_boolean()) return schema.get<bool>() ? any_value() : pool_.nothing();
        if (!schema.is_object()) return schema_bad(path, "a schema is an object or a boolean");
        if (depth > 2 * limits_.nesting || ++compiled_ > kCompiledMax || pool_.full())
            return schema_bad(path, "the schema is too large or too deeply nested");
        if (const Json* reference = only_reference(schema)) return compile_reference(*reference, path, depth);
        BATON_TRY_ASSIGN(const Json flat, resolver_.flatten(schema, path));
        return compile_flat(flat, path, depth);
    }

    /// The $ref of a schema that is nothing else.
    static const Json* only_reference(const Json& schema) {
        const Json* found = nullptr;
        for (const auto& [key, value] : schema.items()) {
            if (key == "$ref" && value.is_string()) found = &value;
            else if (!is_annotation(key)) return nullptr;
        }
        return found;
    }

    /// A rule for each place referred to, so that schemas may contain themselves.
    Expected<ExprId> compile_reference(const Json& reference, const std::string& path, uint32_t depth) {
        const auto& name = reference.get_ref<const std::string&>();
        const auto known = references_.find(name);
        if (known != references_.end()) return pool_.rule(known->second);
        BATON_TRY_ASSIGN(const Json* target, resolver_.find(name, path));
        const RuleId rule = pool_.add_rule(name);
        references_.emplace(name, rule);
        BATON_TRY_ASSIGN(const ExprId body, compile(*target, name, depth + 1));
        pool_.define(rule, body);
        return pool_.rule(rule);
    }

    ExprId any_value() {
        make_any();
        return pool_.rule(value_);
    }

    /// Of a schema without references and allOf at its outermost level.
    Expected<ExprId> compile_flat(const Json& s, const std::string& path, uint32_t depth) {
        if (s.is_boolean()) return pool_.nothing();
        if (depth > 2 * limits_.nesting || ++compiled_ > kCompiledMax) return schema_bad(path, "the schema is too large or too deeply nested");
        for (const char* key : kRefused)
            if (s.contains(key)) return schema_unsupported(path, key);
        if (s.contains(SchemaResolver::kGroups)) return compile_group(s, path, depth);
        if (s.contains("const") || s.contains("enum")) return compile_values(s, path);
        BATON_TRY(declared_types(s, path));
        const uint8_t types = made_types(s);
        std::vector<ExprId> parts;
        if (types == kAllTypes && !s.contains("type")) return any_value();
        if ((types & kNull) != 0) parts.push_back(pool_.bytes("null"));
        if ((types & kBoolean) != 0) parts.push_back(pool_.literals({"true", "false"}));
        if ((types & (kInteger | kNumber)) != 0) {
            BATON_TRY_ASSIGN(const ExprId e, compile_number(s, (types & kNumber) == 0, path));
            parts.push_back(e);
        }
        if ((types & kString) != 0) {
            BATON_TRY_ASSIGN(const ExprId e, compile_string(s, path));
            parts.push_back(e);
        }
        if ((types & kArray) != 0) {
            BATON_TRY_ASSIGN(const ExprId e, compile_array(s, path, depth));
            parts.push_back(e);
        }
        if ((types & kObject) != 0) {
            BATON_TRY_ASSIGN(const ExprId e, compile_object(s, path, depth));
            parts.push_back(e);
        }
        return pool_.alt(parts);
    }

    /// The first group of alternatives: each put together with all else.
    Expected<ExprId> compile_group(const Json& s, const std::string& path, uint32_t depth) {
        Json rest = s;
        const Json group = rest[SchemaResolver::kGroups].front();
        rest[SchemaResolver::kGroups].erase(0);
        if (rest[SchemaResolver::kGroups].empty()) rest.erase(SchemaResolver::kGroups);
        const auto& kind = group["kind"].get_ref<const std::string&>();
        // Alternatives that stand alone are compiled as they are: references stay rules.
        const bool alone = std::ranges::all_of(rest.items(), [](const auto& item) { return is_annotation(item.key()); });
        std::vector<Json> branches;
        std::vector<ExprId> parts;
        for (const Json& branch : group["branches"]) {
            const std::string at = path + "/" + kind + "/" + std::to_string(parts.size());
            if (kind == "oneOf" || !alone) {
                BATON_TRY_ASSIGN(const Json flat, resolver_.flatten(branch, at));
                BATON_TRY_ASSIGN(Json merged, resolver_.merge(rest, flat, at));
                branches.push_back(std::move(merged));
            }
            BATON_TRY_ASSIGN(const ExprId e, alone ? compile(branch, at, depth + 1) : compile_flat(branches.back(), at, depth + 1));
            parts.push_back(e);
        }
        if (kind == "oneOf") {
            if (branches.size() > 64) return schema_unsupported(path, "oneOf of more than 64 schemas");
            for (size_t i = 0; i < branches.size(); ++i)
                for (size_t k = 0; k < branches.size(); ++k)
                    if (i != k && !resolver_.excludes(branches[i], branches[k]))
                        return schema_unsupported(path, "oneOf of schemas that may hold together (" + std::to_string(std::min(i, k)) + " and " +
                                                            std::to_string(std::max(i, k)) + "; anyOf is)");
        }
        return pool_.alt(parts);
    }

    /// enum and const: those values that fit the other keywords.
    Expected<ExprId> compile_values(const Json& s, const std::string& path) {
        Json values = s.contains("const") ? Json::array({s["const"]}) : s["enum"];
        if (!values.is_array()) return schema_bad(path, "enum is an array");
        BATON_TRY_ASSIGN(const uint8_t types, declared_types(s, path));
        std::vector<std::string> texts;
        for (const Json& v : values) {
            if ((type_of(v) & types) == 0) continue;
            if (s.contains("const") && s.contains("enum") &&
                std::ranges::none_of(s["enum"], [&](const Json& w) { return same_value(v, w); }))
                continue;
            BATON_TRY_ASSIGN(const bool fits, fits_bounds(v, s, path));
            if (fits) texts.push_back(printed(v));
        }
        return pool_.literals(std::move(texts));
    }

    /// Whether a value of an enum is valid under the keywords next to it.
    Expected<bool> fits_bounds(const Json& v, const Json& s, const std::string& path) {
        const auto bound = [&](const char* key) { return s.contains(key) && s[key].is_number() ? std::optional(s[key].get<double>()) : std::nullopt; };
        if (v.is_number()) {
            const double x = v.get<double>();
            if (s.contains("multipleOf")) return schema_unsupported(path, "multipleOf next to enum");
            return !(bound("minimum") && x < *bound("minimum")) && !(bound("maximum") && x > *bound("maximum")) &&
                   !(bound("exclusiveMinimum") && x <= *bound("exclusiveMinimum")) && !(bound("exclusiveMaximum") && x >= *bound("exclusiveMaximum"));
        }
        if (v.is_string()) {
            for (const char* key : {"pattern", "format"})
                if (s.contains(key)) return schema_unsupported(path, std::string(key) + " next to enum");
            const auto& t = v.get_ref<const std::string&>();
            const auto length = static_cast<double>(count_utf8(t));
            return !(bound("minLength") && length < *bound("minLength")) && !(bound("maxLength") && length > *bound("maxLength"));
        }
        if (v.is_array() || v.is_object()) {
            for (const char* key : {"properties", "required", "additionalProperties", "patternProperties", "items", "prefixItems", "minItems", "maxItems",
                                    "uniqueItems", "minProperties", "maxProperties", "propertyNames"})
                if (s.contains(key)) return schema_unsupported(path, std::string(key) + " next to enum");
        }
        return true;
    }

    Expected<std::optional<Bound>> bound(const Json& s, const char* inclusive, const char* exclusive, bool is_low, const std::string& path) {
        std::optional<Bound> out;
        double best = 0;
        for (const char* key : {inclusive, exclusive}) {
            if (!s.contains(key)) continue;
            if (!s[key].is_number()) return schema_bad(path, std::string(key) + " is a number");
            const double x = s[key].get<double>();
            const bool tighter = !out || (is_low ? x >= best : x <= best);
            if (!tighter) continue;
            const auto decimal = plain_decimal(printed(s[key]));
            if (!decimal) {
                if (is_low ? x < -1e17 : x > 1e17) continue;  // beyond what is made anyway
                return schema_unsupported(path, std::string(key) + " with so many digits");
            }
            best = x;
            out = Bound{*decimal, key == exclusive};
        }
        return out;
    }

    Expected<ExprId> compile_number(const Json& s, bool integer, const std::string& path) {
        if (s.contains("multipleOf")) {
            if (!s["multipleOf"].is_number() || s["multipleOf"].get<double>() <= 0) return schema_bad(path, "multipleOf is a number above 0");
            if (s["multipleOf"].get<double>() != 1) return schema_unsupported(path, "multipleOf other than 1");
            integer = true;
        }
        BATON_TRY_ASSIGN(const auto low, bound(s, "minimum", "exclusiveMinimum", true, path));
        BATON_TRY_ASSIGN(const auto high, bound(s, "maximum", "exclusiveMaximum", false, path));
        return integer ? integer_between(pool_, low, high) : number_between(pool_, low, high);
    }

    Expected<std::optional<uint32_t>> count(const Json& s, const char* key, const std::string& path) {
        if (!s.contains(key)) return std::optional<uint32_t>();
        const Json& v = s[key];
        if (!v.is_number() || v.get<double>() < 0 || type_of(v) != kInteger) return schema_bad(path, std::string(key) + " is a whole number");
        if (v.get<double>() > static_cast<double>(kCountMax)) {
            if (std::string_view(key).starts_with("max")) return std::optional<uint32_t>();  // no answer is that long
            return schema_unsupported(path, std::string(key) + " beyond 100000");
        }
        return std::optional<uint32_t>(static_cast<uint32_t>(v.get<double>()));
    }

    Expected<ExprId> compile_string(const Json& s, const std::string& path) {
        BATON_TRY_ASSIGN(const auto least, count(s, "minLength", path));
        BATON_TRY_ASSIGN(const auto most, count(s, "maxLength", path));
        const bool has_pattern = s.contains("pattern"), has_format = s.contains("format");
        if (has_pattern && has_format) return schema_unsupported(path, "pattern together with format");
        if (!has_pattern && !has_format) return text(least.value_or(0), most.value_or(kUnbounded));
        std::string pattern;
        if (has_format) {
            if (!s["format"].is_string()) return schema_bad(path, "format is a string");
            const char* regex = format_regex(s["format"].get_ref<const std::string&>());
            if (regex == nullptr) return schema_unsupported(path, "format " + printed(s["format"]).substr(0, 40));
            pattern = "^(" + std::string(regex) + ")$";
        } else {
            if (!s["pattern"].is_string()) return schema_bad(path, "pattern is a string");
            pattern = s["pattern"].get<std::string>();
        }
        if (least || most) {
            BATON_TRY_ASSIGN(const ExprId raw, read_pattern(pattern, path, spell_raw));
            const auto [shortest, longest] = lengths(raw, 0);
            if (shortest < least.value_or(0) || longest > uint64_t{most.value_or(kUnbounded)})
                return schema_unsupported(path, std::string(has_format ? "format" : "pattern") + " of other lengths than minLength and maxLength allow");
        }
        BATON_TRY_ASSIGN(const ExprId e, read_pattern(pattern, path, spell_in_json));
        return quoted(e);
    }

    Expected<ExprId> read_pattern(const std::string& pattern, const std::string& path, const Spelling& spelling) {
        auto e = read_regex(pool_, pattern, true, limits_, spelling);
        if (!e) return fail(e.error().code, "schema at " + path + ": pattern: " + e.error().message);
        return *e;
    }

    /// The fewest and most characters of an expression without rules.
    std::pair<uint64_t, uint64_t> lengths(ExprId id, uint32_t depth) {
        const Expr& e = pool_.at(id);
        std::pair<uint64_t, uint64_t> out{0, 0};
        if (e.op == Op::kChars) return {1, 1};
        if (e.op == Op::kBytes) return {e.n, e.n};
        if (depth > 4 * limits_.nesting) return {0, kUnbounded};
        if (e.op == Op::kSeq) {
            for (const ExprId p : pool_.parts(e)) {
                const auto [a, b] = lengths(p, depth + 1);
                out = {out.first + a, std::min<uint64_t>(out.second + b, kUnbounded)};
            }
        } else if (e.op == Op::kAlt) {
            out.first = kUnbounded;
            for (const ExprId p : pool_.parts(e)) {
                const auto [a, b] = lengths(p, depth + 1);
                out = {std::min(out.first, a), std::max(out.second, b)};
            }
        } else if (e.op == Op::kRepeat) {
            const auto [a, b] = lengths(e.a, depth + 1);
            out = {std::min<uint64_t>(a * e.n, kUnbounded), std::min<uint64_t>(b * e.most, kUnbounded)};
        }
        return out;
    }

    Expected<ExprId> compile_array(const Json& s, const std::string& path, uint32_t depth) {
        if (s.contains("uniqueItems") && s["uniqueItems"] != false) return schema_unsupported(path, "uniqueItems");
        if (s.contains("unevaluatedItems") && s["unevaluatedItems"] != true) return schema_unsupported(path, "unevaluatedItems");
        BATON_TRY_ASSIGN(const auto least_items, count(s, "minItems", path));
        BATON_TRY_ASSIGN(const auto most_items, count(s, "maxItems", path));
        uint32_t least = least_items.value_or(0), most = most_items.value_or(kUnbounded);
        // Before draft 2020-12 an array of "items" was what prefixItems is now.
        const bool old = s.contains("items") && s["items"].is_array();
        const char* prefix_key = old ? "items" : "prefixItems";
        const char* rest_key = old ? "additionalItems" : "items";
        std::vector<ExprId> prefix;
        if (s.contains(prefix_key)) {
            if (!s[prefix_key].is_array()) return schema_bad(path, "prefixItems is an array of schemas");
            for (const Json& item : s[prefix_key]) {
                BATON_TRY_ASSIGN(const ExprId e, compile(item, path + "/" + prefix_key + "/" + std::to_string(prefix.size()), depth + 1));
                prefix.push_back(e);
            }
        }
        ExprId rest = pool_.nothing();
        // What comes after a prefix may be anything where nothing is said of it; then nothing comes.
        if (s.contains(rest_key) || prefix.empty() || least > prefix.size()) {
            const Json any = true;
            const Json& schema = s.contains(rest_key) ? s[rest_key] : any;
            BATON_TRY_ASSIGN(rest, compile(schema, path + "/" + rest_key, depth + 1));
        }
        if (least > most) return pool_.nothing();
        return array_of(prefix, rest, least, most);
    }

    ExprId array_of(const std::vector<ExprId>& prefix, ExprId rest, uint32_t least, uint32_t most) {
        const RuleId item = pool_.add_rule("items");
        pool_.define(item, rest);
        const ExprId one = rest == pool_.nothing() ? rest : pool_.rule(item);
        const auto fixed = static_cast<uint32_t>(std::min<size_t>(prefix.size(), most));
        const uint32_t more_least = least > fixed ? least - fixed : 0, more_most = most == kUnbounded ? most : most - fixed;
        // From the last one back: what may follow when so many are there.
        ExprId tail = pool_.empty();
        if (fixed > 0) tail = pool_.repeat(pool_.seq({comma(), one}), more_least, more_most);
        for (uint32_t i = fixed; i-- > 0;) {
            const ExprId here = pool_.seq({i == 0 ? pool_.empty() : comma(), prefix[i], tail});
            tail = i >= least && i > 0 ? pool_.optional(here) : here;
        }
        if (fixed == 0 && more_most > 0) {
            const uint32_t others = more_most == kUnbounded ? kUnbounded : more_most - 1;
            tail = pool_.seq({one, pool_.repeat(pool_.seq({comma(), one}), more_least > 0 ? more_least - 1 : 0, others)});
        }
        if (most == 0 || (tail == pool_.nothing() && least == 0)) return pool_.seq({pool_.bytes("["), space(), pool_.bytes("]")});
        return enclosed("[", tail, "]", least == 0);
    }

    // ---- objects ----

    struct Property {
        ExprId member = 0;  ///< name, colon and value
        bool required = false;
    };

    Expected<ExprId> compile_object(const Json& s, const std::string& path, uint32_t depth) {
        BATON_TRY(check_object(s, path));
        const Json none = Json::object();
        const Json& properties = s.contains("properties") ? s["properties"] : none;
        std::vector<std::string> required;
        if (s.contains("required")) {
            if (!s["required"].is_array()) return schema_bad(path, "required is an array of names");
            for (const Json& name : s["required"]) {
                if (!name.is_string()) return schema_bad(path, "required is an array of names");
                required.push_back(name.get<std::string>());
            }
        }
        std::vector<Property> members;
        std::vector<std::string> names;
        const auto add = [&](const std::string& name, const Json& schema, bool is_required, const std::string& at) -> Expected<void> {
            BATON_TRY_ASSIGN(const ExprId value, compile(schema, at, depth + 1));
            const RuleId rule = pool_.add_rule("property");
            pool_.define(rule, pool_.seq({pool_.bytes(printed(Json(name)) + ":"), gap(), value}));
            if (value == pool_.nothing()) {
                if (is_required) members.push_back({pool_.nothing(), true});
            } else {
                members.push_back({pool_.rule(rule), is_required});
            }
            names.push_back(name);
            return {};
        };
        for (const auto& [name, schema] : properties.items())
            BATON_TRY(add(name, schema, std::ranges::find(required, name) != required.end(), path + "/properties/" + name));
        const Json yes = true;
        for (const std::string& name : required) {
            if (std::ranges::find(names, name) != names.end()) continue;
            if (s.contains("patternProperties")) return schema_unsupported(path, "required together with patternProperties");
            BATON_TRY(add(name, s.contains("additionalProperties") ? s["additionalProperties"] : yes, true, path + "/additionalProperties"));
        }
        BATON_TRY_ASSIGN(const ExprId extra, extra_member(s, names, path, depth));
        return object_of(s, members, extra, path);
    }

    /// Keywords of objects that are not built, or only in some company.
    Expected<void> check_object(const Json& s, const std::string& path) {
        if (s.contains("properties") && !s["properties"].is_object()) return schema_bad(path, "properties is an object");
        if (s.contains("unevaluatedProperties") && s["unevaluatedProperties"].is_object()) return schema_unsupported(path, "unevaluatedProperties");
        if (s.contains("patternProperties")) {
            if (!s["patternProperties"].is_object()) return schema_bad(path, "patternProperties is an object");
            if (s["patternProperties"].size() > 1) return schema_unsupported(path, "more than one of patternProperties");
            if (s.contains("properties") && !s["properties"].empty()) return schema_unsupported(path, "patternProperties together with properties");
            if (s.contains("propertyNames")) return schema_unsupported(path, "patternProperties together with propertyNames");
            if (s.contains("additionalProperties") && s["additionalProperties"] != false && s["additionalProperties"] != true)
                return schema_unsupported(path, "patternProperties together with a schema for additionalProperties");
        }
        if (s.contains("propertyNames") && s.contains("properties") && !s["properties"].empty())
            return schema_unsupported(path, "propertyNames together with properties");
        return {};
    }

    /// A member that no property names: none where nothing is said of such, unless nothing is said at all.
    Expected<ExprId> extra_member(const Json& s, const std::vector<std::string>& names, const std::string& path, uint32_t depth) {
        ExprId name = 0;
        Json schema = true;
        std::string at = path + "/additionalProperties";
        if (s.contains("patternProperties") && !s["patternProperties"].empty()) {
            const auto pattern = s["patternProperties"].items().begin();
            BATON_TRY_ASSIGN(const ExprId e, read_pattern(pattern.key(), path, spell_in_json));
            name = quoted(e);
            schema = pattern.value();
            at = path + "/patternProperties";
        } else {
            const bool said = s.contains("additionalProperties");
            if (said) schema = s["additionalProperties"];
            else if (!names.empty() || s.contains("properties") || s.contains("unevaluatedProperties")) return pool_.nothing();
            if (schema == false) return pool_.nothing();
            if (s.contains("propertyNames")) {
                BATON_TRY_ASSIGN(name, name_of(s["propertyNames"], path + "/propertyNames"));
            } else {
                name = quoted(pool_.alt({other_text(names)}));
            }
        }
        BATON_TRY_ASSIGN(const ExprId value, compile(schema, at, depth + 1));
        if (value == pool_.nothing()) return value;
        const RuleId rule = pool_.add_rule("member");
        pool_.define(rule, pool_.seq({name, pool_.bytes(":"), gap(), value}));
        return pool_.rule(rule);
    }

    Expected<ExprId> name_of(const Json& schema, const std::string& path) {
        BATON_TRY_ASSIGN(Json flat, resolver_.flatten(schema, path));
        if (flat.is_boolean()) return pool_.nothing();
        if (!flat.contains("type") && !flat.contains("enum") && !flat.contains("const")) flat["type"] = "string";
        if (flat.contains(SchemaResolver::kGroups)) return schema_unsupported(path, "anyOf and oneOf of names");
        return compile_flat(flat, path, 0);
    }

    /// Texts without escapes that are none of `names`.
    ExprId other_text(const std::vector<std::string>& names) {
        CharSet plain = CharSet::of(0x20, kCharMax);
        plain = plain.minus(CharSet::of('"')).minus(CharSet::of('\\')).minus(CharSet::of(0x7F));
        std::vector<std::u32string> texts;
        for (const std::string& name : names) {
            std::u32string t;
            bool usable = true;
            for (size_t at = 0; at < name.size() && usable;) {
                const uint32_t c = next_char(name, at);
                usable = c != kNoChar && plain.has(c);
                t.push_back(c);
            }
            if (usable) texts.push_back(std::move(t));
        }
        std::ranges::sort(texts);
        return other_than(texts, 0, plain);
    }
    /// From character `from` on, in which all of `texts` are equal so far.
    ExprId other_than(std::span<const std::u32string> texts, size_t from, const CharSet& plain) {
        if (texts.empty() || pool_.full()) return pool_.any_number(pool_.chars(plain));
        CharSet free = plain;
        std::vector<ExprId> parts;
        size_t at = 0;
        if (texts.front().size() == from) ++at;  // ending here would be that name
        else parts.push_back(pool_.empty());
        while (at < texts.size()) {
            size_t end = at + 1;
            const char32_t c = texts[at][from];
            while (end < texts.size() && texts[end][from] == c) ++end;
            free = free.minus(CharSet::of(c));
            parts.push_back(pool_.seq({pool_.chars(CharSet::of(c)), other_than(texts.subspan(at, end - at), from + 1, plain)}));
            at = end;
        }
        parts.push_back(pool_.seq({pool_.chars(free), pool_.any_number(pool_.chars(plain))}));
        return pool_.alt(parts);
    }

    /// Members in their order, each but the required ones left out at will, then others.
    Expected<ExprId> object_of(const Json& s, const std::vector<Property>& members, ExprId extra, const std::string& path) {
        BATON_TRY_ASSIGN(const auto least, count(s, "minProperties", path));
        BATON_TRY_ASSIGN(const auto most, count(s, "maxProperties", path));
        const auto required = static_cast<uint32_t>(std::ranges::count_if(members, &Property::required));
        const bool others = extra != pool_.nothing();
        if (members.empty() && others) {
            // Two members may have one name: they count once.
            if (least.value_or(0) > 1) return schema_unsupported(path, "minProperties above 1 for names that are free");
            const uint32_t most_others = most ? *most : kUnbounded;
            if (most_others == 0) return least.value_or(0) > 0 ? pool_.nothing() : pool_.seq({pool_.bytes("{"), space(), pool_.bytes("}")});
            const ExprId all = pool_.seq({extra, pool_.repeat(pool_.seq({comma(), extra}), 0, most_others == kUnbounded ? kUnbounded : most_others - 1)});
            return enclosed("{", all, "}", least.value_or(0) == 0);
        }
        if (least.value_or(0) > required) return schema_unsupported(path, "minProperties above the number of required properties");
        if (most && (others || *most < members.size())) {
            if (*most < required) return pool_.nothing();
            return schema_unsupported(path, "maxProperties below the number of properties");
        }
        const ExprId more = others ? pool_.any_number(pool_.seq({comma(), extra})) : pool_.empty();
        // Two rules a place: behind no member yet, and behind one. From the last place back.
        ExprId first = others ? pool_.optional(pool_.seq({extra, more, space()})) : pool_.empty();
        ExprId later = pool_.seq({more, space()});
        for (size_t i = members.size(); i-- > 0;) {
            const Property& m = members[i];
            const ExprId with_first = pool_.seq({m.member, later}), with_later = pool_.seq({comma(), m.member, later});
            first = chain(m.required ? with_first : pool_.alt({with_first, first}));
            later = chain(m.required ? with_later : pool_.alt({with_later, later}));
        }
        return pool_.seq({pool_.bytes("{"), space(), first, pool_.bytes("}")});
    }
    ExprId chain(ExprId body) {
        if (body == pool_.nothing() || body == pool_.empty()) return body;
        const RuleId rule = pool_.add_rule("members");
        pool_.define(rule, body);
        return pool_.rule(rule);
    }

    ExprPool& pool_;
    const Json& root_;
    const Limits& limits_;
    SchemaResolver resolver_;
    uint32_t compiled_ = 0;
    std::map<std::string, RuleId> references_;
    std::optional<RuleId> space_;
    ExprId char_ = 0;
    bool any_made_ = false;
    RuleId value_ = 0, object_ = 0, array_ = 0;
};

}  // namespace

Expected<ExprId> read_json_schema(ExprPool& pool, std::string_view schema, const Limits& limits) {
    if (schema.size() > limits.text_bytes || json_depth(schema) > limits.nesting)  // before a parser sees it
        return fail(ErrorCode::kInvalidArgument, "the schema is too large or too deeply nested");
    const Json root = Json::parse(schema, nullptr, false);
    if (root.is_discarded()) return fail(ErrorCode::kInvalidArgument, "the schema is not JSON");
    return SchemaReader(pool, root, limits).read();
}

ExprId any_json_object(ExprPool& pool) {
    const Json none = true;
    const Limits limits;
    return SchemaReader(pool, none, limits).any_object();
}

}  // namespace baton::grammar
