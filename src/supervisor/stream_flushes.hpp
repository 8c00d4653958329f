#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "baton/http/direct_answer.hpp"

namespace baton::supervisor {

/// Streams that got new pieces while the control thread dealt with the messages at hand: they are sent together. Few of
/// them the thread writes itself, which saves waking another for each token; many share the I/O threads' wake-up. Control
/// thread.
class StreamFlushes {
  public:
    /// `answer` will be flushed by run().
    void add(const std::shared_ptr<http::DirectAnswer>& answer) {
        const bool first_few = waiting_.size() <= kFew;
        if (first_few && std::find(waiting_.begin(), waiting_.end(), answer) != waiting_.end()) return;
        waiting_.push_back(answer);
    }
    /// After each handler of the control thread.
    void run() {
        if (waiting_.empty()) return;
        flushing_.swap(waiting_);
        for (const auto& answer : flushing_) answer->flush(flushing_.size() <= kFew);
        flushing_.clear();
    }

  private:
    static constexpr size_t kFew = 4;

    std::vector<std::shared_ptr<http::DirectAnswer>> waiting_, flushing_;
};

}  // namespace baton::supervisor
