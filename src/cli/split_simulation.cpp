#include "cli/split_simulation.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <queue>
#include <utility>

#include "baton/pd/replica_core.hpp"
#include "baton/pd/router.hpp"

/// A deployment on a clock of its own: the real router and the real schedulers, with steps, links and hand-offs that only take time.
namespace baton::cli::split {
namespace {

constexpr double kTickUs = 50'000;
constexpr double kSubmitAheadUs = 300;   ///< a device's next step is submitted that long ahead where a sequence is on its way
constexpr double kPauseUs = 100'000;     ///< after that long the caches are others'
constexpr uint32_t kUnboundedBlocks = 1u << 18;
constexpr int64_t kDeadlineMs = int64_t{30} * 24 * 3600 * 1000;
constexpr TokenId kAnswerToken = 1;
constexpr TokenId kPromptTokens = 1 << 30;
constexpr double kNoTime = std::numeric_limits<double>::infinity();

/// A step that was planned.
struct Step {
    pd::StepPlan plan;
    double work_us = 0, prompt_share = 0;
};

/// A sequence's KV at the replica that computes its prompt.
struct Offered {
    uint32_t slot = 0, tokens = 0, done = 0;
    std::vector<std::function<void()>> readers;  ///< called once all of it is there
};

struct Replica {
    wire::ReplicaTarget self;
    Role role = Role::kHybrid;
    std::unique_ptr<pd::ReplicaCore> core;
    SharedCores* cores = nullptr;
    std::deque<Step> steps;                     ///< the first one runs
    std::vector<std::function<void()>> inbox;   ///< waits for the end of the step, where compute is the engine thread's own
    std::map<uint64_t, Offered> offers;
    double link_free_us = 0, busy_us = 0, begun_us = 0, ends_us = 0, ended_us = 0, ticked_us = 0;
    uint32_t index = 0;
};

class World {
  public:
    World(const BenchServeOptions& load, const LoadPlan& plan, const Topology& topology, const Rates& rates, const StepCost& cost, const Overheads& o)
        : load_(load), plan_(plan), topology_(topology), rates_(rates), cost_(cost), overheads_(o), router_(pd::RouterConfig{}) {
        for (uint32_t i = 0; i < topology.replicas(); ++i) add_replica(i);
        link_replicas();
    }

    Simulated run() {
        requests_.resize(plan_.size());
        if (plan_.open()) {
            for (uint64_t i = 0; i < plan_.size(); ++i) at(static_cast<double>(plan_.due_us()[i] - plan_.due_us().front()), [this, i] { start(i); });
        } else {
            for (uint64_t i = 0; i < load_.concurrency; ++i) start_next();
        }
        at(kTickUs, [this] { tick(); });
        while (ended_ < requests_.size()) step_clock();
        return report();
    }

  private:
    struct Request {
        RequestResult result;
        double due_us = 0, last_us = -1;
    };
    struct Event {
        double at_us;
        uint64_t order;
        std::function<void()> run;
    };
    struct Later {
        bool operator()(const Event& a, const Event& b) const { return a.at_us != b.at_us ? a.at_us > b.at_us : a.order > b.order; }
    };

    // ---- set-up ----------------------------------------------------------------------------------------------------

    [[nodiscard]] Role role_of(uint32_t index) const {
        if (index < topology_.prefill) return Role::kPrefill;
        return index < topology_.prefill + topology_.decode ? Role::kDecode : Role::kHybrid;
    }

    void add_replica(uint32_t index) {
        auto r = std::make_unique<Replica>();
        r->index = index;
        r->self = {ReplicaId{index + 1}, Epoch{1}};
        r->role = role_of(index);
        if (rates_.device || cores_.empty()) cores_.push_back(std::make_unique<SharedCores>(rates_.beside));
        r->cores = cores_.back().get();
        pd::CoreConfig c;
        c.self = r->self.replica;
        c.epoch = r->self.epoch;
        c.role = r->role;
        c.block_tokens = rates_.block_tokens;
        c.blocks = rates_.kv_tokens == 0 ? kUnboundedBlocks
                                         : static_cast<uint32_t>(std::clamp<uint64_t>(rates_.kv_tokens / rates_.block_tokens, 1, kUnboundedBlocks));
        c.max_model_len = UINT32_MAX;
        c.max_running = rates_.sequences;
        c.step_tokens = rates_.step_tokens;
        c.steps_ahead = rates_.device ? 1 : 0;
        r->core = std::make_unique<pd::ReplicaCore>(c);
        replicas_.push_back(std::move(r));
        router_.add_replica(replicas_.back()->self.replica, replicas_.back()->role);
        router_.replica_up(ms(), replicas_.back()->self);
    }

    void link_replicas() {
        for (auto& p : replicas_) {
            for (auto& d : replicas_) {
                if (p->role != Role::kPrefill || d->role != Role::kDecode) continue;
                p->core->on_peer_up(ms(), d->self);
                d->core->on_peer_up(ms(), p->self);
                router_.link_state(ms(), p->self, d->self, true);
            }
        }
        after_router();
    }

    // ---- clock -----------------------------------------------------------------------------------------------------

    [[nodiscard]] TimeMs ms() const { return {static_cast<int64_t>(now_us_ / 1000)}; }
    void at(double when_us, std::function<void()> run) { events_.push({std::max(when_us, now_us_), order_++, std::move(run)}); }
    void in(double us, std::function<void()> run) { at(now_us_ + us, std::move(run)); }

    /// The next event, or the next end of a step.
    void step_clock() {
        double end_us = kNoTime;
        uint32_t who = 0;
        for (const auto& cores : cores_) {
            const auto [when, index] = cores->next();
            if (when < end_us) end_us = when, who = index;
        }
        if (end_us <= events_.top().at_us) {
            now_us_ = std::max(now_us_, end_us);
            return step_over(*replicas_[who]);
        }
        auto run = std::move(const_cast<Event&>(events_.top()).run);
        now_us_ = events_.top().at_us;
        events_.pop();
        run();
    }

    void tick() {
        router_.on_tick(ms());
        after_router();
        for (auto& r : replicas_) tick(*r);
        in(kTickUs, [this] { tick(); });
    }

    void tick(Replica& r) {
        if (now_us_ - r.ticked_us < kTickUs || (!rates_.device && !r.steps.empty())) return;
        r.ticked_us = now_us_;
        r.core->on_tick(ms());
        act(r);
        fill(r);
    }

    // ---- client and router -----------------------------------------------------------------------------------------

    void start_next() {
        if (next_ < plan_.size()) start(next_++);
    }

    void start(uint64_t i) {
        Request& request = requests_[i];
        request.due_us = now_us_;
        request.result.measured = i >= plan_.warmup();
        if (i == plan_.warmup()) zero_us_ = now_us_;
        outcome_.in_flight_max = std::max<uint64_t>(outcome_.in_flight_max, ++in_flight_);
        in(overheads_.request_us, [this, i] { submit(i); });
    }

    void submit(uint64_t i) {
        wire::Sequence s;
        s.ref.id = SequenceId{i + 1};
        const uint32_t tokens = plan_.input_tokens(i), shared = plan_.shared_tokens(i);
        s.prompt.resize(tokens);
        for (uint32_t t = 0; t < tokens; ++t)
            s.prompt[t] = static_cast<TokenId>(t < shared ? t : ((i + 1) * 2'654'435'761u + t) % kPromptTokens);
        s.sampling.max_tokens = plan_.output_tokens(i);
        s.sampling.temperature = 0;
        if (auto taken = router_.submit(ms(), std::move(s), ms() + kDeadlineMs); !taken) {
            ++refused_;
            return end(i, taken.error().message);
        }
        after_router();
    }

    void after_router() {
        for (pd::RouterAction& action : router_.take_actions()) {
            if (auto* send = std::get_if<pd::SendReplica>(&action)) {
                Replica& r = *replicas_[send->to.replica.value - 1];
                in(overheads_.link_us, [this, &r, message = std::move(send->message)] {
                    input(r, [this, &r, message] { r.core->on_supervisor(ms(), message); });
                });
            } else if (auto* deliver = std::get_if<pd::Deliver>(&action)) {
                delivered(deliver->id.value - 1, static_cast<uint32_t>(deliver->tokens.size()));
            } else if (auto* over = std::get_if<pd::End>(&action)) {
                end(over->id.value - 1, over->finish == wire::Finish::kNone ? over->error.message : "");
            }
        }
    }

    void delivered(uint64_t i, uint32_t tokens) {
        Request& r = requests_[i];
        output_tokens_ += tokens;
        r.result.output_tokens += tokens;
        const double seen_us = now_us_ + overheads_.token_us;
        for (uint32_t t = 0; t < tokens; ++t) {
            if (r.last_us < 0) r.result.ttft_us = std::max<int64_t>(1, std::llround(seen_us - r.due_us));
            else r.result.gaps_us.push_back(static_cast<uint32_t>(std::llround(seen_us - r.last_us)));
            r.last_us = seen_us;
        }
    }

    void end(uint64_t i, std::string error) {
        Request& r = requests_[i];
        r.result.ok = error.empty();
        r.result.error = std::move(error);
        r.result.input_tokens = plan_.input_tokens(i);
        r.result.e2e_us = std::llround(std::max(r.last_us, r.due_us) - r.due_us);
        end_us_ = std::max(end_us_, r.last_us);
        --in_flight_;
        ++ended_;
        if (!plan_.open()) in(overheads_.token_us, [this] { start_next(); });
    }

    // ---- replicas --------------------------------------------------------------------------------------------------

    /// On the CPU the engine thread computes, and looks at its inbox between steps.
    void input(Replica& r, std::function<void()> run) {
        if (!rates_.device && !r.steps.empty()) {
            r.inbox.push_back(std::move(run));
            return;
        }
        run();
        act(r);
        fill(r);
    }

    void fill(Replica& r) {
        const size_t depth = rates_.device ? 2 : 1;
        while (r.steps.size() < depth) {
            if (r.steps.size() == 1 && r.core->expects_sequence() && now_us_ < r.ends_us - kSubmitAheadUs) {
                at(r.ends_us - kSubmitAheadUs, [this, &r] { fill(r); });
                return;
            }
            pd::StepPlan plan = r.core->plan_step(ms());
            act(r);
            if (plan.empty()) return;
            r.steps.push_back(timed(std::move(plan)));
            if (r.steps.size() == 1) begin(r);
        }
    }

    Step timed(pd::StepPlan plan) {
        StepLoad load;
        for (const pd::StepItem& item : plan.items) {
            if (item.tokens == 1 && item.sample && (item.pending > 0 || !item.sequence->emitted.empty())) load.add_row(item.position + 1.0);
            else load.add_chunk(item.tokens, item.position);
        }
        if (load.rows > 0) ++decode_steps_, decode_rows_ += load.rows;
        return {std::move(plan), cost_.us(load), cost_.prompt_share(load)};
    }

    void begin(Replica& r) {
        const Step& step = r.steps.front();
        r.begun_us = now_us_;
        const double paused = std::min(1.0, (now_us_ - r.ended_us) / kPauseUs);
        const double work_us = step.work_us + paused * 1000 * rates_.after_pause_ms[step.prompt_share >= 0.5 ? 0 : 1];
        r.cores->begin(now_us_, r.index, work_us, step.prompt_share);
        r.ends_us = now_us_ + work_us;
    }

    void step_over(Replica& r) {
        r.cores->end(now_us_, r.index);
        r.busy_us += now_us_ - r.begun_us;
        r.ended_us = now_us_;
        const Step step = std::move(r.steps.front());
        r.steps.pop_front();
        if (!r.steps.empty()) begin(r);
        std::vector<pd::Sampled> sampled;
        for (uint32_t i = 0; i < step.plan.items.size(); ++i) {
            const pd::StepItem& item = step.plan.items[i];
            if (item.sample) sampled.push_back({i, {kAnswerToken, 0, {}}, {}, {}});
            if (item.progress_slot) progress(r, *item.progress_slot, item.position + item.tokens);
        }
        r.core->on_step_done(ms(), step.plan, sampled);
        act(r);
        note_pool(r);
        for (auto& run : std::exchange(r.inbox, {})) {
            run();
            act(r);
        }
        if (r.steps.empty()) tick(r);
        fill(r);
    }

    void act(Replica& r) {
        for (pd::Action& action : r.core->take_actions()) {
            if (auto* up = std::get_if<pd::ToSupervisor>(&action)) {
                in(overheads_.link_us, [this, from = r.self, message = std::move(up->message)] {
                    router_.on_message(ms(), from, message);
                    after_router();
                });
            } else if (auto* to = std::get_if<pd::ToPeer>(&action)) {
                Replica& peer = *replicas_[to->peer.replica.value - 1];
                in(overheads_.link_us, [this, &peer, from = r.self, message = std::move(to->message)] {
                    input(peer, [this, &peer, from, message] { peer.core->on_peer(ms(), from, message); });
                });
            } else if (auto* open = std::get_if<pd::OpenProgress>(&action)) {
                r.offers[open->offer.value] = {open->slot, open->tokens, open->done_tokens, {}};
            } else if (auto* close = std::get_if<pd::CloseProgress>(&action)) {
                r.offers.erase(close->offer.value);
            } else if (auto* pull = std::get_if<pd::StartPull>(&action)) {
                start_pull(r, *pull);
            }
        }
    }

    // ---- hand-off --------------------------------------------------------------------------------------------------

    void progress(Replica& r, uint32_t slot, uint32_t tokens) {
        for (auto& [id, offer] : r.offers) {
            if (offer.slot != slot) continue;
            offer.done = std::max(offer.done, tokens);
            if (offer.done < offer.tokens) return;
            for (auto& reader : std::exchange(offer.readers, {})) reader();
            return;
        }
    }

    /// Copies what is there while the rest is computed: done a hand-off's own time after the last of it is, or when the link has
    /// carried all bytes.
    void start_pull(Replica& d, const pd::StartPull& order) {
        const double bytes = static_cast<double>(order.source_blocks.size() - order.first_block) * rates_.block_tokens * rates_.kv_bytes_per_token;
        const double copy_us = rates_.handoff_gb_per_s > 0 ? bytes / rates_.handoff_gb_per_s / 1e3 : 0;
        d.link_free_us = std::max(d.link_free_us, now_us_) + copy_us;
        const double carried_us = d.link_free_us, fixed_us = rates_.handoff_ms * 1000;
        auto finish = [this, &d, pull = order.pull, bytes, carried_us, fixed_us] {
            at(std::max(now_us_, carried_us) + fixed_us, [this, &d, pull, bytes] {
                ++handoffs_;
                pd::PullResult result;
                result.pull = pull;
                result.ok = true;
                result.bytes = static_cast<uint64_t>(bytes);
                input(d, [this, &d, result] { d.core->on_pull_done(ms(), result); });
            });
        };
        auto& offers = replicas_[order.peer.replica.value - 1]->offers;
        const auto offer = offers.find(order.offer.value);
        if (offer == offers.end() || offer->second.done >= offer->second.tokens) finish();
        else offer->second.readers.push_back(std::move(finish));
    }

    // ---- result ----------------------------------------------------------------------------------------------------

    void note_pool(const Replica& r) {
        if (rates_.kv_tokens == 0) return;
        const wire::ReplicaStats s = r.core->stats();
        const double all = s.blocks_free + s.blocks_used + s.blocks_cached;
        if (all > 0) kv_peak_ = std::max(kv_peak_, s.blocks_used / all);
    }

    Simulated report() {
        Simulated out;
        for (Request& r : requests_) outcome_.results.push_back(std::move(r.result));
        outcome_.window_s = std::max(end_us_ - zero_us_, 1.0) / 1e6;
        out.outcome = std::move(outcome_);
        out.end_s = end_us_ / 1e6;
        const double span = std::max(end_us_, 1.0);
        for (const auto& r : replicas_) {
            const double share = std::min(1.0, r->busy_us / span);
            if (r->role == Role::kPrefill) out.prefill_busy += share / topology_.prefill;
            else if (r->role == Role::kDecode) out.decode_busy += share / topology_.decode;
            else out.hybrid_busy += share / topology_.hybrid;
            out.prompt_tokens += r->core->stats().prefill_tokens;
        }
        out.decode_batch = decode_steps_ > 0 ? decode_rows_ / static_cast<double>(decode_steps_) : 0;
        out.kv_peak_share = kv_peak_;
        out.output_tokens = output_tokens_;
        out.handoffs = handoffs_;
        for (const auto& [reason, n] : router_.stats().failovers_by_reason) out.preemptions += reason == "preempted" ? n : 0;
        out.refused = refused_;
        return out;
    }

    const BenchServeOptions& load_;
    const LoadPlan& plan_;
    const Topology topology_;
    const Rates& rates_;
    const StepCost& cost_;
    const Overheads overheads_;
    pd::Router router_;
    std::vector<std::unique_ptr<SharedCores>> cores_;
    std::vector<std::unique_ptr<Replica>> replicas_;
    std::priority_queue<Event, std::vector<Event>, Later> events_;
    uint64_t order_ = 0, next_ = 0, ended_ = 0, in_flight_ = 0, refused_ = 0, handoffs_ = 0, output_tokens_ = 0, decode_steps_ = 0;
    double now_us_ = 0, zero_us_ = 0, end_us_ = 0, decode_rows_ = 0, kv_peak_ = 0;
    std::vector<Request> requests_;
    LoadOutcome outcome_;
};

}  // namespace

std::string Topology::name() const {
    if (!split()) return std::to_string(hybrid) + " hybrid";
    return std::to_string(prefill) + "P" + std::to_string(decode) + "D";
}

Expected<Topology> parse_topology(const std::string& text) {
    std::string t;
    for (const char c : text)
        if (c != ' ') t += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    Topology out;
    int end = 0;
    if (!t.empty() && t[0] != 'h' && std::isdigit(static_cast<unsigned char>(t[0])) == 0) t.clear();  // no sign
    const auto whole = [&] { return end > 0 && static_cast<size_t>(end) == t.size(); };
    if (t == "hybrid") out.hybrid = 1;
    else if (std::sscanf(t.c_str(), "%3up%3ud%n", &out.prefill, &out.decode, &end) != 2 || !whole()) out = {};
    if (out.replicas() == 0 && (std::sscanf(t.c_str(), "%3uhybrid%n", &out.hybrid, &end) != 1 || !whole())) out = {};
    const bool pair = out.prefill > 0 && out.decode > 0 && out.hybrid == 0, alone = out.hybrid > 0 && out.prefill == 0 && out.decode == 0;
    if ((pair || alone) && out.replicas() <= 128) return out;
    return fail(ErrorCode::kInvalidArgument, "'" + text + "' is no topology such as 1p1d, 3p2d, hybrid or 2hybrid", "topology");
}

std::vector<Topology> all_topologies(uint32_t devices) {
    std::vector<Topology> out{{0, 0, devices}};
    for (uint32_t p = 1; p < devices; ++p) out.push_back({p, devices - p, 0});
    return out;
}

Simulated simulate(const BenchServeOptions& load, const LoadPlan& plan, const Topology& topology, const Rates& rates, const StepCost& cost,
                   const Overheads& overheads) {
    return World(load, plan, topology, rates, cost, overheads).run();
}

// ---- shared cores ------------------------------------------------------------------------------------------------------

SharedCores::SharedCores(const double (&beside)[2][2]) {
    for (int of = 0; of < 2; ++of)
        for (int with = 0; with < 2; ++with) beside_[of][with] = std::max(1.0, beside[of][with]);
}

void SharedCores::begin(double now_us, uint32_t who, double work_us, double prompt_share) {
    advance(now_us);
    jobs_.push_back({who, std::max(work_us, 0.0), std::clamp(prompt_share, 0.0, 1.0), 1});
    share();
}

std::pair<double, uint32_t> SharedCores::next() const {
    std::pair<double, uint32_t> first{kNoTime, 0};
    for (const Job& job : jobs_) {
        const double end_us = now_us_ + job.left_us / job.rate;
        if (end_us < first.first) first = {end_us, job.who};
    }
    return first;
}

void SharedCores::end(double now_us, uint32_t who) {
    advance(now_us);
    std::erase_if(jobs_, [who](const Job& job) { return job.who == who; });
    share();
}

void SharedCores::advance(double now_us) {
    for (Job& job : jobs_) job.left_us = std::max(0.0, job.left_us - (now_us - now_us_) * job.rate);
    now_us_ = now_us;
}

/// Every other step adds what it was measured to add beside one of that kind; a step with rows and a chunk is between the two kinds.
void SharedCores::share() {
    const auto kinds = [](double prompt_share) { return std::array{prompt_share, 1 - prompt_share}; };
    for (Job& job : jobs_) {
        double longer = 1;
        for (const Job& other : jobs_) {
            if (&other == &job) continue;
            for (size_t of = 0; of < 2; ++of)
                for (size_t with = 0; with < 2; ++with) longer += kinds(job.prompt_share)[of] * kinds(other.prompt_share)[with] * (beside_[of][with] - 1);
        }
        job.rate = 1 / longer;
    }
}

}  // namespace baton::cli::split
