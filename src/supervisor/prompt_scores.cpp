#include "prompt_scores.hpp"

namespace baton::supervisor {
namespace {

constexpr size_t kAtOnce = 32;      ///< sequences of one request
constexpr float kCertain = 1e30f;   ///< a bias that no logit outweighs

}  // namespace

PromptScores::PromptScores(std::shared_ptr<Deployment> deployment, std::string request_id, std::vector<std::vector<TokenId>> prompts, int32_t top, TimeMs deadline,
                           Done done)
    : deployment_(std::move(deployment)), request_id_(std::move(request_id)), prompts_(std::move(prompts)), top_(top), deadline_(deadline), done_(std::move(done)) {
    for (const std::vector<TokenId>& ids : prompts_) {
        result_.tokens.emplace_back(ids.empty() ? 0 : ids.size() - 1);
        result_.cached_tokens.push_back(0);
    }
}

void PromptScores::start() { advance(); }

/// Submits what may run now; the end of one calls it again.
void PromptScores::advance() {
    if (advancing_) return;
    const auto self = shared_from_this();  // an end may drop the owner's reference
    advancing_ = true;
    while (!over_) {
        if (prompt_ == prompts_.size()) {
            finish(std::move(result_));
            break;
        }
        const size_t last = prompts_[prompt_].size() - 1;
        if (last == 0 || (next_ == last && running_.empty())) {
            ++prompt_;
            next_ = 0;
            continue;
        }
        if (next_ == 0) {  // the longest prefix, alone
            if (!running_.empty()) break;
            submit(last);
            if (!running_.empty()) break;
            continue;  // it is over already
        }
        if (next_ == last || running_.size() >= kAtOnce) break;
        submit(next_++);
    }
    advancing_ = false;
}

void PromptScores::submit(size_t position) {
    const std::vector<TokenId>& ids = prompts_[prompt_];
    wire::Sequence s;
    s.request_id = request_id_;
    s.prompt.assign(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(position));
    s.sampling.temperature = 0;
    s.sampling.max_tokens = 1;
    s.sampling.top_logprobs = top_;
    s.sampling.logit_bias = {{ids[position], kCertain}};
    running_[position] = {};
    const auto self = shared_from_this();
    auto id = deployment_->submit(std::move(s), deadline_, {[self, p = prompt_, position](const pd::Deliver& d) { self->taken(p, position, d.tokens.front()); },
                                                            [self, p = prompt_, position](const pd::End& e) { self->ended(p, position, e); }});
    if (!id) return finish(fail(id.error()));
    if (const auto it = running_.find(position); it != running_.end()) it->second = *id;
    else if (over_) deployment_->abort(*id, "request_over");
}

void PromptScores::taken(size_t prompt, size_t position, const wire::Token& token) {
    if (!over_) result_.tokens[prompt][position - 1] = token;
}

void PromptScores::ended(size_t prompt, size_t position, const pd::End& end) {
    if (over_) return;
    running_.erase(position);
    if (end.finish == wire::Finish::kNone) return finish(fail(end.error));
    if (next_ == 0) {
        result_.cached_tokens[prompt] = end.cached_tokens;
        next_ = 1;
    }
    advance();
}

void PromptScores::abort(std::string_view reason) {
    over_ = true;
    const auto running = std::move(running_);
    running_.clear();
    for (const auto& [position, id] : running)
        if (id) deployment_->abort(id, reason);
    done_ = nullptr;
}

void PromptScores::finish(Expected<Result> result) {
    if (over_) return;
    const Done done = std::move(done_);
    abort("request_over");
    done(std::move(result));
}

}  // namespace baton::supervisor
