#include "cli/conversation.hpp"

#include <array>
#include <cstdio>

#include "cli/user_files.hpp"

namespace baton::cli {
namespace {

using Json = nlohmann::ordered_json;
using Reply = Conversation::Reply;
using Action = Reply::Action;

struct Command {
    std::string_view name, arguments, meaning;
    bool chat_only;
};
constexpr auto kCommands = std::to_array<Command>({
    {"/help", "", "this list", false},
    {"/reset", "", "forget the conversation, keep system message and settings", true},
    {"/system", "[TEXT]", "show or set the system message; \"\" takes it away", true},
    {"/set", "[NAME [VALUE]]", "show the settings, or set one (/set temperature 0.2); without a value: the default", false},
    {"/stats", "[on|off]", "the last answer's tokens, time to the first one and tokens/s; on: after every answer", false},
    {"/retry", "", "ask the last question again", true},
    {"/undo", "", "take back the last question and its answer", true},
    {"/show", "", "the conversation so far", true},
    {"/save", "FILE", "write the conversation as JSON", true},
    {"/load", "FILE", "read one", true},
    {"/clear", "", "clear the screen", false},
    {"/exit", "", "leave (also /quit, /bye, Ctrl-D)", false},
});

std::string_view trimmed(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \t\r\n");
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

Reply say(std::string text) { return {Action::kNone, std::move(text)}; }

}  // namespace

std::string format_stats(const AnswerStats& s) {
    char buf[64];
    std::string out;
    if (s.prompt_tokens >= 0) {
        out += std::to_string(s.prompt_tokens) + " prompt tokens";
        if (s.cached_tokens > 0) out += " (" + std::to_string(s.cached_tokens) + " cached)";
        out += ", ";
    }
    if (s.completion_tokens >= 0) out += std::to_string(s.completion_tokens) + (s.completion_tokens == 1 ? " token, " : " tokens, ");
    std::snprintf(buf, sizeof buf, "first after %.0f ms", s.ttft_ms);
    out += buf;
    if (s.completion_tokens > 1 && s.decode_ms > 0) {
        std::snprintf(buf, sizeof buf, ", %.1f tokens/s", static_cast<double>(s.completion_tokens - 1) / (s.decode_ms / 1000));
        out += buf;
    }
    if (s.finish_reason == "length") out += ", cut off at max_tokens";
    return out;
}

Reply Conversation::enter(const std::string& line) {
    const std::string_view text = trimmed(line);
    if (text.empty()) return {};
    // A path like /usr/bin at the begin of a message is no command.
    const size_t space = text.find_first_of(" \t\n");
    const std::string_view first = text.substr(0, space);
    if (first.starts_with('/') && first.size() > 1 && first.find('/', 1) == std::string_view::npos)
        return command(first, space == std::string_view::npos ? std::string_view() : trimmed(text.substr(space)));
    add_question(line);
    return {Action::kSend, {}};
}

void Conversation::add_question(std::string text) {
    if (mode_ == Mode::kGenerate) messages_ = Json::array();
    messages_.push_back({{"role", "user"}, {"content", std::move(text)}});
}

Reply Conversation::command(std::string_view name, std::string_view rest) {
    if (name == "/exit" || name == "/quit" || name == "/bye") return {Action::kExit, {}};
    if (name == "/help" || name == "/?") return say(help());
    if (name == "/clear") return {Action::kClearScreen, {}};
    if (name == "/set") return set(rest);
    if (name == "/stats") {
        if (rest == "on" || rest == "off") {
            shows_stats_ = rest == "on";
            return say(shows_stats_ ? "shown after every answer" : "shown when asked for");
        }
        return say(last_ ? format_stats(*last_) : "there is no answer yet");
    }
    if (mode_ == Mode::kChat) {
        if (name == "/system") return system(rest);
        if (name == "/retry") return retry();
        if (name == "/undo") return undo();
        if (name == "/show") return say(show());
        if (name == "/save") return save(std::string(rest));
        if (name == "/load") return load(std::string(rest));
        if (name == "/reset") {
            messages_ = Json::array();
            return say("the conversation is forgotten");
        }
    }
    return say("there is no command " + std::string(name) + "; /help lists them");
}

Reply Conversation::set(std::string_view rest) {
    if (rest.empty()) {
        std::string out;
        for (const std::string& line : settings_.shown()) out += (out.empty() ? "" : "\n") + line;
        if (out.empty()) out = "every setting is the model's default";
        for (const auto& n : SamplingSettings::names()) {
            std::string name(n.name);
            name.resize(20, ' ');
            out += "\n  " + name + std::string(n.meaning);
        }
        return say(out);
    }
    const size_t space = rest.find_first_of(" \t=");
    const std::string_view name = rest.substr(0, space);
    const std::string_view value = space == std::string_view::npos ? std::string_view() : trimmed(rest.substr(space + 1));
    if (name == "system" && mode_ == Mode::kChat) return system(value);
    if (value.empty() || value == "default") {
        if (auto ok = settings_.unset(name); !ok) return say(ok.error().message);
        return say(std::string(name) + " is the model's default");
    }
    if (auto ok = settings_.set(name, value); !ok) return say(ok.error().message);
    return say(std::string(name) + " is " + std::string(value));
}

Reply Conversation::system(std::string_view rest) {
    if (rest.empty()) return say(system_.empty() ? "there is no system message" : system_);
    system_ = rest == "\"\"" ? "" : std::string(rest);
    return say(system_.empty() ? "the system message is gone" : "the system message is set");
}

Reply Conversation::retry() {
    if (!messages_.empty() && messages_.back()["role"] == "assistant") messages_.erase(messages_.size() - 1);
    if (messages_.empty()) return say("there is no question yet");
    return {Action::kSend, {}};
}

Reply Conversation::undo() {
    if (messages_.empty()) return say("there is nothing to take back");
    while (!messages_.empty()) {
        const bool question = messages_.back()["role"] == "user";
        messages_.erase(messages_.size() - 1);
        if (question) break;
    }
    return say("the last question is taken back");
}

std::string Conversation::help() const {
    std::string out;
    for (const Command& c : kCommands) {
        if (c.chat_only && mode_ != Mode::kChat) continue;
        std::string left = std::string(c.name) + (c.arguments.empty() ? "" : " ") + std::string(c.arguments);
        left.resize(std::max<size_t>(left.size(), 22), ' ');
        out += left + "  " + std::string(c.meaning) + "\n";
    }
    return out +
           "Enter sends; Alt-Enter or a backslash at the end begins a new line; pasted text may have many; \"\"\" begins and\n"
           "ends a block of lines. Ctrl-C stops an answer. Up and down go through what was entered.";
}

std::string Conversation::show() const {
    std::string out;
    if (!system_.empty()) out += "system: " + system_ + "\n";
    for (const Json& m : messages_) out += m["role"].get<std::string>() + ": " + m["content"].get<std::string>() + "\n";
    if (out.empty()) return "nothing was said yet";
    out.pop_back();
    return out;
}

Reply Conversation::save(const std::string& path) const {
    if (path.empty()) return say("/save needs a file name");
    Json file{{"model", model_}, {"messages", Json::array()}};
    if (!system_.empty()) file["messages"].push_back({{"role", "system"}, {"content", system_}});
    for (const Json& m : messages_) file["messages"].push_back(m);
    const auto ok = write_private_file(path, file.dump(2, ' ', false, Json::error_handler_t::replace) + "\n", Folders::kNeeded);
    return say(ok ? "written to " + path : ok.error().message);
}

Reply Conversation::load(const std::string& path) {
    const auto text = read_text_file(path);
    if (!text) return say(text.error().message);
    const Json file = Json::parse(*text, nullptr, false);
    const Json* list = file.is_object() && file.contains("messages") ? &file["messages"] : &file;
    std::string system;
    Json messages = Json::array();
    bool good = list->is_array();
    if (good)
        for (const Json& m : *list) {
            good = good && m.is_object() && m.contains("role") && m["role"].is_string() && m.contains("content") && m["content"].is_string();
            if (!good) break;
            if (m["role"] == "system") system = m["content"].get<std::string>();
            else messages.push_back({{"role", m["role"]}, {"content", m["content"]}});
        }
    if (!good) return say(path + " holds no conversation");
    system_ = std::move(system);
    messages_ = std::move(messages);
    return say(std::to_string(messages_.size()) + " messages");
}

Json Conversation::body() const {
    Json out{{"model", model_}};
    if (mode_ == Mode::kGenerate) {
        out["prompt"] = messages_.empty() ? Json("") : messages_.back()["content"];
    } else {
        out["messages"] = Json::array();
        if (!system_.empty()) out["messages"].push_back({{"role", "system"}, {"content", system_}});
        for (const Json& m : messages_) out["messages"].push_back(m);
    }
    settings_.add_to(out);
    return out;
}

void Conversation::add_answer(const std::string& text, const AnswerStats& stats) {
    last_ = stats;
    if (mode_ == Mode::kGenerate) return;
    if (!text.empty()) messages_.push_back({{"role", "assistant"}, {"content", text}});
    else if (!messages_.empty() && messages_.back()["role"] == "user") messages_.erase(messages_.size() - 1);
}

}  // namespace baton::cli
