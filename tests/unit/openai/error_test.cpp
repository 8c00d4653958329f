#include "baton/openai/error.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "baton/openai/json.hpp"

namespace baton::openai {
namespace {

TEST(ApiError, EveryCodeHasAStatusAndBothShapes) {
    const std::vector<std::pair<ErrorCode, int>> rows = {
        {ErrorCode::kInvalidArgument, 400}, {ErrorCode::kNotFound, 404},
        {ErrorCode::kContextTooLong, 400},  {ErrorCode::kOverloaded, 429},
        {ErrorCode::kUnavailable, 503},     {ErrorCode::kTimeout, 504},
        {ErrorCode::kAborted, 503},         {ErrorCode::kCorrupt, 500},
        {ErrorCode::kUnsupported, 400},     {ErrorCode::kIo, 500},
        {ErrorCode::kInternal, 500},        {ErrorCode::kUnauthorized, 401},
        {ErrorCode::kPeerLost, 503},        {ErrorCode::kCancelled, 499}};
    for (const auto& [code, status] : rows) {
        const ApiError error = to_api_error({code, "the \"message\"\n\xFF", "field"});
        EXPECT_EQ(error.status, status);
        EXPECT_EQ(http_status(code), status);
        const auto json = nlohmann::json::parse(error.body());
        EXPECT_EQ(json["error"]["message"], json["detail"]);
        EXPECT_EQ(json["error"]["param"], "field");
        EXPECT_TRUE(json["error"]["code"].is_string());
        EXPECT_EQ(json["error"]["type"], status == 401   ? "authentication_error"
                                         : status == 429 ? "rate_limit_error"
                                         : status >= 500 ? "server_error"
                                                         : "invalid_request_error");
    }
    EXPECT_EQ(to_api_error({ErrorCode::kInternal, "secret", ""}).body().find("secret"),
              std::string::npos);
    EXPECT_TRUE(
        nlohmann::json::parse(to_api_error({ErrorCode::kIo, "x", ""}).body())["error"]["param"]
            .is_null());
}

TEST(ApiError, ContextNumbers) {
    const auto json =
        nlohmann::json::parse(to_api_error({ErrorCode::kContextTooLong, "x", ""}, 300, 100).body());
    EXPECT_EQ(json["error"]["code"], "context_length_exceeded");
    EXPECT_EQ(json["error"]["n_prompt_tokens"], 300);
    EXPECT_EQ(json["error"]["n_ctx"], 100);
    EXPECT_FALSE(to_api_error({ErrorCode::kTimeout, "x", ""}, 1, 2).context.has_value());
}

TEST(ApiError, FixedTexts) {
    EXPECT_EQ(model_not_found("x", {"a", "b"}).message,
              "Model not found in the model list, uid: x. Available model uids: ['a', 'b']");
    EXPECT_EQ(model_not_found("x", {}).code, "model_not_found");
    EXPECT_EQ(model_not_found("x", {}).status, 404);
    const ApiError loading = model_not_ready("Both prefill and decode replicas must be available");
    EXPECT_EQ(
        loading.message,
        "Model is loading, please retry later: Both prefill and decode replicas must be available");
    EXPECT_EQ(loading.headers(),
              (std::vector<std::pair<std::string, std::string>>{{"Retry-After", "30"}}));
    EXPECT_NE(rate_limited("m").message.find("Rate limit reached"), std::string::npos);
    const std::string twice = duplicate_request_id("r").message;
    EXPECT_NE(twice.find("Duplicate request id: r"), std::string::npos);
    EXPECT_NE(twice.find("Request r is already running"), std::string::npos);
}

TEST(ApiError, FrameHasTheObjectOnly) {
    const std::string frame = to_api_error({ErrorCode::kPeerLost, "gone", ""}).frame();
    ASSERT_TRUE(frame.starts_with("data: {"));
    ASSERT_TRUE(frame.ends_with("}\r\n\r\n"));
    const auto json = nlohmann::json::parse(frame.substr(6));
    EXPECT_EQ(json["error"]["message"], "gone");
    EXPECT_FALSE(json.contains("detail"));
}

TEST(JsonString, AlwaysPrintsValidJson) {
    std::string all;
    for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
    EXPECT_TRUE(nlohmann::json::accept(json_string(all)));
    const std::string good = std::string("a\"\\\n\t\b\f\r/\x7F é漢😀 \xEF\xBF\xBD") + '\0';
    EXPECT_EQ(nlohmann::json::parse(json_string(good)).get<std::string>(), good);
    EXPECT_EQ(json_string("\xF0\x9F\x99"), "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\"");
}

}  // namespace
}  // namespace baton::openai
