#include "baton/openai/error.hpp"

#include "baton/openai/json.hpp"

namespace baton::openai {
namespace {

struct Row {
    int status;
    const char* type;
    const char* code;
    int retry_after_s;
};

Row row_of(ErrorCode code) {
    switch (code) {
        case ErrorCode::kOk:
            break;
        case ErrorCode::kInvalidArgument:
            return {400, "invalid_request_error", "invalid_value", 0};
        case ErrorCode::kNotFound:
            return {404, "invalid_request_error", "not_found", 0};
        case ErrorCode::kContextTooLong:
            return {400, "invalid_request_error", "context_length_exceeded", 0};
        case ErrorCode::kUnsupported:
            return {400, "invalid_request_error", "not_supported", 0};
        case ErrorCode::kUnauthorized:
            return {401, "authentication_error", "invalid_api_key", 0};
        case ErrorCode::kOverloaded:
            return {429, "rate_limit_error", "rate_limit_exceeded", 1};
        case ErrorCode::kCancelled:
            return {499, "invalid_request_error", "cancelled", 0};
        case ErrorCode::kUnavailable:
            return {503, "server_error", "unavailable", 5};
        case ErrorCode::kPeerLost:
            return {503, "server_error", "unavailable", 5};
        case ErrorCode::kAborted:
            return {503, "server_error", "request_aborted", 0};
        case ErrorCode::kTimeout:
            return {504, "server_error", "timeout", 0};
        case ErrorCode::kCorrupt:
            return {500, "server_error", "corrupt_data", 0};
        case ErrorCode::kIo:
            return {500, "server_error", "io_error", 0};
        case ErrorCode::kInternal:
            break;
    }
    return {500, "server_error", "internal_error", 0};
}

void append_error_object(std::string& out, const ApiError& error) {
    out.append(R"("error":{"message":)");
    append_json_string(out, error.message);
    out.append(R"(,"type":)");
    append_json_string(out, error.type);
    out.append(R"(,"param":)");
    if (error.param.empty()) {
        out.append("null");
    } else {
        append_json_string(out, error.param);
    }
    out.append(R"(,"code":)");
    append_json_string(out, error.code);
    if (error.context) {
        out.append(R"(,"n_prompt_tokens":)").append(std::to_string(error.context->first));
        out.append(R"(,"n_ctx":)").append(std::to_string(error.context->second));
    }
    out.append("}");
}

}  // namespace

std::string ApiError::body() const {
    std::string out = "{";
    append_error_object(out, *this);
    out.append(R"(,"detail":)");
    append_json_string(out, message);
    out.append("}");
    return out;
}

std::string ApiError::frame() const {
    std::string out = "data: {";
    append_error_object(out, *this);
    out.append("}\r\n\r\n");
    return out;
}

std::vector<std::pair<std::string, std::string>> ApiError::headers() const {
    std::vector<std::pair<std::string, std::string>> out;
    if (retry_after_s > 0) out.emplace_back("Retry-After", std::to_string(retry_after_s));
    if (status == 401) out.emplace_back("WWW-Authenticate", "Bearer");
    return out;
}

int http_status(ErrorCode code) {
    return row_of(code).status;
}

ApiError to_api_error(const Error& error) {
    const Row row = row_of(error.code);
    ApiError out{row.status, error.message, row.type, row.code, error.param, {}, row.retry_after_s};
    // The text of one of our own bugs may hold anything; the log has it.
    if (error.code == ErrorCode::kInternal || error.code == ErrorCode::kOk)
        out.message = "internal error";
    return out;
}

ApiError to_api_error(const Error& error, uint64_t prompt_tokens, uint64_t context_tokens) {
    ApiError out = to_api_error(error);
    if (error.code == ErrorCode::kContextTooLong) out.context = {prompt_tokens, context_tokens};
    return out;
}

ApiError model_not_found(std::string_view uid, const std::vector<std::string>& available) {
    std::string list;
    for (const std::string& name : available)
        list.append(list.empty() ? "'" : ", '").append(name).append("'");
    return {404,
            "Model not found in the model list, uid: " + echo_input(uid) +
                ". Available model uids: [" + list + "]",
            "invalid_request_error",
            "model_not_found",
            "model",
            {},
            0};
}

ApiError model_not_ready(std::string_view reason) {
    return {503,
            "Model is loading, please retry later: " + std::string(reason),
            "server_error",
            "model_not_ready",
            "",
            {},
            30};
}

ApiError rate_limited(std::string_view uid) {
    return {429,
            "Rate limit reached for the model: " + echo_input(uid),
            "rate_limit_error",
            "rate_limit_exceeded",
            "",
            {},
            1};
}

ApiError duplicate_request_id(std::string_view request_id) {
    const std::string id = echo_input(request_id);
    return {400,
            "Duplicate request id: " + id + " (Request " + id + " is already running)",
            "invalid_request_error",
            "duplicate_request_id",
            "request_id",
            {},
            0};
}

}  // namespace baton::openai
