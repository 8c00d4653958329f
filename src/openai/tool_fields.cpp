#include "openai/tool_fields.hpp"

#include <algorithm>

#include "baton/openai/json.hpp"
#include "openai/generation_fields.hpp"

namespace baton::openai {
namespace {

constexpr size_t kToolsMax = 128;
constexpr size_t kNameBytesMax = 128;

/// OpenAI's letters, digits, `_` and `-`, and what servers of tools put between the parts of a name.
bool is_tool_name(std::string_view name) {
    return !name.empty() && name.size() <= kNameBytesMax &&
           std::all_of(name.begin(), name.end(), [](char c) {
               return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      std::string_view("_-.:/").find(c) != std::string_view::npos;
           });
}

Expected<void> check_tool(const Json& tool, size_t index) {
    const auto bad = [&](std::string_view what) {
        return bad_field("tools[" + std::to_string(index) + "]" + std::string(what), "tools");
    };
    if (!tool.is_object()) return bad(" must be an object");
    const Json* type = find(tool, "type");
    if (type == nullptr || *type != "function") return bad(".type must be function");
    const Json* function = find(tool, "function");
    if (function == nullptr || !function->is_object()) return bad(".function must be an object");
    const Json* name = find(*function, "name");
    if (name == nullptr) return bad(".function.name is missing");
    if (!name->is_string() || !is_tool_name(name->get_ref<const std::string&>()))
        return bad(".function.name must be 1 to " + std::to_string(kNameBytesMax) +
                   " letters, digits, _ - . : or /, not " + shown(*name));
    const Json* description = find(*function, "description");
    if (description != nullptr && !description->is_string())
        return bad(".function.description must be a string");
    const Json* parameters = find(*function, "parameters");
    if (parameters != nullptr && !parameters->is_object())
        return bad(".function.parameters must be an object");
    const Json* kind = parameters == nullptr ? nullptr : find(*parameters, "type");
    if (kind != nullptr && *kind != "object" &&
        !(kind->is_array() && std::find(kind->begin(), kind->end(), "object") != kind->end()))
        return bad(".function.parameters.type must be object");
    const Json* strict = find(*function, "strict");
    if (strict != nullptr && !strict->is_boolean())
        return bad(".function.strict must be true or false");
    return {};
}

/// The schema of a call's arguments, which are an object whether or not its parameters say so.
std::string arguments_schema(const Json* parameters) {
    if (parameters == nullptr) return {};
    Json schema = *parameters;
    schema["type"] = "object";
    return dump(schema);
}

Expected<void> read_list(const Json& tools, ToolUse& out) {
    if (!tools.is_array() || tools.empty())
        return bad_field("tools must be a non-empty array", "tools");
    if (tools.size() > kToolsMax)
        return bad_field("tools has " + std::to_string(tools.size()) + " items; at most " +
                             std::to_string(kToolsMax) + " are allowed",
                         "tools");
    for (size_t i = 0; i < tools.size(); ++i) {
        BATON_TRY(check_tool(tools[i], i));
        const Json& function = *find(tools[i], "function");
        const auto& name = find(function, "name")->get_ref<const std::string&>();
        const auto same = std::find_if(out.tools.begin(), out.tools.end(),
                                       [&](const Tool& tool) { return tool.name == name; });
        if (same != out.tools.end())
            return bad_field("tools[" + std::to_string(i) + "].function.name " + name +
                                 " is that of tools[" +
                                 std::to_string(same - out.tools.begin()) + "] too",
                             "tools");
        out.tools.push_back({name, arguments_schema(find(function, "parameters"))});
    }
    return {};
}

Expected<void> read_choice(const Json& choice, ToolUse& out) {
    const auto bad = [&](std::string_view words) {
        return bad_field("tool_choice " + std::string(words) + ", not " + shown(choice),
                         "tool_choice");
    };
    if (choice.is_string()) {
        const auto& word = choice.get_ref<const std::string&>();
        if (word == "none")
            out.choice = ToolChoice::kNone;
        else if (word == "auto")
            out.choice = ToolChoice::kAuto;
        else if (word == "required")
            out.choice = ToolChoice::kRequired;
        else
            return bad("must be none, auto, required or a function");
        return {};
    }
    const Json* type = choice.is_object() ? find(choice, "type") : nullptr;
    const Json* function = choice.is_object() ? find(choice, "function") : nullptr;
    const Json* name =
        function != nullptr && function->is_object() ? find(*function, "name") : nullptr;
    if (name == nullptr || !name->is_string() || (type != nullptr && *type != "function"))
        return bad("must be none, auto, required or a function");
    out.choice = ToolChoice::kNamed;
    out.name = name->get<std::string>();
    const bool known = std::any_of(out.tools.begin(), out.tools.end(),
                                   [&](const Tool& tool) { return tool.name == out.name; });
    return known ? Expected<void>() : bad("must name a function that tools has");
}

}  // namespace

Expected<ToolUse> read_tools(const Json& body, std::string& tools_json) {
    ToolUse out;
    const Json* tools = find(body, "tools");
    const Json* choice = find(body, "tool_choice");
    if (tools != nullptr) BATON_TRY(read_list(*tools, out));
    BATON_TRY_ASSIGN(const auto parallel, bool_field(body, "parallel_tool_calls"));
    out.parallel = parallel.value_or(true);
    out.choice = tools == nullptr ? ToolChoice::kNone : ToolChoice::kAuto;
    if (choice != nullptr) {
        if (tools == nullptr && *choice != "none")
            return bad_field("tool_choice needs tools", "tool_choice");
        BATON_TRY(read_choice(*choice, out));
    }
    if (out.choice == ToolChoice::kNone) {
        out.tools.clear();
    } else {
        tools_json = dump(*tools);
    }
    return out;
}

}  // namespace baton::openai
