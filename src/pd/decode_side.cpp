/// D's side of a hand-off (docs/LIFE_OF_A_REQUEST.md, steps 6, 7 and 9): takes all blocks of an
/// offered sequence at once or refuses, has them pulled, and decodes from the token after the
/// committed ones.
#include <algorithm>

#include "baton/base/log.hpp"
#include "pd/replica_core_impl.hpp"

namespace baton::pd {

bool ReplicaCore::Impl::well_formed(const wire::Offer& m) const {
    const size_t tokens = m.sequence.prompt.size() + m.sequence.emitted.size();
    return m.offer && !m.sequence.prompt.empty() && m.tokens == tokens &&
           m.blocks.size() == blocks_for(m.tokens) && m.generations.size() == m.blocks.size() &&
           m.keys.size() == m.tokens / config.block_tokens;
}

void ReplicaCore::Impl::on_offer(TimeMs now, wire::ReplicaTarget from, const wire::Offer& m) {
    OfferId& last = peers.at(from.replica).last_offer;
    if (m.offer <= last) return;
    last = m.offer;
    const auto refuse = [&](std::string_view reason) {
        to_peer(from, wire::Busy{m.offer, std::string(reason)});
    };
    if (config.role != Role::kDecode) return refuse("role");
    if (!well_formed(m)) return refuse("malformed");
    const wire::SeqRef ref = m.sequence.ref;
    if (Leg* leg = active(ref.id); leg && leg->sequence.ref == ref) {
        if (leg->stage != Stage::kPulling || leg->takeover->source != from)
            return refuse("running");
        // P has one open offer a sequence: the one before is void.
        leg->takeover->source_knows = true;
        end(*leg, "reoffered", false);
    }
    if (!fence_in(ref)) return refuse("stale");
    if (draining) return refuse("draining");
    if (m.tokens + 1 > context) {
        fences.note(ref, true);
        send_failed(ref, ErrorCode::kContextTooLong, "context");
        return refuse("context");
    }
    std::vector<TokenId> tokens = m.sequence.prompt;
    tokens.insert(tokens.end(), m.sequence.emitted.begin(), m.sequence.emitted.end());
    std::vector<BlockId> have = pool.match(m.keys, tokens);
    if (const auto why = refusal(m, static_cast<uint32_t>(have.size())); !why.empty()) {
        pool.release_all(have);
        return refuse(why);
    }
    accept(now, from, m, std::move(have));
}

/// Why there is no room for the offer beside what runs and what it will grow to; "" where there is.
std::string_view ReplicaCore::Impl::refusal(const wire::Offer& m, uint32_t have) const {
    if (active_count() >= config.max_running) return "max_running";
    uint32_t wanted = blocks_for(m.tokens + 1) - have + growth_reserve();
    for (const auto* queue : {&recovering, &fresh}) {
        if (queue->empty()) continue;
        wanted += blocks_for(queue->front()->size());
        break;
    }
    return wanted > pool.available() ? "no_blocks" : "";
}

void ReplicaCore::Impl::accept(TimeMs now, wire::ReplicaTarget from, const wire::Offer& m,
                               std::vector<BlockId> have) {
    Leg& leg = make_leg(now, m.sequence);
    leg.stage = Stage::kPulling;
    ++pulling;
    leg.keys = m.keys;
    leg.blocks = std::move(have);
    leg.takeover = std::make_unique<Takeover>();
    Takeover& t = *leg.takeover;
    t.source = from;
    t.offer = m.offer;
    t.tokens = m.tokens;
    t.have_blocks = static_cast<uint32_t>(leg.blocks.size());
    leg.published = t.have_blocks;
    leg.computed = t.have_blocks * config.block_tokens;
    found_tokens += leg.computed;
    const auto more = pool.allocate(blocks_for(m.tokens + 1) - t.have_blocks);
    leg.blocks.insert(leg.blocks.end(), more->begin(), more->end());
    reserve_blocks(leg);
    takeovers[{from.replica, m.offer}] = &leg;
    to_peer(from, wire::Accept{m.offer, t.have_blocks});
    if (t.have_blocks == m.blocks.size()) {
        t.pull_ok = true;
        t.mover = "none";
        return;
    }
    t.pull = next_pull++;
    t.pulling = true;
    pulls[t.pull] = &leg;
    StartPull pull;
    pull.pull = t.pull;
    pull.peer = from;
    pull.offer = m.offer;
    pull.progress_slot = m.progress_slot;
    pull.tokens = m.tokens;
    pull.first_block = t.have_blocks;
    pull.source_blocks = m.blocks;
    pull.source_generations = m.generations;
    pull.target_blocks.assign(leg.blocks.begin(),
                              leg.blocks.begin() + static_cast<std::ptrdiff_t>(m.blocks.size()));
    pull.deadline = leg.deadline;
    actions.push_back(std::move(pull));
}

Leg* ReplicaCore::Impl::taking(wire::ReplicaTarget from, OfferId offer) {
    const auto it = takeovers.find({from.replica, offer});
    return it != takeovers.end() && it->second->takeover->source == from ? it->second : nullptr;
}

void ReplicaCore::Impl::on_commit(TimeMs now, wire::ReplicaTarget from, const wire::Commit& m) {
    Leg* leg = taking(from, m.offer);
    if (!leg) {  // given up before: P must not wait
        to_peer(from, wire::Release{m.offer, false});
        return;
    }
    Takeover& t = *leg->takeover;
    if (t.committed) return;
    const std::vector<TokenId>& before = leg->sequence.emitted;
    if (m.emitted.size() != before.size() + 1 ||
        !std::equal(before.begin(), before.end(), m.emitted.begin())) {
        fail(*leg, ErrorCode::kCorrupt, "commit");
        return;
    }
    t.committed = true;
    t.commit_at = now;
    t.commit_us = us(now);
    t.checksums = m.checksums;
    leg->sequence.emitted = m.emitted;
    leg->tokens.push_back(m.emitted.back());
    advance_takeover(now, *leg);
}

/// The offer is void. What P knows itself it tells the supervisor itself.
void ReplicaCore::Impl::on_withdraw(wire::ReplicaTarget from, const wire::Withdraw& m) {
    Leg* leg = taking(from, m.offer);
    if (!leg) return;
    leg->takeover->source_knows = true;
    end(*leg, "withdrawn", false);
}

void ReplicaCore::Impl::pull_done(TimeMs now, const PullResult& result) {
    const auto it = pulls.find(result.pull);
    if (it == pulls.end() || !it->second->takeover->pulling) return;
    Leg& leg = *it->second;
    Takeover& t = *leg.takeover;
    t.pulling = false;
    if (leg.dying) return reap(leg);
    t.pull_ok = result.ok;
    t.bytes = result.bytes;
    t.pull_us = result.total_us;
    t.tail_us = result.exposed_us;
    t.mover = result.mover;
    t.reason = t.timed_out ? "timeout" : result.reason;
    handoff_bytes += result.ok ? result.bytes : 0;
    if (!result.ok && t.reason == "peer_lost") return fail(leg, ErrorCode::kPeerLost, "peer_lost");
    advance_takeover(now, leg);
}

void ReplicaCore::Impl::pull_verified(TimeMs now, uint64_t pull, bool equal) {
    const auto it = pulls.find(pull);
    if (it == pulls.end() || it->second->dying) return;
    Leg& leg = *it->second;
    if (!leg.takeover->verifying) return;
    leg.takeover->verifying = false;
    leg.takeover->checksums.clear();
    leg.takeover->pull_ok = equal;
    leg.takeover->reason = "checksum";
    advance_takeover(now, leg);
}

/// Goes on as soon as the commit is here and no byte is in flight.
void ReplicaCore::Impl::advance_takeover(TimeMs now, Leg& leg) {
    Takeover& t = *leg.takeover;
    if (!t.committed || t.pulling || t.verifying) return;
    if (!t.pull_ok) return fall_back(leg, t.reason.empty() ? "transfer" : t.reason);
    if (!t.checksums.empty() && t.pull != 0) {
        const size_t offered_blocks = blocks_for(t.tokens);
        if (t.checksums.size() != offered_blocks) return fall_back(leg, "checksum");
        t.verifying = true;
        const auto first = static_cast<std::ptrdiff_t>(t.have_blocks);
        const auto last = static_cast<std::ptrdiff_t>(offered_blocks);
        actions.push_back(VerifyPull{t.pull,
                                     {leg.blocks.begin() + first, leg.blocks.begin() + last},
                                     {t.checksums.begin() + first, t.checksums.begin() + last}});
        return;
    }
    finish_load(now, leg);
}

/// All of the KV is here and proven: P may go, token after the committed ones next.
void ReplicaCore::Impl::finish_load(TimeMs now, Leg& leg) {
    const Takeover& t = *leg.takeover;
    received_tokens += t.tokens - leg.computed;
    leg.computed = t.tokens;
    leg.snapped = t.tokens / config.block_tokens;
    start_decoding(leg);
    publish_complete(leg);
    actions.push_back(LogEvent{log::kKvLoaded, leg.sequence.request_id, t.mover,
                               uint64_t{t.have_blocks} * config.block_tokens, t.bytes});
    to_peer(t.source, wire::Release{t.offer, true});
    to_supervisor(wire::HandoffDone{leg.sequence.ref, t.bytes, t.have_blocks, t.mover,
                                    us(now) - t.commit_us, t.pull_us, t.tail_us});
}

/// The bytes are void: computes what the own cache does not hold. Counted, never an error.
void ReplicaCore::Impl::fall_back(Leg& leg, std::string_view reason) {
    const Takeover& t = *leg.takeover;
    start_decoding(leg);
    to_peer(t.source, wire::Release{t.offer, false});
    to_supervisor(wire::Fallback{leg.sequence.ref, std::string(reason)});
    actions.push_back(LogEvent{log::kKvFallback, leg.sequence.request_id, std::string(reason)});
}

void ReplicaCore::Impl::start_decoding(Leg& leg) {
    takeovers.erase({leg.takeover->source.replica, leg.takeover->offer});
    --pulling;
    leg.stage = Stage::kComputing;
    running.push_back(&leg);
}

/// The leg ends while it waits for its KV: stops the pull and lets P go.
void ReplicaCore::Impl::drop_takeover(Leg& leg) {
    if (leg.stage != Stage::kPulling) return;
    Takeover& t = *leg.takeover;
    takeovers.erase({t.source.replica, t.offer});
    --pulling;
    if (t.pulling && !t.cancelled) {
        t.cancelled = true;
        actions.push_back(CancelPull{t.pull});
    }
    if (!t.source_knows) to_peer(t.source, wire::Release{t.offer, false});
}

}  // namespace baton::pd
