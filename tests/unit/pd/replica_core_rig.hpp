#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "baton/kv/block_pool.hpp"
#include "baton/pd/replica_core.hpp"
#include "unit/fake_model.hpp"

/// A replica core with its surroundings played by hand: steps computed by a model whose next token
/// is a function of all ids before it, and a KV pool that remembers what each row was computed
/// from, so that a wrong block shows at once.
namespace baton::pd::rig {

inline constexpr uint32_t kTokens = 4;  // a block
inline constexpr wire::ReplicaTarget kP{ReplicaId{1}, Epoch{1}};
inline constexpr wire::ReplicaTarget kD{ReplicaId{2}, Epoch{1}};
inline constexpr wire::ReplicaTarget kD2{ReplicaId{3}, Epoch{1}};

using namespace fake_model;

inline std::vector<TokenId> ids(uint32_t n, TokenId first = 0) {
    std::vector<TokenId> out(n);
    for (uint32_t i = 0; i < n; ++i) out[i] = first + static_cast<TokenId>(i);
    return out;
}

inline CoreConfig config(Role role, uint32_t blocks = 64) {
    CoreConfig c;
    c.self = (role == Role::kDecode ? kD : kP).replica;
    c.epoch = Epoch{1};
    c.role = role;
    c.model_identity = sha256("model");
    c.block_tokens = kTokens;
    c.blocks = blocks;
    c.max_model_len = 400;
    c.max_running = 8;
    c.step_tokens = 16;
    c.progress_slots = 8;
    return c;
}

template <class M>
std::vector<M> all_of(const std::vector<wire::Message>& messages) {
    std::vector<M> out;
    for (const auto& m : messages)
        if (const auto* hit = std::get_if<M>(&m)) out.push_back(*hit);
    return out;
}

class Rig {
  public:
    explicit Rig(const CoreConfig& c)
        : core(c), rows(size_t{c.blocks} * c.block_tokens, 0), generations(c.blocks, 0) {}

    /// Takes the core's actions apart; every input of a test ends with it.
    void pump() {
        for (Action& a : core.take_actions()) {
            if (auto* s = std::get_if<ToSupervisor>(&a))
                note_tokens(s->message), supervisor.push_back(std::move(s->message));
            else if (auto* p = std::get_if<ToPeer>(&a))
                peers.push_back({p->peer, std::move(p->message)});
            else if (auto* w = std::get_if<ToStore>(&a))
                store.push_back(std::move(w->message));
            else if (auto* o = std::get_if<OpenProgress>(&a))
                progress[o->slot] = *o, opened.push_back(*o);
            else if (auto* c = std::get_if<CloseProgress>(&a)) {
                EXPECT_EQ(progress.at(c->slot).offer, c->offer);
                progress.erase(c->slot);
            } else if (auto* s2 = std::get_if<StartPull>(&a))
                pulls.push_back(std::move(*s2));
            else if (auto* x = std::get_if<CancelPull>(&a))
                cancels.push_back(x->pull);
            else if (auto* v = std::get_if<VerifyPull>(&a))
                verifies.push_back(std::move(*v));
            else if (auto* k = std::get_if<StoreCopy>(&a))
                copies.push_back(std::move(*k));
            else if (auto* l = std::get_if<LogEvent>(&a))
                logs.emplace_back(l->event), log_details.push_back(l->detail);
            else if (auto* g = std::get_if<RaiseGenerations>(&a))
                for (size_t i = 0; i < g->blocks.size(); ++i) {
                    EXPECT_GT(g->generations[i], generations[g->blocks[i]]);
                    generations[g->blocks[i]] = g->generations[i];
                }
        }
        ASSERT_EQ(core.check_invariants().value_or(""), "");
    }
    void supervise(wire::Message m) {
        core.on_supervisor(now, m);
        pump();
    }
    void peer(wire::ReplicaTarget from, wire::Message m) {
        core.on_peer(now, from, m);
        pump();
    }
    void from_store(wire::Message m) {
        core.on_store(now, m);
        pump();
    }
    void link(wire::ReplicaTarget p, bool up = true) {
        if (up)
            core.on_peer_up(now, p);
        else
            core.on_peer_down(now, p);
        pump();
    }
    void pull_done(uint64_t pull, bool ok, std::string reason = "") {
        core.on_pull_done(now, {pull, ok, std::move(reason), ok ? 1000u : 0u, "shm"});
        pump();
    }
    void copied(uint64_t copy, bool ok = true) {
        core.on_store_copied(now, copy, ok);
        pump();
    }
    void tick(int64_t add_ms) {
        now = now + add_ms;
        core.on_tick(now);
        pump();
    }

    StepPlan plan() {
        StepPlan p = core.plan_step(now);
        pump();
        return p;
    }
    /// Computes the plan's rows; every row before one must hold the KV of the ids before it.
    std::vector<Sampled> compute(const StepPlan& plan) {
        std::vector<Sampled> out;
        for (uint32_t i = 0; i < plan.items.size(); ++i) {
            const StepItem& item = plan.items[i];
            uint64_t state = 0;
            const auto row = [&](uint32_t at) -> uint64_t& {
                EXPECT_LT(at / kTokens, item.blocks.size());
                return rows.at(size_t{item.blocks[at / kTokens]} * kTokens + at % kTokens);
            };
            const auto token = [&](uint32_t at) {
                const auto& s = *item.sequence;
                return at < s.prompt.size() ? s.prompt[at] : s.emitted.at(at - s.prompt.size());
            };
            for (uint32_t at = 0; at < item.position; ++at) {
                state = mix(state, token(at));
                EXPECT_EQ(row(at), state) << "wrong KV at position " << at;
            }
            for (uint32_t r = 0; r < item.tokens; ++r) {
                TokenId t = plan.tokens.at(item.first_token + r);
                if (item.pending > 0) {
                    EXPECT_EQ(last.at(item.state).first, item.handle) << "another one's token";
                    t = last.at(item.state).second;
                } else {
                    EXPECT_EQ(t, token(item.position + r));
                }
                state = mix(state, t);
                row(item.position + r) = state;
            }
            if (item.sample) {
                Sampled s;
                s.item = i;
                s.token.id = next_token(state);
                last[item.state] = {item.handle, s.token.id};
                if (verify)
                    for (const BlockId b : item.blocks) s.block_checksums.push_back(b + 7);
                out.push_back(std::move(s));
            }
        }
        return out;
    }
    void done(const StepPlan& plan) {
        for (const StepItem& item : plan.items) {
            if (!item.progress_slot) continue;
            const auto slot = progress.find(*item.progress_slot);
            if (slot != progress.end()) slot->second.done_tokens = item.position + item.tokens;
        }
        const auto sampled = compute(plan);
        core.on_step_done(now, plan, sampled);
        pump();
    }
    /// One step; false where there was nothing to do.
    bool step() {
        const StepPlan p = plan();
        if (p.empty()) return false;
        done(p);
        return true;
    }
    void run_dry(int most = 1000) {
        while (most-- > 0 && step()) {
        }
        ASSERT_GT(most, 0) << "steps without end";
    }

    /// Tokens of a sequence so far, over all attempts.
    [[nodiscard]] std::vector<TokenId> tokens(uint64_t id) const {
        std::vector<TokenId> out;
        for (const auto& [ref, mine] : tokens_)
            if (ref.id == SequenceId{id}) out.insert(out.end(), mine.begin(), mine.end());
        return out;
    }
    [[nodiscard]] wire::Finish finish(uint64_t id) const {
        const auto it = finish_.find(SequenceId{id});
        return it == finish_.end() ? wire::Finish::kNone : it->second;
    }
    template <class M>
    [[nodiscard]] std::vector<M> told() const {
        return all_of<M>(supervisor);
    }
    template <class M>
    [[nodiscard]] std::vector<M> sent() const {
        std::vector<wire::Message> only;
        for (const auto& [to, m] : peers) only.push_back(m);
        return all_of<M>(only);
    }
    template <class M>
    [[nodiscard]] std::vector<M> asked() const {
        return all_of<M>(store);
    }
    [[nodiscard]] std::string failure() const {
        const auto failed = told<wire::SequenceFailed>();
        return failed.empty() ? "" : failed.back().reason;
    }
    [[nodiscard]] bool all_free() const {
        const auto s = core.stats();
        return core.idle() && s.blocks_used == 0 && s.leases == 0 && s.blocks_offered == 0 &&
               progress.empty();
    }
    void forget() {
        supervisor.clear(), peers.clear(), store.clear(), pulls.clear(), cancels.clear(),
            logs.clear();
        verifies.clear(), copies.clear(), opened.clear(), log_details.clear();
    }

    TimeMs now{1000};
    bool verify = false;
    ReplicaCore core;
    std::vector<wire::Message> supervisor, store;
    std::vector<std::pair<wire::ReplicaTarget, wire::Message>> peers;
    std::vector<StartPull> pulls;
    std::vector<uint64_t> cancels;
    std::vector<VerifyPull> verifies;
    std::vector<StoreCopy> copies;
    std::vector<OpenProgress> opened;
    std::vector<std::string> logs, log_details;
    std::map<uint32_t, OpenProgress> progress;
    std::vector<uint64_t> rows;
    std::map<uint32_t, std::pair<uint64_t, TokenId>> last;  ///< state row: whose, and the token sampled last
    std::vector<Generation> generations;
    std::map<SequenceId, uint32_t> first_indices;  ///< where this replica's own tokens began

  private:
    void note_tokens(const wire::Message& m) {
        const auto* batch = std::get_if<wire::TokenBatch>(&m);
        if (!batch) return;
        for (const auto& item : batch->items) {
            auto& mine = tokens_[item.ref];
            first_indices.try_emplace(item.ref.id, item.first_index);
            const uint32_t first = first_of_.try_emplace(item.ref, item.first_index).first->second;
            EXPECT_EQ(item.first_index, first + mine.size()) << "a token twice, or one left out";
            EXPECT_EQ(finish_[item.ref.id], wire::Finish::kNone) << "a token after the end";
            for (const auto& t : item.tokens) mine.push_back(t.id);
            finish_[item.ref.id] = item.finish;
        }
    }
    std::map<wire::SeqRef, std::vector<TokenId>> tokens_;
    std::map<wire::SeqRef, uint32_t> first_of_;
    std::map<SequenceId, wire::Finish> finish_;
};

/// An offer as P would make it.
inline wire::Offer offer(uint64_t id, const wire::Sequence& s, uint32_t first_block = 10) {
    wire::Offer o;
    o.offer = OfferId{id};
    o.sequence = s;
    o.tokens = static_cast<uint32_t>(s.prompt.size() + s.emitted.size());
    std::vector<TokenId> tokens = s.prompt;
    tokens.insert(tokens.end(), s.emitted.begin(), s.emitted.end());
    o.keys = kv::block_keys(sha256("model"), tokens, kTokens);
    for (uint32_t b = 0; b * kTokens < o.tokens; ++b) {
        o.blocks.push_back(first_block + b);
        o.generations.push_back(1);
    }
    return o;
}

}  // namespace baton::pd::rig
