#pragma once

#include <string>
#include <string_view>

#include "baton/openai/chat_context.hpp"
#include "openai/json.hpp"

namespace baton::openai {

/// Begins every text that describes tools.
inline constexpr std::string_view kToolPromptOpening = "You can call functions.";

/// True where the code of a chat template (not its text or its comments) has `name` as a word of
/// its own that is no member and no string.
[[nodiscard]] bool template_uses(std::string_view source, std::string_view name);

/// What a model whose template knows nothing of tools is told: the tools, and how a call is written
/// in `format`.
[[nodiscard]] std::string tool_prompt(const Json& tools, ToolFormat format, bool parallel);

/// Puts `prompt` into the system message, which is added where there is none, or in front of the
/// first message of the user.
void add_tool_prompt(Json& messages, const std::string& prompt, ToolPlace place);

/// Calls and what they returned as plain text of the assistant and the user: arrays of tool_calls
/// become calls in `format`, and neighbouring messages of tools one message of the user.
void write_calls_as_text(Json& messages, ToolFormat format);

}  // namespace baton::openai
