#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "baton/base/error.hpp"
#include "baton/http/server.hpp"

/// Anthropic's Messages API over the chat route: a request becomes a chat body, and an exchange in between turns the answer
/// into what that API's clients read.
namespace baton::supervisor {

/// The chat body of a Messages body: system text, messages with content blocks, stop_sequences, tools. kInvalidArgument
/// with the field in `param`.
[[nodiscard]] Expected<std::string> chat_body_of_messages(std::string_view body);

/// `client`, seen from the chat route: plain answers, errors and frames written to it reach the client as messages, errors
/// and events of that API. `chat_body` is what take_body() gives.
[[nodiscard]] std::shared_ptr<http::Exchange> messages_exchange(std::shared_ptr<http::Exchange> client, std::string chat_body);

/// An error in that API's shape (with `detail`).
[[nodiscard]] std::string messages_error_body(int status, std::string_view message);

}  // namespace baton::supervisor
