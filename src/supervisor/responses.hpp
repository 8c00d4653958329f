#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "baton/base/error.hpp"
#include "baton/http/server.hpp"

namespace baton::supervisor {

/// The chat request that a request of OpenAI's Responses API means. Nothing is stored here, so what refers to an earlier
/// response is refused, with the field as param. Any thread.
struct ResponsesRequest {
    std::string chat_body;
    std::string echo_json;  ///< object of the fields that the response repeats
};
[[nodiscard]] Expected<ResponsesRequest> read_responses_request(std::string_view body);

/// An exchange that a chat request is answered through; the client gets a response object, or the events of its stream.
[[nodiscard]] std::shared_ptr<http::Exchange> responses_exchange(std::shared_ptr<http::Exchange> client, const ResponsesRequest& request);

}  // namespace baton::supervisor
