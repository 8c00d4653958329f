// From a request of the Responses API to a chat request.
#include <nlohmann/json.hpp>

#include "baton/openai/json.hpp"
#include "responses.hpp"

namespace baton::supervisor {
namespace {

using Ordered = nlohmann::ordered_json;  // a template prints a tool as the client wrote it

tl::unexpected<Error> bad(std::string message, std::string param) { return fail(ErrorCode::kInvalidArgument, std::move(message), std::move(param)); }
tl::unexpected<Error> unsupported(std::string message, std::string param) { return fail(ErrorCode::kUnsupported, std::move(message), std::move(param)); }

const Ordered* member(const Ordered& object, const char* name) {
    if (!object.is_object()) return nullptr;
    const auto it = object.find(name);
    return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string string_of(const Ordered& object, const char* name) {
    const Ordered* value = member(object, name);
    return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

/// Text of a content: a string, or parts of input_text, output_text or reasoning_text.
Expected<Ordered> content_of(const Ordered& item, const std::string& where) {
    const Ordered* content = member(item, "content");
    if (content == nullptr) return bad(where + ".content is missing", "input");
    if (content->is_string()) return *content;
    if (!content->is_array()) return bad(where + ".content must be a string or an array of parts", "input");
    Ordered out = Ordered::array();
    for (const Ordered& part : *content) {
        const std::string type = string_of(part, "type");
        if (type == "refusal") {
            out.push_back({{"type", "text"}, {"text", string_of(part, "refusal")}});
        } else if (type == "input_text" || type == "output_text" || type == "text" || type == "summary_text" || type == "reasoning_text") {
            const Ordered* text = member(part, "text");
            if (text == nullptr || !text->is_string()) return bad(where + ".content has a text part without text", "input");
            out.push_back({{"type", "text"}, {"text", *text}});
        } else {
            return bad(where + ".content has a part of type " + openai::echo_input(type) + "; this model takes text only (input_text, output_text)", "input");
        }
    }
    return out;
}

/// Reasoning and calls belong to the assistant's message; items of one turn come apart.
Ordered& assistant_turn(Ordered& messages, bool calls_may_follow) {
    if (messages.empty() || messages.back()["role"] != "assistant" || !calls_may_follow) messages.push_back({{"role", "assistant"}, {"content", nullptr}});
    return messages.back();
}

Expected<void> add_call(const Ordered& item, const std::string& where, Ordered& messages) {
    const Ordered* arguments = member(item, "arguments");
    if (string_of(item, "name").empty() || arguments == nullptr || !arguments->is_string())
        return bad(where + " must have a name and arguments", "input");
    Ordered& turn = assistant_turn(messages, true);
    turn["tool_calls"].push_back({{"id", string_of(item, "call_id")}, {"type", "function"}, {"function", {{"name", item["name"]}, {"arguments", *arguments}}}});
    return {};
}

Expected<void> add_item(const Ordered& item, size_t index, Ordered& messages, std::string& reasoning) {
    const std::string where = "input[" + std::to_string(index) + "]";
    if (!item.is_object()) return bad(where + " must be an object", "input");
    std::string type = string_of(item, "type");
    if (type.empty() && item.contains("role")) type = "message";
    if (type == "message") {
        BATON_TRY_ASSIGN(Ordered content, content_of(item, where));
        Ordered message = {{"role", item.contains("role") ? item["role"] : Ordered()}, {"content", std::move(content)}};
        if (message["role"] == "assistant" && !reasoning.empty()) message["reasoning_content"] = std::exchange(reasoning, {});
        messages.push_back(std::move(message));
        return {};
    }
    if (type == "function_call") {
        BATON_TRY(add_call(item, where, messages));
        if (!reasoning.empty()) messages.back()["reasoning_content"] = std::exchange(reasoning, {});
        return {};
    }
    if (type == "function_call_output") {
        const Ordered* output = member(item, "output");
        if (output == nullptr) return bad(where + ".output is missing", "input");
        Ordered content = *output;
        if (output->is_array()) {
            BATON_TRY_ASSIGN(content, content_of({{"content", *output}}, where));
        } else if (!output->is_string()) {
            return bad(where + ".output must be a string or an array of parts", "input");
        }
        messages.push_back({{"role", "tool"}, {"tool_call_id", string_of(item, "call_id")}, {"content", std::move(content)}});
        return {};
    }
    if (type == "reasoning") {
        for (const char* key : {"content", "summary"})
            if (const Ordered* parts = member(item, key); parts != nullptr && parts->is_array() && reasoning.empty())
                for (const Ordered& part : *parts) reasoning += string_of(part, "text");
        return {};
    }
    return bad(where + ".type " + openai::echo_input(type) + " is not supported (message, function_call, function_call_output and reasoning are)", "input");
}

Expected<Ordered> messages_of(const Ordered& body) {
    Ordered messages = Ordered::array();
    if (const Ordered* instructions = member(body, "instructions")) {
        if (!instructions->is_string()) return bad("instructions must be a string", "instructions");
        messages.push_back({{"role", "system"}, {"content", *instructions}});
    }
    const Ordered* input = member(body, "input");
    if (input == nullptr) return bad("input is missing", "input");
    if (input->is_string()) {
        messages.push_back({{"role", "user"}, {"content", *input}});
        return messages;
    }
    if (!input->is_array() || input->empty()) return bad("input must be a string or a non-empty array of items", "input");
    std::string reasoning;
    for (size_t i = 0; i < input->size(); ++i) BATON_TRY(add_item((*input)[i], i, messages, reasoning));
    // A developer message behind the instructions is one more system message; many templates take one at the start only.
    if (messages.size() > 1 && messages[0]["role"] == "system" && messages[1]["content"].is_string() && (messages[1]["role"] == "system" || messages[1]["role"] == "developer")) {
        messages[0]["content"] = messages[0]["content"].get<std::string>() + "\n" + messages[1]["content"].get<std::string>();
        messages.erase(1);
    }
    return messages;
}

Expected<Ordered> tools_of(const Ordered& tools) {
    if (!tools.is_array()) return bad("tools must be an array", "tools");
    Ordered out = Ordered::array();
    for (size_t i = 0; i < tools.size(); ++i) {
        const Ordered& tool = tools[i];
        const std::string type = string_of(tool, "type");
        if (type != "function") return unsupported("tools[" + std::to_string(i) + "].type " + openai::echo_input(type) + " is not supported; only function is", "tools");
        Ordered function = Ordered::object();
        for (const char* key : {"name", "description", "parameters", "strict"})
            if (const Ordered* value = member(tool, key)) function[key] = *value;
        out.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    return out;
}

Expected<void> set_format(const Ordered& body, Ordered& chat) {
    const Ordered* text = member(body, "text");
    if (text == nullptr) return {};
    if (!text->is_object()) return bad("text must be an object", "text");
    const Ordered* format = member(*text, "format");
    if (format == nullptr) return {};
    if (string_of(*format, "type") != "json_schema") {
        chat["response_format"] = *format;
        return {};
    }
    const Ordered* held = member(*format, "schema");
    if (held == nullptr || !held->is_object()) return bad("text.format.schema must be an object where text.format.type is json_schema", "text.format");
    Ordered schema = Ordered::object();
    for (const char* key : {"name", "description", "schema", "strict"})
        if (const Ordered* value = member(*format, key)) schema[key] = *value;
    chat["response_format"] = {{"type", "json_schema"}, {"json_schema", std::move(schema)}};
    return {};
}

Expected<void> set_tools(const Ordered& body, Ordered& chat) {
    if (const Ordered* tools = member(body, "tools"); tools != nullptr && !(tools->is_array() && tools->empty())) {
        BATON_TRY_ASSIGN(chat["tools"], tools_of(*tools));
    }
    const Ordered* choice = member(body, "tool_choice");
    if (choice == nullptr) return {};
    if (!chat.contains("tools")) {
        if (*choice == "auto" || *choice == "none") return {};  // the SDK's agents send it always
        return bad("tool_choice needs tools", "tool_choice");
    }
    if (choice->is_object() && string_of(*choice, "type") == "function") chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", string_of(*choice, "name")}}}};
    else chat["tool_choice"] = *choice;
    return {};
}

Expected<void> refuse_state(const Ordered& body) {
    for (const char* name : {"previous_response_id", "conversation", "prompt"})
        if (member(body, name) != nullptr) return unsupported(std::string(name) + " is not supported: responses are not stored; send the whole conversation as input", name);
    if (const Ordered* background = member(body, "background"); background != nullptr && *background != false)
        return unsupported("background is not supported: responses are not stored", "background");
    if (const Ordered* truncation = member(body, "truncation"); truncation != nullptr && *truncation != "disabled")
        return unsupported("truncation must be disabled: input that does not fit is refused", "truncation");
    return {};
}

std::string dump(const Ordered& json) { return json.dump(-1, ' ', false, Ordered::error_handler_t::replace); }

/// What the response object repeats of its request.
Ordered echo_of(const Ordered& body) {
    Ordered out = Ordered::object();
    const auto put = [&](const char* key, Ordered otherwise) {
        const Ordered* value = member(body, key);
        out[key] = value != nullptr ? *value : std::move(otherwise);
    };
    put("instructions", nullptr);
    put("max_output_tokens", nullptr);
    put("metadata", Ordered::object());
    put("parallel_tool_calls", true);
    out["previous_response_id"] = nullptr;
    put("reasoning", {{"effort", nullptr}, {"summary", nullptr}});
    out["store"] = false;
    put("temperature", 1.0);
    put("text", {{"format", {{"type", "text"}}}});
    put("tool_choice", "auto");
    put("tools", Ordered::array());
    put("top_p", 1.0);
    out["truncation"] = "disabled";
    put("user", nullptr);
    return out;
}

}  // namespace

Expected<ResponsesRequest> read_responses_request(std::string_view text) {
    BATON_TRY(openai::check_json_object(text));
    const Ordered body = Ordered::parse(text, nullptr, false);
    BATON_TRY(refuse_state(body));
    Ordered chat = Ordered::object();
    // Fields of the chat API that a client may send here too, as vLLM takes them.
    for (const char* key : {"model", "stream", "temperature", "top_p", "top_k", "min_p", "parallel_tool_calls", "metadata", "user", "request_id", "seed", "stop",
                            "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "ignore_eos", "min_tokens", "stop_token_ids",
                            "chat_template_kwargs", "enable_thinking", "timings", "kv_transfer_params", "cache_salt"})
        if (const Ordered* value = member(body, key)) chat[key] = *value;
    if (const Ordered* limit = member(body, "max_output_tokens")) {
        if (!limit->is_number_integer() || *limit < 1) return bad("max_output_tokens must be an integer of at least 1, not " + openai::echo_input(dump(*limit)), "max_output_tokens");
        chat["max_tokens"] = *limit;
    }
    if (const Ordered* top = member(body, "top_logprobs"); top != nullptr && *top != 0) return unsupported("top_logprobs is not supported here; use /v1/chat/completions", "top_logprobs");
    if (const Ordered* reasoning = member(body, "reasoning")) {
        if (!reasoning->is_object()) return bad("reasoning must be an object", "reasoning");
        if (const Ordered* effort = member(*reasoning, "effort")) chat["reasoning_effort"] = *effort;
    }
    if (chat.contains("stream") && chat["stream"] == true) chat["stream_options"] = {{"include_usage", true}};
    BATON_TRY_ASSIGN(chat["messages"], messages_of(body));
    BATON_TRY(set_format(body, chat));
    BATON_TRY(set_tools(body, chat));
    return ResponsesRequest{dump(chat), dump(echo_of(body))};
}

}  // namespace baton::supervisor
