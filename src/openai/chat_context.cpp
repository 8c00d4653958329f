#include "baton/openai/chat_context.hpp"

#include "baton/openai/json.hpp"
#include "openai/json.hpp"
#include "openai/tool_prompt.hpp"

namespace baton::openai {
namespace {

constexpr std::string_view kThink = "<think>";

/// True when the template prints or iterates tool call arguments as an object, without asking for a
/// string first.
bool wants_argument_objects(std::string_view source) {
    constexpr std::string_view kWord = "arguments";
    bool objects = false;
    for (size_t at = source.find(kWord); at != std::string_view::npos;
         at = source.find(kWord, at + 1)) {
        std::string_view rest = source.substr(at + kWord.size());
        rest.remove_prefix(
            std::min(rest.size(), std::min(rest.find_first_not_of("'\"] \t"), rest.size())));
        if (rest.starts_with("is string")) return false;
        if (rest.starts_with(".items(")) objects = true;
        if (!rest.starts_with('|')) continue;
        rest.remove_prefix(1);
        rest.remove_prefix(std::min(rest.find_first_not_of(" \t"), rest.size()));
        objects = objects || rest.starts_with("tojson") || rest.starts_with("items") ||
                  rest.starts_with("dictsort");
    }
    return objects;
}

/// Replaces each tool call's arguments by the object its text describes; text that is no object
/// stays.
std::string with_argument_objects(const std::string& messages_json) {
    auto messages = parse_json(messages_json);
    if (!messages) return messages_json;
    for (Json& message : *messages) {
        const auto calls = message.find("tool_calls");
        if (calls == message.end()) continue;
        for (Json& call : *calls) {
            Json& function = call["function"];
            const auto arguments = function.find("arguments");
            if (arguments == function.end() || !arguments->is_string()) continue;
            auto object = parse_json(arguments->get_ref<const std::string&>());
            if (object && object->is_object()) *arguments = std::move(*object);
        }
    }
    return dump(*messages);
}

/// Calls and their results as text, and a description of the tools where it is wanted.
std::string with_tools_as_text(const ChatRequest& request, const TemplateInfo& info, bool describe,
                               ToolPlace place) {
    auto messages = parse_json(request.messages_json);
    if (!messages) return request.messages_json;
    const ToolFormat format =
        info.tool_format == ToolFormat::kNone ? ToolFormat::kHermes : info.tool_format;
    write_calls_as_text(*messages, format);
    if (describe)
        if (const auto tools = parse_json(request.tools_json); tools)
            add_tool_prompt(*messages, tool_prompt(*tools, format, request.tool_use.parallel),
                            place);
    return dump(*messages);
}

/// Contents that are null as empty texts: most templates put them together with strings. Inside a
/// string of JSON the quotes would be escaped.
std::string without_null_contents(std::string messages_json) {
    constexpr std::string_view kNull = "\"content\":null";
    for (size_t at = messages_json.find(kNull); at != std::string::npos;
         at = messages_json.find(kNull, at + 1))
        messages_json.replace(at, kNull.size(), "\"content\":\"\"");
    return messages_json;
}

std::string_view trim_end(std::string_view text) {
    const size_t end = text.find_last_not_of(" \t\r\n");
    return end == std::string_view::npos ? std::string_view() : text.substr(0, end + 1);
}

}  // namespace

TemplateInfo inspect_template(std::string_view source, std::string bos_token,
                              std::string eos_token) {
    TemplateInfo info;
    info.bos_token = std::move(bos_token);
    info.eos_token = std::move(eos_token);
    info.argument_objects = wants_argument_objects(source);
    info.has_think = source.find(kThink) != std::string_view::npos ||
                     source.find("</think>") != std::string_view::npos;
    info.tool_format = tool_format_of_template(source);
    info.tools = template_uses(source, "tools");
    info.tool_calls = source.find("tool_calls") != std::string_view::npos;
    for (const std::string_view question :
         {"content is none", "content is not none", "content'] is none", "content'] is not none",
          "content\"] is none", "content\"] is not none"})
        info.null_content = info.null_content || source.find(question) != std::string_view::npos;
    return info;
}

void set_parsers(TemplateInfo& info, std::string_view tool_parser,
                 std::string_view reasoning_parser, std::string_view reasoning_start,
                 std::string_view reasoning_end) {
    if (const auto format = tool_format_by_name(tool_parser)) info.tool_format = *format;
    if (!reasoning_start.empty() && !reasoning_end.empty()) {
        info.tags = {std::string(reasoning_start), std::string(reasoning_end)};
        info.has_think = true;
    }
    if (reasoning_parser == "none") info.has_think = false;
}

bool describes_tools(const ChatRequest& request, const TemplateInfo& info) {
    return !request.tools_json.empty() && !info.tools && info.tool_format != ToolFormat::kNone;
}

bool has_tool_description(const std::vector<text::Segment>& rendered) {
    std::string all;
    for (const text::Segment& segment : rendered) all.append(segment.text);
    return all.find(kToolPromptOpening) != std::string::npos;
}

std::string template_context(const ChatRequest& request, const TemplateInfo& info,
                             ToolPlace place) {
    const bool describe = describes_tools(request, info);
    const bool has_calls = request.messages_json.find("\"tool_calls\"") != std::string::npos;
    std::string messages = request.messages_json;
    if (describe || (has_calls && !info.tools && !info.tool_calls))
        messages = with_tools_as_text(request, info, describe, place);
    else if (has_calls && info.argument_objects)
        messages = with_argument_objects(request.messages_json);
    if (!info.null_content) messages = without_null_contents(std::move(messages));
    std::string out = "{\"messages\":" + messages;
    if (!request.tools_json.empty()) out.append(",\"tools\":").append(request.tools_json);
    out.append(",\"add_generation_prompt\":")
        .append(request.add_generation_prompt ? "true" : "false");
    out.append(",\"bos_token\":");
    append_json_string(out, info.bos_token);
    out.append(",\"eos_token\":");
    append_json_string(out, info.eos_token);
    // The arguments are an object that holds none of the names above: its members go in as they
    // are.
    if (request.kwargs_json.size() > 2) {
        out.push_back(',');
        out.append(request.kwargs_json, 1, request.kwargs_json.size() - 2);
    }
    out.push_back('}');
    return out;
}

Expected<void> cut_after_final_message(std::vector<text::Segment>& rendered,
                                       std::string_view content) {
    std::string all;
    for (const text::Segment& segment : rendered) all.append(segment.text);
    size_t end = all.rfind(content);
    if (end != std::string::npos) {
        end += content.size();
    } else {
        // Many templates trim what they print.
        std::string_view trimmed = trim_end(content);
        trimmed.remove_prefix(std::min(trimmed.find_first_not_of(" \t\r\n"), trimmed.size()));
        end = all.rfind(trimmed);
        if (end == std::string::npos) {
            return fail(ErrorCode::kInvalidArgument,
                        "the chat template does not show the final message's content",
                        "continue_final_message");
        }
        end += trimmed.size();
    }
    size_t kept = 0;
    for (size_t i = 0; i < rendered.size(); ++i) {
        if (kept + rendered[i].text.size() >= end) {
            rendered[i].text.resize(end - kept);
            rendered.resize(i + 1);
            break;
        }
        kept += rendered[i].text.size();
    }
    return {};
}

Reasoning reasoning_mode(const TemplateInfo& info, const std::vector<text::Segment>& rendered) {
    if (!info.has_think) return Reasoning::kOff;
    // The end of the template's own text; what a user wrote there opens nothing.
    for (auto it = rendered.rbegin(); it != rendered.rend(); ++it) {
        const std::string_view tail = trim_end(it->text);
        if (tail.empty()) continue;
        return !it->from_user && tail.ends_with(info.tags.start) ? Reasoning::kOpen
                                                                 : Reasoning::kDetect;
    }
    return Reasoning::kDetect;
}

}  // namespace baton::openai
