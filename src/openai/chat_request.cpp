#include <algorithm>
#include <array>

#include "baton/openai/json.hpp"
#include "baton/openai/request.hpp"
#include "openai/generation_fields.hpp"
#include "openai/json.hpp"
#include "openai/tool_fields.hpp"

namespace baton::openai {
namespace {

tl::unexpected<Error> bad_message(size_t index, std::string_view what) {
    return bad_field("messages[" + std::to_string(index) + "]" + std::string(what), "messages");
}

/// Joins text parts with a newline, as templates that know strings only expect it.
Expected<std::string> join_parts(const Json& parts, size_t index) {
    if (parts.empty()) return bad_message(index, ".content must not be an empty array");
    std::string text;
    bool first = true;
    for (const Json& part : parts) {
        if (!part.is_object()) return bad_message(index, ".content may hold objects only");
        const Json* type = find(part, "type");
        if (type == nullptr || !type->is_string())
            return bad_message(index, ".content has a part without a type");
        if (*type != "text") {
            return bad_message(index, ".content has a part of type " +
                                          echo_input(type->get_ref<const std::string&>()) +
                                          "; this model takes text only");
        }
        const Json* value = find(part, "text");
        if (value == nullptr || !value->is_string())
            return bad_message(index, ".content has a text part without text");
        if (!first) text.push_back('\n');
        first = false;
        text.append(value->get_ref<const std::string&>());
    }
    return text;
}

Expected<void> check_tool_calls(const Json& calls, size_t index) {
    if (!calls.is_array()) return bad_message(index, ".tool_calls must be an array");
    for (const Json& call : calls) {
        const Json* function = call.is_object() ? find(call, "function") : nullptr;
        if (function == nullptr || !function->is_object())
            return bad_message(index, ".tool_calls needs functions");
        const Json* name = find(*function, "name");
        if (name == nullptr || !name->is_string() || name->empty()) {
            return bad_message(index, ".tool_calls has a function without a name");
        }
        const Json* arguments = find(*function, "arguments");
        if (arguments != nullptr && !arguments->is_string() && !arguments->is_object()) {
            return bad_message(index, ".tool_calls has arguments that are no string");
        }
        const Json* id = find(call, "id");
        if (id != nullptr && !id->is_string())
            return bad_message(index, ".tool_calls has an id that is no string");
    }
    return {};
}

Expected<void> normalise_content(Json& message, std::string_view role, size_t index) {
    const Json* content = find(message, "content");
    const Json* calls = find(message, "tool_calls");
    if (calls != nullptr) {
        if (role != "assistant") return bad_message(index, ".tool_calls belong to the assistant");
        BATON_TRY(check_tool_calls(*calls, index));
    }
    const bool has_calls =
        calls != nullptr && !calls->empty();  // the pointers die with the first insertion
    if (content == nullptr) {
        if (role != "assistant" || !has_calls) return bad_message(index, ".content is missing");
        message["content"] = nullptr;
    } else if (content->is_array()) {
        BATON_TRY_ASSIGN(std::string text, join_parts(*content, index));
        message["content"] = std::move(text);
    } else if (!content->is_string()) {
        return bad_message(index, ".content must be a string or an array of text parts");
    }
    // Templates test `message.tool_calls`: an absent list and an empty one must look alike.
    if (!has_calls && message.contains("tool_calls")) message.erase("tool_calls");
    return {};
}

Expected<void> normalise_reasoning(Json& message, size_t index) {
    const Json* reasoning = find(message, "reasoning_content");
    if (reasoning == nullptr) reasoning = find(message, "reasoning");
    if (reasoning == nullptr) return {};
    if (!reasoning->is_string()) return bad_message(index, ".reasoning_content must be a string");
    const std::string text = reasoning->get<std::string>();
    message["reasoning_content"] = text;
    message["reasoning"] = text;
    return {};
}

Expected<void> normalise_message(Json& message, size_t index) {
    constexpr std::array<std::string_view, 6> kRoles = {"system",    "developer", "user",
                                                        "assistant", "tool",      "function"};
    if (!message.is_object()) return bad_message(index, " must be an object");
    const Json* role = find(message, "role");
    if (role == nullptr || !role->is_string()) return bad_message(index, ".role must be a string");
    std::string name = role->get<std::string>();
    if (std::find(kRoles.begin(), kRoles.end(), name) == kRoles.end()) {
        return bad_message(index, ".role " + echo_input(name) + " is unknown");
    }
    if (name == "developer") {
        name = "system";
        message["role"] = name;
    }
    for (const char* field : {"name", "tool_call_id"}) {
        const Json* value = find(message, field);
        if (value != nullptr && (!value->is_string() || value->get_ref<const std::string&>().find(
                                                            '\0') != std::string::npos)) {
            return bad_message(index, std::string(".") + field + " must be a string");
        }
    }
    BATON_TRY(normalise_reasoning(message, index));
    return normalise_content(message, name, index);
}

Expected<Json> read_messages(const Json& body) {
    const Json* messages = find(body, "messages");
    if (messages == nullptr || !messages->is_array())
        return bad_field("messages must be an array", "messages");
    if (messages->empty())
        return bad_field("Invalid input. Please specify the prompt.", "messages");
    if (messages->size() > limits::kMessagesMax)
        return bad_field("messages has too many items", "messages");
    Json out = *messages;
    for (size_t i = 0; i < out.size(); ++i) BATON_TRY(normalise_message(out[i], i));
    return out;
}

// What the renderer itself passes: a client must not be able to replace it.
constexpr std::array<std::string_view, 22> kReservedArguments = {"messages",
                                                                 "tools",
                                                                 "documents",
                                                                 "conversation",
                                                                 "add_generation_prompt",
                                                                 "continue_final_message",
                                                                 "tokenize",
                                                                 "chat_template",
                                                                 "tokenizer",
                                                                 "tokenizer_kwargs",
                                                                 "bos_token",
                                                                 "eos_token",
                                                                 "pad_token",
                                                                 "unk_token",
                                                                 "return_tensors",
                                                                 "return_dict",
                                                                 "return_assistant_tokens_mask",
                                                                 "padding",
                                                                 "truncation",
                                                                 "max_length",
                                                                 "self",
                                                                 "raise_exception"};

Expected<Json> read_template_arguments(const Json& body) {
    Json out = Json::object();
    const auto bad = [](std::string message) {
        return bad_field(std::move(message), "chat_template_kwargs");
    };
    if (const Json* given = find(body, "chat_template_kwargs"); given != nullptr) {
        out = *given;
        if (given->is_string()) {
            auto parsed = parse_json(given->get_ref<const std::string&>());
            if (!parsed) return bad("chat_template_kwargs is not valid JSON");
            out = std::move(*parsed);
        }
        if (!out.is_object()) return bad("chat_template_kwargs must be an object");
    }
    for (const auto& [name, value] : out.get_ref<const Json::object_t&>()) {
        if (std::find(kReservedArguments.begin(), kReservedArguments.end(), name) !=
            kReservedArguments.end()) {
            return bad("chat_template_kwargs must not set " + name);
        }
    }
    BATON_TRY_ASSIGN(auto thinking, bool_field(body, "enable_thinking"));
    if (const Json* extra = find(body, "extra_body"); extra != nullptr && !thinking) {
        BATON_TRY_ASSIGN(thinking, bool_field(*extra, "enable_thinking"));
    }
    BATON_TRY_ASSIGN(const auto effort, string_field(body, "reasoning_effort"));
    if (effort) {
        static constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
        if (std::find(std::begin(kEfforts), std::end(kEfforts), *effort) == std::end(kEfforts))
            return bad_field("reasoning_effort must be none, minimal, low, medium, high, xhigh or max, got " + echo_input(*effort), "reasoning_effort");
        if (!out.contains("reasoning_effort")) out["reasoning_effort"] = *effort;
        if (*effort == "none" && !thinking) thinking = false;
    }
    if (thinking) {
        if (!out.contains("enable_thinking")) out["enable_thinking"] = *thinking;
        if (!out.contains("thinking")) out["thinking"] = *thinking;
    }
    return out;
}

Expected<void> read_prompt_end(const Json& body, const Json& messages, ChatRequest& out) {
    BATON_TRY_ASSIGN(const auto generation, bool_field(body, "add_generation_prompt"));
    BATON_TRY_ASSIGN(const auto continued, bool_field(body, "continue_final_message"));
    out.continue_final_message = continued.value_or(false);
    if (out.continue_final_message && generation.value_or(false)) {
        return bad_field("add_generation_prompt and continue_final_message exclude each other",
                         "add_generation_prompt");
    }
    out.add_generation_prompt = generation.value_or(!out.continue_final_message);
    if (out.continue_final_message) {
        const Json* content = find(messages.back(), "content");
        if (content == nullptr)
            return bad_field("continue_final_message needs a last message with content",
                             "messages");
        out.final_content = content->get<std::string>();
    }
    return {};
}

}  // namespace

Expected<ChatRequest> parse_chat_request(std::string_view body, const ParseOptions& options) {
    BATON_TRY_ASSIGN(const Json json, parse_json_object(body));
    BATON_TRY(refuse_unsupported(json, options, Route::kChat));
    ChatRequest out;
    BATON_TRY_ASSIGN(out.model, read_model(json, options));
    BATON_TRY_ASSIGN(const Json messages, read_messages(json));
    BATON_TRY_ASSIGN(out.options, read_generation(json, options, Route::kChat, false));
    BATON_TRY_ASSIGN(out.tool_use, read_tools(json, out.tools_json));
    BATON_TRY_ASSIGN(const Json arguments, read_template_arguments(json));
    BATON_TRY(read_prompt_end(json, messages, out));
    out.messages_json = dump(messages);
    out.kwargs_json = dump(arguments);
    return out;
}

}  // namespace baton::openai
