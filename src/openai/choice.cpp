#include "openai/choice.hpp"

#include <algorithm>

#include "baton/base/utf8.hpp"

namespace baton::openai {
namespace {

/// Special tokens that mean something in an answer that is taken apart.
std::vector<TokenId> marks_of(const ResponseOptions& options, const text::Tokenizer& tokenizer) {
    std::vector<TokenId> out;
    const auto add = [&](std::string_view text) {
        const TokenId id = tokenizer.find(text);
        if (id >= 0 && tokenizer.is_special(id)) out.push_back(id);
    };
    if (!options.chat) return out;
    if (options.reasoning != Reasoning::kOff)
        for (const std::string* tag : {&options.reasoning_tags.start, &options.reasoning_tags.end})
            add(*tag);
    if (options.tool_format != ToolFormat::kNone)
        for (const char* text : {"<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]",
                                 "[CALL_ID]", "<|python_tag|>"})
            add(text);
    return out;
}

}  // namespace

Choice::Choice(const ResponseOptions& options, const text::Tokenizer& tokenizer, size_t characters)
    : options_(options),
      tokenizer_(tokenizer),
      // A chat's answer begins a text; a completion goes on with one, and its first space belongs
      // between the two.
      decoder_(tokenizer, options.chat),
      matcher_(options.generation.stop, options.generation.include_stop_str_in_output),
      splitter_(options.chat ? options.reasoning : Reasoning::kOff, options.reasoning_tags),
      tools_(options.chat ? options.tool_format : ToolFormat::kNone, options.tool_use),
      marks_(marks_of(options, tokenizer)),
      characters_in_(characters) {}

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
        take_parts(splitter_.finish(), out);
        ToolParser::Output rest;
        tools_.finish(std::string_view(finish_reason_) == "length", rest);
        take_found(std::move(rest), out);
        if (tools_.calls() > 0 && std::string_view(finish_reason_) == "stop")
            finish_reason_ = "tool_calls";
    }
    return out;
}

bool Choice::is_hidden(const wire::Token& token, bool is_stop_token) const {
    const GenerationOptions& generation = options_.generation;
    if (is_stop_token && !generation.include_stop_str_in_output) return true;
    return generation.skip_special_tokens && tokenizer_.is_special(token.id) &&
           std::find(marks_.begin(), marks_.end(), token.id) == marks_.end();
}

void Choice::take_token(const wire::Token& token, bool is_stop_token, Output& out) {
    const GenerationOptions& generation = options_.generation;
    ++tokens_;
    if (splitter_.reasoning()) ++reasoning_tokens_;
    if (is_hidden(token, is_stop_token)) return;
    const std::string piece = decoder_.push(token.id);
    if (generation.top_logprobs >= 0) {
        pending_.push_back({text_in_, characters_in_, token.id, piece, token.logprob, token.top});
    }
    take_text(piece, out);
}

void Choice::take_text(std::string_view piece, Output& out) {
    text_in_ += piece.size();
    characters_in_ += count_utf8(piece);
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
    take_parts(splitter_.push(text), out);
}

void Choice::take_parts(ReasoningSplitter::Parts parts, Output& out) {
    out.reasoning += parts.reasoning;
    if (options_.tool_format == ToolFormat::kNone) {
        out.content += parts.content;
        return;
    }
    ToolParser::Output found;
    tools_.push(parts.content, found);
    take_found(std::move(found), out);
}

void Choice::take_found(ToolParser::Output found, Output& out) {
    out.content += found.content;
    // A call that grows in several steps of one push stays one part.
    for (CallDelta& call : found.calls) {
        if (!out.calls.empty() && out.calls.back().index == call.index && call.id.empty()) {
            out.calls.back().arguments += call.arguments;
        } else {
            out.calls.push_back(std::move(call));
        }
    }
}

void Choice::finish_text(Output& out) {
    if (!decoder_.empty()) {
        const std::string rest = decoder_.finish();
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
        const bool may_grow = pending_.size() == 1 && !decoder_.empty();
        if (!all && (pending_.front().begin >= text_out_ || may_grow)) return;
        out.entries.push_back(std::move(pending_.front()));
        pending_.pop_front();
    }
}

}  // namespace baton::openai
