#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "baton/http/server.hpp"
#include "baton/openai/response.hpp"
#include "deployment.hpp"
#include "model_directory.hpp"
#include "prompt_scores.hpp"
#include "stream_flushes.hpp"

namespace baton::supervisor {

/// A request whose text is done: what the control thread needs to run it.
struct PreparedRequest {
    std::shared_ptr<http::Exchange> exchange;
    std::shared_ptr<const ServedModel> model;
    openai::ResponseOptions response;
    std::vector<wire::Sequence> sequences;  ///< one a choice
    std::string request_id;
    bool id_from_client = false;
    std::string trace;  ///< "" none (http::trace_id)
    TimeMs started;
};

/// One request on the control thread: its sequences, its answer, its end.
class InferenceSession : public std::enable_shared_from_this<InferenceSession> {
  public:
    using Key = std::pair<std::string, std::string>;  ///< uid and request id
    /// `closed` is called once, at the end; it may drop the last other reference.
    InferenceSession(boost::asio::io_context& control, StreamFlushes& flushes, PreparedRequest prepared, std::shared_ptr<Deployment> deployment, std::function<void(const Key&)> closed);

    /// Runs the sequences, after the prompt's logprobs where they are wanted.
    void start();
    /// The client left, or somebody aborted it: no answer is owed where the client is gone.
    void abort(std::string_view reason, bool client_gone);
    void fail(const Error& error);
    [[nodiscard]] const Key& key() const { return key_; }
    /// Share of the tokens that may come at most.
    [[nodiscard]] double progress() const;

  private:
    void score(std::vector<std::vector<TokenId>> prompts, int32_t top);
    void run_sequences();
    void on_tokens(uint32_t choice, const pd::Deliver& deliver);
    void saw(const pd::Stages& stages);
    void on_end(uint32_t choice, const pd::End& end);
    void apply(uint32_t choice, openai::ResponseBuilder::Update update);
    void begin_stream();
    void finish();
    void close(std::string_view outcome);
    void count(const openai::Usage& usage, TimeMs now);
    void count_stages();
    void count_abort();
    [[nodiscard]] std::string timings() const;
    [[nodiscard]] double ttft_s() const;
    [[nodiscard]] double decode_s() const;

    StreamFlushes& flushes_;
    std::shared_ptr<http::Exchange> exchange_;
    std::shared_ptr<http::DirectAnswer> direct_;  ///< the same; null where it is none
    std::shared_ptr<Deployment> deployment_;
    Key key_;
    std::function<void(const Key&)> closed_;
    std::vector<wire::Sequence> sequences_;  ///< until they run
    std::vector<TokenId> stop_ids_;          ///< in order
    bool stream_;
    TimeMs started_;
    const std::string trace_;
    TimeMs deadline_;
    std::chrono::steady_clock::time_point submitted_{};                                   ///< to the router
    std::chrono::steady_clock::time_point first_token_{}, second_token_{}, last_token_{};  ///< of choice 0
    uint64_t tokens_ = 0;                                                 ///< of choice 0
    pd::Stages stages_;                                                   ///< of choice 0
    int32_t prompt_top_;  ///< see ResponseOptions::prompt_top()
    uint32_t choices_per_prompt_;
    openai::ResponseBuilder builder_;
    std::shared_ptr<PromptScores> scores_;
    std::vector<uint32_t> cached_tokens_;         ///< by prompt, where it was scored before
    std::vector<SequenceId> ids_;                 ///< by choice; none: not running
    std::vector<std::vector<wire::Token>> held_;  ///< by choice: a token that may be hidden
    std::vector<bool> choice_done_;
    std::set<uint64_t> replicas_;
    int64_t last_replica_ = -1;  ///< that gave a token of it, or had a sequence of it when it ended
    uint64_t tokens_max_ = 0;
    boost::asio::steady_timer commit_timer_;
    bool began_ = false;
    bool done_ = false;
    std::string error_;  ///< why it failed; "" it did not
};

}  // namespace baton::supervisor
