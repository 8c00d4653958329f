#include <string>

#include "baton/openai/json.hpp"
#include "baton/openai/tools.hpp"

namespace baton::openai {
namespace {

/// One call with its name fixed and its arguments by their schema.
std::string call_rule(const Tool& tool, std::string_view key) {
    std::string text = "{\"name\": " + json_string(tool.name) + ", \"" + std::string(key) + "\": ";
    std::string out = json_string(text) + " %json ";
    out += tool.parameters_json.empty() ? R"({"type":"object"})" : tool.parameters_json;
    return out + " \"}\"";
}

std::string alternatives(const ToolUse& use, std::string_view key) {
    std::string out;
    for (const Tool& tool : use.tools) {
        if (use.choice == ToolChoice::kNamed && tool.name != use.name) continue;
        out += (out.empty() ? "" : " | ") + call_rule(tool, key);
    }
    return out;
}

}  // namespace

std::string tool_grammar(ToolFormat format, const ToolUse& use) {
    const bool many = use.parallel && use.choice != ToolChoice::kNamed;
    std::string root = "root ::= ";
    switch (format) {
        case ToolFormat::kNone:
        case ToolFormat::kHermes:
            root += R"("<tool_call>\n" call "\n</tool_call>")";
            if (many) root += R"( ("\n<tool_call>\n" call "\n</tool_call>")*)";
            break;
        case ToolFormat::kLlama3:
            root += "call";
            if (many) root += R"( ("; " call)*)";
            break;
        case ToolFormat::kMistral:
            root += R"((@"[TOOL_CALLS]" | "[TOOL_CALLS]") " [" call)";
            if (many) root += R"( (", " call)*)";
            root += R"( "]")";
            break;
    }
    const std::string_view key = format == ToolFormat::kLlama3 ? "parameters" : "arguments";
    return root + "\ncall ::= " + alternatives(use, key) + "\n";
}

}  // namespace baton::openai
