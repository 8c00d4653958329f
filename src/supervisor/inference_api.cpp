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
#include "responses.hpp"

namespace baton::supervisor {
namespace {

constexpr size_t kBlockedMax = 10'000;
constexpr size_t kShortBytesMax = 4096;
constexpr int64_t kPrepareHereUsMax = 20'000;
constexpr int64_t kNotHereUs = 60'000'000;

/// Short, and none of the fields in it that ask for more than text, however they are spelled.
bool is_short(std::string_view body) {
    if (body.size() > kShortBytesMax || body.find("\\u") != std::string_view::npos) return false;
    for (size_t quote = body.find('"'); quote != std::string_view::npos; quote = body.find('"', quote + 1)) {
        const std::string_view text = body.substr(quote + 1);
        for (const std::string_view field : {"guided_", "response_format", "structured_outputs", "tool"})
            if (text.starts_with(field)) return false;
    }
    return true;
}

/// A slot of request_limits, held as long as the token lives.
std::shared_ptr<void> take_slot(const std::shared_ptr<std::atomic<uint32_t>>& in_flight) {
    in_flight->fetch_add(1);
    return {nullptr, [in_flight](void*) { in_flight->fetch_sub(1); }};
}

}  // namespace

void InferenceApi::add_routes(http::Router& router) {
    const http::Router::Rule rule{http::Access::kInference, true};
    router.add("POST", "/v1/chat/completions", rule, [this](std::shared_ptr<http::Exchange> e, const http::Params&) { handle(std::move(e), true); });
    router.add("POST", "/v1/completions", rule, [this](std::shared_ptr<http::Exchange> e, const http::Params&) { handle(std::move(e), false); });
    router.add("POST", "/v1/responses", rule, [this](std::shared_ptr<http::Exchange> e, const http::Params&) {
        std::string body = e->take_body();
        boost::asio::post(services_.text, [this, e = std::move(e), body = std::move(body)]() mutable { responses(std::move(e), body); });
    });
    texts_.add_routes(router);
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

/// The same for OpenAI's Responses API.
void InferenceApi::responses(std::shared_ptr<http::Exchange> exchange, const std::string& body) {
    auto request = read_responses_request(body);
    if (!request) return respond_error(*exchange, request.error());
    auto translated = responses_exchange(std::move(exchange), *request);
    prepare(std::move(translated), std::move(request->chat_body), true);
}

/// What other kinds of models do.
void InferenceApi::unsupported(const std::shared_ptr<http::Exchange>& exchange, const std::string& body, const char* what) {
    if (auto ok = openai::check_json_object(body); !ok) return respond_error(*exchange, ok.error());
    const Json json = Json::parse(body, nullptr, false);
    const auto uid = json.find("model");
    if (uid == json.end() || !uid->is_string())
        return respond_error(*exchange, Error{ErrorCode::kInvalidArgument, "model is missing", "model"});
    if (!model_or_answer(services_.models, uid->get<std::string>(), *exchange)) return;
    respond_error(*exchange, Error{ErrorCode::kUnsupported, "model " + openai::echo_input(uid->get<std::string>()) + " does not support " + what, "model"});
}

void InferenceApi::progress_route(const std::shared_ptr<http::Exchange>& exchange, const std::string& request_id) {
    for (const auto& [key, session] : sessions_)
        if (key.second == request_id) return answer(*exchange, {{"progress", session->progress()}});
    respond_error(*exchange, Error{ErrorCode::kInvalidArgument, "Request not found: " + openai::echo_input(request_id), "request_id"});
}

/// A way through the text pool costs more than the text of a short request, so the I/O thread that has it prepares it; unless such a one
/// took long lately, as with a template that is slow.
void InferenceApi::handle(std::shared_ptr<http::Exchange> exchange, bool chat) {
    std::string body = exchange->take_body();
    const int64_t begun_us = steady_now_us();
    if (is_short(body) && begun_us >= not_here_until_us_.load(std::memory_order_relaxed)) {
        prepare(std::move(exchange), std::move(body), chat);
        const int64_t now_us = steady_now_us();
        if (now_us - begun_us > kPrepareHereUsMax) not_here_until_us_.store(now_us + kNotHereUs, std::memory_order_relaxed);
        return;
    }
    boost::asio::post(services_.text, [this, exchange = std::move(exchange), body = std::move(body), chat]() mutable {
        prepare(std::move(exchange), std::move(body), chat);
    });
}

// ---- control thread ---------------------------------------------------------------------------------------------------

void InferenceApi::run(PreparedRequest prepared) {
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

    const auto session = std::make_shared<InferenceSession>(services_.control, flushes_, std::move(prepared), deployment, [this](const InferenceSession::Key& k) { sessions_.erase(k); });
    sessions_[key] = session;
    exchange->hold(take_slot(deployment->in_flight));
    session->start();
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
    const std::shared_ptr<InferenceSession> session = it->second;
    if (block_s > 0) {
        const TimeMs now = steady_now();
        if (blocked_.size() >= kBlockedMax) std::erase_if(blocked_, [&](const auto& b) { return b.second <= now; });
        if (blocked_.size() < kBlockedMax) blocked_[session->key()] = now + block_s * 1000;
    }
    session->abort("abort_route", false);
    exchange->respond(200, R"({"msg":"DONE"})");
}

void InferenceApi::abort_all(std::string_view reason) {
    while (!sessions_.empty()) {
        const std::shared_ptr<InferenceSession> session = sessions_.begin()->second;
        session->fail({ErrorCode::kUnavailable, std::string(reason), ""});
    }
}

}  // namespace baton::supervisor
