#include "openai/constraint_fields.hpp"

#include <array>
#include <string>
#include <utility>

#include "baton/grammar/grammar.hpp"

namespace baton::openai {
namespace {

using wire::Constraint;
using wire::ConstraintKind;

Expected<Constraint> read_response_format(const Json& format) {
    const auto bad = [](const char* message) { return bad_field(message, "response_format"); };
    if (!format.is_object()) return bad("response_format must be an object");
    const Json* type = find(format, "type");
    if (type == nullptr || !type->is_string()) return bad("response_format.type must be a string");
    const auto& name = type->get_ref<const std::string&>();
    if (name == "text") return Constraint{};
    if (name == "json_object") return Constraint{ConstraintKind::kJsonObject, "", "", ""};
    if (name != "json_schema") return bad("response_format.type must be text, json_object or json_schema");
    const Json* outer = find(format, "json_schema");
    if (outer == nullptr || !outer->is_object()) return bad("response_format.json_schema must be an object");
    const Json* schema = find(*outer, "schema");
    if (schema == nullptr) return Constraint{ConstraintKind::kJsonObject, "", "", ""};
    if (!schema->is_object()) return bad("response_format.json_schema.schema must be an object");
    return Constraint{ConstraintKind::kJsonSchema, dump(*schema), "", ""};
}

/// One of vLLM's fields; a schema may be given as its text.
Expected<Constraint> read_guided(const Json& value, ConstraintKind kind, const char* field) {
    const auto name = std::string(field);
    switch (kind) {
        case ConstraintKind::kJsonSchema:
            if (value.is_string()) return Constraint{kind, value.get<std::string>(), "", ""};
            if (!value.is_object() && !value.is_boolean()) return bad_field(name + " must be a JSON schema", name);
            return Constraint{kind, dump(value), "", ""};
        case ConstraintKind::kChoice:
            if (!value.is_array()) return bad_field(name + " must be an array of strings", name);
            return Constraint{kind, dump(value), "", ""};
        case ConstraintKind::kJsonObject:
            if (!value.is_boolean()) return bad_field(name + " must be true or false", name);
            return Constraint{value.get<bool>() ? kind : ConstraintKind::kNone, "", "", ""};
        default:
            if (!value.is_string()) return bad_field(name + " must be a string", name);
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
    const auto take = [&](Expected<Constraint> read, const char* name) -> Expected<void> {
        if (!read) return fail(std::move(read).error());
        if (read->kind == ConstraintKind::kNone) return {};
        if (!field.empty()) return bad_field(std::string(name) + " together with " + field, name);
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
        if (!outputs->is_object()) return bad_field("structured_outputs must be an object", "structured_outputs");
        if (find(*outputs, "structural_tag") != nullptr)
            return fail(ErrorCode::kUnsupported, "structural_tag is not supported", "structured_outputs");
        for (const Field& f : kFields)
            if (const Json* value = set_field(*outputs, f.nested))
                BATON_TRY(take(read_guided(*value, f.kind, "structured_outputs"), "structured_outputs"));
        return {};
    };
    BATON_TRY(read_from(body));
    // What a client library puts beside the fields it knows, where it was sent as it is.
    if (const Json* extra = find(body, "extra_body"); extra != nullptr && extra->is_object()) BATON_TRY(read_from(*extra));
    if (found.kind == ConstraintKind::kNone) return found;
    if (auto compiles = grammar::check(found); !compiles) return fail(compiles.error().code, field + ": " + compiles.error().message, field);
    return found;
}

}  // namespace baton::openai
