#include "anthropic.hpp"

#include <algorithm>

#include "api_answers.hpp"
#include "baton/openai/json.hpp"
#include "forwarding_exchange.hpp"

namespace baton::supervisor {
namespace {

constexpr std::string_view kFrameEnd = "\r\n\r\n";

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

tl::unexpected<Error> bad(std::string message, std::string param) { return fail(ErrorCode::kInvalidArgument, std::move(message), std::move(param)); }

// ---- requests ---------------------------------------------------------------------------------------------------------

/// The text of a content that is a string or a list of text blocks.
Expected<std::string> text_of(const Json& content, const std::string& where) {
    if (content.is_string()) return content.get<std::string>();
    if (!content.is_array()) return bad(where + " must be a string or a list of content blocks", where);
    std::string out;
    for (const Json& block : content) {
        const auto text = block.is_object() ? block.find("text") : block.end();
        if (!block.is_object() || block.value("type", Json()) != "text" || text == block.end() || !text->is_string())
            return bad(where + " must have text blocks only", where);
        out += (out.empty() ? "" : "\n") + text->get<std::string>();
    }
    return out;
}

/// One message with blocks as chat messages: results of tools become messages of their own, before the rest.
Expected<void> append_blocks(const Json& message, const std::string& where, Json& out) {
    const std::string role = message["role"];
    std::string text;
    Json calls = Json::array();
    for (const Json& block : message["content"]) {
        const Json type = block.is_object() ? block.value("type", Json()) : Json();
        if (type == "text" && block.contains("text") && block["text"].is_string()) {
            text += (text.empty() ? "" : "\n") + block["text"].get<std::string>();
        } else if (type == "tool_use" && role == "assistant") {
            calls.push_back({{"id", block.value("id", Json(""))}, {"type", "function"},
                             {"function", {{"name", block.value("name", Json(""))}, {"arguments", dump(block.value("input", Json::object()))}}}});
        } else if (type == "tool_result" && role == "user") {
            BATON_TRY_ASSIGN(std::string result, text_of(block.contains("content") ? block["content"] : Json(""), where));
            out.push_back({{"role", "tool"}, {"tool_call_id", block.value("tool_use_id", Json(""))}, {"content", std::move(result)}});
        } else {
            return bad(where + " has a content block that is not supported here (text, tool_use and tool_result are)", where);
        }
    }
    if (text.empty() && calls.empty()) return {};
    Json one = {{"role", role}, {"content", text}};
    if (!calls.empty()) one["tool_calls"] = std::move(calls);
    out.push_back(std::move(one));
    return {};
}

Expected<Json> chat_messages(const Json& body) {
    Json out = Json::array();
    if (const auto system = body.find("system"); system != body.end() && !system->is_null()) {
        BATON_TRY_ASSIGN(std::string text, text_of(*system, "system"));
        if (!text.empty()) out.push_back({{"role", "system"}, {"content", std::move(text)}});
    }
    const auto messages = body.find("messages");
    if (messages == body.end() || !messages->is_array() || messages->empty()) return bad("messages must be a list that is not empty", "messages");
    for (size_t i = 0; i < messages->size(); ++i) {
        const Json& m = (*messages)[i];
        const std::string where = "messages[" + std::to_string(i) + "]";
        if (!m.is_object() || (m.value("role", Json()) != "user" && m.value("role", Json()) != "assistant"))
            return bad(where + ".role must be user or assistant", where);
        const auto content = m.find("content");
        if (content != m.end() && content->is_string()) out.push_back({{"role", m["role"]}, {"content", *content}});
        else if (content != m.end() && content->is_array()) BATON_TRY(append_blocks(m, where, out));
        else return bad(where + ".content must be a string or a list of content blocks", where);
    }
    return out;
}

Expected<Json> chat_tools(const Json& tools) {
    if (!tools.is_array()) return bad("tools must be a list", "tools");
    Json out = Json::array();
    for (const Json& tool : tools) {
        if (!tool.is_object() || !tool.contains("name") || !tool["name"].is_string()) return bad("tools must be objects with a name", "tools");
        Json function = {{"name", tool["name"]}, {"parameters", tool.value("input_schema", Json::object())}};
        if (tool.contains("description")) function["description"] = tool["description"];
        out.push_back({{"type", "function"}, {"function", std::move(function)}});
    }
    return out;
}

Expected<void> set_tool_choice(const Json& choice, Json& chat) {
    const Json type = choice.is_object() ? choice.value("type", Json()) : Json();
    if (type == "tool") chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", choice.value("name", Json(""))}}}};
    else if (type == "auto" || type == "any" || type == "none") chat["tool_choice"] = type == "any" ? Json("required") : type;
    else return bad("tool_choice.type must be auto, any, tool or none", "tool_choice");
    const Json one = choice.value("disable_parallel_tool_use", Json(false));
    if (!one.is_boolean()) return bad("tool_choice.disable_parallel_tool_use must be true or false", "tool_choice");
    if (one == true) chat["parallel_tool_calls"] = false;
    return {};
}

// ---- answers ----------------------------------------------------------------------------------------------------------

const char* error_type(int status) {
    switch (status) {
        case 400: return "invalid_request_error";
        case 401: return "authentication_error";
        case 403: return "permission_error";
        case 404: return "not_found_error";
        case 413: return "request_too_large";
        case 429: return "rate_limit_error";
        case 503: return "overloaded_error";
        default: return "api_error";
    }
}

const char* stop_reason(const Json& finish) {
    if (finish == "length") return "max_tokens";
    return finish == "tool_calls" ? "tool_use" : "end_turn";
}

std::string message_id(const Json& chat) {
    const Json id = chat.value("id", Json());
    std::string text = id.is_string() ? id.get<std::string>() : std::string();
    if (text.starts_with("chatcmpl-")) text.erase(0, 9);
    return "msg_" + text;
}

uint64_t count_of(const Json& chat, const char* key) {
    const auto usage = chat.find("usage");
    return usage != chat.end() && usage->is_object() ? usage->value(key, uint64_t{0}) : 0;
}

/// baton's own member of an answer, where the client asked for it.
void take_timings(const Json& chat, Json& out) {
    if (const auto timings = chat.find("timings"); timings != chat.end()) out["timings"] = *timings;
}

Json message_of(const Json& chat) {
    const Json& choice = chat["choices"][0];
    const Json& said = choice["message"];
    Json content = Json::array();
    if (const Json text = said.value("content", Json()); text.is_string() && !text.get_ref<const std::string&>().empty())
        content.push_back({{"type", "text"}, {"text", text}});
    for (const Json& call : said.value("tool_calls", Json::array())) {
        Json input = Json::parse(call["function"].value("arguments", "{}"), nullptr, false);
        content.push_back({{"type", "tool_use"}, {"id", call["id"]}, {"name", call["function"]["name"]}, {"input", input.is_discarded() ? Json::object() : std::move(input)}});
    }
    Json out = {{"id", message_id(chat)}, {"type", "message"}, {"role", "assistant"}, {"model", chat.value("model", Json(""))}, {"content", std::move(content)},
                {"stop_reason", stop_reason(choice.value("finish_reason", Json()))}, {"stop_sequence", nullptr},
                {"usage", {{"input_tokens", count_of(chat, "prompt_tokens")}, {"output_tokens", count_of(chat, "completion_tokens")}}}};
    take_timings(chat, out);
    return out;
}

void append_event(std::string& out, const char* name, const Json& data) { out += std::string("event: ") + name + "\ndata: " + dump(data) + "\n\n"; }

/// Frames of a chat stream in, events of a message stream out.
class MessageStream {
  public:
    std::string push(std::string_view bytes) {
        pending_ += bytes;
        std::string out;
        for (size_t end; (end = pending_.find(kFrameEnd)) != std::string::npos; pending_.erase(0, end + kFrameEnd.size()))
            if (pending_.starts_with("data: {")) frame(Json::parse(pending_.begin() + 6, pending_.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false), out);
        return out;
    }

  private:
    void frame(const Json& chat, std::string& out) {
        if (!chat.is_object()) return;
        if (const auto error = chat.find("error"); error != chat.end())
            return append_event(out, "error", {{"type", "error"}, {"error", {{"type", "api_error"}, {"message", error->value("message", Json(""))}}}});
        if (!begun_) begin(chat, out);
        output_tokens_ = std::max(output_tokens_, count_of(chat, "completion_tokens"));
        input_tokens_ = std::max(input_tokens_, count_of(chat, "prompt_tokens"));
        const auto choices = chat.find("choices");
        if (choices == chat.end() || choices->empty()) return;
        const Json& choice = (*choices)[0];
        const Json& delta = choice["delta"];
        const Json text = delta.value("content", Json());
        if (text.is_string() && !text.get_ref<const std::string&>().empty()) {
            if (block_ != Block::kText) open(Block::kText, {{"type", "text"}, {"text", ""}}, out);
            append_delta({{"type", "text_delta"}, {"text", text}}, out);
        }
        for (const Json& call : delta.value("tool_calls", Json::array())) {
            const Json& function = call["function"];
            if (call.contains("id")) open(Block::kTool, {{"type", "tool_use"}, {"id", call["id"]}, {"name", function.value("name", Json(""))}, {"input", Json::object()}}, out);
            else append_delta({{"type", "input_json_delta"}, {"partial_json", function.value("arguments", Json(""))}}, out);
        }
        if (const Json finish = choice.value("finish_reason", Json()); !finish.is_null()) end(chat, finish, out);
    }

    void begin(const Json& chat, std::string& out) {
        begun_ = true;
        append_event(out, "message_start", {{"type", "message_start"},
                                            {"message", {{"id", message_id(chat)}, {"type", "message"}, {"role", "assistant"}, {"model", chat.value("model", Json(""))},
                                                         {"content", Json::array()}, {"stop_reason", nullptr}, {"stop_sequence", nullptr},
                                                         {"usage", {{"input_tokens", 0}, {"output_tokens", 0}}}}}});
    }

    enum class Block : uint8_t { kNone, kText, kTool };
    void open(Block kind, Json block, std::string& out) {
        close(out);
        block_ = kind;
        append_event(out, "content_block_start", {{"type", "content_block_start"}, {"index", index_}, {"content_block", std::move(block)}});
    }

    void append_delta(Json delta, std::string& out) const {
        append_event(out, "content_block_delta", {{"type", "content_block_delta"}, {"index", index_}, {"delta", std::move(delta)}});
    }

    void close(std::string& out) {
        if (block_ == Block::kNone) return;
        append_event(out, "content_block_stop", {{"type", "content_block_stop"}, {"index", index_++}});
        block_ = Block::kNone;
    }

    void end(const Json& chat, const Json& finish, std::string& out) {
        if (block_ == Block::kNone && index_ == 0) open(Block::kText, {{"type", "text"}, {"text", ""}}, out);
        close(out);
        Json last = {{"type", "message_delta"}, {"delta", {{"stop_reason", stop_reason(finish)}, {"stop_sequence", nullptr}}},
                     {"usage", {{"input_tokens", input_tokens_}, {"output_tokens", output_tokens_}}}};
        take_timings(chat, last);
        append_event(out, "message_delta", last);
        append_event(out, "message_stop", {{"type", "message_stop"}});
    }

    std::string pending_;
    bool begun_ = false;
    Block block_ = Block::kNone;  ///< that is open
    uint64_t index_ = 0;          ///< its number, or the next one's
    uint64_t input_tokens_ = 0, output_tokens_ = 0;
};

class MessagesExchange final : public ForwardingExchange {
  public:
    MessagesExchange(std::shared_ptr<http::Exchange> from, std::string body) : ForwardingExchange(std::move(from)), body_(std::move(body)) {}
    std::string take_body() override { return std::exchange(body_, {}); }
    void respond(int status, std::string body, http::Headers headers, std::string_view content_type) override {
        const Json chat = Json::parse(body, nullptr, false);
        if (status == 200 && chat.is_object() && chat.contains("choices")) return client().respond(200, dump(message_of(chat)), std::move(headers), content_type);
        const Json detail = chat.is_object() ? chat.value("detail", Json()) : Json();
        client().respond(status, messages_error_body(status, detail.is_string() ? detail.get<std::string>() : body), std::move(headers), content_type);
    }
    bool write(std::string bytes) override {
        std::string events = stream_.push(bytes);
        return events.empty() ? !client().client_gone() : client().write(std::move(events));
    }

  private:
    std::string body_;
    MessageStream stream_;
};

}  // namespace

Expected<std::string> chat_body_of_messages(std::string_view text) {
    BATON_TRY(openai::check_json_object(text));
    const Json body = Json::parse(text, nullptr, false);
    Json chat = Json::object();
    for (const char* key : {"model", "stream", "temperature", "top_p", "top_k", "request_id", "chat_template_kwargs", "enable_thinking", "seed", "timings"})
        if (const auto it = body.find(key); it != body.end()) chat[key] = *it;
    const auto limit = body.find("max_tokens");
    if (limit == body.end() || limit->is_null()) return bad("max_tokens: Field required", "max_tokens");
    chat["max_tokens"] = *limit;
    if (const auto stop = body.find("stop_sequences"); stop != body.end() && !stop->is_null()) {
        if (!stop->is_array()) return bad("stop_sequences must be a list of strings", "stop_sequences");
        if (!stop->empty()) chat["stop"] = *stop;
    }
    BATON_TRY_ASSIGN(chat["messages"], chat_messages(body));
    if (const auto tools = body.find("tools"); tools != body.end() && !tools->is_null()) {
        BATON_TRY_ASSIGN(chat["tools"], chat_tools(*tools));
    }
    if (const auto choice = body.find("tool_choice"); choice != body.end() && !choice->is_null()) BATON_TRY(set_tool_choice(*choice, chat));
    if (const auto thinking = body.find("thinking"); thinking != body.end() && !thinking->is_null() && !thinking->is_object()) return bad("thinking must be an object", "thinking");
    return dump(chat);
}

std::shared_ptr<http::Exchange> messages_exchange(std::shared_ptr<http::Exchange> client, std::string chat_body) {
    return std::make_shared<MessagesExchange>(std::move(client), std::move(chat_body));
}

std::string messages_error_body(int status, std::string_view message) {
    return dump({{"type", "error"}, {"error", {{"type", error_type(status)}, {"message", message}}}, {"detail", message}});
}

}  // namespace baton::supervisor
