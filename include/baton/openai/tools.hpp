#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace baton::openai {

/// How a model writes its calls of tools.
enum class ToolFormat : uint8_t {
    kNone,     ///< calls are not looked for
    kHermes,   ///< `<tool_call>{"name": …, "arguments": {…}}</tool_call>`: Hermes, Qwen
    kLlama3,   ///< the whole answer is `{"name": …, "parameters": {…}}`, several joined by `; `
    kMistral,  ///< `[TOOL_CALLS] [{"name": …, "arguments": {…}}, …]`, or
               ///< `[TOOL_CALLS]name[ARGS]{…}`
};
/// "hermes", "llama3_json", "mistral", "none", and other names that vLLM, SGLang and Xinference have for these; nothing
/// for an unknown name, "" among them.
[[nodiscard]] std::optional<ToolFormat> tool_format_by_name(std::string_view name);
/// Those names, for a message: "hermes, qwen, … or none".
[[nodiscard]] std::string tool_format_names();
/// What a chat template teaches its model; kHermes where it shows none.
[[nodiscard]] ToolFormat tool_format_of_template(std::string_view source);

enum class ToolChoice : uint8_t { kNone, kAuto, kRequired, kNamed };

/// One function of a request's tools.
struct Tool {
    std::string name;
    std::string parameters_json;  ///< its JSON schema; "": none was given
};

/// What a request says about tools; no tools: nothing is called.
struct ToolUse {
    std::vector<Tool> tools = {};
    ToolChoice choice = ToolChoice::kNone;
    std::string name = {};  ///< with kNamed
    bool parallel = true;   ///< more than one call may come
};

/// The grammar (docs/API.md, constrained decoding) of an answer that calls: one call of the named
/// tool, or one or more of any.
[[nodiscard]] std::string tool_grammar(ToolFormat format, const ToolUse& use);

}  // namespace baton::openai
