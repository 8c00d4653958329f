#include <algorithm>

#include "simulation.hpp"

// Links of the simulation: streams that keep their order, break as a whole, stall, and are told of late.
namespace baton::pd::sim {
int64_t Simulation::delay() { return random_.between(0, world_.delay_ms); }

/// Brings something to end `to`, after all that was sent there before.
void Simulation::transmit(const ConnectionPtr& link, int to, std::function<void()> run) {
    if (link->broken) return;
    const TimeMs when = std::max({now_ + delay(), link->last[to], link->stalled_until});
    link->last[to] = when;
    at(when, [link, to, run = std::move(run)] {
        if (link->open[to]) run();
    });
}

/// That end sees the link closed: what was still on its way to it is lost.
void Simulation::notice(const ConnectionPtr& link, int end, int64_t after_ms, std::function<void()> run) {
    link->broken = true;
    in(after_ms, [link, end, run = std::move(run)] {
        if (!link->open[end]) return;
        link->open[end] = false;
        run();
    });
}

// ---- supervisor ↔ replica -----------------------------------------------------------------------------------------

void Simulation::connect_control(const ProcessPtr& p) {
    const auto link = std::make_shared<Connection>();
    p->control = link;
    transmit(link, 0, [this, p] {
        if (!p->alive) return;
        if (trace_) note("up " + describe(p->self));
        router_.replica_up(now_, p->self);
        after_router();
    });
    tell_links(p);
}

void Simulation::break_control(const ProcessPtr& p) {
    const ConnectionPtr link = p->control;
    if (link->broken) return;
    notice(link, 0, random_.between(0, world_.notice_ms), [this, p] {
        if (trace_) note("down " + describe(p->self));
        router_.replica_expected(now_, p->self.replica, true);
        router_.replica_down(now_, p->self);
        after_router();
    });
    notice(link, 1, random_.between(0, world_.notice_ms), [this, p] {
        input(p, [this, p] { p->core->on_supervisor_lost(now_); });
    });
}

void Simulation::to_replica(const ProcessPtr& p, const wire::Message& message) {
    if (!p || !p->control->open[0]) return;
    auto run = [this, p, message] {
        input(p, [this, p, message] {
            if (trace_) note("  supervisor → " + describe(p->self) + " " + describe(message));
            p->core->on_supervisor(now_, message);
        });
    };
    const bool replay = random_.chance(world_.replays) && !std::holds_alternative<wire::Drain>(message);
    if (replay) in(random_.between(1, 200), [this, link = p->control, run] { transmit(link, 1, run); });
    transmit(p->control, 1, std::move(run));
}

void Simulation::to_supervisor(const ProcessPtr& p, wire::Message message) {
    if (!p->control->open[1]) return;
    auto run = [this, p, message = std::move(message)] {
        if (trace_) note("  " + describe(p->self) + " → router " + describe(message));
        router_.on_message(now_, p->self, message);
        after_router();
    };
    if (random_.chance(world_.replays)) in(random_.between(1, 200), [this, link = p->control, run] { transmit(link, 0, run); });
    transmit(p->control, 0, std::move(run));
}

void Simulation::tell_link(const ProcessPtr& p, wire::ReplicaTarget peer, bool up) {
    if (!p->alive || !p->control || !p->control->open[1]) return;
    transmit(p->control, 0, [this, p, peer, up] {
        router_.link_state(now_, p->self, peer, up);
        after_router();
    });
}

void Simulation::tell_links(const ProcessPtr& p) {
    for (const auto& [id, peer] : p->peers) tell_link(p, peer.first, true);
}

// ---- P ↔ D ----------------------------------------------------------------------------------------------------------

void Simulation::connect_peers(const ProcessPtr& p) {
    for (const Slot& slot : slots_) {
        if (!slot.process || slot.role == p->role || p->role == Role::kHybrid) continue;
        const ProcessPtr other = slot.process;
        in(random_.between(1, 60), [this, p, other] {
            if (p->role == Role::kPrefill) connect_pair(p, other);
            else connect_pair(other, p);
        });
    }
}

/// D is up after P, on the same stream, so nothing of P can come before.
void Simulation::connect_pair(const ProcessPtr& prefill, const ProcessPtr& decode) {
    if (!prefill->alive || !decode->alive) return;
    const auto old = prefill->peers.find(decode->self.replica);
    if (old != prefill->peers.end() && old->second.first == decode->self) return;  // is up
    const auto other = decode->peers.find(prefill->self.replica);
    if (frozen(*prefill) || frozen(*decode) || (other != decode->peers.end() && other->second.first == prefill->self)) {
        in(random_.between(20, 100), [this, prefill, decode] { connect_pair(prefill, decode); });
        return;
    }
    const auto link = std::make_shared<Connection>();
    link->ends[0] = prefill;
    link->ends[1] = decode;
    prefill->peers[decode->self.replica] = {decode->self, link};
    decode->peers[prefill->self.replica] = {prefill->self, link};
    if (trace_) note("link " + describe(prefill->self) + " " + describe(decode->self));
    input(prefill, [this, prefill, peer = decode->self] {
        prefill->core->on_peer_up(now_, peer);
        tell_link(prefill, peer, true);
    });
    transmit(link, 1, [this, decode, peer = prefill->self] {
        input(decode, [this, decode, peer] {
            decode->core->on_peer_up(now_, peer);
            tell_link(decode, peer, true);
        });
    });
}

/// Both ends see the break, each in its time.
void Simulation::break_link(const ConnectionPtr& link) {
    const ProcessPtr prefill = link->ends[0].lock();
    const ProcessPtr decode = link->ends[1].lock();
    if (!prefill || !decode || link->broken) return;
    if (trace_) note("break " + describe(prefill->self) + " " + describe(decode->self));
    notice(link, 0, random_.between(0, world_.notice_ms), [this, prefill, link, peer = decode->self] { lose_peer(prefill, link, peer); });
    notice(link, 1, random_.between(0, world_.notice_ms), [this, decode, link, peer = prefill->self] { lose_peer(decode, link, peer); });
    in(world_.notice_ms + random_.between(0, 500), [this, prefill, decode] { connect_pair(prefill, decode); });
}

void Simulation::lose_peer(const ProcessPtr& p, const ConnectionPtr& link, wire::ReplicaTarget peer) {
    if (!p->alive) return;
    const auto at_peer = p->peers.find(peer.replica);
    if (at_peer != p->peers.end() && at_peer->second.second == link) p->peers.erase(at_peer);
    for (const auto& [id, pull] : p->pulls) {
        if (pull->order.peer != peer) continue;
        pull->lost = true;
        kick(p, pull, random_.between(0, 10));
    }
    input(p, [this, p, peer] {
        if (trace_) note("  " + describe(p->self) + " lost " + describe(peer));
        p->core->on_peer_down(now_, peer);
    });
    tell_link(p, peer, false);
}

void Simulation::to_peer(const ProcessPtr& p, wire::ReplicaTarget peer, wire::Message message) {
    if (const auto* offer = std::get_if<wire::Offer>(&message)) {
        std::vector<TokenId>& tokens = p->offered[offer->offer];
        tokens = offer->sequence.prompt;
        tokens.insert(tokens.end(), offer->sequence.emitted.begin(), offer->sequence.emitted.end());
        tokens.resize(offer->tokens);
    }
    const auto at_peer = p->peers.find(peer.replica);
    if (at_peer == p->peers.end() || at_peer->second.first != peer) return;
    const ConnectionPtr link = at_peer->second.second;
    const int end = p->role == Role::kPrefill ? 1 : 0;
    const ProcessPtr other = link->ends[end].lock();
    if (!other || !link->open[1 - end]) return;
    auto run = [this, other, from = p->self, message = std::move(message)] {
        input(other, [this, other, from, message] {
            if (trace_) note("  " + describe(from) + " → " + describe(other->self) + " " + describe(message));
            other->core->on_peer(now_, from, message);
        });
    };
    if (random_.chance(world_.replays)) in(random_.between(1, 200), [this, link, end, run] { transmit(link, end, run); });
    transmit(link, end, std::move(run));
}

// ---- replica ↔ store ------------------------------------------------------------------------------------------------

void Simulation::connect_store(const ProcessPtr& p) {
    if (!store_ || !p->alive) return;
    p->store = store_;
    p->store_link = std::make_shared<Connection>();
    p->store_owner = next_owner_++;
    transmit(p->store_link, 1, [this, p] {
        input(p, [this, p] { p->core->on_store_up(now_, true); });
    });
}

/// The worker ended, or the replica did.
void Simulation::break_store(const ProcessPtr& p) {
    if (!p->store_link) return;
    const ConnectionPtr link = p->store_link;
    notice(link, 0, random_.between(0, world_.notice_ms), [this, store = p->store, owner = p->store_owner] { store->index.owner_gone(now_, owner); });
    notice(link, 1, random_.between(0, world_.notice_ms), [this, p] {
        input(p, [this, p] { p->core->on_store_up(now_, false); });
        in(random_.between(10, 300), [this, p] { connect_store(p); });
    });
}

void Simulation::to_store(const ProcessPtr& p, wire::Message message) {
    if (!p->store_link || !p->store_link->open[1]) return;
    transmit(p->store_link, 0, [this, p, store = p->store, link = p->store_link, owner = p->store_owner, message = std::move(message)] {
        if (trace_) note("  " + describe(p->self) + " → store " + describe(message));
        store_request(p, store, link, owner, message);
        if (const auto broken = store->index.check_invariants()) fail("store: " + *broken);
    });
}

void Simulation::store_request(const ProcessPtr& p, const std::shared_ptr<Store>& store, const ConnectionPtr& link, uint64_t owner,
                               const wire::Message& m) {
    std::optional<wire::StoreSlots> answer;
    if (const auto* allot = std::get_if<wire::StoreAllot>(&m)) {
        answer = wire::StoreSlots{allot->ask, store->index.allot(now_, owner, allot->keys)};
    } else if (const auto* lease = std::get_if<wire::StoreLease>(&m)) {
        answer = wire::StoreSlots{lease->ask, store->index.lease(now_, owner, lease->keys)};
    } else if (const auto* publish = std::get_if<wire::StorePublish>(&m)) {
        store->index.publish(now_, owner, publish->slots, publish->ok);
    } else if (const auto* unlease = std::get_if<wire::StoreUnlease>(&m)) {
        store->index.unlease(now_, owner, unlease->slots);
    } else {
        fail("a message the store does not know: " + describe(m));
    }
    if (!answer) return;
    transmit(link, 1, [this, p, answer = *answer] {
        input(p, [this, p, answer] { p->core->on_store(now_, answer); });
    });
}

}  // namespace baton::pd::sim
