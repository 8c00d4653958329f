#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "baton/openai/tools.hpp"

namespace baton::openai {

/// Follows the nesting of one JSON value, a character at a time.
class JsonTracker {
  public:
    enum class State : uint8_t { kOpen, kDone, kBroken };
    /// The value begins with `{` or `[`. kDone at its last bracket; kBroken for a bracket that fits
    /// none, or past limits::kJsonDepthMax.
    State feed(char c);
    [[nodiscard]] size_t depth() const { return open_.size(); }
    [[nodiscard]] bool in_string() const { return in_string_; }

  private:
    std::string open_;  ///< brackets that are open
    bool in_string_ = false;
    bool escaped_ = false;
};

/// A part of a call as a client's stream sees it.
struct CallDelta {
    uint32_t index = 0;
    std::string id, name;   ///< with the first part of a call, else ""
    std::string arguments;  ///< text that follows
};

/// Finds calls of tools in a growing text. Arguments come out as they grow; concatenated they are
/// the model's own text of the object. What is no call of a known tool stays content, and so does a
/// call whose name was not complete at the end, unless calls are forced: then none of that text is
/// shown. White space beside calls is dropped. The result does not depend on how the text was cut.
class ToolParser {
  public:
    /// `use` outlives the parser.
    ToolParser(ToolFormat format, const ToolUse& use);
    struct Output {
        std::string content;
        std::vector<CallDelta> calls;
    };
    void push(std::string_view text, Output& out);
    /// What was held back, at the end of the text; `cut`: by the limit of tokens. A forced call that
    /// was cut before its arguments comes out without any, where its name is certain already.
    void finish(bool cut, Output& out);
    /// Calls found so far.
    [[nodiscard]] uint32_t calls() const { return calls_; }

  private:
    enum class State : uint8_t {
        kPlain,   ///< no call can come any more
        kStart,   ///< Llama 3: nothing but white space yet
        kTagged,  ///< the same, behind its tag
        kText,    ///< a marker may come
        kOpened,  ///< after the marker
        kObject,  ///< inside a call
        kName,    ///< Mistral: a name, before its arguments
        kClosed,  ///< after a call
    };
    bool step(Output& out);
    bool step_start(Output& out);
    bool step_text(Output& out);
    bool step_opened(Output& out);
    bool step_object(Output& out);
    bool step_name(Output& out);
    bool step_closed();
    [[nodiscard]] std::string_view rest() const;
    bool pass_spaces();
    void emit_before(Output& out);
    void begin_object();
    void take(char c, Output& out);
    bool announce(std::string name, Output& out);
    bool whole_call(Output& out);
    void append_arguments(std::string_view text, Output& out);
    void give_up(Output& out);
    [[nodiscard]] const Tool* certain_tool() const;
    void emit(std::string_view text, Output& out);
    [[nodiscard]] bool knows(std::string_view name) const;
    [[nodiscard]] std::string_view marker() const;

    ToolFormat format_;
    const ToolUse& use_;
    State state_;
    std::string held_;    ///< not looked at yet, or not decided
    size_t read_ = 0;     ///< what of it is done with; 0 between pushes
    std::string before_;  ///< marker and white space before the call that is being read, or that may come
    std::string call_;    ///< text of that call while it is not announced
    JsonTracker tracker_;
    bool announced_ = false;      ///< the call that is being read is out
    bool muted_ = false;          ///< it is one call too many
    bool in_array_ = false;       ///< Mistral's list of calls
    size_t arguments_depth_ = 0;  ///< depth outside the arguments; they are over when it is reached
    bool arguments_over_ = false;
    bool after_call_ = false;  ///< white space that comes now is dropped
    bool looked_ = false;      ///< the first nested object was not the arguments
    uint32_t calls_ = 0;
};

}  // namespace baton::openai
