#include "api_answers.hpp"

#include <boost/asio/post.hpp>
#include <cctype>
#include <charconv>

#include "baton/base/log.hpp"
#include "baton/openai/json.hpp"

namespace baton::supervisor {
namespace {

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

/// The list that FastAPI answers for a parameter of the wrong type, beside the usual error object.
void respond_unprocessable(http::Exchange& exchange, const char* type, const char* where, std::string_view name, const char* message, std::string_view input) {
    const std::string field(name);
    exchange.respond(422, dump({{"error", {{"message", field + ": " + message}, {"type", "invalid_request_error"}, {"param", field}, {"code", "invalid_value"}}},
                                {"detail", Json::array({{{"type", type}, {"loc", {where, field}}, {"msg", message}, {"input", openai::echo_input(input)}}})}}));
}

}  // namespace

void answer(http::Exchange& exchange, const Json& json) { exchange.respond(200, dump(json)); }

void respond_error(http::Exchange& exchange, const openai::ApiError& error) { exchange.respond(error.status, error.body(), error.headers()); }
void respond_error(http::Exchange& exchange, const Error& error) { respond_error(exchange, openai::to_api_error(error)); }

http::RouteHandler on_control_thread(boost::asio::io_context& control, ControlHandler handler) {
    return [&control, handler = std::move(handler)](std::shared_ptr<http::Exchange> exchange, const http::Params& params) {
        std::string body = exchange->take_body();
        boost::asio::post(control, [handler, exchange = std::move(exchange), params, body = std::move(body)] {
            answer_exceptions(*exchange, [&] { handler(exchange, params, body); });
        });
    };
}

void answer_exceptions(http::Exchange& exchange, const std::function<void()>& handler) {
    try {
        handler();
    } catch (const std::exception& e) {
        log::error("request.exception", {{"what", e.what()}});
        respond_error(exchange, Error{ErrorCode::kInternal, "internal error", ""});
    }
}

std::shared_ptr<const ServedModel> model_or_answer(const ModelDirectory& models, const std::string& uid, http::Exchange& exchange) {
    auto model = models.find(uid);
    if (!model) respond_error(exchange, models.loading(uid) ? openai::model_not_ready(uid) : openai::model_not_found(uid, models.uids()));
    return model;
}

std::optional<bool> bool_query(http::Exchange& exchange, std::string_view name, bool otherwise) {
    const std::string* value = exchange.request().query_value(name);
    if (value == nullptr) return otherwise;
    std::string v = *value;
    for (char& c : v) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    if (v == "true" || v == "1" || v == "yes" || v == "on" || v == "t" || v == "y") return true;
    if (v == "false" || v == "0" || v == "no" || v == "off" || v == "f" || v == "n") return false;
    respond_unprocessable(exchange, "bool_parsing", "query", name, "Input should be a valid boolean, unable to interpret input", *value);
    return std::nullopt;
}

std::optional<int64_t> int_in_path(http::Exchange& exchange, std::string_view name, std::string_view text) {
    int64_t out = 0;
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), out);
    if (ec == std::errc() && end == text.data() + text.size()) return out;
    respond_unprocessable(exchange, "int_parsing", "path", name, "Input should be a valid integer, unable to parse string as an integer", text);
    return std::nullopt;
}

}  // namespace baton::supervisor
