#include "baton/openai/request.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <set>

#include "baton/openai/json.hpp"

namespace baton::openai {
namespace {

/// A chat body with `fields` merged in ("" or `"a":1,"b":2`).
std::string chat(std::string_view fields) {
    return R"({"model":"m","messages":[{"role":"user","content":"Say hi"}])" +
           std::string(fields.empty() ? "" : ",") + std::string(fields) + "}";
}
std::string completion(std::string_view fields) {
    return R"({"model":"m","prompt":"Once upon a time")" + std::string(fields.empty() ? "" : ",") +
           std::string(fields) + "}";
}
std::string messages(std::string_view value) {
    return R"({"model":"m","messages":)" + std::string(value) + "}";
}
std::string prompt(std::string_view value) {
    return R"({"model":"m","prompt":)" + std::string(value) + "}";
}

const ModelLimits kModel{.vocab_size = 1000,
                         .context_tokens = 100,
                         .eos_ids = {999},
                         .temperature = {},
                         .top_p = {},
                         .min_p = {},
                         .repetition_penalty = {},
                         .top_k = {}};

/// "" for success, else the param of the error (or "?" where it has none). Both steps.
template <class Request>
std::string outcome(const Expected<Request>& request) {
    if (!request) return request.error().param.empty() ? "?" : request.error().param;
    const auto sampling = resolve(request->options, kModel, 10);
    if (!sampling) return sampling.error().param.empty() ? "?" : sampling.error().param;
    return "";
}

struct Row {
    std::string fields;
    std::string param;
};

// List A of the API rules, and its neighbours. Fields that both routes share.
std::vector<Row> shared_rows() {
    std::vector<Row> rows;
    const auto add = [&](const std::string& field, std::initializer_list<const char*> values,
                         bool good) {
        for (const char* value : values)
            rows.push_back({"\"" + field + "\":" + value, good ? "" : field});
    };
    add("max_tokens", {"0", "-1", "1.5", "\"5\"", "true", "1.0", "18446744073709551616", "[]"},
        false);
    add("max_tokens", {"1", "null", "9223372036854775807"}, true);
    add("max_completion_tokens", {"0", "-1", "1.5", "\"5\"", "false"}, false);
    add("temperature", {"-0.1", "2.01", "\"hot\"", "true", "[]", "{}"}, false);
    add("temperature", {"0", "2", "2.0", "null", "0.001", "1e-300"}, true);
    add("top_p", {"1.1", "-0.1", "\"x\"", "true"}, false);
    add("top_p", {"0", "1", "0.5", "null", "1e-300"}, true);
    add("top_k", {"-2", "1.5", "\"1\"", "true", "4294967296"}, false);
    add("top_k", {"-1", "0", "1", "40", "null"}, true);
    add("min_p", {"1.1", "-0.1", "true"}, false);
    add("min_p", {"0", "1", "0.05"}, true);
    add("presence_penalty", {"2.1", "-2.1", "\"x\"", "false"}, false);
    add("frequency_penalty", {"2.1", "-2.1", "[1]"}, false);
    add("frequency_penalty", {"-2", "2", "0", "null"}, true);
    add("repetition_penalty", {"0", "-1", "\"x\"", "true", "1e300"}, false);
    add("repetition_penalty", {"1", "0.5", "1.3", "null"}, true);
    add("n", {"0", "-1", "17", "1000000000", "1.5", "\"2\"", "true"}, false);
    add("n", {"1", "16", "null"}, true);
    add("best_of", {"2", "0", "\"x\""}, false);
    add("best_of", {"1", "null"}, true);
    add("seed", {"9223372036854775808", "\"1\"", "1.5", "true"}, false);
    add("seed", {"9223372036854775807", "-9223372036854775808", "-1", "0", "null"}, true);
    add("stop",
        {"\"\"", "[\"\"]", "[\"a\",\"b\",\"c\",\"d\",\"e\"]", "5", "[5]", "true", "{}",
         "[\"a\",null]"},
        false);
    add("stop", {"\"a\"", "[\"a\",\"b\",\"c\",\"d\"]", "null", "[]"}, true);
    add("stop_token_ids",
        {"[99999999]", "[1000]", "[-1]", "[1.5]", "[true]", "5", "[\"1\"]", "[4294967296]"}, false);
    add("stop_token_ids", {"[0,999]", "[]", "null"}, true);
    add("logit_bias",
        {"{\"abc\":1}", "{\"999999999\":1}", "{\"1000\":1}", "{\"-1\":1}", "{\"5\":\"x\"}", "[]",
         "{\"5\":true}", "{\"05\":1}", "{\"5 \":1}", "{\"\":1}", "{\"99999999999999999999\":1}",
         "5"},
        false);
    add("logit_bias", {"{\"5\":-100}", "{\"999\":1000}", "{}", "null"}, true);
    add("min_tokens", {"-1", "1.5", "true"}, false);
    add("ignore_eos", {"1", "\"x\""}, false);
    add("skip_special_tokens", {"0"}, false);
    add("include_stop_str_in_output", {"\"yes\""}, false);
    add("stream", {"1", "\"true\"", "[]"}, false);
    add("stream", {"true", "false", "null"}, true);
    add("stream_options", {"{\"include_usage\":true}", "{\"include_usage\":null}", "{}", "5"},
        false);
    add("stream_options", {"null"}, true);
    add("response_format",
        {"{\"type\":\"sound\"}", "{\"type\":\"json_schema\"}",
         "{\"type\":\"json_schema\",\"json_schema\":123}",
         "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":123}}", "{}", "5", "{\"type\":5}",
         "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"not\":{}}}}",
         "{\"type\":\"json_schema\",\"json_schema\":{\"name\":5,\"schema\":{}}}",
         "{\"type\":\"json_schema\",\"json_schema\":{\"strict\":\"yes\",\"schema\":{}}}",
         "{\"type\":\"json_object\",\"schema\":5}", "{\"type\":\"json_object\",\"schema\":{\"not\":{}}}"},
        false);
    add("response_format",
        {"{\"type\":\"text\"}", "null", "{\"type\":\"json_object\"}",
         "{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"const\":\"42\"}}}",
         "{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"description\":\"d\",\"strict\":null,\"schema\":{\"const\":\"42\"},\"x\":1}}",
         "{\"type\":\"json_object\",\"schema\":{\"const\":1}}", "{\"type\":\"json_object\",\"foo\":1}"},
        true);
    add("request_id", {"\"\"", "5", "\"a\\u0000b\"", "\"é\"", "\"a\\nb\""}, false);
    add("request_id", {"\"r-1\"", "null"}, true);
    add("guided_json", {"5", "\"x\"", "{\"type\":\"array\",\"uniqueItems\":true}", "[]"}, false);
    add("guided_json", {"{}", "{\"type\":\"integer\"}", "\"{}\"", "null"}, true);
    add("guided_regex", {"\"(\"", "\"(?=a)\"", "5"}, false);
    add("guided_regex", {"\"x\""}, true);
    add("guided_choice", {"[]", "[1]", "\"x\""}, false);
    add("guided_choice", {"[\"a\",\"b\"]"}, true);
    add("guided_grammar", {"\"root ::= x\"", "{}"}, false);
    add("guided_grammar", {"\"root ::= [a-z]+\""}, true);
    add("guided_json_object", {"\"x\"", "1"}, false);
    add("guided_json_object", {"true", "false"}, true);
    add("structured_outputs",
        {"5", "{\"json\":5}", "{\"structural_tag\":{}}", "{\"jsn\":{}}", "{\"json\":{},\"Regex\":\"a\"}",
         "{\"json\":{},\"whitespace_pattern\":\" \"}", "{\"json\":{},\"regex\":\"a\"}"},
        false);
    add("structured_outputs",
        {"{\"json\":{}}", "{\"choice\":[\"a\"]}", "{}", "{\"json\":{},\"regex\":null,\"structural_tag\":null}",
         "{\"json\":{},\"disable_any_whitespace\":true}"},
        true);
    add("guided_whitespace_pattern", {"\" \""}, false);
    add("function_call", {"\"auto\"", "{\"name\":\"f\"}"}, false);
    add("modalities", {"[\"text\",\"audio\"]", "5", "\"text\"", "[5]"}, false);
    add("modalities", {"[\"text\"]", "[]", "null"}, true);
    add("spaces_between_special_tokens", {"1", "\"x\""}, false);
    add("spaces_between_special_tokens", {"true", "null"}, true);
    rows.push_back({R"("extra_body":{"kv_transfer_params":{}})", "kv_transfer_params"});
    rows.push_back({R"("guided_regex":"x","guided_json":{})", "guided_regex"});
    rows.push_back({R"("guided_regex":"x","ignore_eos":true)", "ignore_eos"});
    rows.push_back({R"("guided_regex":"x","min_tokens":2)", "min_tokens"});
    add("prompt_embeds", {"\"x\"", "[]"}, false);
    add("cache_salt", {"\"x\""}, false);
    add("suffix", {"\"x\""}, false);
    add("prompt_logprobs", {"-1", "21", "true", "\"1\"", "1.5"}, false);
    add("prompt_logprobs", {"0", "1", "20", "null"}, true);
    add("kv_transfer_params", {"{}", "{\"tp_size\":1}"}, false);
    add("bootstrap_host", {"\"x\""}, false);
    add("bootstrap_anything", {"1"}, false);
    add("chat_template", {"\"x\""}, false);
    add("lora_name", {"\"x\""}, false);
    for (const char* name : {"lora_name", "guided_regex", "suffix"})
        add(name, {"\"\"", "null", "false"}, true);
    add("use_beam_search", {"true"}, false);
    add("use_beam_search", {"false"}, true);
    rows.push_back({R"("min_tokens":50,"max_tokens":10)", "min_tokens"});
    rows.push_back({R"("min_tokens":10,"max_tokens":10)", ""});
    rows.push_back({R"("stream":true,"stream_options":{})", ""});
    rows.push_back({R"("stream":true,"stream_options":{"include_usage":5})", "stream_options"});
    rows.push_back(
        {R"("user":"u","metadata":{"a":[1]},"store":true,"service_tier":"x","verbosity":"low","foo":1)",
         ""});
    rows.push_back({R"("extra_body":{"guided_json":5})", "guided_json"});
    rows.push_back({R"("extra_body":{"lora_name":"x"})", "lora_name"});
    rows.push_back({R"("extra_body":5)", "extra_body"});
    rows.push_back({R"("stop":")" + std::string(257, 'x') + "\"", "stop"});
    rows.push_back({R"("stop":")" + std::string(256, 'x') + "\"", ""});
    rows.push_back({R"("request_id":")" + std::string(129, 'x') + "\"", "request_id"});
    return rows;
}

TEST(ParseRequest, SharedFieldsOfBothRoutes) {
    for (const Row& row : shared_rows()) {
        EXPECT_EQ(outcome(parse_chat_request(chat(row.fields), {})), row.param) << row.fields;
        EXPECT_EQ(outcome(parse_completion_request(completion(row.fields), {})), row.param)
            << row.fields;
    }
}

TEST(ParseRequest, ChatFields) {
    const std::vector<Row> rows = {
        {R"("logprobs":true)", ""},
        {R"("logprobs":true,"top_logprobs":20)", ""},
        {R"("logprobs":true,"top_logprobs":21)", "top_logprobs"},
        {R"("logprobs":true,"top_logprobs":-2)", "top_logprobs"},
        {R"("logprobs":true,"top_logprobs":"5")", "top_logprobs"},
        {R"("top_logprobs":3)", "top_logprobs"},
        {R"("logprobs":5)", "logprobs"},
        {R"("tools":[])", "tools"},
        {R"("tools":5)", "tools"},
        {R"("tools":[5])", "tools"},
        {R"("tools":[{"type":"function"}])", "tools"},
        {R"("tools":[{"type":"function","function":{"name":""}}])", "tools"},
        {R"("tools":[{"type":"function","function":{"name":"f","parameters":5}}])", "tools"},
        {R"("tools":[{"type":"function","function":{"name":"f","parameters":{"type":"array"}}}])", "tools"},
        {R"("tools":[{"type":"function","function":{"name":"f","strict":"yes"}}])", "tools"},
        {R"("tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":["object","null"]}}}])", ""},
        {R"("tool_choice":"auto")", "tool_choice"},
        {R"("tool_choice":"none")", ""},
        {R"("tool_choice":null)", ""},
        {R"("tools":[{"type":"function","function":{"name":"f"}}])", ""},
        {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"auto")", ""},
        {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"foo")",
         "tool_choice"},
        {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required")", ""},
        {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"f"}})",
         ""},
        {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"code","function":{"name":"f"}})",
         "tool_choice"},
        {R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":"function","function":{"name":"zz"}})",
         "tool_choice"},
        {R"("chat_template_kwargs":{"enable_thinking":false})", ""},
        {R"("chat_template_kwargs":{"foo":1})", ""},
        {R"("chat_template_kwargs":"{\"foo\":1}")", ""},
        {R"("chat_template_kwargs":{"messages":[]})", "chat_template_kwargs"},
        {R"("chat_template_kwargs":{"add_generation_prompt":false})", "chat_template_kwargs"},
        {R"("chat_template_kwargs":{"tokenize":true})", "chat_template_kwargs"},
        {R"("chat_template_kwargs":"x")", "chat_template_kwargs"},
        {R"("chat_template_kwargs":"[]")", "chat_template_kwargs"},
        {R"("chat_template_kwargs":5)", "chat_template_kwargs"},
        {R"("enable_thinking":"x")", "enable_thinking"},
        {R"("reasoning_effort":5)", "reasoning_effort"},
        {R"("reasoning_effort":"low")", ""},
        {R"("add_generation_prompt":true,"continue_final_message":true)", "add_generation_prompt"},
        {R"("functions":[{"name":"f"}])", "functions"},
    };
    for (const Row& row : rows)
        EXPECT_EQ(outcome(parse_chat_request(chat(row.fields), {})), row.param) << row.fields;
}

TEST(ParseRequest, Messages) {
    for (const char* bad :
         {"null",
          "\"string\"",
          "[123]",
          "[{}]",
          "[{\"role\":123}]",
          "[{\"role\":\"system\",\"content\":123}]",
          "[{\"role\":\"user\",\"content\":\"a\"},{}]",
          "[]",
          "{}",
          "[{\"role\":\"boss\",\"content\":\"x\"}]",
          "[{\"role\":\"user\"}]",
          "[{\"role\":\"user\",\"content\":null}]",
          "[{\"role\":\"assistant\"}]",
          "[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]",
          "[{\"role\":\"user\",\"content\":[]}]",
          "[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"http:/"
          "/x\"}}]}]",
          "[{\"role\":\"user\",\"content\":[5]}]",
          "[{\"role\":\"user\",\"content\":\"a\",\"tool_calls\":[{}]}]",
          "[{\"role\":\"assistant\",\"tool_calls\":[{}]}]",
          "[{\"role\":\"assistant\",\"tool_calls\":5}]",
          "[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","
          "\"arguments\":5}}]}]",
          "[{\"role\":\"user\",\"content\":\"a\",\"name\":5}]",
          "[{\"role\":\"assistant\",\"content\":\"a\",\"reasoning_content\":1}]"}) {
        EXPECT_EQ(outcome(parse_chat_request(messages(bad), {})), "messages") << bad;
    }
    for (const char* good :
         {"[{\"role\":\"developer\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}]",
          "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"system\",\"content\":\"b\"},{"
          "\"role\":\"user\",\"content\":\"c\"}]",
          "[{\"role\":\"user\",\"content\":\"\"}]",
          "[{\"role\":\"user\",\"content\":\"a\\u0000b\"}]",
          "[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":null,\"tool_"
          "calls\":[{\"id\":\"1\",\"type\":"
          "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":"
          "\"tool\",\"content\":\"1\","
          "\"tool_call_id\":\"1\"}]"}) {
        EXPECT_EQ(outcome(parse_chat_request(messages(good), {})), "") << good;
    }
}

TEST(ParseRequest, MessagesReachTheTemplateInOneForm) {
    const auto request = parse_chat_request(
        messages(
            R"([{"role":"developer","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},)"
            R"({"role":"assistant","content":"x","reasoning":"r","tool_calls":[]},{"role":"user","content":"u","extra":2.5e20}])"),
        {});
    ASSERT_TRUE(request.has_value());
    EXPECT_EQ(
        request->messages_json,
        R"([{"role":"system","content":"a\nb"},{"role":"assistant","content":"x","reasoning":"r","reasoning_content":"r"},)"
        R"({"role":"user","content":"u","extra":2.5e+20}])");
}

TEST(ParseRequest, Model) {
    EXPECT_EQ(outcome(parse_chat_request(R"({"messages":[{"role":"user","content":"a"}]})", {})),
              "model");
    EXPECT_EQ(outcome(parse_chat_request(
                  R"({"model":5,"messages":[{"role":"user","content":"a"}]})", {})),
              "model");
    EXPECT_EQ(outcome(parse_chat_request(
                  R"({"model":"","messages":[{"role":"user","content":"a"}]})", {})),
              "model");
    const auto request = parse_chat_request(R"({"messages":[{"role":"user","content":"a"}]})",
                                            {.default_model = "d"});
    ASSERT_TRUE(request.has_value());
    EXPECT_EQ(request->model, "d");
}

TEST(ParseRequest, CompletionFields) {
    const std::vector<Row> rows = {
        {R"("logprobs":0)", ""},
        {R"("logprobs":20)", ""},
        {R"("logprobs":true)", "logprobs"},
        {R"("logprobs":21)", "logprobs"},
        {R"("logprobs":-1)", "logprobs"},
        {R"("logprobs":1.5)", "logprobs"},
        {R"("echo":1)", "echo"},
        {R"("echo":true)", ""},
        {R"("echo":true,"max_tokens":0)", ""},
        {R"("echo":true,"logprobs":1)", ""},
        {R"("prompt_logprobs":0)", ""},
        {R"("prompt_logprobs":21)", "prompt_logprobs"},
        {R"("prompt_logprobs":1,"stream":true)", "prompt_logprobs"},
        {R"("add_special_tokens":1)", "add_special_tokens"},
        {R"("max_tokens":0)", "max_tokens"},
        {R"("tools":[{"type":"function","function":{"name":"f"}}])", "tools"},
    };
    for (const Row& row : rows) {
        EXPECT_EQ(outcome(parse_completion_request(completion(row.fields), {})), row.param)
            << row.fields;
    }
}

TEST(ParseRequest, PromptForms) {
    for (const char* bad : {"[]", "\"\"", "[[]]", "[-1]", "[[-1]]", "[\"a\",1]", "[1,\"a\"]",
                            "null", "{\"a\":1}", "5", "[1.5]", "[true]", "[[1],\"a\"]",
                            "[\"a\",\"\"]", "[4294967296]", "[[1],[]]", "[null]"}) {
        EXPECT_EQ(outcome(parse_completion_request(prompt(bad), {})), "prompt") << bad;
    }
    const std::vector<std::pair<const char*, size_t>> good = {
        {"\"x\"", 1}, {"[\"x\"]", 1}, {"[\"x\",\"y\"]", 2}, {"[1,2,3]", 1}, {"[[1],[2,3]]", 2}};
    for (const auto& [value, count] : good) {
        const auto request = parse_completion_request(prompt(value), {});
        ASSERT_TRUE(request.has_value()) << value;
        EXPECT_EQ(request->prompts.size(), count);
    }
    EXPECT_TRUE(check_prompt_ids({0, 999}, 1000).has_value());
    EXPECT_EQ(check_prompt_ids({999999999}, 1000).error().param, "prompt");
    std::string many = "[";
    for (int i = 0; i < 128; ++i) many += "\"x\",";
    EXPECT_EQ(outcome(parse_completion_request(prompt(many + "\"x\"]"), {})), "prompt");
    many.back() = ']';
    EXPECT_EQ(outcome(parse_completion_request(R"({"model":"m","n":2,"prompt":)" + many + "}", {})),
              "n");
}

TEST(ParseRequest, StrictFieldsNameTheUnknownOne) {
    EXPECT_EQ(outcome(parse_chat_request(chat(R"("foo":1)"), {.strict_fields = true})), "foo");
    EXPECT_EQ(outcome(parse_chat_request(chat(R"("user":"u","top_k":5)"), {.strict_fields = true})),
              "");
}

TEST(ParseRequest, RequestIdOfBodyWinsOverHeader) {
    const auto body = parse_chat_request(chat(R"("request_id":"b")"), {.header_request_id = "h"});
    EXPECT_EQ(body->options.request_id, "b");
    EXPECT_EQ(parse_chat_request(chat(""), {.header_request_id = "h"})->options.request_id, "h");
    EXPECT_EQ(outcome(parse_chat_request(chat(""), {.header_request_id = "\xC3\xA9"})),
              "X-Request-Id");
}

TEST(ParseRequest, ThinkingIsCopiedIntoTheTemplateArguments) {
    const auto arguments = [](std::string_view fields) {
        return parse_chat_request(chat(fields), {})->kwargs_json;
    };
    EXPECT_EQ(arguments(""), "{}");
    EXPECT_EQ(arguments(R"("enable_thinking":false)"),
              R"({"enable_thinking":false,"thinking":false})");
    EXPECT_EQ(arguments(R"("extra_body":{"enable_thinking":true})"),
              R"({"enable_thinking":true,"thinking":true})");
    EXPECT_EQ(
        arguments(R"("enable_thinking":true,"chat_template_kwargs":{"enable_thinking":false})"),
        R"({"enable_thinking":false,"thinking":true})");
    EXPECT_EQ(arguments(R"("reasoning_effort":"none")"),
              R"({"reasoning_effort":"none","enable_thinking":false,"thinking":false})");
}

TEST(ParseRequest, NamesOfTools) {
    const auto tool = [](const std::string& name) {
        return R"({"type":"function","function":{"name":")" + name + R"("}})";
    };
    const auto parse = [&](const std::string& list) { return parse_chat_request(chat("\"tools\":[" + list + "]"), {}); };
    for (const std::string& good : {std::string("get_weather-2"), std::string("github.search"), std::string("mcp:fs/read"), std::string("A"), std::string(128, 'x')})
        EXPECT_EQ(outcome(parse(tool(good))), "") << good;
    for (const std::string& bad : {std::string("get weather"), std::string("a\\\"b"), std::string("a\\n"), std::string("caf\xC3\xA9"), std::string("a,b"), std::string("<x>"), std::string("a\\u0000"),
                                   std::string(129, 'x'), std::string()}) {
        const auto refused = parse(tool("good") + "," + tool(bad));
        EXPECT_EQ(outcome(refused), "tools") << bad;
        ASSERT_FALSE(refused);
        EXPECT_TRUE(refused.error().message.starts_with("tools[1].function.name must be 1 to 128 letters")) << refused.error().message;
    }
    const auto twice = parse(tool("a") + "," + tool("b") + "," + tool("b"));
    ASSERT_FALSE(twice);
    EXPECT_EQ(twice.error().message, "tools[2].function.name b is that of tools[1] too");
    EXPECT_EQ(outcome(parse(tool("b") + "," + tool("B"))), "");
}

TEST(ParseRequest, ToolChoiceNoneHidesTheTools) {
    const std::string tools =
        R"("tools":[{"type":"function","function":{"name":"f","parameters":{"z":1.0,"a":2}}}])";
    EXPECT_EQ(parse_chat_request(chat(tools), {})->tools_json,
              R"([{"type":"function","function":{"name":"f","parameters":{"z":1.0,"a":2}}}])");
    EXPECT_EQ(parse_chat_request(chat(tools + R"(,"tool_choice":"none")"), {})->tools_json, "");
    EXPECT_EQ(parse_chat_request(chat(tools), {})->tool_use.tools[0].parameters_json, R"({"z":1.0,"a":2,"type":"object"})") << "a call's arguments are an object in any case";
}

// ---- JSON rules ----

TEST(ParseRequest, BodiesThatAreNoObjects) {
    const std::string deep(10'000, '[');
    for (const std::string& body :
         std::vector<std::string>{"",
                                  "[]",
                                  "5",
                                  "null",
                                  "{",
                                  "{} x",
                                  "{}{}",
                                  "\xEF\xBB\xBF{}",
                                  "a=b",
                                  "{\"a\":NaN}",
                                  "{\"a\":Infinity}",
                                  "{\"a\":-Infinity}",
                                  "{\"a\":1e999}",
                                  "{\"a\":-1e999}",
                                  "{\"a\":1,\"a\":2}",
                                  "{\"a\":{\"b\":1,\"b\":1}}",
                                  "{\"a\":" + deep + std::string(10'000, ']') + "}",
                                  "{\"a\":" + deep,
                                  "{\"a\":\"\xFF\xFE\"}",
                                  "{\"a\":\"\xC0\x80\"}",
                                  "{\"a\":\"\xED\xA0\x80\"}",
                                  "{\"a\":\"\\ud800\"}",
                                  "{\"a\":\"\x01\"}",
                                  "{'a':1}",
                                  "{\"a\":01}",
                                  "{\"a\":1,}",
                                  "{/**/}",
                                  "{\"a\":" + std::string(1'000'000, '9') + "}"}) {
        const std::clock_t start = std::clock();
        EXPECT_FALSE(check_json_object(body).has_value()) << body.substr(0, 40);
        const auto chat_result = parse_chat_request(body, {});
        ASSERT_FALSE(chat_result.has_value());
        EXPECT_EQ(chat_result.error().code, ErrorCode::kInvalidArgument);
        EXPECT_LT(chat_result.error().message.size(), 200u);
        EXPECT_LT((std::clock() - start) / CLOCKS_PER_SEC, 5) << body.substr(0, 40);
    }
    EXPECT_TRUE(check_json_object(" {\"a\":\"\\u0000\\ud83d\\ude00\"}\r\n").has_value());
}

TEST(ParseRequest, NestingUpToTheBound) {
    const auto nested = [](size_t depth) {
        return "{\"a\":" + std::string(depth - 1, '[') + std::string(depth - 1, ']') + "}";
    };
    EXPECT_TRUE(check_json_object(nested(limits::kJsonDepthMax)).has_value());
    EXPECT_FALSE(check_json_object(nested(limits::kJsonDepthMax + 1)).has_value());
}

TEST(ParseRequest, AHundredThousandKeysAreNotQuadratic) {
    std::string body = "{\"metadata\":{";
    for (int i = 0; i < 300'000; ++i)
        body += (i == 0 ? "\"k" : ",\"k") + std::to_string(i) + "\":0";
    body += "}}";
    const std::clock_t start = std::clock();
    EXPECT_TRUE(check_json_object(body).has_value());
    EXPECT_LT((std::clock() - start) / CLOCKS_PER_SEC, 10);
}

TEST(ParseRequest, MessagesWithHostileTextAreEscapedAndShort) {
    const auto error = parse_chat_request(
        messages("[{\"role\":\"" + std::string(5'000, 'x') + "\\u0007\\n\",\"content\":\"\"}]"),
        {});
    ASSERT_FALSE(error.has_value());
    EXPECT_LT(error.error().message.size(), 330u);
    EXPECT_EQ(echo_input("a\n\x01\xFF"
                         "b"),
              "a\\x0a\\x01\\xffb");
    EXPECT_LE(echo_input(std::string(10'000, '\n')).size(), limits::kErrorEchoBytesMax);
}

// ---- resolve ----

wire::Sampling resolved(std::string_view fields, const ModelLimits& model = kModel,
                        size_t prompt_tokens = 10, uint32_t choice = 0) {
    const auto request = parse_chat_request(chat(fields), {});
    EXPECT_TRUE(request.has_value()) << fields;
    const auto sampling = resolve(request->options, model, prompt_tokens, choice);
    EXPECT_TRUE(sampling.has_value()) << fields;
    return *sampling;
}

TEST(Resolve, DefaultsAreNeutral) {
    const wire::Sampling s = resolved("");
    EXPECT_EQ(s.temperature, 1.0f);
    EXPECT_EQ(s.top_p, 1.0f);
    EXPECT_EQ(s.top_k, 0);
    EXPECT_EQ(s.min_p, 0.0f);
    EXPECT_EQ(s.repetition_penalty, 1.0f);
    EXPECT_EQ(s.max_tokens, 90u);
    EXPECT_EQ(s.min_tokens, 0u);
    EXPECT_EQ(s.stop_ids, std::vector<TokenId>{999});
    EXPECT_EQ(s.top_logprobs, -1);
}

TEST(Resolve, RequestOverModelOverDefault) {
    ModelLimits model = kModel;
    model.temperature = 0.7;
    model.top_k = 20;
    EXPECT_FLOAT_EQ(resolved("", model).temperature, 0.7f);
    EXPECT_EQ(resolved("", model).top_k, 20);
    EXPECT_FLOAT_EQ(resolved(R"("temperature":0.2)", model).temperature, 0.2f);
    EXPECT_EQ(resolved(R"("top_k":-1)", model).top_k, 0);
    EXPECT_EQ(resolved(R"("top_k":100000)", model).top_k, 0);
}

TEST(Resolve, EdgesOfTheDistribution) {
    EXPECT_EQ(resolved(R"("temperature":0)").temperature, 0.0f);
    EXPECT_FLOAT_EQ(resolved(R"("temperature":0.001)").temperature, 0.01f);
    EXPECT_EQ(resolved(R"("top_p":0)").temperature, 0.0f);
    EXPECT_GT(resolved(R"("top_p":1e-300)").top_p, 0.0f);
    EXPECT_GT(resolved(R"("repetition_penalty":1e-300)").repetition_penalty, 0.0f);
    EXPECT_TRUE(std::isfinite(resolved(R"("repetition_penalty":1e30)").repetition_penalty));
    EXPECT_EQ(resolved(R"("logit_bias":{"5":1000})").logit_bias[0].second, 100.0f);
}

TEST(Resolve, MaxTokensIsClampedAndAFullContextIsAnError) {
    EXPECT_EQ(resolved(R"("max_tokens":5)").max_tokens, 5u);
    EXPECT_EQ(resolved(R"("max_tokens":5,"max_completion_tokens":2)").max_tokens, 2u);
    EXPECT_EQ(resolved(R"("max_tokens":9223372036854775807)").max_tokens, 90u);
    EXPECT_EQ(resolved("", kModel, 99).max_tokens, 1u);
    EXPECT_EQ(resolved(R"("min_tokens":95)").min_tokens, 90u);
    const auto request = parse_chat_request(chat(""), {});
    for (const size_t tokens : {100, 300}) {
        const auto sampling = resolve(request->options, kModel, tokens);
        ASSERT_FALSE(sampling.has_value());
        EXPECT_EQ(sampling.error().code, ErrorCode::kContextTooLong);
    }
}

TEST(Resolve, SeedsOfChoices) {
    EXPECT_EQ(resolved(R"("seed":42)").seed, 42u);
    EXPECT_EQ(resolved(R"("seed":-7)").seed, static_cast<uint64_t>(-7));
    std::set<uint64_t> seeds;
    for (uint32_t i = 0; i < 16; ++i) {
        seeds.insert(resolved(R"("seed":42)", kModel, 10, i).seed);
        EXPECT_EQ(resolved(R"("seed":42)", kModel, 10, i).seed,
                  resolved(R"("seed":42)", kModel, 10, i).seed);
    }
    EXPECT_EQ(seeds.size(), 16u);
    EXPECT_NE(resolved("").seed, resolved("").seed);
    EXPECT_NE(resolved(R"("seed":-1)").seed, resolved(R"("seed":-1)").seed);
}

TEST(Resolve, StopIds) {
    EXPECT_EQ(resolved(R"("stop_token_ids":[7,3,7])").stop_ids, (std::vector<TokenId>{3, 7, 999}));
    EXPECT_EQ(resolved(R"("stop_token_ids":[999],"ignore_eos":true)").stop_ids,
              std::vector<TokenId>{999});
    EXPECT_TRUE(resolved(R"("ignore_eos":true)").stop_ids.empty());
}

TEST(Resolve, EchoOfThePromptAlone) {
    const auto request = parse_completion_request(completion(R"("echo":true,"max_tokens":0)"), {});
    EXPECT_EQ(resolve(request->options, kModel, 10)->max_tokens, 0u);
}

}  // namespace
}  // namespace baton::openai
