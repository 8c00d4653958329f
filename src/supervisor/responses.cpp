// From a chat answer to a response object, or to the events of its stream.
#include "responses.hpp"

#include <algorithm>

#include "api_answers.hpp"
#include "baton/base/digest.hpp"
#include "baton/openai/json.hpp"
#include "forwarding_exchange.hpp"

namespace baton::supervisor {
namespace {

constexpr std::string_view kFrameEnd = "\r\n\r\n";

std::string dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string text_at(const Json& object, const char* key) {
    const auto it = object.find(key);
    return it != object.end() && it->is_string() ? it->get<std::string>() : std::string();
}

uint64_t count_at(const Json& object, const char* key) {
    const auto it = object.find(key);
    return it != object.end() && it->is_number_unsigned() ? it->get<uint64_t>() : 0;
}

Json usage_of(const Json& chat) {
    const auto usage = chat.find("usage");
    if (usage == chat.end() || !usage->is_object()) return nullptr;
    const Json prompt = usage->value("prompt_tokens_details", Json::object());
    const Json completion = usage->value("completion_tokens_details", Json::object());
    return {{"input_tokens", count_at(*usage, "prompt_tokens")},
            {"input_tokens_details", {{"cached_tokens", count_at(prompt, "cached_tokens")}}},
            {"output_tokens", count_at(*usage, "completion_tokens")},
            {"output_tokens_details", {{"reasoning_tokens", count_at(completion, "reasoning_tokens")}}},
            {"total_tokens", count_at(*usage, "total_tokens")}};
}

Json text_part(const std::string& text) { return {{"type", "output_text"}, {"text", text}, {"annotations", Json::array()}, {"logprobs", Json::array()}}; }
Json reasoning_part(const std::string& text) { return {{"type", "reasoning_text"}, {"text", text}}; }

/// One item of a response's output, growing.
struct Item {
    enum class Kind : uint8_t { kReasoning, kMessage, kCall } kind;
    std::string id, call_id, name;
    std::string text;  ///< or arguments
    bool complete = true;  ///< else the limit of tokens cut it

    /// Its arguments are all there, whatever the limit of tokens cut after them.
    [[nodiscard]] bool is_whole_call() const { return kind == Kind::kCall && text.starts_with('{') && Json::accept(text); }
    [[nodiscard]] Json part() const { return kind == Kind::kMessage ? text_part(text) : reasoning_part(text); }
    [[nodiscard]] Json json(bool begun_only) const {
        const char* status = begun_only ? "in_progress" : complete ? "completed" : "incomplete";
        const Json content = begun_only ? Json::array() : Json::array({part()});
        switch (kind) {
            case Kind::kReasoning: return {{"type", "reasoning"}, {"id", id}, {"summary", Json::array()}, {"content", content}, {"status", status}};
            case Kind::kMessage: return {{"type", "message"}, {"id", id}, {"role", "assistant"}, {"status", status}, {"content", content}};
            case Kind::kCall: break;
        }
        return {{"type", "function_call"}, {"id", id}, {"call_id", call_id}, {"name", name}, {"arguments", begun_only ? "" : text}, {"status", status}};
    }
};

Item new_item(Item::Kind kind) {
    const char* prefix = kind == Item::Kind::kReasoning ? "rs_" : kind == Item::Kind::kMessage ? "msg_" : "fc_";
    return {kind, prefix + random_hex(16), "", "", ""};
}

/// What the object of a response says beside its output.
class ResponseObject {
  public:
    explicit ResponseObject(const std::string& echo_json) : fields_(Json::parse(echo_json, nullptr, false)) {}
    void take_head(const Json& chat) {
        std::string id = text_at(chat, "id");
        if (id.starts_with("chatcmpl-")) id.erase(0, 9);
        fields_["id"] = "resp_" + id;
        fields_["object"] = "response";
        fields_["created_at"] = chat.value("created", Json(0));
        fields_["model"] = chat.value("model", Json(""));
    }
    /// baton's own member of an answer, where the client asked for it.
    void take_timings(const Json& chat) {
        if (const auto timings = chat.find("timings"); timings != chat.end()) fields_["timings"] = *timings;
    }
    [[nodiscard]] Json json(const char* status, Json output, Json usage, bool cut) const {
        Json out = fields_;
        out["status"] = status;
        out["error"] = nullptr;
        out["incomplete_details"] = cut ? Json{{"reason", "max_output_tokens"}} : Json();
        out["output"] = std::move(output);
        out["usage"] = std::move(usage);
        return out;
    }

  private:
    Json fields_;
};

Json whole_response(const Json& chat, ResponseObject object) {
    object.take_head(chat);
    object.take_timings(chat);
    const Json& choice = chat["choices"][0];
    const Json& said = choice["message"];
    const bool cut = choice.value("finish_reason", Json()) == "length";
    std::vector<Item> items;
    if (std::string reasoning = text_at(said, "reasoning_content"); !reasoning.empty()) {
        items.push_back(new_item(Item::Kind::kReasoning));
        items.back().text = std::move(reasoning);
    }
    const Json calls = said.value("tool_calls", Json::array());
    if (std::string text = text_at(said, "content"); !text.empty() || calls.empty()) {
        items.push_back(new_item(Item::Kind::kMessage));
        items.back().text = std::move(text);
    }
    for (const Json& call : calls) {
        items.push_back(new_item(Item::Kind::kCall));
        items.back().call_id = text_at(call, "id");
        items.back().name = text_at(call["function"], "name");
        items.back().text = text_at(call["function"], "arguments");
    }
    items.back().complete = !cut || items.back().is_whole_call();
    Json output = Json::array();
    for (const Item& item : items) output.push_back(item.json(false));
    return object.json(cut ? "incomplete" : "completed", std::move(output), usage_of(chat), cut);
}

/// Frames of a chat stream in, events of a response's stream out.
class ResponseStream {
  public:
    explicit ResponseStream(ResponseObject object) : object_(std::move(object)) {}

    std::string push(std::string_view bytes) {
        pending_ += bytes;
        out_.clear();
        for (size_t end; (end = pending_.find(kFrameEnd)) != std::string::npos; pending_.erase(0, end + kFrameEnd.size())) {
            if (pending_.starts_with("data: {")) frame(Json::parse(pending_.begin() + 6, pending_.begin() + static_cast<std::ptrdiff_t>(end), nullptr, false));
            else if (pending_.starts_with(":")) out_ += pending_.substr(0, end) + "\n\n";
        }
        return std::move(out_);
    }

  private:
    void event(const char* type, Json data) {
        data["type"] = type;
        data["sequence_number"] = sequence_++;
        out_ += std::string("event: ") + type + "\ndata: " + dump(data) + "\n\n";
    }

    void frame(const Json& chat) {
        if (!chat.is_object()) return;
        if (const auto error = chat.find("error"); error != chat.end())
            return event("error", {{"code", error->value("code", Json())}, {"message", error->value("message", Json(""))}, {"param", error->value("param", Json())}, {"error", *error}});
        if (!begun_) begin(chat);
        if (const Json usage = usage_of(chat); !usage.is_null()) usage_ = usage;
        object_.take_timings(chat);
        const auto choices = chat.find("choices");
        if (choices == chat.end() || choices->empty()) return complete();
        const Json& choice = (*choices)[0];
        const Json& delta = choice["delta"];
        if (std::string text = text_at(delta, "reasoning_content"); !text.empty()) grow(Item::Kind::kReasoning, text);
        if (std::string text = text_at(delta, "content"); !text.empty()) grow(Item::Kind::kMessage, text);
        for (const Json& call : delta.value("tool_calls", Json::array())) {
            if (call.contains("id")) open_call(call);
            if (std::string text = text_at(call["function"], "arguments"); !text.empty()) grow(Item::Kind::kCall, text);
        }
        if (const Json finish = choice.value("finish_reason", Json()); finish.is_string()) {
            cut_ = finish == "length";
            if (!item_ && done_.empty()) open(new_item(Item::Kind::kMessage));
            close(!cut_ || (item_ && item_->is_whole_call()));
        }
    }

    void begin(const Json& chat) {
        begun_ = true;
        object_.take_head(chat);
        for (const char* type : {"response.created", "response.in_progress"}) event(type, {{"response", object_.json("in_progress", Json::array(), nullptr, false)}});
    }

    void open(Item item) {
        close(true);
        item_ = std::move(item);
        event("response.output_item.added", {{"output_index", done_.size()}, {"item", item_->json(true)}});
        if (item_->kind != Item::Kind::kCall)
            event("response.content_part.added", {{"item_id", item_->id}, {"output_index", done_.size()}, {"content_index", 0}, {"part", item_->part()}});
    }

    void open_call(const Json& call) {
        Item item = new_item(Item::Kind::kCall);
        item.call_id = text_at(call, "id");
        item.name = text_at(call["function"], "name");
        open(std::move(item));
    }

    void grow(Item::Kind kind, const std::string& text) {
        if (!item_ || item_->kind != kind) open(new_item(kind));
        item_->text += text;
        Json data = {{"item_id", item_->id}, {"output_index", done_.size()}, {"delta", text}};
        if (kind == Item::Kind::kCall) return event("response.function_call_arguments.delta", std::move(data));
        data["content_index"] = 0;
        if (kind == Item::Kind::kMessage) data["logprobs"] = Json::array();
        event(kind == Item::Kind::kMessage ? "response.output_text.delta" : "response.reasoning_text.delta", std::move(data));
    }

    void close(bool complete) {
        if (!item_) return;
        item_->complete = complete;
        Json data = {{"item_id", item_->id}, {"output_index", done_.size()}};
        if (item_->kind == Item::Kind::kCall) {
            data["arguments"] = item_->text;
            data["name"] = item_->name;
            event("response.function_call_arguments.done", std::move(data));
        } else {
            data["content_index"] = 0;
            Json part = data;
            data["text"] = item_->text;
            if (item_->kind == Item::Kind::kMessage) data["logprobs"] = Json::array();
            event(item_->kind == Item::Kind::kMessage ? "response.output_text.done" : "response.reasoning_text.done", std::move(data));
            part["part"] = item_->part();
            event("response.content_part.done", std::move(part));
        }
        event("response.output_item.done", {{"output_index", done_.size()}, {"item", item_->json(false)}});
        done_.push_back(item_->json(false));
        item_.reset();
    }

    void complete() {
        const char* type = cut_ ? "response.incomplete" : "response.completed";
        event(type, {{"response", object_.json(cut_ ? "incomplete" : "completed", done_, usage_, cut_)}});
    }

    ResponseObject object_;
    std::string pending_, out_;
    std::optional<Item> item_;
    std::vector<Json> done_;
    Json usage_;
    uint64_t sequence_ = 0;
    bool begun_ = false;
    bool cut_ = false;
};

/// The error of the chat route, whose fields it names, in the words of the request that the client sent.
std::string in_own_words(std::string body) {
    static constexpr std::pair<std::string_view, std::string_view> kFields[] = {
        {"response_format.json_schema", "text.format"}, {"response_format", "text.format"}, {"max_tokens", "max_output_tokens"}, {"messages", "input"}, {"reasoning_effort", "reasoning.effort"}};
    Json answer = Json::parse(body, nullptr, false);
    if (!answer.is_object() || !answer.contains("error") || !answer["error"].is_object()) return body;
    Json& error = answer["error"];
    const std::string param = text_at(error, "param");
    for (const auto& [chat, own] : kFields) {
        const size_t own_end = param.starts_with(chat) ? chat.size() : 0;
        if (own_end == 0 || (param.size() > own_end && param[own_end] != '.' && param[own_end] != '[')) continue;
        error["param"] = std::string(own) + param.substr(own_end);
        std::string message = text_at(error, "message");
        for (const auto& [name, ours] : kFields) {
            if (!name.starts_with(chat) && !chat.starts_with(name)) continue;
            for (size_t at = 0; (at = message.find(name, at)) != std::string::npos; at += ours.size()) message.replace(at, name.size(), ours);
        }
        error["message"] = message;
        if (answer.contains("detail")) answer["detail"] = message;
        return dump(answer);
    }
    return body;
}

class ResponsesExchange final : public ForwardingExchange {
  public:
    ResponsesExchange(std::shared_ptr<http::Exchange> from, const ResponsesRequest& request)
        : ForwardingExchange(std::move(from)), object_(request.echo_json), stream_(object_) {}
    void respond(int status, std::string body, http::Headers headers, std::string_view content_type) override {
        if (status == 200)
            if (const Json chat = Json::parse(body, nullptr, false); chat.is_object() && chat.contains("choices")) body = dump(whole_response(chat, object_));
        if (status == 400) body = in_own_words(std::move(body));
        client().respond(status, std::move(body), std::move(headers), content_type);
    }
    bool write(std::string bytes) override {
        std::string events = stream_.push(bytes);
        return events.empty() ? !client().client_gone() : client().write(std::move(events));
    }

  private:
    ResponseObject object_;
    ResponseStream stream_;
};

}  // namespace

std::shared_ptr<http::Exchange> responses_exchange(std::shared_ptr<http::Exchange> client, const ResponsesRequest& request) {
    return std::make_shared<ResponsesExchange>(std::move(client), request);
}

}  // namespace baton::supervisor
