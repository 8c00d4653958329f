#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <iterator>

#include "cli/commands.hpp"

namespace baton::cli {
namespace {

/// The text an event or a whole answer adds: a delta's, a message's or a completion's.
std::string text_in(const Json& event) {
    const auto choices = event.find("choices");
    if (choices == event.end() || !choices->is_array() || choices->empty()) return {};
    const Json& choice = (*choices)[0];
    for (const char* key : {"delta", "message"}) {
        const auto part = choice.find(key);
        if (part == choice.end() || !part->is_object()) continue;
        std::string out;
        for (const char* field : {"reasoning_content", "content"})
            if (const auto text = part->find(field); text != part->end() && text->is_string()) out += text->get<std::string>();
        return out;
    }
    const auto text = choice.find("text");
    return text != choice.end() && text->is_string() ? text->get<std::string>() : std::string();
}

Json base_body(const ChatOptions& o) {
    Json body{{"model", o.model_uid}, {"max_tokens", o.max_tokens}, {"stream", o.stream}};
    if (o.temperature) body["temperature"] = *o.temperature;
    if (o.seed) body["seed"] = *o.seed;
    if (!o.request_id.empty()) body["request_id"] = o.request_id;
    return body;
}

/// Sends one request and prints its text as it comes.
bool answer(ClientSession& session, const std::string& target, const Json& body, bool stream, std::string& text) {
    const auto print = [&](const Json& event) {
        const std::string piece = text_in(event);
        text += piece;
        std::fwrite(piece.data(), 1, piece.size(), stdout);
        std::fflush(stdout);
        return true;
    };
    const std::string sent = body.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (stream) {
        if (!session.stream(target, sent, print)) return false;
    } else {
        Json whole;
        if (!session.call("POST", target, sent, whole)) return false;
        print(whole);
    }
    std::printf("\n");
    return true;
}

std::string read_all_input() { return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()}; }

int converse(ClientSession& session, const ChatOptions& options, Json messages) {
    std::fprintf(stderr, "Chat with %s. Empty line or Ctrl-D ends.\n", options.model_uid.c_str());
    for (;;) {
        std::printf("> ");
        std::fflush(stdout);
        std::string line;
        if (!std::getline(std::cin, line) || line.empty()) return kDone;
        messages.push_back({{"role", "user"}, {"content", line}});
        Json body = base_body(options);
        body["messages"] = messages;
        std::string text;
        if (!answer(session, "/v1/chat/completions", body, options.stream, text)) return kFailed;
        messages.push_back({{"role", "assistant"}, {"content", text}});
    }
}

}  // namespace

int run_chat(const ChatOptions& options) {
    ClientSession session(options.server);
    if (!session.ok()) return kFailed;
    Json messages = Json::array();
    if (!options.system.empty()) messages.push_back({{"role", "system"}, {"content", options.system}});
    if (options.prompt.empty() && ::isatty(STDIN_FILENO) == 1) return converse(session, options, std::move(messages));
    messages.push_back({{"role", "user"}, {"content", options.prompt.empty() ? read_all_input() : options.prompt}});
    Json body = base_body(options);
    body["messages"] = std::move(messages);
    std::string text;
    return answer(session, "/v1/chat/completions", body, options.stream, text) ? kDone : kFailed;
}

int run_generate(const ChatOptions& options) {
    ClientSession session(options.server);
    if (!session.ok()) return kFailed;
    Json body = base_body(options);
    body["prompt"] = options.prompt.empty() ? read_all_input() : options.prompt;
    std::string text;
    return answer(session, "/v1/completions", body, options.stream, text) ? kDone : kFailed;
}

}  // namespace baton::cli
