#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "cli/sampling_settings.hpp"

namespace baton::cli {

/// What one answer cost, as far as the server and the clock say.
struct AnswerStats {
    int64_t prompt_tokens = -1, cached_tokens = 0, completion_tokens = -1;  ///< -1: not told
    double ttft_ms = 0;     ///< from sending the request to the first piece of text
    double decode_ms = 0;   ///< from the first piece to the last
    std::string finish_reason;
};
/// "12 prompt tokens (8 cached), 40 tokens, first after 35 ms, 61.2 tokens/s"
[[nodiscard]] std::string format_stats(const AnswerStats& stats);

/// A chat, or the prompts of `generate`: messages, settings, and the commands that begin with '/'. No I/O but the files
/// of /save and /load.
class Conversation {
  public:
    enum class Mode : uint8_t { kChat, kGenerate };
    Conversation(Mode mode, std::string model) : mode_(mode), model_(std::move(model)) {}

    /// What to do with a line that was entered.
    struct Reply {
        enum class Action : uint8_t { kNone, kSend, kExit, kClearScreen } action = Action::kNone;
        std::string text;  ///< to show
    };
    /// Runs a command, or takes the line as the user's next message.
    [[nodiscard]] Reply enter(const std::string& line);
    /// Takes a text as the user's next message, whatever it looks like.
    void add_question(std::string text);
    /// The request of the conversation as it stands.
    [[nodiscard]] nlohmann::ordered_json body() const;
    /// The answer to it, or what came of it before it was stopped; empty: the question is taken back.
    void add_answer(const std::string& text, const AnswerStats& stats);

    void set_system(std::string text) { system_ = std::move(text); }
    [[nodiscard]] SamplingSettings& settings() { return settings_; }
    [[nodiscard]] const nlohmann::ordered_json& messages() const { return messages_; }
    [[nodiscard]] const std::string& model() const { return model_; }
    [[nodiscard]] bool shows_stats() const { return shows_stats_; }
    void show_stats(bool on) { shows_stats_ = on; }

  private:
    [[nodiscard]] Reply command(std::string_view name, std::string_view rest);
    [[nodiscard]] Reply set(std::string_view rest);
    [[nodiscard]] Reply system(std::string_view rest);
    [[nodiscard]] Reply save(const std::string& path) const;
    [[nodiscard]] Reply load(const std::string& path);
    [[nodiscard]] Reply retry();
    [[nodiscard]] Reply undo();
    [[nodiscard]] std::string help() const;
    [[nodiscard]] std::string show() const;

    Mode mode_;
    std::string model_;
    std::string system_;
    nlohmann::ordered_json messages_ = nlohmann::ordered_json::array();  ///< without the system message
    SamplingSettings settings_;
    std::optional<AnswerStats> last_;
    bool shows_stats_ = false;
};

}  // namespace baton::cli
