#include "inference_api.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>

#include "baton/base/log.hpp"
#include "baton/openai/error.hpp"
#include "baton/openai/json.hpp"
#include "anthropic.hpp"
#include "api_answers.hpp"

namespace baton::supervisor {
namespace {

constexpr int64_t kCommitStreamMs = 10'000;  ///< a stream that has no token yet begins after that long, so that pings flow
constexpr size_t kBlockedMax = 10'000;

/// A slot of request_limits, held as long as the token lives.
std::shared_ptr<void> take_slot(const std::shared_ptr<std::atomic<uint32_t>>& in_flight) {
    in_flight->fetch_add(1);
    return {nullptr, [in_flight](void*) { in_flight->fetch_sub(1); }};
}

}  // namespace

/// One request on the control thread: its sequences, its answer, its end.
struct InferenceApi::Session : std::enable_shared_from_this<Session> {
    Session(InferenceApi& owner, Prepared p, std::shared_ptr<Deployment> d)
        : api(owner),
          exchange(std::move(p.exchange)),
          deployment(std::move(d)),
          key(p.model->uid, p.request_id),
          stop_ids(p.response.stop_ids.begin(), p.response.stop_ids.end()),
          stream(p.response.generation.stream),
          started(p.started),
          builder(std::move(p.response), p.model->info.tokenizer),
          ids(p.sequences.size()),
          held(p.sequences.size()),
          choice_done(p.sequences.size(), false),
          commit_timer(api.services_.control) {}

    void on_tokens(uint32_t choice, const pd::Deliver& deliver) {
        if (done || choice_done[choice]) return;
        if (first_token.ms == 0) first_token = steady_now();
        std::vector<wire::Token>& tokens = held[choice];
        // A stop id may be the end of the sequence, which hides it: End, which follows at once, decides.
        const bool hold = stop_ids.count(deliver.tokens.back().id) != 0;
        if (tokens.empty() && !hold) return apply(choice, builder.push(choice, deliver.tokens, wire::Finish::kNone));
        tokens.insert(tokens.end(), deliver.tokens.begin(), deliver.tokens.end());
        std::vector<wire::Token> now = std::move(tokens);
        tokens.clear();
        if (hold) {
            tokens.push_back(std::move(now.back()));
            now.pop_back();
        }
        if (!now.empty()) apply(choice, builder.push(choice, now, wire::Finish::kNone));
    }

    void on_end(uint32_t choice, const pd::End& end) {
        ids[choice] = {};
        if (done || choice_done[choice]) return;  // a choice that a stop string ended was aborted by us
        for (const ReplicaId r : end.served_by) replicas.insert(r.value - 1);
        if (!end.served_by.empty()) last_replica = static_cast<int64_t>(end.served_by.back().value) - 1;
        if (end.finish == wire::Finish::kNone) return fail(end.error);
        const std::vector<wire::Token> last = std::move(held[choice]);
        held[choice].clear();
        apply(choice, builder.push(choice, last, end.finish, end.cached_tokens));
    }

    void apply(uint32_t choice, openai::ResponseBuilder::Update update) {
        if (!update.frames.empty() && stream) {
            begin_stream();
            exchange->write(std::move(update.frames));
        }
        if (update.choice_done) choice_done[choice] = true;
        if (update.stop_found && ids[choice]) deployment->abort(std::exchange(ids[choice], {}), "stop_string");
        if (update.all_done) finish();
    }

    void begin_stream() {
        if (began) return;
        began = true;
        commit_timer.cancel();
        exchange->begin_stream();
    }

    void finish() {
        if (done) return;
        if (stream) {
            begin_stream();
            exchange->end();
        } else {
            exchange->respond(200, builder.body());
        }
        const openai::Usage usage = builder.usage();
        deployment->prompt_tokens += usage.prompt_tokens;
        deployment->completion_tokens += usage.completion_tokens;
        ++deployment->requests_ok;
        close("ok");
    }

    void fail(const Error& error) {
        if (done) return;
        const openai::ApiError shown = openai::to_api_error(error);
        if (began) {
            exchange->write(shown.frame());
            exchange->fail();
        } else {
            respond_error(*exchange, shown);
        }
        if (error.code == ErrorCode::kAborted) {
            ++deployment->requests_aborted;
        } else {
            ++deployment->requests_error;
            ++deployment->metrics[last_replica].errors;
        }
        close(to_string(error.code));
    }

    /// The client left, or somebody aborted it: no answer is owed where the client is gone.
    void abort(std::string_view reason, bool client_gone) {
        if (done) return;
        if (client_gone) {
            ++deployment->requests_aborted;
            close(reason);
        } else {
            fail({ErrorCode::kAborted, "the request has been aborted: " + key.second, ""});
        }
    }

    void close(std::string_view outcome) {
        done = true;
        commit_timer.cancel();
        for (const SequenceId id : ids)
            if (id) deployment->abort(id, outcome);
        const openai::Usage usage = builder.usage();
        const TimeMs now = steady_now();
        count(usage, now);
        std::string served;
        for (const uint64_t r : replicas) served += (served.empty() ? "" : ",") + std::to_string(r);
        log::info("request.done", {{"req", key.second},
                                   {"model_uid", key.first},
                                   {"outcome", outcome},
                                   {"prompt_tokens", usage.prompt_tokens},
                                   {"completion_tokens", usage.completion_tokens},
                                   {"cached_tokens", usage.cached_tokens},
                                   {"replicas", served},
                                   {"ttft_ms", first_token.ms == 0 ? -1 : first_token - started},
                                   {"ms", now - started}});
        api.sessions_.erase(key);  // may end this object's last other reference; callers hold one
    }

    void count(const openai::Usage& usage, TimeMs now) {
        const auto seconds = [&](TimeMs at) { return static_cast<double>(at - started) / 1000; };
        ReplicaRequests& m = deployment->metrics[last_replica];
        ++m.total[static_cast<size_t>(stream ? Streamed::kYes : Streamed::kNo)];
        m.input_tokens += usage.prompt_tokens;
        m.output_tokens += usage.completion_tokens;
        if (first_token.ms != 0) (stream ? m.ttft_stream : m.ttft_plain).observe(seconds(first_token));
        m.duration.observe(seconds(now));
        deployment->cached_tokens += usage.cached_tokens;
    }

    /// Share of the tokens that may come at most.
    [[nodiscard]] double progress() const {
        return tokens_max == 0 ? 0.0 : std::min(1.0, static_cast<double>(builder.usage().completion_tokens) / static_cast<double>(tokens_max));
    }

    InferenceApi& api;
    std::shared_ptr<http::Exchange> exchange;
    std::shared_ptr<Deployment> deployment;
    std::pair<std::string, std::string> key;
    std::set<TokenId> stop_ids;
    bool stream;
    TimeMs started;
    TimeMs first_token{};
    openai::ResponseBuilder builder;
    std::vector<SequenceId> ids;                 ///< by choice; none: not running
    std::vector<std::vector<wire::Token>> held;  ///< by choice: a token that may be hidden
    std::vector<bool> choice_done;
    std::set<uint64_t> replicas;
    int64_t last_replica = -1;  ///< that had a sequence of it when it ended
    uint64_t tokens_max = 0;
    boost::asio::steady_timer commit_timer;
    bool began = false;
    bool done = false;
};

void InferenceApi::add_routes(http::Router& router) {
    const http::Router::Rule rule{http::Access::kInference, true};
    router.add("POST", "/v1/chat/completions", rule, [this](std::shared_ptr<http::Exchange> e, const http::Params&) { handle(std::move(e), true); });
    router.add("POST", "/v1/completions", rule, [this](std::shared_ptr<http::Exchange> e, const http::Params&) { handle(std::move(e), false); });
    const auto not_here = [&](const char* pattern, const char* what) {
        router.add("POST", pattern, rule, [this, what](std::shared_ptr<http::Exchange> e, const http::Params&) {
            std::string body = e->take_body();
            boost::asio::post(services_.text, [this, what, e = std::move(e), body = std::move(body)] { unsupported(e, body, what); });
        });
    };
    not_here("/v1/embeddings", "embeddings");
    not_here("/v1/rerank", "rerank");
    for (const bool version_needed : {true, false}) {
        router.add("POST", version_needed ? "/v1/messages" : "/anthropic/v1/messages", rule, [this, version_needed](std::shared_ptr<http::Exchange> e, const http::Params&) {
            std::string body = e->take_body();
            boost::asio::post(services_.text, [this, version_needed, e = std::move(e), body = std::move(body)]() mutable { messages(std::move(e), body, version_needed); });
        });
    }
    router.add("GET", "/v1/requests/{request_id}/progress", {http::Access::kInference, false}, [this](std::shared_ptr<http::Exchange> e, const http::Params& p) {
        boost::asio::post(services_.control, [this, e = std::move(e), id = p[0]] { progress_route(e, id); });
    });
    router.add("POST", "/v1/models/{uid...}/requests/{request_id}/abort", {http::Access::kInference, false},
               [this](std::shared_ptr<http::Exchange> e, const http::Params& p) {
                   std::string body = e->take_body();
                   boost::asio::post(services_.control, [this, e, uid = p[0], id = p[1], body = std::move(body)] { abort_route(e, uid, id, body); });
               });
}

/// A request of Anthropic's API runs as a chat request; an exchange in between translates the answer.
void InferenceApi::messages(std::shared_ptr<http::Exchange> exchange, const std::string& body, bool version_needed) {
    const auto refuse = [&](const std::string& message) { exchange->respond(400, messages_error_body(400, message)); };
    if (version_needed && exchange->request().header("anthropic-version").empty()) return refuse("anthropic-version: header is required");
    Expected<std::string> chat = chat_body_of_messages(body);
    if (!chat) return refuse(chat.error().message);
    auto translated = messages_exchange(std::move(exchange), {});
    prepare(std::move(translated), std::move(*chat), true);
}

/// What other kinds of models do.
void InferenceApi::unsupported(const std::shared_ptr<http::Exchange>& exchange, const std::string& body, const char* what) {
    if (auto ok = openai::check_json_object(body); !ok) return respond_error(*exchange, ok.error());
    const Json json = Json::parse(body, nullptr, false);
    const auto uid = json.find("model");
    if (uid == json.end() || !uid->is_string())
        return respond_error(*exchange, Error{ErrorCode::kInvalidArgument, "model is missing", "model"});
    if (!model_of(uid->get<std::string>(), *exchange)) return;
    respond_error(*exchange, Error{ErrorCode::kUnsupported, "model " + openai::echo_input(uid->get<std::string>()) + " does not support " + what, "model"});
}

void InferenceApi::progress_route(const std::shared_ptr<http::Exchange>& exchange, const std::string& request_id) {
    for (const auto& [key, session] : sessions_)
        if (key.second == request_id) return answer(*exchange, {{"progress", session->progress()}});
    respond_error(*exchange, Error{ErrorCode::kInvalidArgument, "Request not found: " + openai::echo_input(request_id), "request_id"});
}

void InferenceApi::handle(std::shared_ptr<http::Exchange> exchange, bool chat) {
    std::string body = exchange->take_body();
    boost::asio::post(services_.text, [this, exchange = std::move(exchange), body = std::move(body), chat]() mutable {
        prepare(std::move(exchange), std::move(body), chat);
    });
}

// ---- text pool --------------------------------------------------------------------------------------------------------

void InferenceApi::prepare(std::shared_ptr<http::Exchange> exchange, std::string body, bool chat) {
    if (exchange->client_gone()) return;
    Prepared prepared;
    prepared.started = exchange->request().started;
    prepared.exchange = std::move(exchange);
    prepared.response.chat = chat;
    const auto answer = prepared.exchange;
    try {
        if (chat) prepare_chat(std::move(prepared), body);
        else prepare_completion(std::move(prepared), body);
    } catch (const std::exception& e) {
        log::error("request.exception", {{"what", e.what()}});
        respond_error(*answer, Error{ErrorCode::kInternal, "internal error", ""});
    }
}

Expected<std::shared_ptr<const ServedModel>> InferenceApi::model_of(const std::string& uid, http::Exchange& exchange) {
    auto model = services_.models.find(uid);
    if (model) return model;
    if (services_.models.loading(uid)) respond_error(exchange, openai::model_not_ready(uid));
    else respond_error(exchange, openai::model_not_found(uid, services_.models.uids()));
    return fail(ErrorCode::kNotFound, "answered");
}

openai::ParseOptions InferenceApi::parse_options(const http::Exchange& exchange) const {
    openai::ParseOptions parse;
    parse.default_model = services_.settings.default_model;
    parse.header_request_id = std::string(exchange.request().header("x-request-id"));
    parse.strict_fields = services_.settings.strict_fields;
    return parse;
}

void InferenceApi::prepare_chat(Prepared prepared, std::string_view body) {
    http::Exchange& exchange = *prepared.exchange;
    auto request = openai::parse_chat_request(body, parse_options(exchange));
    if (!request) return respond_error(exchange, request.error());
    auto model = model_of(request->model, exchange);
    if (!model) return;
    prepared.model = std::move(*model);
    const model::ModelInfo& info = prepared.model->info;
    if (!info.chat_template)
        return respond_error(exchange, Error{ErrorCode::kInvalidArgument,
                                             info.chat_template_source.empty() ? "the model has no chat template; use /v1/completions"
                                                                               : "the model's chat template does not compile: " + info.chat_template_error,
                                             "messages"});
    auto rendered = info.chat_template->render(openai::template_context(*request, prepared.model->templates));
    if (!rendered) {
        Error e = rendered.error();
        if (e.param.empty()) e.param = "messages";
        return respond_error(exchange, e);
    }
    if (request->continue_final_message)
        if (auto cut = openai::cut_after_final_message(*rendered, request->final_content); !cut) return respond_error(exchange, cut.error());
    prepared.response.reasoning = openai::reasoning_mode(prepared.model->templates, *rendered);
    std::vector<std::vector<TokenId>> prompts{info.tokenizer->encode_segments(*rendered)};
    prepared.response.prompts = {{static_cast<uint32_t>(prompts[0].size()), ""}};
    finish_prepare(std::move(prepared), request->options, std::move(prompts));
}

void InferenceApi::prepare_completion(Prepared prepared, std::string_view body) {
    http::Exchange& exchange = *prepared.exchange;
    auto request = openai::parse_completion_request(body, parse_options(exchange));
    if (!request) return respond_error(exchange, request.error());
    auto model = model_of(request->model, exchange);
    if (!model) return;
    prepared.model = std::move(*model);
    const model::ModelInfo& info = prepared.model->info;
    std::vector<std::vector<TokenId>> prompts;
    for (const openai::Prompt& p : request->prompts) {
        const auto* text = std::get_if<std::string>(&p);
        std::vector<TokenId> ids = text != nullptr ? info.tokenizer->encode(*text, true, true) : std::get<std::vector<TokenId>>(p);
        if (auto ok = openai::check_prompt_ids(ids, prepared.model->limits.vocab_size); !ok) return respond_error(exchange, ok.error());
        openai::PromptUse use{static_cast<uint32_t>(ids.size()), ""};
        if (request->echo) use.echo = text != nullptr ? *text : openai::decode_text(*info.tokenizer, ids, request->options.skip_special_tokens);
        prepared.response.prompts.push_back(std::move(use));
        prompts.push_back(std::move(ids));
    }
    finish_prepare(std::move(prepared), request->options, std::move(prompts));
}

void InferenceApi::finish_prepare(Prepared prepared, const openai::GenerationOptions& options, std::vector<std::vector<TokenId>> prompts) {
    const ServedModel& model = *prepared.model;
    prepared.id_from_client = !options.request_id.empty();
    prepared.request_id = prepared.id_from_client ? options.request_id : openai::new_request_id();
    for (std::vector<TokenId>& prompt : prompts) {
        for (uint32_t k = 0; k < options.n; ++k) {
            auto sampling = openai::resolve(options, model.limits, prompt.size(), k);
            if (!sampling)
                return respond_error(*prepared.exchange, openai::to_api_error(sampling.error(), prompt.size(), model.limits.context_tokens));
            wire::Sequence s;
            s.request_id = prepared.request_id;
            s.prompt = k + 1 == options.n ? std::move(prompt) : prompt;
            s.sampling = std::move(*sampling);
            prepared.sequences.push_back(std::move(s));
        }
    }
    openai::ResponseOptions& r = prepared.response;
    r.id = openai::response_id(r.chat, prepared.request_id);
    r.model = model.uid;
    r.system_fingerprint = model.fingerprint;
    r.created_s = std::time(nullptr);
    r.generation = options;
    r.stop_ids = prepared.sequences.front().sampling.stop_ids;
    boost::asio::post(services_.control, [this, p = std::move(prepared)]() mutable { run(std::move(p)); });
}

// ---- control thread ---------------------------------------------------------------------------------------------------

void InferenceApi::run(Prepared prepared) {
    const std::shared_ptr<http::Exchange> exchange = prepared.exchange;
    const auto key = std::pair(prepared.model->uid, prepared.request_id);
    if (draining_) return respond_error(*exchange, Error{ErrorCode::kUnavailable, "the server is shutting down", ""});
    const std::shared_ptr<Deployment> deployment = services_.deployment(key.first);
    if (!deployment) return respond_error(*exchange, openai::model_not_found(key.first, services_.models.uids()));
    if (sessions_.count(key) != 0) return respond_error(*exchange, openai::duplicate_request_id(prepared.request_id));
    const TimeMs now = steady_now();
    if (const auto b = blocked_.find(key); b != blocked_.end()) {
        if (b->second > now) return respond_error(*exchange, Error{ErrorCode::kInvalidArgument, "The request has been aborted: " + openai::echo_input(prepared.request_id), "request_id"});
        blocked_.erase(b);
    }
    if (const auto most = deployment->in_flight_max(); most && deployment->in_flight->load() >= *most) {
        ReplicaRequests& m = deployment->metrics[-1];
        ++m.total[static_cast<size_t>(Streamed::kUnknown)];
        ++m.errors;
        return respond_error(*exchange, openai::rate_limited(key.first));
    }

    std::vector<wire::Sequence> sequences = std::move(prepared.sequences);
    prepared.sequences.resize(sequences.size());
    const auto session = std::make_shared<Session>(*this, std::move(prepared), deployment);
    sessions_[key] = session;
    exchange->hold(take_slot(deployment->in_flight));
    for (const wire::Sequence& s : sequences) session->tokens_max += s.sampling.max_tokens;
    for (uint32_t c = 0; c < sequences.size() && !session->done; ++c) {
        if (sequences[c].sampling.max_tokens == 0) {
            session->apply(c, session->builder.push(c, {}, wire::Finish::kLength));
            continue;
        }
        auto id = deployment->submit(std::move(sequences[c]), now + limits::kRequestTimeoutMs,
                                     {[session, c](const pd::Deliver& d) { session->on_tokens(c, d); },
                                      [session, c](const pd::End& e) { session->on_end(c, e); }});
        if (!id) session->fail(id.error());
        else if (session->done) deployment->abort(*id, "request_over");
        else session->ids[c] = *id;
    }
    if (session->done) return;
    exchange->on_disconnect([this, session] {
        boost::asio::post(services_.control, [session] { session->abort("client_gone", true); });
    });
    if (session->stream && !session->began) {
        session->commit_timer.expires_after(std::chrono::milliseconds(kCommitStreamMs));
        session->commit_timer.async_wait([session](boost::system::error_code ec) {
            if (!ec && !session->done) session->begin_stream();
        });
    }
}

void InferenceApi::abort_route(const std::shared_ptr<http::Exchange>& exchange, const std::string& uid, const std::string& request_id, std::string body) {
    int64_t block_s = 30;
    if (!body.empty()) {
        const auto json = nlohmann::json::parse(body, nullptr, false);
        if (!json.is_object()) return respond_error(*exchange, Error{ErrorCode::kInvalidArgument, "the body must be a JSON object", ""});
        if (const auto it = json.find("block_duration"); it != json.end() && !it->is_null()) {
            if (!it->is_number_integer() || it->get<int64_t>() < 0 || it->get<int64_t>() > 86'400)
                return respond_error(*exchange, Error{ErrorCode::kInvalidArgument, "block_duration must be an integer of 0 to 86400 seconds", "block_duration"});
            block_s = it->get<int64_t>();
        }
    }
    if (!services_.deployment(uid)) return exchange->respond(200, R"({"msg":"NO_OP"})");
    const auto it = sessions_.find({uid, request_id});
    if (it == sessions_.end()) return exchange->respond(200, R"({"msg":"NOT_FOUND"})");
    const std::shared_ptr<Session> session = it->second;
    if (block_s > 0) {
        const TimeMs now = steady_now();
        if (blocked_.size() >= kBlockedMax) std::erase_if(blocked_, [&](const auto& b) { return b.second <= now; });
        if (blocked_.size() < kBlockedMax) blocked_[session->key] = now + block_s * 1000;
    }
    session->abort("abort_route", false);
    exchange->respond(200, R"({"msg":"DONE"})");
}

void InferenceApi::abort_all(std::string_view reason) {
    while (!sessions_.empty()) {
        const std::shared_ptr<Session> session = sessions_.begin()->second;
        session->fail({ErrorCode::kUnavailable, std::string(reason), ""});
    }
}

}  // namespace baton::supervisor
