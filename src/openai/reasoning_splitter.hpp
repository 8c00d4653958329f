#pragma once

#include <string>
#include <string_view>

#include "baton/openai/chat_context.hpp"

namespace baton::openai {

/// Tells reasoning from answer in a growing text. Tags never appear in either, however the text is
/// cut; newlines next to a tag belong to neither. With Reasoning::kOff everything is content.
class ReasoningSplitter {
  public:
    explicit ReasoningSplitter(Reasoning mode = Reasoning::kOff, ReasoningTags tags = {});
    struct Parts {
        std::string reasoning;
        std::string content;
    };
    [[nodiscard]] Parts push(std::string_view text);
    /// What was held back, at the end of the text.
    [[nodiscard]] Parts finish();
    /// True while the text so far lies before the answer.
    [[nodiscard]] bool reasoning() const {
        return state_ != State::kContent && state_ != State::kContentStart;
    }

  private:
    enum class State : uint8_t { kStart, kReasoningStart, kReasoning, kContentStart, kContent };
    bool step(Parts& out);

    ReasoningTags tags_;
    State state_;
    bool open_;  ///< the prompt ended inside the reasoning
    std::string before_;  ///< white space at the start, or newlines that may stand before the closing tag
    std::string held_;
};

}  // namespace baton::openai
