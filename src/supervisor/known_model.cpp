#include "known_model.hpp"

#include <algorithm>

namespace baton::supervisor {

Expected<void> apply_style(const registry::Style& style, model::ModelInfo& info) {
    if (!style.chat_template.empty()) {
        auto compiled = text::ChatTemplate::compile(style.chat_template);
        if (!compiled) return fail(ErrorCode::kInvalidArgument, "the registration's chat_template: " + compiled.error().message, "chat_template");
        info.chat_template_source = style.chat_template;
        info.chat_template = std::move(*compiled);
        info.chat_template_error.clear();
    }
    for (const TokenId id : style.stop_token_ids) {
        if (id < 0 || static_cast<uint32_t>(id) >= info.shape.vocab)
            return fail(ErrorCode::kInvalidArgument,
                        "the registration's stop_token_ids: " + std::to_string(id) + " is no token of the model, which has " + std::to_string(info.shape.vocab), "stop_token_ids");
        if (std::find(info.eos.begin(), info.eos.end(), id) == info.eos.end()) info.eos.push_back(id);
    }
    return {};
}

Expected<model::ModelInfo> inspect_known(const std::string& path, model::Weights weights, const registry::Resolved* known) {
    BATON_TRY_ASSIGN(model::ModelInfo info, model::inspect_model(path, weights));
    if (known != nullptr) BATON_TRY(apply_style(known->style, info));
    return info;
}

}  // namespace baton::supervisor
