#include "openai/choice.hpp"

#include <algorithm>

#include "openai/json_text.hpp"

namespace baton::openai {

Choice::Choice(const ResponseOptions& options, const text::Tokenizer& tokenizer)
    : options_(options),
      tokenizer_(tokenizer),
      matcher_(options.generation.stop, options.generation.include_stop_str_in_output),
      splitter_(options.chat ? options.reasoning : Reasoning::kOff),
      drop_space_(options.chat && tokenizer.strips_leading_space()) {}

Choice::Output Choice::push(std::span<const wire::Token> tokens, wire::Finish finish) {
    Output out;
    for (size_t i = 0; i < tokens.size() && !stopped_; ++i) {
        const bool last = i + 1 == tokens.size();
        const bool is_stop_token = last && finish == wire::Finish::kStop &&
                                   std::find(options_.stop_ids.begin(), options_.stop_ids.end(),
                                             tokens[i].id) != options_.stop_ids.end();
        take_token(tokens[i], is_stop_token, out);
    }
    if (!stopped_ && finish != wire::Finish::kNone) finish_text(out);
    if (stopped_) {
        out.stop_found = true;
        finish_reason_ = "stop";
    } else if (finish != wire::Finish::kNone) {
        finish_reason_ = finish == wire::Finish::kLength ? "length" : "stop";
    }
    if (done()) {
        ReasoningSplitter::Parts rest = splitter_.finish();
        out.reasoning += rest.reasoning;
        out.content += rest.content;
    }
    return out;
}

void Choice::take_token(const wire::Token& token, bool is_stop_token, Output& out) {
    const GenerationOptions& generation = options_.generation;
    const bool hidden = (is_stop_token && !generation.include_stop_str_in_output) ||
                        (generation.skip_special_tokens && tokenizer_.is_special(token.id));
    ++tokens_;
    if (splitter_.reasoning()) ++reasoning_tokens_;
    if (hidden) return;
    std::string bytes = tokenizer_.token_bytes(token.id);
    // A chat's answer begins a text; a completion goes on with one, and its first space belongs
    // between the two.
    if (drop_space_ && !bytes.empty()) {
        drop_space_ = false;
        if (bytes.front() == ' ') bytes.erase(0, 1);
    }
    const std::string piece = assembler_.push(bytes);
    if (generation.top_logprobs >= 0) {
        pending_.push_back({text_in_, characters_in_, token.id, piece, token.logprob, token.top});
    }
    take_text(piece, out);
}

void Choice::take_text(std::string_view piece, Output& out) {
    text_in_ += piece.size();
    characters_in_ += count_characters(piece);
    // Stop strings do not count before min_tokens tokens are there.
    if (tokens_ < options_.generation.min_tokens) {
        emit(std::string(piece), out);
    } else {
        text::StopMatcher::Result result = matcher_.push(piece);
        stopped_ = result.stopped;
        emit(std::move(result.text), out);
    }
    release(out, false);
}

void Choice::emit(std::string text, Output& out) {
    text_out_ += text.size();
    ReasoningSplitter::Parts parts = splitter_.push(text);
    out.reasoning += parts.reasoning;
    out.content += parts.content;
}

void Choice::finish_text(Output& out) {
    if (!assembler_.empty()) {
        const std::string rest = assembler_.finish();
        if (!pending_.empty()) pending_.back().piece += rest;
        take_text(rest, out);
    }
    if (!stopped_) emit(matcher_.finish(), out);
    release(out, !stopped_);
}

/// Hands out the logprobs of tokens whose text is out: what a stop string may still cut off stays.
/// The token whose last character is incomplete stays too, because its piece may grow.
void Choice::release(Output& out, bool all) {
    while (!pending_.empty()) {
        const bool may_grow = pending_.size() == 1 && !assembler_.empty();
        if (!all && (pending_.front().begin >= text_out_ || may_grow)) return;
        out.entries.push_back(std::move(pending_.front()));
        pending_.pop_front();
    }
}

}  // namespace baton::openai
