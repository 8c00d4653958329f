#include "openai/tool_prompt.hpp"

#include <algorithm>
#include <utility>

#include "baton/openai/json.hpp"

namespace baton::openai {
namespace {

bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/// The word stands in a part of the template's code.
bool code_uses(std::string_view code, std::string_view name) {
    for (size_t at = code.find(name); at != std::string_view::npos; at = code.find(name, at + 1)) {
        const char before = at == 0 ? ' ' : code[at - 1];
        const size_t end = at + name.size();
        const char after = end == code.size() ? ' ' : code[end];
        if (!is_word(before) && !is_word(after) && before != '.' && before != '\'' &&
            before != '"')
            return true;
    }
    return false;
}

std::string calls_in(ToolFormat format) {
    switch (format) {
        case ToolFormat::kLlama3:
            return "answer with a call of it and nothing else, a JSON object with its name and its "
                   "parameters:\n"
                   "{\"name\": \"function\", \"parameters\": {\"parameter\": \"value\"}}\n";
        case ToolFormat::kMistral:
            return "answer with [TOOL_CALLS] and a JSON list of calls, each with the function's "
                   "name and its arguments:\n"
                   "[TOOL_CALLS] [{\"name\": \"function\", \"arguments\": {\"parameter\": "
                   "\"value\"}}]\n";
        default:
            return "answer with a call of it, a JSON object with its name and its arguments "
                   "between tags:\n"
                   "<tool_call>\n{\"name\": \"function\", \"arguments\": {\"parameter\": "
                   "\"value\"}}\n</tool_call>\n";
    }
}

/// The arguments of a call as the text of an object, or of whatever the client sent.
std::string arguments_text(const Json& function) {
    const Json* arguments = find(function, "arguments");
    if (arguments == nullptr) return "{}";
    if (!arguments->is_string()) return dump(*arguments);
    const auto& text = arguments->get_ref<const std::string&>();
    return parse_json_object(text) ? text : json_string(text);
}

std::string call_text(const Json& calls, ToolFormat format) {
    const char* key = format == ToolFormat::kLlama3 ? "parameters" : "arguments";
    std::string out;
    for (const Json& call : calls) {
        const Json& function = *find(call, "function");
        std::string object = "{\"name\": " + dump(*find(function, "name")) + ", \"" + key +
                             "\": " + arguments_text(function) + "}";
        if (format == ToolFormat::kHermes)
            object = "<tool_call>\n" + std::move(object) + "\n</tool_call>";
        const char* between = format == ToolFormat::kHermes    ? "\n"
                              : format == ToolFormat::kMistral ? ", "
                                                               : "; ";
        out += (out.empty() ? "" : between) + std::move(object);
    }
    return format == ToolFormat::kMistral ? "[TOOL_CALLS] [" + out + "]" : out;
}

std::string content_of(const Json& message) {
    const Json* content = find(message, "content");
    return content != nullptr && content->is_string() ? content->get<std::string>() : "";
}

}  // namespace

bool template_uses(std::string_view source, std::string_view name) {
    for (size_t at = source.find('{'); at != std::string_view::npos; at = source.find('{', at)) {
        const std::string_view rest = source.substr(at);
        const char* close = rest.starts_with("{%")   ? "%}"
                            : rest.starts_with("{{") ? "}}"
                            : rest.starts_with("{#") ? "#}"
                                                     : nullptr;
        if (close == nullptr) {
            ++at;
            continue;
        }
        const size_t end = std::min(rest.find(close, 2), rest.size());
        if (rest[1] != '#' && code_uses(rest.substr(2, end - 2), name)) return true;
        at += end;
    }
    return false;
}

std::string tool_prompt(const Json& tools, ToolFormat format, bool parallel) {
    std::string out(kToolPromptOpening);
    out +=
        " Each is described here by a JSON object with a JSON schema of its parameters:\n<tools>\n";
    for (const Json& tool : tools) out += dump(tool) + "\n";
    out += "</tools>\n\nWhere a function helps, " + calls_in(format);
    if (!parallel) {
        out += "Make one call at most.";
    } else if (format == ToolFormat::kLlama3) {
        out += "Several calls are joined by a semicolon.";
    } else {
        out += "Several calls may follow each other.";
    }
    return out + " What a call returned comes between <tool_response> and </tool_response>.";
}

void add_tool_prompt(Json& messages, const std::string& prompt, ToolPlace place) {
    if (place == ToolPlace::kSystem) {
        if (messages.empty() || messages[0]["role"] != "system") {
            messages.insert(messages.begin(), Json{{"role", "system"}, {"content", prompt}});
            return;
        }
        const std::string own = content_of(messages[0]);
        messages[0]["content"] = own.empty() ? prompt : own + "\n\n" + prompt;
        return;
    }
    for (Json& message : messages) {
        if (message["role"] != "user") continue;
        message["content"] = prompt + "\n\n" + content_of(message);
        return;
    }
}

void write_calls_as_text(Json& messages, ToolFormat format) {
    Json out = Json::array();
    bool in_responses = false;
    for (Json& message : messages) {
        const auto& role = message["role"].get_ref<const std::string&>();
        const bool response = role == "tool" || role == "function";
        if (response) {
            const std::string text = "<tool_response>\n" + content_of(message) +
                                     "\n</tool_response>";
            if (in_responses)
                out.back()["content"] = content_of(out.back()) + "\n" + text;
            else
                out.push_back(Json{{"role", "user"}, {"content", text}});
        } else if (const Json* calls = find(message, "tool_calls"); calls != nullptr) {
            const std::string text = content_of(message);
            message["content"] = text + (text.empty() ? "" : "\n") + call_text(*calls, format);
            message.erase("tool_calls");
            out.push_back(std::move(message));
        } else {
            out.push_back(std::move(message));
        }
        in_responses = response;
    }
    messages = std::move(out);
}

}  // namespace baton::openai
