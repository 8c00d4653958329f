#include "openai/constraint_fields.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "baton/grammar/grammar.hpp"
#include "baton/openai/json.hpp"

namespace baton::openai {
namespace {

using wire::Constraint;
using wire::ConstraintKind;

/// What stands beside the schema; the answer is bound to it in any case.
Expected<void> check_schema_fields(const Json& json_schema) {
    const auto bad = [](const char* message) { return bad_field(message, "response_format"); };
    for (const char* text : {"name", "description"})
        if (const Json* value = find(json_schema, text); value != nullptr && !value->is_string()) return bad("response_format.json_schema's name and description must be strings");
    if (const Json* strict = find(json_schema, "strict"); strict != nullptr && !strict->is_boolean()) return bad("response_format.json_schema.strict must be true or false");
    return {};
}

Expected<Constraint> read_response_format(const Json& format) {
    const auto bad = [](const char* message) { return bad_field(message, "response_format"); };
    if (!format.is_object()) return bad("response_format must be an object");
    const Json* type = find(format, "type");
    if (type == nullptr || !type->is_string()) return bad("response_format.type must be a string");
    const auto& name = type->get_ref<const std::string&>();
    if (name == "text") return Constraint{};
    const bool by_schema = name == "json_schema";
    if (!by_schema && name != "json_object") return bad("response_format.type must be text, json_object or json_schema");
    const Json* outer = by_schema ? find(format, "json_schema") : &format;  // llama.cpp takes a schema beside json_object
    if (outer == nullptr || !outer->is_object()) return bad("response_format.json_schema must be an object");
    if (by_schema) BATON_TRY(check_schema_fields(*outer));
    const Json* schema = find(*outer, "schema");
    if (schema == nullptr) return Constraint{ConstraintKind::kJsonObject, "", "", ""};
    if (!schema->is_object()) return bad(by_schema ? "response_format.json_schema.schema must be an object" : "response_format.schema must be an object");
    return Constraint{ConstraintKind::kJsonSchema, dump(*schema), "", ""};
}

/// The field of the body where `name` is: "structured_outputs" of "structured_outputs.json".
std::string top_of(const std::string& name) { return name.substr(0, name.find('.')); }

/// One of vLLM's fields; a schema may be given as its text.
Expected<Constraint> read_guided(const Json& value, ConstraintKind kind, const std::string& name) {
    switch (kind) {
        case ConstraintKind::kJsonSchema:
            if (value.is_string()) return Constraint{kind, value.get<std::string>(), "", ""};
            if (!value.is_object() && !value.is_boolean()) return bad_field(name + " must be a JSON schema", top_of(name));
            return Constraint{kind, dump(value), "", ""};
        case ConstraintKind::kChoice:
            if (!value.is_array()) return bad_field(name + " must be an array of strings", top_of(name));
            return Constraint{kind, dump(value), "", ""};
        case ConstraintKind::kJsonObject:
            if (!value.is_boolean()) return bad_field(name + " must be true or false", top_of(name));
            return Constraint{value.get<bool>() ? kind : ConstraintKind::kNone, "", "", ""};
        default:
            if (!value.is_string()) return bad_field(name + " must be a string", top_of(name));
            return Constraint{kind, value.get<std::string>(), "", ""};
    }
}

struct Field {
    const char* name;
    const char* nested;  ///< in structured_outputs
    ConstraintKind kind;
};
constexpr std::array<Field, 5> kFields{{{"guided_json", "json", ConstraintKind::kJsonSchema},
                                        {"guided_regex", "regex", ConstraintKind::kRegex},
                                        {"guided_choice", "choice", ConstraintKind::kChoice},
                                        {"guided_grammar", "grammar", ConstraintKind::kGrammar},
                                        {"guided_json_object", "json_object", ConstraintKind::kJsonObject}}};

/// structured_outputs: a mistyped name would leave the answer free.
Expected<void> check_structured_outputs(const Json& outputs) {
    constexpr std::array<std::string_view, 3> kWithoutMeaning{"disable_fallback", "disable_any_whitespace", "disable_additional_properties"};
    const auto bad = [](std::string message) { return bad_field(std::move(message), "structured_outputs"); };
    if (!outputs.is_object()) return bad("structured_outputs must be an object");
    for (const auto& [name, value] : outputs.get_ref<const Json::object_t&>()) {
        if (value.is_null()) continue;
        if (name == "structural_tag" || name == "whitespace_pattern")
            return fail(ErrorCode::kUnsupported, "structured_outputs." + name + " is not supported", "structured_outputs");
        const bool known = std::ranges::any_of(kFields, [&](const Field& f) { return name == f.nested; }) || std::ranges::find(kWithoutMeaning, name) != kWithoutMeaning.end();
        if (!known) return bad("structured_outputs has no field " + echo_input(name) + "; json, regex, choice, grammar and json_object are");
    }
    return {};
}

/// A field that asks for something: "" and false do not.
const Json* set_field(const Json& object, const char* name) {
    const Json* value = find(object, name);
    if (value == nullptr || (value->is_string() && value->get_ref<const std::string&>().empty()) || *value == false) return nullptr;
    return value;
}

}  // namespace

Expected<Constraint> read_constraint(const Json& body) {
    Constraint found;
    std::string field;
    const auto take = [&](Expected<Constraint> read, const std::string& name) -> Expected<void> {
        if (!read) return fail(std::move(read).error());
        if (read->kind == ConstraintKind::kNone) return {};
        if (!field.empty()) return bad_field(name + " cannot be used together with " + field, top_of(name));
        found = std::move(*read);
        field = name;
        return {};
    };
    const auto read_from = [&](const Json& object) -> Expected<void> {
        if (const Json* format = find(object, "response_format")) BATON_TRY(take(read_response_format(*format), "response_format"));
        for (const Field& f : kFields)
            if (const Json* value = set_field(object, f.name)) BATON_TRY(take(read_guided(*value, f.kind, f.name), f.name));
        const Json* outputs = set_field(object, "structured_outputs");
        if (outputs == nullptr) return {};
        BATON_TRY(check_structured_outputs(*outputs));
        for (const Field& f : kFields)
            if (const Json* value = set_field(*outputs, f.nested)) {
                const std::string name = std::string("structured_outputs.") + f.nested;
                BATON_TRY(take(read_guided(*value, f.kind, name), name));
            }
        return {};
    };
    BATON_TRY(read_from(body));
    // What a client library puts beside the fields it knows, where it was sent as it is.
    if (const Json* extra = find(body, "extra_body"); extra != nullptr && extra->is_object()) BATON_TRY(read_from(*extra));
    if (found.kind == ConstraintKind::kNone) return found;
    if (auto compiles = grammar::check(found); !compiles) return fail(compiles.error().code, field + ": " + compiles.error().message, top_of(field));
    return found;
}

}  // namespace baton::openai
