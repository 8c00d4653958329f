#include "inference_session.hpp"

#include <algorithm>
#include <boost/asio/post.hpp>

#include "api_answers.hpp"
#include "baton/base/log.hpp"

namespace baton::supervisor {
namespace {

constexpr int64_t kCommitStreamMs = 10'000;  ///< a stream that has no token yet begins after that long, so that pings flow

}  // namespace

InferenceSession::InferenceSession(boost::asio::io_context& control, StreamFlushes& flushes, PreparedRequest p, std::shared_ptr<Deployment> deployment, std::function<void(const Key&)> closed)
    : flushes_(flushes),
      exchange_(std::move(p.exchange)),
      direct_(std::dynamic_pointer_cast<http::DirectAnswer>(exchange_)),
      deployment_(std::move(deployment)),
      key_(p.model->uid, std::move(p.request_id)),
      closed_(std::move(closed)),
      sequences_(std::move(p.sequences)),
      stop_ids_(p.response.stop_ids),
      stream_(p.response.generation.stream),
      started_(p.started),
      trace_(std::move(p.trace)),
      deadline_(steady_now() + limits::kRequestTimeoutMs),
      prompt_top_(p.response.prompt_top()),
      choices_per_prompt_(p.response.generation.n),
      builder_([&] {
          if (p.response.generation.timings) p.response.timings = [this] { return timings(); };
          return openai::ResponseBuilder(std::move(p.response), p.model->info.tokenizer);
      }()),
      ids_(sequences_.size()),
      held_(sequences_.size()),
      choice_done_(sequences_.size(), false),
      commit_timer_(control) {
    std::sort(stop_ids_.begin(), stop_ids_.end());
    for (const wire::Sequence& s : sequences_) tokens_max_ += s.sampling.max_tokens;
}

void InferenceSession::start() {
    if (direct_ != nullptr) direct_->answer_here();
    if (prompt_top_ < 0) {
        run_sequences();
    } else {
        std::vector<std::vector<TokenId>> prompts;
        for (size_t i = 0; i < sequences_.size(); i += choices_per_prompt_) prompts.push_back(sequences_[i].prompt);
        score(std::move(prompts), prompt_top_);
    }
    if (done_) return;
    exchange_->on_disconnect([self = shared_from_this()] {
        boost::asio::post(self->commit_timer_.get_executor(), [self] { self->abort("client_gone", true); });
    });
    if (!stream_ || began_) return;
    commit_timer_.expires_after(std::chrono::milliseconds(kCommitStreamMs));
    commit_timer_.async_wait([self = shared_from_this()](boost::system::error_code ec) {
        if (!ec && !self->done_) self->begin_stream();
    });
}

void InferenceSession::score(std::vector<std::vector<TokenId>> prompts, int32_t top) {
    const auto self = shared_from_this();
    scores_ = std::make_shared<PromptScores>(deployment_, key_.second, std::move(prompts), top, deadline_, [self](Expected<PromptScores::Result> result) {
        if (self->done_) return;
        if (!result) return self->fail(result.error());
        for (uint32_t i = 0; i < result->tokens.size(); ++i) self->builder_.set_prompt_logprobs(i, std::move(result->tokens[i]));
        self->cached_tokens_ = std::move(result->cached_tokens);
        self->run_sequences();
    });
    const auto scores = scores_;
    scores->start();
}

void InferenceSession::run_sequences() {
    const auto self = shared_from_this();
    submitted_ = std::chrono::steady_clock::now();
    std::vector<wire::Sequence> sequences = std::move(sequences_);
    for (uint32_t c = 0; c < sequences.size() && !done_; ++c) {
        if (sequences[c].sampling.max_tokens == 0) {
            apply(c, builder_.push(c, {}, wire::Finish::kLength, cached_tokens_.empty() ? 0 : cached_tokens_[c / choices_per_prompt_]));
            continue;
        }
        auto id = deployment_->submit(std::move(sequences[c]), deadline_,
                                      {[self, c](const pd::Deliver& d) { self->on_tokens(c, d); }, [self, c](const pd::End& e) { self->on_end(c, e); }});
        if (!id) fail(id.error());
        else if (done_) deployment_->abort(*id, "request_over");
        else ids_[c] = *id;
    }
}

void InferenceSession::on_tokens(uint32_t choice, const pd::Deliver& deliver) {
    if (done_ || choice_done_[choice]) return;
    if (choice == 0) {
        last_token_ = std::chrono::steady_clock::now();
        if (tokens_ == 0) first_token_ = last_token_;
        if (tokens_ < 2) second_token_ = last_token_;
        tokens_ += deliver.tokens.size();
        saw(deliver.stages);
    }
    std::vector<wire::Token>& tokens = held_[choice];
    // A stop id may be the end of the sequence, which hides it: End, which follows at once, decides.
    const bool hold = std::binary_search(stop_ids_.begin(), stop_ids_.end(), deliver.tokens.back().id);
    if (tokens.empty() && !hold) return apply(choice, builder_.push(choice, deliver.tokens, wire::Finish::kNone));
    tokens.insert(tokens.end(), deliver.tokens.begin(), deliver.tokens.end());
    std::vector<wire::Token> now = std::move(tokens);
    tokens.clear();
    if (hold) {
        tokens.push_back(std::move(now.back()));
        now.pop_back();
    }
    if (!now.empty()) apply(choice, builder_.push(choice, now, wire::Finish::kNone));
}

/// What is known of choice 0. One that a stop string ends is not heard of again.
void InferenceSession::saw(const pd::Stages& stages) {
    const bool elsewhere = stages.decode_replica != stages_.decode_replica || stages.prefill_replica != stages_.prefill_replica;
    stages_ = stages;
    if (!elsewhere) return;
    if (stages.decode_replica) last_replica_ = static_cast<int64_t>(stages.decode_replica.value) - 1;
    for (const ReplicaId r : {stages.prefill_replica, stages.decode_replica})
        if (r) replicas_.insert(r.value - 1);
}

void InferenceSession::on_end(uint32_t choice, const pd::End& end) {
    ids_[choice] = {};
    if (done_ || choice_done_[choice]) return;  // a choice that a stop string ended was aborted by us
    if (choice == 0) saw(end.stages);
    for (const ReplicaId r : end.served_by) replicas_.insert(r.value - 1);
    if (!end.served_by.empty()) last_replica_ = static_cast<int64_t>(end.served_by.back().value) - 1;
    if (end.stages.decode_replica) last_replica_ = static_cast<int64_t>(end.stages.decode_replica.value) - 1;
    if (end.finish == wire::Finish::kNone) return fail(end.error);
    const std::vector<wire::Token> last = std::move(held_[choice]);
    held_[choice].clear();
    // What the logprobs of the prompt left in the cache was not there before this request.
    const uint32_t cached = cached_tokens_.empty() ? end.cached_tokens : cached_tokens_[choice / choices_per_prompt_];
    apply(choice, builder_.push(choice, last, end.finish, cached));
}

void InferenceSession::apply(uint32_t choice, openai::ResponseBuilder::Update update) {
    if (!update.frames.empty() && stream_) {
        begin_stream();
        if (direct_ == nullptr) {
            exchange_->write(std::move(update.frames));
        } else if (direct_->queue(std::move(update.frames))) {
            flushes_.add(direct_);
        }
    }
    if (update.choice_done) choice_done_[choice] = true;
    if (update.stop_found && ids_[choice]) deployment_->abort(std::exchange(ids_[choice], {}), "stop_string");
    if (update.all_done) finish();
}

void InferenceSession::begin_stream() {
    if (began_) return;
    began_ = true;
    commit_timer_.cancel();
    exchange_->begin_stream();
}

void InferenceSession::finish() {
    if (done_) return;
    if (stream_) {
        begin_stream();
        exchange_->end();
    } else {
        exchange_->respond(200, builder_.body());
    }
    ++deployment_->requests_ok;
    close("ok");
}

void InferenceSession::fail(const Error& error) {
    if (done_) return;
    const openai::ApiError shown = openai::to_api_error(error);
    if (began_) {
        exchange_->write(shown.frame());
        exchange_->fail();
    } else {
        respond_error(*exchange_, shown);
    }
    if (error.code == ErrorCode::kAborted) {
        count_abort();
    } else {
        error_ = error.message;
        ++deployment_->requests_error;
        ++deployment_->metrics[last_replica_].errors;
    }
    close(to_string(error.code));
}

void InferenceSession::abort(std::string_view reason, bool client_gone) {
    if (done_) return;
    if (client_gone) {
        count_abort();
        close(reason);
    } else {
        fail({ErrorCode::kAborted, "the request has been aborted: " + key_.second, ""});
    }
}

void InferenceSession::close(std::string_view outcome) {
    done_ = true;
    commit_timer_.cancel();
    if (const auto scores = std::move(scores_)) scores->abort(outcome);
    for (const SequenceId id : ids_)
        if (id) deployment_->abort(id, outcome);
    const openai::Usage usage = builder_.usage();
    const TimeMs now = steady_now();
    count(usage, now);
    std::string served;
    for (const uint64_t r : replicas_) served += (served.empty() ? "" : ",") + std::to_string(r);
    log::info("request.done", {{"req", key_.second},
                               {trace_.empty() ? "" : "trace", trace_},
                               {"model_uid", key_.first},
                               {"outcome", outcome},
                               {error_.empty() ? "" : "reason", error_},
                               {"prompt_tokens", usage.prompt_tokens},
                               {"completion_tokens", usage.completion_tokens},
                               {"cached_tokens", usage.cached_tokens},
                               {"replicas", served},
                               {"ttft_ms", tokens_ == 0 ? -1 : static_cast<int64_t>(ttft_s() * 1000)},
                               {"ms", now - started_}});
    closed_(key_);  // may end this object's last other reference; callers hold one
}

void InferenceSession::count(const openai::Usage& usage, TimeMs now) {
    const auto seconds = [&](TimeMs at) { return static_cast<double>(at - started_) / 1000; };
    ReplicaRequests& m = deployment_->metrics[last_replica_];
    ++m.total[static_cast<size_t>(stream_ ? Streamed::kYes : Streamed::kNo)];
    m.input_tokens += usage.prompt_tokens;
    m.output_tokens += usage.completion_tokens;
    if (tokens_ > 0) {
        (stream_ ? m.ttft_stream : m.ttft_plain).observe(ttft_s());
        deployment_->ttft.observe(ttft_s());
    }
    if (tokens_ > 1) deployment_->tpot.observe(decode_s() / static_cast<double>(tokens_ - 1));
    m.duration.observe(seconds(now));
    count_stages();
    deployment_->prompt_tokens += usage.prompt_tokens;
    deployment_->completion_tokens += usage.completion_tokens;
    deployment_->cached_tokens += usage.cached_tokens;
}

/// Where the time of choice 0 went: once a request, as far as it came.
void InferenceSession::count_stages() {
    if (tokens_ == 0) return;
    constexpr double kMicroseconds = 1e6;
    const auto between = [](auto from, auto to) { return std::max(0.0, std::chrono::duration<double>(to - from).count()); };
    const std::chrono::steady_clock::time_point started{std::chrono::milliseconds(started_.ms)};
    StageSeconds& s = deployment_->stages;
    s.prepare.observe(between(started, submitted_));
    if (stages_.queue_us >= 0) s.queue.observe(static_cast<double>(stages_.queue_us) / kMicroseconds);
    if (stages_.prefill_us >= 0) s.prefill.observe(static_cast<double>(stages_.prefill_us) / kMicroseconds);
    const bool handed = stages_.handoff_us >= 0;
    const double handoff = handed ? static_cast<double>(stages_.handoff_us) / kMicroseconds : 0;
    if (handed) s.handoff.observe(handoff);
    if (tokens_ < 2) return;
    s.decode.observe(std::max(0.0, decode_s() - handoff));
    const double first = between(first_token_, second_token_);
    s.first_gap.observe(first);
    if (tokens_ < 3) return;
    const double later = between(second_token_, last_token_) / static_cast<double>(tokens_ - 2);
    s.later_gap.observe(later);
    if (handed) s.handoff_added.observe(std::max(0.0, first - later));
}

/// Before the sequences end: the furthest of them says where the request was.
void InferenceSession::count_abort() {
    pd::Phase furthest = scores_ ? pd::Phase::kPrefill : pd::Phase::kQueued;
    for (const SequenceId id : ids_)
        if (id) furthest = std::max(furthest, deployment_->phase_of(id).value_or(pd::Phase::kQueued));
    ++deployment_->requests_aborted;
    ++deployment_->aborts_by_phase[static_cast<size_t>(furthest)];
}

double InferenceSession::ttft_s() const {
    return std::chrono::duration<double>(first_token_.time_since_epoch()).count() - static_cast<double>(started_.ms) / 1000;
}

double InferenceSession::decode_s() const { return std::chrono::duration<double>(last_token_ - first_token_).count(); }

/// What is known of choice 0.
std::string InferenceSession::timings() const {
    Json out = Json::object();
    if (stages_.prefill_replica) out["prefill_replica"] = stages_.prefill_replica.value - 1;
    if (stages_.decode_replica) out["decode_replica"] = stages_.decode_replica.value - 1;
    const std::pair<const char*, int64_t> stages[] = {{"queue_ms", stages_.queue_us}, {"prefill_ms", stages_.prefill_us}, {"handoff_ms", stages_.handoff_us}};
    for (const auto& [name, us] : stages)
        if (us >= 0) out[name] = static_cast<double>(us) / 1000;
    if (tokens_ > 0) out["ttft_ms"] = ttft_s() * 1000;
    if (tokens_ > 1) {
        out["decode_ms"] = decode_s() * 1000;
        out["tokens_per_second"] = static_cast<double>(tokens_ - 1) / std::max(decode_s(), 1e-9);
    }
    return out.dump();
}

double InferenceSession::progress() const {
    return tokens_max_ == 0 ? 0.0 : std::min(1.0, static_cast<double>(builder_.usage().completion_tokens) / static_cast<double>(tokens_max_));
}

}  // namespace baton::supervisor
