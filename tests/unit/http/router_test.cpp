#include "baton/http/router.hpp"

#include <gtest/gtest.h>

#include "unit/http/server_fixture.hpp"

namespace baton::http {
namespace {

using namespace test;  // NOLINT: the fixture is this test's vocabulary

/// Answers with the text and the route's parameters.
RouteHandler say(std::string text) {
    return [text = std::move(text)](std::shared_ptr<Exchange> exchange, const Params& params) {
        std::string out = text;
        for (const std::string& param : params) out += "|" + param;
        exchange->respond(200, out);
    };
}

TEST(Router, FindsRoutesAndSaysWhatIsWrong) {
    Router router;
    router.add("GET", "/v1/models/{uid}", {}, say("describe"));
    router.add("DELETE", "/v1/models/{uid}", {.access = Access::kAdmin}, say("delete"));
    router.add("GET", "/v1/models/instances", {}, say("instances"));
    router.add("GET", "/v1/models", {}, say("list"));
    router.add("POST", "/v1/chat/completions", {.needs_body = true}, say("chat"));
    router.add("POST", "/v1/models/{uid}/requests/{rid}/abort", {}, say("abort"));
    router.add("GET", "/health", {.access = Access::kOpen}, say("ok"));
    ServerOptions options;
    options.admin_keys = {"a"};
    options.inference_keys = {"i"};
    const auto server = start(router, options);
    RawSocket client(server->port());
    const auto ask = [&](const std::string& method, const std::string& path,
                         const std::string& key = "i") {
        client.send(method + " " + path + " HTTP/1.1\r\nHost: a\r\nX-Api-Key: " + key + "\r\n\r\n");
        return method == "HEAD" ? client.read_until("\r\n\r\n") : client.read_answer();
    };
    EXPECT_EQ(body_of(ask("GET", "/v1/models/m%201")), "describe|m 1");
    EXPECT_EQ(body_of(ask("GET", "/v1/models/instances")), "instances");
    EXPECT_EQ(body_of(ask("GET", "/v1/models?x=y")), "list");
    EXPECT_EQ(body_of(ask("POST", "/v1/models/m/requests/r/abort")), "abort|m|r");
    EXPECT_EQ(status_of(ask("DELETE", "/v1/models/m")), 403);
    EXPECT_EQ(body_of(ask("DELETE", "/v1/models/m", "a")), "delete|m");
    for (const char* path :
         {"/nope", "/v1/../v1/models", "/v1//models", "/v1/models/", "/v1/models/..", "/"}) {
        EXPECT_EQ(status_of(ask("GET", path)), 404) << path;
    }
    const std::string wrong = ask("GET", "/v1/chat/completions");
    EXPECT_EQ(status_of(wrong), 405);
    EXPECT_NE(wrong.find("Allow: POST, OPTIONS\r\n"), std::string::npos);
    EXPECT_EQ(status_of(ask("POST", "/v1/chat/completions")), 411);
    const std::string allow = ask("OPTIONS", "/v1/models/m");
    EXPECT_EQ(status_of(allow), 204);
    EXPECT_NE(allow.find("Allow: GET, HEAD, DELETE, OPTIONS\r\n"), std::string::npos);
    EXPECT_EQ(status_of(ask("HEAD", "/health")), 200);
    EXPECT_EQ(router.routes().size(), 7u);
}

TEST(Router, ALongNameKeepsItsSlashesAndYieldsToWhatIsMoreLiteral) {
    Router router;
    router.add("GET", "/v1/models/{uid...}", {}, say("describe"));
    router.add("GET", "/v1/models/instances", {}, say("instances"));
    router.add("GET", "/v1/models/{uid...}/replicas", {}, say("replicas"));
    router.add("DELETE", "/v1/models/{uid...}/replicas/{id}", {}, say("remove"));
    router.add("POST", "/v1/models/{uid...}/requests/{rid}/abort", {}, say("abort"));
    const auto server = start(router, {});
    RawSocket client(server->port());
    const auto ask = [&](const std::string& method, const std::string& path) {
        client.send(method + " " + path + " HTTP/1.1\r\nHost: a\r\n\r\n");
        const std::string answer = client.read_answer();
        return status_of(answer) == 200 ? body_of(answer) : std::to_string(status_of(answer));
    };
    EXPECT_EQ(ask("GET", "/v1/models/m"), "describe|m");
    EXPECT_EQ(ask("GET", "/v1/models/org/name/x"), "describe|org/name/x");
    EXPECT_EQ(ask("GET", "/v1/models/org%2Fname"), "describe|org/name");
    EXPECT_EQ(ask("GET", "/v1/models/instances"), "instances");
    EXPECT_EQ(ask("GET", "/v1/models/org/name/replicas"), "replicas|org/name");
    EXPECT_EQ(ask("DELETE", "/v1/models/org/name/replicas/0"), "remove|org/name|0");
    EXPECT_EQ(ask("POST", "/v1/models/org/name/requests/r/abort"), "abort|org/name|r");
    EXPECT_EQ(ask("DELETE", "/v1/models/org/name"), "405");
    for (const char* path : {"/v1/models/", "/v1/models//", "/v1/models/a//b", "/v1/models/a/../b"}) {
        EXPECT_EQ(ask("GET", path), "404") << path;
    }
}

}  // namespace
}  // namespace baton::http
