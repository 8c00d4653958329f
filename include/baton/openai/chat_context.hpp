#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baton/openai/request.hpp"
#include "baton/text/tokenizer.hpp"

namespace baton::openai {

/// What stands around the thoughts in an answer.
struct ReasoningTags {
    std::string start = "<think>";
    std::string end = "</think>";
};

/// What of a model's files shapes the prompt of a chat.
struct TemplateInfo {
    std::string bos_token;
    std::string eos_token;
    bool argument_objects = false;  ///< tool call arguments are parsed before rendering
    bool has_think = false;  ///< the template speaks of <think>, or the model's tags are given
    bool null_content =
        false;  ///< the template asks whether a content is none; else such a content is ""
    ReasoningTags tags = {};
    ToolFormat tool_format = ToolFormat::kHermes;
    bool tools = false;       ///< the template shows the tools it is given
    bool tool_calls = false;  ///< and calls in the history
};
/// Looks at the source of a chat template for the rest.
[[nodiscard]] TemplateInfo inspect_template(std::string_view source, std::string bos_token,
                                            std::string eos_token);

/// What a launch or a registration says of a model's answers, over what its template says: names of
/// parsers, and the tags around thoughts; each "" where it is not given. A tool parser that
/// tool_format_by_name() does not know changes nothing; the reasoning parser "none" means that
/// thoughts are not told apart.
void set_parsers(TemplateInfo& info, std::string_view tool_parser,
                 std::string_view reasoning_parser, std::string_view reasoning_start,
                 std::string_view reasoning_end);

/// Where a model whose template does not show tools is told of them.
enum class ToolPlace : uint8_t { kSystem, kUser };

/// The JSON object for text::ChatTemplate::render: messages, tools (when there are any),
/// add_generation_prompt, bos_token, eos_token, and the request's template arguments. Where the
/// template does not show tools, a description of them stands in a message at `place`, and calls
/// and their results are plain text.
[[nodiscard]] std::string template_context(const ChatRequest& request, const TemplateInfo& info,
                                           ToolPlace place = ToolPlace::kSystem);
/// True where template_context() describes the tools in a message.
[[nodiscard]] bool describes_tools(const ChatRequest& request, const TemplateInfo& info);
/// True where a rendered prompt has that description: a template may leave out system messages.
[[nodiscard]] bool has_tool_description(const std::vector<text::Segment>& rendered);

/// For continue_final_message: cuts a rendered prompt right after the last message's content.
/// kInvalidArgument when the template does not show that content.
[[nodiscard]] Expected<void> cut_after_final_message(std::vector<text::Segment>& rendered,
                                                     std::string_view content);

/// How the output's <think> … </think> is told from the answer.
enum class Reasoning : uint8_t {
    kOff,     ///< all is content
    kDetect,  ///< output that begins with <think> is reasoning up to </think>
    kOpen,    ///< the prompt ended inside <think>
};
[[nodiscard]] Reasoning reasoning_mode(const TemplateInfo& info,
                                       const std::vector<text::Segment>& rendered);

}  // namespace baton::openai
