#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "baton/base/error.hpp"
#include "baton/http/router.hpp"
#include "baton/http/server.hpp"
#include "baton/openai/error.hpp"
#include "model_directory.hpp"

/// How the handlers of the API answer. Any thread.
namespace baton::supervisor {

using Json = nlohmann::json;

/// 200 with a JSON body.
void answer(http::Exchange& exchange, const Json& json);
/// Answers with an error, both shapes.
void respond_error(http::Exchange& exchange, const openai::ApiError& error);
void respond_error(http::Exchange& exchange, const Error& error);

/// A handler that runs on the control thread, with the request's body.
using ControlHandler = std::function<void(const std::shared_ptr<http::Exchange>&, const http::Params&, const std::string& body)>;
/// What a route is given to hop to the control thread; exceptions there are answer_exceptions()'s.
[[nodiscard]] http::RouteHandler on_control_thread(boost::asio::io_context& control, ControlHandler handler);

/// Calls `handler`; an exception there is logged and answered with 500.
void answer_exceptions(http::Exchange& exchange, const std::function<void()>& handler);
/// The model of that name; null, and then 404 or 503 was answered.
[[nodiscard]] std::shared_ptr<const ServedModel> model_or_answer(const ModelDirectory& models, const std::string& uid, http::Exchange& exchange);

/// A query parameter of type bool, in every spelling that FastAPI takes; `otherwise` where it is absent. Nothing for
/// another text, and then 422 was answered.
[[nodiscard]] std::optional<bool> bool_query(http::Exchange& exchange, std::string_view name, bool otherwise);
/// A number in the path. Nothing for another text, and then 422 was answered.
[[nodiscard]] std::optional<int64_t> int_in_path(http::Exchange& exchange, std::string_view name, std::string_view text);

}  // namespace baton::supervisor
