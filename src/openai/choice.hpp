#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "baton/openai/response.hpp"
#include "openai/reasoning_splitter.hpp"
#include "openai/tool_parser.hpp"

namespace baton::openai {

/// One token's logprobs, ready to print in either style.
struct LogprobEntry {
    size_t begin = 0;       ///< byte in the sequence's text where its piece starts
    size_t characters = 0;  ///< the same in characters
    TokenId id = 0;
    std::string piece;  ///< the text that became certain with it
    float logprob = 0;
    std::vector<std::pair<TokenId, float>> top = {};
    bool known = true;  ///< a prompt's first token has no logprob
};

/// The text of one choice as it grows: detokenizer, stop strings, reasoning, and which logprobs
/// belong to text that is out. What comes out does not depend on how tokens were batched, only on
/// the tokens.
class Choice {
  public:
    /// `characters`: of the text that the answer shows before this one's.
    Choice(const ResponseOptions& options, const text::Tokenizer& tokenizer, size_t characters);

    struct Output {
        std::string reasoning;
        std::string content;
        std::vector<CallDelta> calls;
        std::vector<LogprobEntry> entries;  ///< of text that is out, in order
        bool stop_found = false;
    };
    [[nodiscard]] Output push(std::span<const wire::Token> tokens, wire::Finish finish);

    [[nodiscard]] bool done() const { return finish_reason_ != nullptr; }
    [[nodiscard]] const char* finish_reason() const { return finish_reason_; }
    [[nodiscard]] uint64_t tokens() const { return tokens_; }
    [[nodiscard]] uint64_t reasoning_tokens() const { return reasoning_tokens_; }

  private:
    [[nodiscard]] bool is_hidden(const wire::Token& token, bool is_stop_token) const;
    void take_token(const wire::Token& token, bool is_stop_token, Output& out);
    void take_text(std::string_view piece, Output& out);
    void emit(std::string text, Output& out);
    void take_parts(ReasoningSplitter::Parts parts, Output& out);
    static void take_found(ToolParser::Output found, Output& out);
    void finish_text(Output& out);
    void release(Output& out, bool all);

    const ResponseOptions& options_;
    const text::Tokenizer& tokenizer_;
    text::StreamDecoder decoder_;
    text::StopMatcher matcher_;
    ReasoningSplitter splitter_;
    ToolParser tools_;
    std::vector<TokenId> marks_;  ///< special tokens that the two look for
    std::deque<LogprobEntry> pending_;
    size_t text_in_ = 0;  ///< bytes of text assembled
    size_t characters_in_ = 0;
    size_t text_out_ = 0;  ///< bytes of it past the stop matcher
    uint64_t tokens_ = 0;
    uint64_t reasoning_tokens_ = 0;
    bool stopped_ = false;  ///< by a stop string
    const char* finish_reason_ = nullptr;
};

}  // namespace baton::openai
