#include "openai/reasoning_splitter.hpp"

#include <algorithm>

namespace baton::openai {
namespace {

size_t newlines_before(std::string_view text, size_t end) {
    while (end > 0 && (text[end - 1] == '\n' || text[end - 1] == '\r')) --end;
    return end;
}

/// Where the part of `text` begins that may still turn out to be newlines and a closing tag.
size_t uncertain_tail(std::string_view text, std::string_view close) {
    size_t begin = text.size();
    for (size_t length = std::min(close.size() - 1, text.size()); length > 0; --length) {
        if (close.starts_with(text.substr(text.size() - length))) {
            begin = text.size() - length;
            break;
        }
    }
    return newlines_before(text, begin);
}

}  // namespace

ReasoningSplitter::ReasoningSplitter(Reasoning mode, ReasoningTags tags)
    : tags_(std::move(tags)),
      state_(mode == Reasoning::kOff ? State::kContent : State::kStart),
      open_(mode == Reasoning::kOpen) {}

ReasoningSplitter::Parts ReasoningSplitter::push(std::string_view text) {
    Parts out;
    if (state_ == State::kContent) {
        out.content = text;
        return out;
    }
    held_.append(text);
    while (step(out)) {
    }
    return out;
}

/// One step of the machine over what is held; true when there may be another.
bool ReasoningSplitter::step(Parts& out) {
    switch (state_) {
        case State::kStart: {
            const size_t begin = std::min(held_.find_first_not_of(" \t\r\n"), held_.size());
            const std::string_view seen = std::string_view(held_).substr(begin);
            if (seen.starts_with(std::string_view(tags_.start))) {
                held_.erase(0, begin + std::string_view(tags_.start).size());
                state_ = State::kReasoningStart;
                return true;
            }
            if (std::string_view(tags_.start).starts_with(seen))
                return false;  // also while nothing but spaces came
            state_ = open_ ? State::kReasoningStart : State::kContent;
            return true;
        }
        case State::kReasoningStart:
        case State::kContentStart: {
            held_.erase(0, std::min(held_.find_first_not_of("\r\n"), held_.size()));
            if (held_.empty()) return false;
            state_ = state_ == State::kReasoningStart ? State::kReasoning : State::kContent;
            return true;
        }
        case State::kReasoning: {
            const size_t close = held_.find(tags_.end);
            if (close != std::string::npos) {
                out.reasoning.append(held_, 0, newlines_before(held_, close));
                held_.erase(0, close + tags_.end.size());
                state_ = State::kContentStart;
                return true;
            }
            const size_t certain = uncertain_tail(held_, tags_.end);
            out.reasoning.append(held_, 0, certain);
            held_.erase(0, certain);
            return false;
        }
        case State::kContent:
            out.content.append(held_);
            held_.clear();
            return false;
    }
    return false;
}

ReasoningSplitter::Parts ReasoningSplitter::finish() {
    Parts out;
    const bool as_reasoning = state_ == State::kReasoning || (state_ == State::kStart && open_);
    (as_reasoning ? out.reasoning : out.content) = std::move(held_);
    held_.clear();
    return out;
}

}  // namespace baton::openai
