#pragma once

#include <string>

#include "baton/openai/tools.hpp"
#include "openai/json.hpp"

namespace baton::openai {

/// tools, tool_choice and parallel_tool_calls of a chat request. `tools_json` is what the template
/// sees: "" without tools and with tool_choice none.
[[nodiscard]] Expected<ToolUse> read_tools(const Json& body, std::string& tools_json);

}  // namespace baton::openai
