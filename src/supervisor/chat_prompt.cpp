#include "chat_prompt.hpp"

namespace baton::supervisor {

std::string ChatPrompt::text() const {
    std::string out;
    for (const text::Segment& segment : segments) out += segment.text;
    return out;
}

Expected<ChatPrompt> chat_prompt(const ServedModel& model, const openai::ChatRequest& request) {
    const model::ModelInfo& info = model.info;
    if (!info.chat_template)
        return fail(ErrorCode::kInvalidArgument,
                    info.chat_template_source.empty() ? "the model has no chat template; use /v1/completions"
                                                      : "the model's chat template does not compile: " + info.chat_template_error,
                    "messages");
    ChatPrompt out;
    auto rendered = info.chat_template->render(openai::template_context(request, model.templates));
    if (openai::describes_tools(request, model.templates) && !(rendered && openai::has_tool_description(*rendered))) {
        // The template takes no system message, or says nothing of it.
        auto again = info.chat_template->render(openai::template_context(request, model.templates, openai::ToolPlace::kUser));
        if (again) rendered = std::move(again);
    }
    if (!rendered) {
        Error e = rendered.error();
        if (e.param.empty()) e.param = "messages";
        return tl::unexpected(std::move(e));
    }
    out.segments = std::move(*rendered);
    if (request.continue_final_message) BATON_TRY(openai::cut_after_final_message(out.segments, request.final_content));
    out.reasoning = openai::reasoning_mode(model.templates, out.segments);
    out.ids = info.tokenizer->encode_segments(out.segments);
    return out;
}

}  // namespace baton::supervisor
