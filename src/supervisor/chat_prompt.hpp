#pragma once

#include <string>
#include <vector>

#include "baton/openai/chat_context.hpp"
#include "baton/openai/request.hpp"
#include "model_directory.hpp"

namespace baton::supervisor {

/// A chat as the model sees it.
struct ChatPrompt {
    std::vector<text::Segment> segments;
    std::vector<TokenId> ids;
    openai::Reasoning reasoning = openai::Reasoning::kOff;
    [[nodiscard]] std::string text() const;
};

/// Renders and tokenizes. kInvalidArgument where the model has no template, the template refuses the messages, or the
/// final message cannot be continued. Text pool.
[[nodiscard]] Expected<ChatPrompt> chat_prompt(const ServedModel& model, const openai::ChatRequest& request);

}  // namespace baton::supervisor
