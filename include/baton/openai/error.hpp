#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "baton/base/error.hpp"

namespace baton::openai {

/// An error as a client sees it. `detail` repeats the message for Xinference clients.
struct ApiError {
    int status = 500;
    std::string message;
    std::string type = "server_error";
    std::string code = "internal_error";
    std::string param = {};                                     ///< "": null
    std::optional<std::pair<uint64_t, uint64_t>> context = {};  ///< n_prompt_tokens, n_ctx
    int retry_after_s = 0;                                      ///< 0: no such header

    /// {"error":{message,type,param,code[,n_prompt_tokens,n_ctx]},"detail":message}
    [[nodiscard]] std::string body() const;
    /// `data: {"error":{…}}` and a blank line: the last frame of a stream that failed (no [DONE]
    /// after it).
    [[nodiscard]] std::string frame() const;
    /// Retry-After, WWW-Authenticate, where the status wants them.
    [[nodiscard]] std::vector<std::pair<std::string, std::string>> headers() const;
};

/// The one table from ErrorCode to HTTP. The message of kInternal is replaced by a general text.
[[nodiscard]] ApiError to_api_error(const Error& error);
/// The same with the numbers a kContextTooLong answer carries.
[[nodiscard]] ApiError to_api_error(const Error& error, uint64_t prompt_tokens,
                                    uint64_t context_tokens);
/// Status of that table.
[[nodiscard]] int http_status(ErrorCode code);

/// 404 `Model not found in the model list, uid: X. Available model uids: [...]`, code
/// model_not_found.
[[nodiscard]] ApiError model_not_found(std::string_view uid,
                                       const std::vector<std::string>& available);
/// 503 `Model is loading, please retry later: …` with Retry-After 30.
[[nodiscard]] ApiError model_not_ready(std::string_view reason);
/// 429 with `Rate limit reached`.
[[nodiscard]] ApiError rate_limited(std::string_view uid);
/// 400 `Duplicate request id: X (Request X is already running)`.
[[nodiscard]] ApiError duplicate_request_id(std::string_view request_id);

}  // namespace baton::openai
