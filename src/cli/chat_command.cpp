#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <optional>

#include "cli/commands.hpp"
#include "cli/conversation.hpp"
#include "cli/line_editor.hpp"
#include "cli/user_files.hpp"

/// `baton chat` and `baton generate`: one request, or a conversation on the terminal.
namespace baton::cli {
namespace {

using std::chrono::steady_clock;
using Mode = Conversation::Mode;

const char* target_of(Mode mode) { return mode == Mode::kChat ? "/v1/chat/completions" : "/v1/completions"; }

double ms_since(steady_clock::time_point start) {
    return std::chrono::duration<double, std::milli>(steady_clock::now() - start).count();
}

/// What an event or a whole answer adds: what the model thinks, and what it says.
struct Piece {
    std::string thought, text;
};

Piece piece_in(const Json& event, std::string& finish_reason) {
    Piece out;
    const Json* choices = member_of(event, "choices");
    if (choices == nullptr || !choices->is_array() || choices->empty()) return out;
    const Json& choice = (*choices)[0];
    const auto take = [](const Json& object, const char* key, std::string& into) {
        if (const Json* value = member_of(object, key); value != nullptr && value->is_string()) into += value->get<std::string>();
    };
    for (const char* key : {"delta", "message"})
        if (const Json* part = member_of(choice, key)) {
            take(*part, "reasoning_content", out.thought);
            take(*part, "content", out.text);
        }
    take(choice, "text", out.text);
    if (const Json* reason = member_of(choice, "finish_reason"); reason != nullptr && reason->is_string()) finish_reason = reason->get<std::string>();
    return out;
}

void take_usage(const Json& event, AnswerStats& stats) {
    const Json* usage = member_of(event, "usage");
    if (usage == nullptr) return;
    const auto number = [](const Json& object, const char* key, int64_t otherwise) {
        const Json* value = member_of(object, key);
        return value != nullptr && value->is_number_integer() ? value->get<int64_t>() : otherwise;
    };
    stats.prompt_tokens = number(*usage, "prompt_tokens", -1);
    stats.completion_tokens = number(*usage, "completion_tokens", -1);
    if (const Json* details = member_of(*usage, "prompt_tokens_details")) stats.cached_tokens = number(*details, "cached_tokens", 0);
}

/// Prints an answer as it comes. On a terminal thoughts are dim and control characters do nothing.
class AnswerPrinter {
  public:
    AnswerPrinter() : terminal_(is_terminal(STDOUT_FILENO)) {}
    ~AnswerPrinter() { dim(false); }
    AnswerPrinter(const AnswerPrinter&) = delete;
    AnswerPrinter& operator=(const AnswerPrinter&) = delete;

    /// False where the output takes nothing any more.
    bool print(const Piece& piece) {
        if (!piece.thought.empty()) {
            dim(true);
            put(piece.thought);
        }
        if (!piece.text.empty()) {
            if (thinking_) put("\n");
            dim(false);
            put(piece.text);
        }
        return flush_output();
    }

  private:
    void dim(bool on) {
        if (on == thinking_) return;
        thinking_ = on;
        if (terminal_) std::fputs(on ? "\x1b[2m" : "\x1b[0m", stdout);
    }
    void put(const std::string& text) const {
        const std::string shown = terminal_ ? printable(text) : text;
        std::fwrite(shown.data(), 1, shown.size(), stdout);
    }
    const bool terminal_;
    bool thinking_ = false;
};

struct Answer {
    std::string text;
    AnswerStats stats;
    bool good = false;  ///< it came to its end
};

/// Sends the conversation's request and prints the answer.
Answer ask_model(ClientSession& session, const ChatOptions& options, Mode mode, const Conversation& conversation) {
    Json body = conversation.body();
    if (!options.request_id.empty()) body["request_id"] = options.request_id;
    body["stream"] = options.stream && !options.json;
    Answer answer;
    AnswerStats& stats = answer.stats;
    const auto start = steady_clock::now();
    std::optional<steady_clock::time_point> first;
    AnswerPrinter printer;
    const auto take = [&](const Json& event) {
        const Piece piece = piece_in(event, stats.finish_reason);
        if (!first && (!piece.text.empty() || !piece.thought.empty())) {
            first = steady_clock::now();
            stats.ttft_ms = ms_since(start);
        }
        if (first && stats.completion_tokens < 0) stats.decode_ms = ms_since(*first);
        take_usage(event, stats);
        answer.text += piece.text;
        return printer.print(piece) && !InterruptWatch::pending();
    };
    const auto dump = [](const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); };
    if (body["stream"] == true) {
        body["stream_options"] = {{"include_usage", true}};
        answer.good = session.stream(target_of(mode), dump(body), take) && !InterruptWatch::pending() && flush_output();
    } else {
        Json whole;
        answer.good = session.post(target_of(mode), dump(body), whole);
        if (answer.good && options.json) print_json(whole);
        else if (answer.good) (void)take(whole);
    }
    return answer;
}

void print_stats(const AnswerStats& stats) {
    const bool terminal = is_terminal(STDERR_FILENO);
    std::fflush(stdout);
    std::fprintf(stderr, "%s%s%s\n", terminal ? "\x1b[2m" : "", format_stats(stats).c_str(), terminal ? "\x1b[0m" : "");
}

/// The history of what was entered, kept between runs.
class HistoryFile {
  public:
    HistoryFile() {
        const std::string folder = user_state_dir();
        if (folder.empty()) return;
        path_ = folder + "/chat_history";
        if (const auto text = read_text_file(path_)) history.from_text(*text);
    }
    void save() const {
        if (!path_.empty()) (void)write_private_file(path_, history.to_text());
    }
    History history;

  private:
    std::string path_;
};

/// Asks, and prints what belongs behind an answer.
void one_turn(ClientSession& session, const ChatOptions& options, Mode mode, Conversation& conversation) {
    InterruptWatch::clear();
    Answer answer;
    {
        const QuietTerminal quiet;
        answer = ask_model(session, options, mode, conversation);
        std::printf("\n");
        (void)flush_output();
    }
    if (InterruptWatch::pending()) std::fprintf(stderr, "(stopped)\n");
    InterruptWatch::clear();
    conversation.add_answer(answer.text, answer.stats);
    if (conversation.shows_stats() && !answer.text.empty()) print_stats(answer.stats);
}

int converse(ClientSession& session, const ChatOptions& options, Mode mode, Conversation& conversation, const std::string& greeting) {
    const InterruptWatch watch;
    HistoryFile file;
    LineEditor editor(file.history);
    if (editor.on_terminal()) std::printf("%s\n/help lists the commands, Ctrl-D leaves.\n", printable(greeting).c_str());
    for (std::string line;;) {
        if (!flush_output()) return kFailed;
        switch (editor.read(">>> ", line)) {
            case LineEditor::Result::kEnd: return kDone;
            case LineEditor::Result::kInterrupted:
                InterruptWatch::clear();
                std::fprintf(stderr, "Ctrl-D or /exit leaves.\n");
                continue;
            case LineEditor::Result::kLine: break;
        }
        if (editor.on_terminal()) file.save();
        const Conversation::Reply reply = conversation.enter(line);
        if (!reply.text.empty()) std::printf("%s\n", printable(reply.text).c_str());
        switch (reply.action) {
            case Conversation::Reply::Action::kExit: return kDone;
            case Conversation::Reply::Action::kClearScreen: std::printf("\x1b[H\x1b[2J"); break;
            case Conversation::Reply::Action::kSend: one_turn(session, options, mode, conversation); break;
            case Conversation::Reply::Action::kNone: break;
        }
    }
}

int ask_once(ClientSession& session, const ChatOptions& options, Mode mode, Conversation& conversation) {
    const InterruptWatch watch;
    const Answer answer = ask_model(session, options, mode, conversation);
    if (!options.json && (answer.good || !answer.text.empty())) std::printf("\n");
    if (!flush_output()) return kFailed;
    if (InterruptWatch::pending()) complain("stopped");
    if (answer.good && options.stats && !options.json) print_stats(answer.stats);
    return answer.good ? kDone : kFailed;
}

/// The model's description, of the one that was named or the only one there is.
bool find_model(ClientSession& session, const std::string& uid, Json& out) {
    if (!uid.empty()) return session.get("/v1/models/" + encode_path(uid), out);
    Json list;
    if (!session.get("/v1/models", list)) return false;
    const Json data = list.value("data", Json::array());
    if (data.size() == 1) {
        out = data[0];
        return true;
    }
    std::string uids;
    for (const Json& m : data) uids += (uids.empty() ? "" : ", ") + text_of(m, "id");
    complain(data.empty() ? "no model is running" : "several models are running (" + uids + "): name one with --model-uid");
    return false;
}

bool can_chat(const Json& model) {
    const Json* abilities = member_of(model, "model_ability");
    if (abilities == nullptr || !abilities->is_array()) return true;
    for (const Json& a : *abilities)
        if (a == "chat") return true;
    return false;
}

/// Whether somebody sends something: a pipe or a file, not a terminal or /dev/null, which are there in any case.
bool input_is_given() {
    struct stat s {};
    return ::fstat(STDIN_FILENO, &s) == 0 && (S_ISFIFO(s.st_mode) || S_ISREG(s.st_mode));
}

/// The prompt, and what stands on standard input behind it.
std::string whole_question(const ChatOptions& options) {
    std::string out = options.prompt.value_or("");
    if (options.prompt && !input_is_given()) return out;
    const std::string more(std::istreambuf_iterator<char>(std::cin), {});
    if (!out.empty() && !more.empty()) out += "\n\n";
    return out + more;
}

int run(const ChatOptions& options, Mode mode) {
    SamplingSettings settings;
    (void)settings.set("max_tokens", "512");
    for (const auto& [name, value] : options.settings)
        if (auto ok = settings.set(name, value); !ok) {
            complain("--" + ok.error().message);
            return kUsage;
        }
    const bool talks = options.interactive || (!options.prompt && ::isatty(STDIN_FILENO) == 1);
    std::string question;
    if (talks && options.prompt) {
        complain("a conversation has no PROMPT; leave it out, or leave -i out");
        return kUsage;
    }
    if (!talks) {
        question = whole_question(options);
        if (question.find_first_not_of(" \t\r\n") == std::string::npos) {
            complain(options.prompt ? "the prompt is empty" : "there is nothing on standard input to send");
            return kUsage;
        }
    }
    ClientSession session(options.server, InterruptWatch::pending);
    Json model;
    if (!session.ok() || !find_model(session, options.model_uid, model)) return kFailed;
    const std::string uid = options.model_uid.empty() ? text_of(model, "id") : options.model_uid;
    if (mode == Mode::kChat && !can_chat(model)) {
        complain("model " + uid + " has no chat template; use `baton generate`");
        return kFailed;
    }
    Conversation conversation(mode, uid);
    conversation.settings() = settings;
    conversation.set_system(options.system);
    conversation.show_stats(options.stats);
    if (talks)
        return converse(session, options, mode, conversation,
                        uid + ", a " + text_of(model, "model_family") + " model with a context of " + text_of(model, "context_length") + " tokens.");
    conversation.add_question(question);
    return ask_once(session, options, mode, conversation);
}

}  // namespace

int run_chat(const ChatOptions& options) { return run(options, Mode::kChat); }
int run_generate(const ChatOptions& options) { return run(options, Mode::kGenerate); }

}  // namespace baton::cli
