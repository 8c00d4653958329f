#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/text/tokenizer.hpp"

namespace baton::text {

/// A compiled chat template: a bounded interpreter of the Jinja subset that chat templates use,
/// equal to Python jinja2 under Hugging Face settings (trim_blocks, lstrip_blocks, loopcontrols,
/// json.dumps-style tojson). Limits are in limits.hpp; a template is hostile input. Immutable; any
/// thread may render.
class ChatTemplate {
  public:
    /// Compiles `source`; kInvalidArgument with the line and construct where it cannot.
    static Expected<std::shared_ptr<const ChatTemplate>> compile(std::string_view source);
    virtual ~ChatTemplate() = default;

    /// Renders with `context_json`, a JSON object with messages, tools, add_generation_prompt,
    /// bos_token, eos_token, … as HF passes them. Strings under "messages" are user text: the
    /// characters they contribute come back in segments marked from_user (through slicing, trim,
    /// concatenation, filters). raise_exception(text) in the template gives kInvalidArgument with
    /// that text; a limit gives kInvalidArgument too.
    [[nodiscard]] virtual Expected<std::vector<Segment>> render(
        std::string_view context_json) const = 0;
};

}  // namespace baton::text
