#include "openai/reasoning_splitter.hpp"

#include <algorithm>
#include <utility>

namespace baton::openai {
namespace {

size_t newlines_before(std::string_view text, size_t end) {
    while (end > 0 && (text[end - 1] == '\n' || text[end - 1] == '\r')) --end;
    return end;
}

/// Where the part of `text` begins that may still turn out to be a closing tag.
size_t uncertain_tail(std::string_view text, std::string_view close) {
    for (size_t length = std::min(close.size() - 1, text.size()); length > 0; --length)
        if (close.starts_with(text.substr(text.size() - length))) return text.size() - length;
    return text.size();
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
            const size_t spaces = std::min(held_.find_first_not_of(" \t\r\n"), held_.size());
            before_.append(held_, 0, spaces);
            held_.erase(0, spaces);
            if (held_.starts_with(tags_.start)) {
                held_.erase(0, tags_.start.size());
                before_.clear();
                state_ = State::kReasoningStart;
                return true;
            }
            if (tags_.start.starts_with(held_)) return false;  // also while nothing but spaces came
            held_.insert(0, std::exchange(before_, {}));
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
            const bool closes = close != std::string::npos;
            const size_t certain = closes ? close : uncertain_tail(held_, tags_.end);
            const size_t text = newlines_before(held_, certain);
            if (text > 0) {
                out.reasoning.append(std::exchange(before_, {})).append(held_, 0, text);
            }
            before_.append(held_, text, certain - text);
            held_.erase(0, certain);
            if (!closes) return false;
            before_.clear();
            held_.erase(0, tags_.end.size());
            state_ = State::kContentStart;
            return true;
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
    (as_reasoning ? out.reasoning : out.content) = std::exchange(before_, {}) + held_;
    held_.clear();
    return out;
}

}  // namespace baton::openai
