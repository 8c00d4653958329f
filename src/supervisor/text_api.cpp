#include "text_api.hpp"

#include <boost/asio/post.hpp>

#include "api_answers.hpp"
#include "baton/openai/response.hpp"
#include "baton/openai/text_request.hpp"
#include "chat_prompt.hpp"

namespace baton::supervisor {

void TextApi::add_routes(http::Router& router) {
    const auto add = [&](const char* pattern, Handler handler) {
        router.add("POST", pattern, {http::Access::kInference, true}, [this, handler](std::shared_ptr<http::Exchange> e, const http::Params&) {
            std::string body = e->take_body();
            boost::asio::post(text_, [this, handler, e = std::move(e), body = std::move(body)] {
                answer_exceptions(*e, [&] { (this->*handler)(*e, body); });
            });
        });
    };
    add("/tokenize", &TextApi::tokenize);
    add("/detokenize", &TextApi::detokenize);
    add("/v1/chat/completions/render", &TextApi::render);
    add("/apply-template", &TextApi::render);
}

openai::ParseOptions TextApi::parse_options() const {
    openai::ParseOptions options;
    options.default_model = settings_.default_model;
    if (options.default_model.empty())
        if (const auto uids = models_.uids(); uids.size() == 1) options.default_model = uids.front();
    return options;
}

void TextApi::tokenize(http::Exchange& exchange, const std::string& body) {
    const auto request = openai::parse_tokenize_request(body, parse_options());
    if (!request) return respond_error(exchange, request.error());
    const auto model = model_or_answer(models_, request->model, exchange);
    if (!model) return;
    const text::Tokenizer& tokenizer = *model->info.tokenizer;
    std::vector<TokenId> ids;
    if (request->chat) {
        const auto chat = openai::parse_chat_request(body, parse_options());
        if (!chat) return respond_error(exchange, chat.error());
        auto prompt = chat_prompt(*model, *chat);
        if (!prompt) return respond_error(exchange, prompt.error());
        ids = std::move(prompt->ids);
    } else {
        ids = tokenizer.encode(request->text, request->parse_special, request->add_special);
    }
    Json out = {{"count", ids.size()}, {"max_model_len", model->limits.context_tokens}, {"tokens", ids}};
    if (request->with_pieces) {
        out["tokens"] = Json::array();
        for (const TokenId id : ids) out["tokens"].push_back({{"id", id}, {"piece", openai::piece_text(tokenizer, id)}});
    }
    if (request->token_strs) {
        out["token_strs"] = Json::array();
        for (const TokenId id : ids) out["token_strs"].push_back(openai::piece_text(tokenizer, id));
    }
    answer(exchange, out);
}

void TextApi::detokenize(http::Exchange& exchange, const std::string& body) {
    const auto request = openai::parse_detokenize_request(body, parse_options());
    if (!request) return respond_error(exchange, request.error());
    const auto model = model_or_answer(models_, request->model, exchange);
    if (!model) return;
    for (const TokenId id : request->tokens)
        if (static_cast<uint32_t>(id) >= model->limits.vocab_size)
            return respond_error(exchange, Error{ErrorCode::kInvalidArgument,
                                                 "token id " + std::to_string(id) + " is out of vocabulary: ids are below " + std::to_string(model->limits.vocab_size), "tokens"});
    const std::string text = model->info.tokenizer->decode(request->tokens, request->skip_special_tokens);
    answer(exchange, {{"prompt", text}, {"content", text}});
}

void TextApi::render(http::Exchange& exchange, const std::string& body) {
    const auto request = openai::parse_chat_request(body, parse_options());
    if (!request) return respond_error(exchange, request.error());
    const auto model = model_or_answer(models_, request->model, exchange);
    if (!model) return;
    const auto prompt = chat_prompt(*model, *request);
    if (!prompt) return respond_error(exchange, prompt.error());
    answer(exchange, {{"model", model->uid}, {"prompt", prompt->text()}, {"tokens", prompt->ids}, {"count", prompt->ids.size()}, {"max_model_len", model->limits.context_tokens}});
}

}  // namespace baton::supervisor
