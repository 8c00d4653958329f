#include <algorithm>

#include "baton/text/tokenizer.hpp"

namespace baton::text {

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_in_output)
    : stops_(std::move(stops)), include_(include_in_output) {
    std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

// The match that ends first wins, the longest of those that end together: a rule that does not
// depend on how the text was cut into pieces.
StopMatcher::Result StopMatcher::push(std::string_view text) {
    Result result;
    if (stopped_) {
        result.stopped = true;
        return result;
    }
    held_.append(text);
    const std::string* best = nullptr;
    size_t best_begin = 0;
    for (const std::string& stop : stops_) {
        const size_t begin = held_.find(stop);
        if (begin == std::string::npos) continue;
        const size_t end = begin + stop.size();
        const size_t best_end = best == nullptr ? std::string::npos : best_begin + best->size();
        if (end < best_end || (end == best_end && begin < best_begin)) {
            best = &stop;
            best_begin = begin;
        }
    }
    if (best != nullptr) {
        stopped_ = true;
        result.stopped = true;
        result.matched = *best;
        result.text = held_.substr(0, best_begin + (include_ ? best->size() : 0));
        held_.clear();
        return result;
    }
    size_t keep = 0;
    for (const std::string& stop : stops_) {
        for (size_t length = std::min(stop.size() - 1, held_.size()); length > keep; --length) {
            if (held_.compare(held_.size() - length, length, stop, 0, length) == 0) {
                keep = length;
                break;
            }
        }
    }
    result.text = held_.substr(0, held_.size() - keep);
    held_.erase(0, held_.size() - keep);
    return result;
}

std::string StopMatcher::finish() {
    std::string out = std::move(held_);
    held_.clear();
    return out;
}

}  // namespace baton::text
