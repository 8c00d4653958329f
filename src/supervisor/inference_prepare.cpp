// The part of InferenceApi that runs on the text pool: from a body to sequences.
#include <boost/asio/post.hpp>
#include <ctime>

#include "api_answers.hpp"
#include "baton/grammar/grammar.hpp"
#include "chat_prompt.hpp"
#include "inference_api.hpp"

namespace baton::supervisor {
namespace {

/// A forced call is a constraint on the answer; thoughts may stand before it.
Expected<void> force_call(const openai::ResponseOptions& response, openai::GenerationOptions& options) {
    if (options.constraint.kind != wire::ConstraintKind::kNone)
        return fail(ErrorCode::kInvalidArgument, "tool_choice may not force a call where response_format or guided_* says what the answer is", "tool_choice");
    options.constraint = {wire::ConstraintKind::kGrammar, openai::tool_grammar(response.tool_format, response.tool_use), "", ""};
    auto whole = grammar::check(options.constraint);
    if (whole) return {};
    const openai::ToolUse& use = response.tool_use;
    for (const openai::Tool& tool : use.tools) {
        if (use.choice == openai::ToolChoice::kNamed && tool.name != use.name) continue;  // its schema is not asked for
        if (auto one = grammar::check({wire::ConstraintKind::kJsonSchema, tool.parameters_json.empty() ? "{}" : tool.parameters_json, "", ""}); !one)
            return fail(one.error().code, "tools: parameters of " + tool.name + ": " + one.error().message, "tools");
    }
    return fail(whole.error().code, "tools: " + whole.error().message, "tools");
}

/// What is constrained begins behind the thoughts.
void leave_room_to_think(const openai::ResponseOptions& response, wire::Constraint& constraint) {
    if (constraint.kind == wire::ConstraintKind::kNone || response.reasoning == openai::Reasoning::kOff) return;
    constraint.after = response.reasoning_tags.end;
    if (response.reasoning == openai::Reasoning::kDetect) constraint.opening = response.reasoning_tags.start;
}

}  // namespace

void InferenceApi::prepare(std::shared_ptr<http::Exchange> exchange, std::string body, bool chat) {
    if (exchange->client_gone()) return;
    PreparedRequest prepared;
    prepared.started = exchange->request().started;
    prepared.trace = http::trace_id(exchange->request());
    prepared.exchange = std::move(exchange);
    prepared.response.chat = chat;
    const auto answer = prepared.exchange;
    answer_exceptions(*answer, [&] {
        if (chat) prepare_chat(std::move(prepared), body);
        else prepare_completion(std::move(prepared), body);
    });
}

openai::ParseOptions InferenceApi::parse_options(const http::Exchange& exchange) const {
    openai::ParseOptions parse;
    parse.default_model = services_.settings.default_model;
    parse.header_request_id = std::string(exchange.request().header("x-request-id"));
    parse.strict_fields = services_.settings.strict_fields;
    return parse;
}

void InferenceApi::prepare_chat(PreparedRequest prepared, std::string_view body) {
    http::Exchange& exchange = *prepared.exchange;
    auto request = openai::parse_chat_request(body, parse_options(exchange));
    if (!request) return respond_error(exchange, request.error());
    prepared.model = model_or_answer(services_.models, request->model, exchange);
    if (!prepared.model) return;
    if (request->options.stop.empty()) request->options.stop = prepared.model->style.stop;  // the family's
    auto prompt = chat_prompt(*prepared.model, *request);
    if (!prompt) return respond_error(exchange, prompt.error());
    openai::ResponseOptions& response = prepared.response;
    response.reasoning = prompt->reasoning;
    response.reasoning_tags = prepared.model->templates.tags;
    if (request->tool_use.choice != openai::ToolChoice::kNone) response.tool_format = prepared.model->templates.tool_format;
    response.tool_use = std::move(request->tool_use);
    const openai::ToolChoice choice = response.tool_use.choice;
    if (choice == openai::ToolChoice::kRequired || choice == openai::ToolChoice::kNamed)
        if (auto ok = force_call(response, request->options); !ok) return respond_error(exchange, ok.error());
    leave_room_to_think(response, request->options.constraint);
    response.prompts.push_back({static_cast<uint32_t>(prompt->ids.size())});
    std::vector<std::vector<TokenId>> prompts;
    prompts.push_back(std::move(prompt->ids));
    finish_prepare(std::move(prepared), std::move(request->options), std::move(prompts));
}

void InferenceApi::prepare_completion(PreparedRequest prepared, std::string_view body) {
    http::Exchange& exchange = *prepared.exchange;
    auto request = openai::parse_completion_request(body, parse_options(exchange));
    if (!request) return respond_error(exchange, request.error());
    prepared.model = model_or_answer(services_.models, request->model, exchange);
    if (!prepared.model) return;
    prepared.response.echo = request->echo;
    const text::Tokenizer& tokenizer = *prepared.model->info.tokenizer;
    std::vector<std::vector<TokenId>> prompts;
    for (openai::Prompt& p : request->prompts) {
        const auto* text = std::get_if<std::string>(&p);
        std::vector<TokenId> ids = text != nullptr ? tokenizer.encode(*text, true, request->add_special_tokens) : std::get<std::vector<TokenId>>(std::move(p));
        if (auto ok = openai::check_prompt_ids(ids, prepared.model->limits.vocab_size); !ok) return respond_error(exchange, ok.error());
        openai::PromptUse use{static_cast<uint32_t>(ids.size())};
        if (request->echo) use.echo = text != nullptr ? *text : tokenizer.decode(ids, request->options.skip_special_tokens);
        prepared.response.prompts.push_back(std::move(use));
        prompts.push_back(std::move(ids));
    }
    finish_prepare(std::move(prepared), std::move(request->options), std::move(prompts));
}

void InferenceApi::finish_prepare(PreparedRequest prepared, openai::GenerationOptions options, std::vector<std::vector<TokenId>> prompts) {
    const ServedModel& model = *prepared.model;
    prepared.id_from_client = !options.request_id.empty();
    prepared.request_id = prepared.id_from_client ? options.request_id : openai::new_request_id();
    openai::ResponseOptions& r = prepared.response;
    r.generation = std::move(options);
    for (size_t i = 0; i < prompts.size(); ++i) {
        if (r.prompt_top() >= 0) r.prompts[i].ids = prompts[i];
        for (uint32_t k = 0; k < r.generation.n; ++k) {
            auto sampling = openai::resolve(r.generation, model.limits, prompts[i].size(), k);
            if (!sampling)
                return respond_error(*prepared.exchange, openai::to_api_error(sampling.error(), prompts[i].size(), model.limits.context_tokens));
            wire::Sequence s;
            s.request_id = prepared.request_id;
            s.prompt = k + 1 == r.generation.n ? std::move(prompts[i]) : prompts[i];
            s.sampling = std::move(*sampling);
            prepared.sequences.push_back(std::move(s));
        }
    }
    r.id = openai::response_id(r.chat, prepared.request_id);
    r.model = model.uid;
    r.system_fingerprint = model.fingerprint;
    r.created_s = std::time(nullptr);
    r.stop_ids = prepared.sequences.front().sampling.stop_ids;
    boost::asio::post(services_.control, [this, p = std::move(prepared)]() mutable { run(std::move(p)); });
}

}  // namespace baton::supervisor
