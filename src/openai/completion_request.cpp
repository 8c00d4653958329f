#include <algorithm>

#include "baton/openai/request.hpp"
#include "openai/generation_fields.hpp"
#include "openai/json.hpp"

namespace baton::openai {
namespace {

tl::unexpected<Error> bad_prompt(std::string message) {
    return bad_field(std::move(message), "prompt");
}

Expected<std::vector<TokenId>> read_ids(const Json& array) {
    std::vector<TokenId> ids;
    ids.reserve(array.size());
    if (array.size() > limits::kContextTokensMax)
        return bad_prompt("the prompt has too many token ids");
    for (const Json& item : array) {
        const auto id = exact_int(item);
        if (!id) return bad_prompt("a prompt of token ids may hold integers only");
        if (*id < 0 || *id > INT32_MAX)
            return bad_prompt("token id " + std::to_string(*id) + " is out of vocabulary");
        ids.push_back(static_cast<TokenId>(*id));
    }
    if (ids.empty()) return bad_prompt("the prompt must not be empty");
    return ids;
}

Expected<Prompt> read_text(const Json& value) {
    if (value.get_ref<const std::string&>().empty())
        return bad_prompt("the prompt must not be empty");
    return Prompt(value.get<std::string>());
}

/// The four forms of OpenAI: a string, strings, token ids, lists of token ids. Mixed lists are
/// refused.
Expected<std::vector<Prompt>> read_prompts(const Json& body, size_t prompts_max) {
    const Json* prompt = find(body, "prompt");
    if (prompt == nullptr) return bad_prompt("the prompt is missing");
    std::vector<Prompt> out;
    if (prompt->is_string()) {
        BATON_TRY_ASSIGN(Prompt one, read_text(*prompt));
        out.push_back(std::move(one));
        return out;
    }
    if (!prompt->is_array())
        return bad_prompt("the prompt must be a string, token ids, or an array of either");
    if (prompt->empty()) return bad_prompt("the prompt must not be empty");
    if (prompt->front().is_number()) {
        BATON_TRY_ASSIGN(auto ids, read_ids(*prompt));
        out.emplace_back(std::move(ids));
        return out;
    }
    if (prompt->size() > prompts_max)
        return bad_prompt("too many prompts: at most " + std::to_string(prompts_max));
    const bool texts = prompt->front().is_string();
    for (const Json& item : *prompt) {
        if (texts && item.is_string()) {
            BATON_TRY_ASSIGN(Prompt one, read_text(item));
            out.push_back(std::move(one));
        } else if (!texts && item.is_array()) {
            BATON_TRY_ASSIGN(auto ids, read_ids(item));
            out.emplace_back(std::move(ids));
        } else {
            return bad_prompt(
                "the items of a prompt must all be strings or all be lists of token ids");
        }
    }
    return out;
}

}  // namespace

Expected<CompletionRequest> parse_completion_request(std::string_view body,
                                                     const ParseOptions& options) {
    BATON_TRY_ASSIGN(const Json json, parse_json_object(body));
    BATON_TRY(refuse_unsupported(json, options, Route::kCompletions));
    CompletionRequest out;
    BATON_TRY_ASSIGN(out.model, read_model(json, options));
    BATON_TRY_ASSIGN(const auto echo, bool_field(json, "echo"));
    out.echo = echo.value_or(false);
    BATON_TRY_ASSIGN(out.options, read_generation(json, options, Route::kCompletions, out.echo));
    BATON_TRY_ASSIGN(const auto add_special, bool_field(json, "add_special_tokens"));
    out.add_special_tokens = add_special.value_or(true);
    BATON_TRY_ASSIGN(out.prompts, read_prompts(json, options.prompts_max));
    if (out.prompts.size() * out.options.n > options.prompts_max) {
        return bad_field("too many sequences: prompts times n may be at most " +
                             std::to_string(options.prompts_max),
                         "n");
    }
    return out;
}

}  // namespace baton::openai
