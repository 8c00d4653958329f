#include "baton/openai/text_request.hpp"

#include "openai/generation_fields.hpp"
#include "openai/json.hpp"

namespace baton::openai {
namespace {

/// The first of two spellings of a flag that is there.
Expected<bool> flag(const Json& body, const char* name, const char* other, bool otherwise) {
    BATON_TRY_ASSIGN(const auto first, bool_field(body, name));
    BATON_TRY_ASSIGN(const auto second, bool_field(body, other));
    return first.value_or(second.value_or(otherwise));
}

}  // namespace

Expected<TokenizeRequest> parse_tokenize_request(std::string_view body,
                                                 const ParseOptions& options) {
    BATON_TRY_ASSIGN(const Json json, parse_json_object(body));
    TokenizeRequest out;
    BATON_TRY_ASSIGN(out.model, read_model(json, options));
    BATON_TRY_ASSIGN(auto prompt, string_field(json, "prompt"));
    BATON_TRY_ASSIGN(auto content, string_field(json, "content"));
    out.chat = find(json, "messages") != nullptr;
    if (int{out.chat} + int{prompt.has_value()} + int{content.has_value()} != 1)
        return bad_field("exactly one of prompt, content and messages must be there", "prompt");
    if (!out.chat) out.text = prompt ? std::move(*prompt) : std::move(*content);
    BATON_TRY_ASSIGN(out.add_special,
                     flag(json, "add_special_tokens", "add_special", prompt.has_value()));
    BATON_TRY_ASSIGN(out.parse_special, flag(json, "parse_special", "parse_special", true));
    BATON_TRY_ASSIGN(out.with_pieces, flag(json, "with_pieces", "with_pieces", false));
    BATON_TRY_ASSIGN(out.token_strs, flag(json, "return_token_strs", "return_token_strs", false));
    return out;
}

Expected<DetokenizeRequest> parse_detokenize_request(std::string_view body,
                                                     const ParseOptions& options) {
    BATON_TRY_ASSIGN(const Json json, parse_json_object(body));
    DetokenizeRequest out;
    BATON_TRY_ASSIGN(out.model, read_model(json, options));
    const Json* tokens = find(json, "tokens");
    if (tokens == nullptr || !tokens->is_array() || tokens->size() > limits::kContextTokensMax)
        return bad_field("tokens must be an array of at most " +
                             std::to_string(limits::kContextTokensMax) + " token ids",
                         "tokens");
    for (const Json& item : *tokens) {
        const auto id = exact_int(item);
        if (!id || *id < 0 || *id > INT32_MAX)
            return bad_field("tokens must hold token ids, not " + shown(item), "tokens");
        out.tokens.push_back(static_cast<TokenId>(*id));
    }
    BATON_TRY_ASSIGN(out.skip_special_tokens,
                     flag(json, "skip_special_tokens", "skip_special_tokens", false));
    return out;
}

}  // namespace baton::openai
