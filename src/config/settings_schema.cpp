#include <limits>
#include <type_traits>

#include "config/launch_fields.hpp"
#include "config/settings_table.hpp"

/// The JSON schema of the settings file, from the table of settings.
namespace baton::config {
namespace {

using S = SupervisorSettings;

constexpr std::string_view kDraft = "https://json-schema.org/draft/2020-12/schema";

struct TypeSchema {
    const Setting& setting;
    Json operator()(std::vector<std::string> S::*field) const {
        if (field == &S::deployments) return {{"type", "array"}, {"items", {{"$ref", "#/$defs/launch"}}}};
        return {{"type", "array"}, {"items", text_schema(setting.rule)}};
    }
    Json operator()(std::string S::*) const { return text_schema(setting.rule); }
    Json operator()(bool S::*) const { return {{"type", "boolean"}}; }
    template <class T>
    Json operator()(T S::*) const { return number_schema(setting.rule, static_cast<uint64_t>(std::numeric_limits<T>::max())); }
};

Json schema_of(const Setting& s) {
    Json out = std::visit(TypeSchema{s}, s.field);
    std::string description(s.meaning);
    if (s.default_text.empty()) {
        out["default"] = std::visit([](auto field) { return Json(S{}.*field); }, s.field);
    } else {
        description += ". Default: " + std::string(s.default_text);  // not known before it runs
    }
    if (!s.environment.empty()) description += ". Environment: " + std::string(s.environment);
    out["description"] = description;
    return out;
}

Json settings_schema() {
    Json properties{{std::string(kSchemaKey), {{"type", "string"}, {"description", "where this schema lies; for editors"}}}};
    for (const Setting& s : settings_table()) properties[std::string(s.key)] = schema_of(s);
    const Json has_link{{"required", {"link_address"}}, {"properties", {{"link_address", {{"minLength", 1}}}}}};
    const Json empty{{"const", ""}}, text{{"minLength", 1}};
    const auto tls = [](const Json& each) { return Json{{"properties", {{"tls_certificate", each}, {"tls_key", each}}}}; };
    return {{"$schema", kDraft},
            {"title", "Settings of baton"},
            {"description", "The file of `baton serve --config FILE` and `baton supervisor --config FILE`."},
            {"type", "object"},
            {"properties", properties},
            {"additionalProperties", false},
            // What goes with a setting may come from the environment instead: that is said only of what is in the file.
            {"if", has_link},
            {"then", {{"properties", {{"link_secret", {{"minLength", kLinkSecretMin}}}}}}},
            {"dependentSchemas", {{"tls_certificate", {{"if", {{"required", {"tls_key"}}}}, {"then", {{"anyOf", {tls(empty), tls(text)}}}}}}}},
            {"$defs", {{"launch", launch_schema("#/$defs/replica_config")}, {"replica_config", replica_config_schema()}}}};
}

/// A schema that stands alone: its draft and title first.
Json titled(std::string_view title, Json schema) {
    Json out{{"$schema", kDraft}, {"title", title}};
    out.update(schema);
    return out;
}

}  // namespace

std::string json_schema(SchemaOf what) {
    const auto make = [&]() -> Json {
        switch (what) {
            case SchemaOf::kSettings: return settings_schema();
            case SchemaOf::kReplicaConfig: return titled("replica_config of a launch", replica_config_schema());
            case SchemaOf::kLaunch: break;
        }
        Json launch = titled("Body of POST /v1/models", launch_schema("#/$defs/replica_config"));
        launch["$defs"] = {{"replica_config", replica_config_schema()}};
        return launch;
    };
    return make().dump(2);
}

}  // namespace baton::config
