#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "baton/wire/messages.hpp"
#include "deployment.hpp"

namespace baton::supervisor {

/// The logprobs of a prompt's own tokens. Each is what the model gives after the tokens before it, so each is a sequence
/// of one token: its prompt is the prefix, and a bias that nothing outweighs picks the prompt's token, whose logprob is of
/// the raw logits. The longest prefix goes first; the others find its blocks in the prefix cache and compute less than a
/// block each. Control thread.
class PromptScores : public std::enable_shared_from_this<PromptScores> {
  public:
    struct Result {
        std::vector<std::vector<wire::Token>> tokens;  ///< by prompt: its tokens but the first
        std::vector<uint32_t> cached_tokens;           ///< by prompt: of the longest prefix
    };
    using Done = std::function<void(Expected<Result>)>;

    /// `top`: best tokens wanted beside each, 0 … 20. `done` is called once, unless abort() comes first.
    PromptScores(std::shared_ptr<Deployment> deployment, std::string request_id, std::vector<std::vector<TokenId>> prompts, int32_t top, TimeMs deadline, Done done);
    void start();
    void abort(std::string_view reason);

  private:
    void advance();
    void submit(size_t position);
    void taken(size_t prompt, size_t position, const wire::Token& token);
    void ended(size_t prompt, size_t position, const pd::End& end);
    void finish(Expected<Result> result);

    std::shared_ptr<Deployment> deployment_;
    std::string request_id_;
    std::vector<std::vector<TokenId>> prompts_;
    int32_t top_;
    TimeMs deadline_;
    Done done_;
    Result result_;
    size_t prompt_ = 0;      ///< the one that is being scored
    size_t next_ = 0;        ///< its next position; 0: the longest prefix has not ended
    std::map<size_t, SequenceId> running_;  ///< by position; no id yet: it is being submitted
    bool over_ = false;
    bool advancing_ = false;
};

}  // namespace baton::supervisor
