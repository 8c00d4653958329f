#include "simulation.hpp"

#include <algorithm>
#include <cstdio>

// The supervisor's side of the simulation, its clients, the faults, and what must hold.
namespace baton::pd::sim {
namespace {

constexpr int64_t kSilenceMs = 5'000;
constexpr int64_t kFarDeadlineMs = 600'000;
constexpr int64_t kEndBoundMs = 20'000;   ///< after the last fault every request has ended
constexpr int64_t kQuietBoundMs = 2'000;  ///< after the last end, and word of it, nothing is held
constexpr uint64_t kEventsMax = 2'000'000;

std::string ref_text(wire::SeqRef ref) { return std::to_string(ref.id.value) + "#" + std::to_string(ref.attempt); }

}  // namespace

uint64_t Random::next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

Simulation::Simulation(uint64_t seed, World world, bool trace)
    : seed_(seed), world_(std::move(world)), trace_(trace), random_(seed ^ 0xabcdef), clients_(seed ^ 0xc11e57), router_(world_.router) {}

/// What waits in an inbox holds its process.
Simulation::~Simulation() {
    for (const ProcessPtr& p : processes_) {
        p->inbox.clear();
        p->pulls.clear();
    }
}

void Simulation::at(TimeMs when, std::function<void()> run) { events_.push({std::max(when, now_), order_++, std::move(run)}); }

void Simulation::fail(std::string why) {
    if (trace_) note("FAILED " + why);
    if (report_.failure.empty()) report_.failure = "at " + std::to_string(now_.ms) + " ms: " + why;
}

void Simulation::note(const std::string& line) const { std::printf("%6lld %s\n", static_cast<long long>(now_.ms), line.c_str()); }

Report Simulation::run() {
    start();
    while (report_.failure.empty() && !events_.empty()) {
        Event event = std::move(const_cast<Event&>(events_.top()));
        events_.pop();
        now_ = event.at;
        event.run();
        if (++report_.events > kEventsMax) fail("never ends");
        if (report_.failure.empty() && over()) break;
    }
    report_.simulated_ms = now_.ms;
    const RouterStats stats = router_.stats();
    for (const auto& [mover, count] : stats.handoffs_by_mover) report_.handoffs += count;
    for (const auto& [mover, bytes] : stats.handoff_bytes_by_mover) report_.handoff_bytes += bytes;
    for (const auto& [reason, count] : stats.fallbacks_by_reason) report_.fallbacks += count;
    for (const auto& [reason, count] : stats.failovers_by_reason) report_.failovers += count;
    return report_;
}

void Simulation::start() {
    if (world_.store_slots > 0) store_ = std::make_shared<Store>(world_.store_slots, world_.core.block_tokens, world_.core.lease_ms);
    const auto add = [&](uint64_t first, uint32_t count, Role role) {
        for (uint32_t i = 0; i < count; ++i) {
            slots_.push_back({ReplicaId{first + i}, role, 0, nullptr});
            router_.add_replica(ReplicaId{first + i}, role);
        }
    };
    add(1, world_.prefills, Role::kPrefill);
    add(11, world_.decodes, Role::kDecode);
    add(21, world_.hybrids, Role::kHybrid);
    for (Slot& slot : slots_) spawn(slot);
    const uint32_t longest = world_.core.max_model_len - 1;
    for (uint32_t i = 0; i < world_.prompts; ++i) {
        std::vector<TokenId> tokens(1 + clients_.below(longest));
        for (TokenId& t : tokens) t = static_cast<TokenId>(clients_.below(kVocabulary));
        beginnings_.push_back(std::move(tokens));
    }
    requests_.resize(world_.requests);
    in(150, [this] { submit_next(); });
    in(world_.router_tick_ms, [this] { router_tick(); });
    if (!world_.calm) in(random_.between(100, 300), [this] { fault(); });
}

// ---- replicas -----------------------------------------------------------------------------------------------------------

void Simulation::spawn(Slot& slot) {
    const auto p = std::make_shared<Process>();
    p->self = {slot.id, Epoch{++slot.epoch}};
    p->role = slot.role;
    CoreConfig config = world_.core;
    config.self = p->self.replica;
    config.epoch = p->self.epoch;
    config.role = slot.role;
    if (slot.role == Role::kDecode) config.blocks = world_.decode_blocks;
    p->rows.assign(size_t{config.blocks} * config.block_tokens, 0xdead);
    p->generations.assign(config.blocks, 0);
    p->written.assign(config.blocks, 0);
    p->read.assign(config.blocks, 0);
    p->progress.resize(config.progress_slots);
    p->last.resize(config.max_running);
    p->core = std::make_unique<ReplicaCore>(config);
    p->core->plant(world_.planted);
    slot.process = p;
    processes_.push_back(p);
    connect_store(p);
    connect_control(p);
    connect_peers(p);
    tick(p);
}

ProcessPtr Simulation::find(wire::ReplicaTarget target) const {
    for (const Slot& slot : slots_) {
        if (slot.process && slot.process->self == target) return slot.process;
    }
    return nullptr;
}

void Simulation::kill(const ProcessPtr& p) {
    if (!p->alive) return;
    if (trace_) note("kill " + describe(p->self));
    ++report_.kills;
    break_control(p);
    while (!p->peers.empty()) {
        const auto [peer, link] = p->peers.begin()->second;
        p->peers.erase(p->peers.begin());
        const int other_end = p->role == Role::kPrefill ? 1 : 0;
        const ProcessPtr other = link->ends[other_end].lock();
        if (other) {
            notice(link, other_end, random_.between(0, world_.notice_ms), [this, other, link, self = p->self] { lose_peer(other, link, self); });
        }
    }
    p->alive = false;
    break_store(p);
    p->inbox.clear();
    p->steps.clear();
    p->pulls.clear();
    for (Slot& slot : slots_) {
        if (slot.process == p) {
            in(random_.between(20, 400), [this, &slot, p] {
                if (slot.process == p || !slot.process) spawn(slot);
            });
        }
    }
}

/// Stops every thread of the process for a while. Silence for too long is taken as death; the process, if it wakes, finds
/// its links closed and is killed.
void Simulation::freeze(const ProcessPtr& p, int64_t ms) {
    if (!p->alive || frozen(*p)) return;
    if (trace_) note("freeze " + describe(p->self) + " for " + std::to_string(ms));
    p->frozen_until = now_ + ms;
    at(p->frozen_until, [this, p] {
        if (!p->alive) return;
        drain_inbox(p);
        if (p->alive && !(world_.input_waits_for_step && !p->steps.empty())) plan(p);
    });
    if (ms > kSilenceMs) in(kSilenceMs, [this, p] { silent(p); });
}

void Simulation::silent(const ProcessPtr& p) {
    if (!p->alive) return;
    if (trace_) note("silent " + describe(p->self));
    break_control(p);
    const auto peers = p->peers;
    for (const auto& [id, peer] : peers) break_link(peer.second);
    if (random_.chance(500)) return kill(p);
    // A new process takes the slot while the old one still sleeps.
    for (Slot& slot : slots_) {
        if (slot.process == p) {
            slot.process = nullptr;
            in(random_.between(20, 400), [this, &slot] {
                if (!slot.process) spawn(slot);
            });
        }
    }
    at(p->frozen_until + random_.between(0, 50), [this, p] { kill(p); });
}

void Simulation::drain(const ProcessPtr& p, bool on) {
    if (!p->alive) return;
    if (trace_) note((on ? "drain " : "undrain ") + describe(p->self));
    router_.replica_draining(now_, p->self, on);
    to_replica(p, wire::Drain{on});
    after_router();
}

void Simulation::restart_store() {
    if (!store_) return;
    if (trace_) note("store restarts");
    store_ = std::make_shared<Store>(world_.store_slots, world_.core.block_tokens, world_.core.lease_ms);
    for (const Slot& slot : slots_) {
        if (slot.process) break_store(slot.process);
    }
}

ProcessPtr Simulation::any_process() { return slots_[random_.below(static_cast<uint32_t>(slots_.size()))].process; }

ConnectionPtr Simulation::any_link() {
    const ProcessPtr p = any_process();
    if (!p || p->peers.empty()) return nullptr;
    auto peer = p->peers.begin();
    std::advance(peer, random_.below(static_cast<uint32_t>(p->peers.size())));
    return peer->second.second;
}

void Simulation::fault() {
    if (!faults_on()) return;
    last_end_ = std::max(last_end_, now_);
    uint32_t sum = 0;
    for (const uint32_t w : world_.weights) sum += w;
    uint32_t drawn = random_.below(sum);
    uint32_t kind = 0;
    while (drawn >= world_.weights[kind]) drawn -= world_.weights[kind++];
    const ProcessPtr p = any_process();
    const ConnectionPtr link = any_link();
    switch (kind) {
        case 0: if (p) kill(p); break;
        case 1: if (p) freeze(p, random_.between(1, 400)); break;
        case 2: if (p) freeze(p, random_.between(1'000, 7'000)); break;
        case 3: if (link) break_link(link); break;
        case 4:
            if (link) {
                const int64_t ms = random_.chance(800) ? random_.between(1, 500) : random_.between(500, 7'000);
                link->stalled_until = std::max(link->stalled_until, now_ + ms);
                if (trace_) note("stall for " + std::to_string(ms));
                last_end_ = std::max(last_end_, now_ + std::min(ms, kSilenceMs));
                if (ms > kSilenceMs) in(kSilenceMs, [this, link] { break_link(link); });
            }
            break;
        case 5:
            if (p && p->alive && !frozen(*p)) {
                break_control(p);
                in(2 * world_.notice_ms + random_.between(0, 300), [this, p] {
                    if (p->alive && find(p->self) == p && !p->control->open[0] && !p->control->open[1]) connect_control(p);
                });
            }
            break;
        case 6:
            if (p) {
                drain(p, true);
                in(random_.between(1, 500), [this, p] { drain(p, false); });
            }
            break;
        case 7: restart_store(); break;
        default:
            if (p && p->alive) p->control->stalled_until = std::max(p->control->stalled_until, now_ + random_.between(1, 1'000));
    }
    after_router();
    in(random_.between(1, 2 * world_.fault_every_ms), [this] { fault(); });
}

// ---- router and clients -----------------------------------------------------------------------------------------------

void Simulation::router_tick() {
    router_.on_tick(now_);
    after_router();
    in(world_.router_tick_ms, [this] { router_tick(); });
}

void Simulation::after_router() {
    for (RouterAction& action : router_.take_actions()) {
        if (auto* send = std::get_if<SendReplica>(&action)) to_replica(find(send->to), send->message);
        else if (const auto* tokens = std::get_if<Deliver>(&action)) deliver(*tokens);
        else if (const auto* over = std::get_if<End>(&action)) end(*over);
    }
    if (const auto broken = router_.check_invariants()) fail("router: " + *broken);
}

void Simulation::submit_next() {
    const uint32_t index = next_request_++;
    Request& r = requests_[index];
    wire::Sequence& s = r.sequence;
    s.ref.id = SequenceId{index + 1};
    s.request_id = "r" + std::to_string(index + 1);
    const auto& beginning = beginnings_[clients_.below(world_.prompts)];
    const uint32_t longest = world_.core.max_model_len - 1;
    s.prompt.assign(beginning.begin(), beginning.begin() + static_cast<std::ptrdiff_t>(1 + clients_.below(static_cast<uint32_t>(beginning.size()))));
    if (clients_.chance(400)) s.prompt = beginning;
    const uint32_t extra = clients_.chance(500) ? 0 : clients_.below(6);
    for (uint32_t i = 0; i < extra && s.prompt.size() < longest; ++i) s.prompt.push_back(static_cast<TokenId>(clients_.below(kVocabulary)));
    s.sampling.max_tokens = 1 + clients_.below(clients_.chance(300) ? 40 : 12);
    r.expected = expect(s, world_.core.max_model_len);
    if (clients_.chance(300)) {
        s.sampling.stop_ids.push_back(r.expected.tokens[clients_.below(static_cast<uint32_t>(r.expected.tokens.size()))]);
        r.expected = expect(s, world_.core.max_model_len);
    }
    r.short_deadline = !world_.calm && clients_.chance(world_.deadlines);
    const TimeMs deadline = now_ + (r.short_deadline ? clients_.between(1, 1'500) : kFarDeadlineMs);
    ++report_.requests;
    if (trace_) note("submit " + std::to_string(index + 1) + " prompt " + std::to_string(s.prompt.size()) + " answer " + std::to_string(r.expected.tokens.size()));
    const auto taken = router_.submit(now_, s, deadline);
    last_end_ = std::max(last_end_, now_);
    if (!taken) {
        r.ended = true;
        ++report_.refused;
        const bool known = taken.error().code == ErrorCode::kUnavailable || taken.error().code == ErrorCode::kOverloaded;
        if (!known || world_.calm) fail("refused: " + taken.error().message);
    } else if (!world_.calm && clients_.chance(world_.aborts)) {
        in(clients_.between(0, 300), [this, id = s.ref.id] { client_abort(id); });
    }
    after_router();
    if (next_request_ < world_.requests) in(clients_.between(0, world_.arrivals_ms), [this] { submit_next(); });
}

void Simulation::client_abort(SequenceId id) {
    Request& r = requests_[id.value - 1];
    if (r.ended) return;
    if (trace_) note("abort " + std::to_string(id.value));
    r.aborted = true;
    router_.abort(now_, id, "client gone");
    after_router();
    if (!r.ended) fail("an aborted request goes on");
}

void Simulation::deliver(const Deliver& d) {
    Request& r = requests_[d.id.value - 1];
    const std::string name = "request " + std::to_string(d.id.value);
    if (r.ended) return fail(name + " gets tokens after its end");
    if (d.first_index != r.delivered) return fail(name + " misses or repeats a token");
    for (const wire::Token& t : d.tokens) {
        if (r.delivered >= r.expected.tokens.size()) return fail(name + " gets too many tokens");
        r.answer.push_back(t.id);
        if (t.id != r.expected.tokens[r.delivered]) return fail(name + " gets a wrong token at " + std::to_string(r.delivered));
        ++r.delivered;
    }
    report_.tokens += d.tokens.size();
}

void Simulation::end(const End& e) {
    Request& r = requests_[e.id.value - 1];
    const std::string name = "request " + std::to_string(e.id.value);
    if (trace_) note("end " + name + " " + (e.finish == wire::Finish::kNone ? e.error.message : "ok"));
    if (r.ended) return fail(name + " ends twice");
    r.ended = true;
    last_end_ = std::max(last_end_, now_);
    if (e.finish != wire::Finish::kNone) {
        ++report_.finished;
        report_.answers[e.id.value] = r.answer;
        if (r.delivered != r.expected.tokens.size()) return fail(name + " ends too early");
        if (e.finish != r.expected.finish) return fail(name + " ends for another reason");
        if (e.cached_tokens > r.sequence.prompt.size()) return fail(name + " says more cached tokens than it has");
        return;
    }
    if (world_.calm) return fail(name + " fails without a fault: " + e.error.message);
    switch (e.error.code) {
        case ErrorCode::kAborted:
            ++report_.aborted;
            if (!r.aborted) fail(name + " is aborted by nobody");
            break;
        case ErrorCode::kTimeout:
            ++report_.timed_out;
            if (!r.short_deadline) fail(name + " waits for its deadline");
            break;
        case ErrorCode::kUnavailable:
        case ErrorCode::kOverloaded: ++report_.failed; break;
        default: fail(name + " fails with " + std::string(to_string(e.error.code)) + ": " + e.error.message);
    }
}

// ---- what must hold at the end ------------------------------------------------------------------------------------------

/// True when all is over and nothing is held anywhere; fails when that takes too long.
bool Simulation::over() {
    if (next_request_ < world_.requests || (!world_.calm && now_.ms < world_.faults_until_ms)) return false;
    const TimeMs calm_since = std::max(last_end_, TimeMs{world_.calm ? 0 : world_.faults_until_ms});
    if (router_.in_flight() > 0) {
        if (now_ - calm_since > kEndBoundMs) {
            for (const Request& r : requests_) {
                if (!r.ended) return fail("request " + std::to_string(r.sequence.ref.id.value) + " hangs in phase " + to_string(*router_.phase_of(r.sequence.ref.id))), false;
            }
        }
        return false;
    }
    const std::string why = unrest();
    if (why.empty()) return true;
    // A long freeze may outlast the faults.
    bool frozen_one = false;
    for (const Slot& slot : slots_) frozen_one = frozen_one || !slot.process || !slot.process->alive || frozen(*slot.process);
    if (frozen_one) last_end_ = std::max(last_end_, now_);
    else if (now_ - calm_since > kQuietBoundMs + world_.notice_ms) fail("not given back: " + why);
    return false;
}

std::string Simulation::unrest() const {
    for (const Slot& slot : slots_) {
        const ProcessPtr& p = slot.process;
        if (!p || !p->alive) return "a process is away";
        const std::string name = describe(p->self);
        if (frozen(*p) || !p->inbox.empty()) return name + " sleeps";
        if (!p->steps.empty()) return name + " computes";
        if (!p->pulls.empty()) return name + " pulls";
        if (p->copies > 0) return name + " copies snapshots";
        if (!p->core->idle()) return name + " is not idle";
        const wire::ReplicaStats s = p->core->stats();
        if (s.blocks_used > 0 || s.blocks_offered > 0) return name + " holds blocks";
        if (s.running > 0 || s.waiting > 0 || s.leases > 0) return name + " counts sequences or leases";
        for (const auto& slot_word : p->progress) {
            if (slot_word.offer) return name + " has an open progress slot";
        }
    }
    if (store_) {
        const auto counts = store_->index.counts();
        if (counts.filling > 0) return "store slots are being filled by nobody";
        if (counts.leased > 0) return "store slots are leased by nobody";
    }
    return {};
}

// ---- names for the trace ----------------------------------------------------------------------------------------------

std::string describe(wire::ReplicaTarget target) {
    const uint64_t id = target.replica.value;
    const std::string role = id < 10 ? "P" : id < 20 ? "D" : "H";
    return role + std::to_string(id % 10) + "." + std::to_string(target.epoch.value);
}

std::string describe(const wire::Message& message) {
    std::string text(wire::name_of(message));
    if (const auto* m = std::get_if<wire::Prefill>(&message)) text += " " + ref_text(m->sequence.ref) + " for " + describe(m->target);
    if (const auto* m = std::get_if<wire::Run>(&message)) text += " " + ref_text(m->sequence.ref);
    if (const auto* m = std::get_if<wire::Retarget>(&message)) text += " " + ref_text(m->ref) + " to " + describe(m->target);
    if (const auto* m = std::get_if<wire::Abort>(&message)) text += " " + ref_text(m->ref);
    if (const auto* m = std::get_if<wire::TokenBatch>(&message)) {
        for (const auto& item : m->items) {
            text += " " + ref_text(item.ref) + "[" + std::to_string(item.first_index) + "+" + std::to_string(item.tokens.size()) + "]";
            if (item.finish != wire::Finish::kNone) text += "end";
        }
    }
    if (const auto* m = std::get_if<wire::TargetBusy>(&message)) text += " " + ref_text(m->ref) + " " + describe(m->target) + (m->unreachable ? " unreachable" : "");
    if (const auto* m = std::get_if<wire::HandoffDone>(&message)) text += " " + ref_text(m->ref);
    if (const auto* m = std::get_if<wire::SequenceFailed>(&message)) text += " " + ref_text(m->ref) + " " + m->reason;
    if (const auto* m = std::get_if<wire::Fallback>(&message)) text += " " + ref_text(m->ref) + " " + m->reason;
    if (const auto* m = std::get_if<wire::Offer>(&message)) text += " " + std::to_string(m->offer.value) + " of " + ref_text(m->sequence.ref) + " tokens " + std::to_string(m->tokens);
    if (const auto* m = std::get_if<wire::Accept>(&message)) text += " " + std::to_string(m->offer.value) + " has " + std::to_string(m->have_blocks);
    if (const auto* m = std::get_if<wire::Busy>(&message)) text += " " + std::to_string(m->offer.value) + " " + m->reason;
    if (const auto* m = std::get_if<wire::Commit>(&message)) text += " " + std::to_string(m->offer.value);
    if (const auto* m = std::get_if<wire::Release>(&message)) text += " " + std::to_string(m->offer.value) + (m->ok ? "" : " not ok");
    if (const auto* m = std::get_if<wire::Withdraw>(&message)) text += " " + std::to_string(m->offer.value) + " " + m->reason;
    if (const auto* m = std::get_if<wire::StoreAllot>(&message)) text += " ask " + std::to_string(m->ask) + " keys " + std::to_string(m->keys.size());
    if (const auto* m = std::get_if<wire::StoreLease>(&message)) text += " ask " + std::to_string(m->ask) + " keys " + std::to_string(m->keys.size());
    return text;
}

// ---- worlds -------------------------------------------------------------------------------------------------------------

void run_ahead(World& world, int64_t collect_ms) {
    world.core.steps_ahead = 1;
    world.plans = 2;
    world.collect_ms = collect_ms;
}

World draw_world(uint64_t seed) {
    Random random(seed);
    World w;
    if (random.chance(150)) {
        w.prefills = w.decodes = 0;
        w.hybrids = 1 + random.below(3);
    } else {
        w.prefills = 1 + random.below(3);
        w.decodes = 1 + random.below(3);
    }
    w.requests = 4 + random.below(14);
    w.prompts = random.chance(500) ? 1 + random.below(4) : 12;
    w.core.block_tokens = 2 + random.below(4);
    w.core.max_model_len = 12 + random.below(40);
    const uint32_t least = (w.core.max_model_len + w.core.block_tokens - 1) / w.core.block_tokens;
    w.core.blocks = least + random.below(random.chance(500) ? 6 : 60);
    w.decode_blocks = least + random.below(random.chance(500) ? 6 : 60);
    w.core.max_running = 1 + random.below(8);
    w.core.step_tokens = 1 + random.below(30);
    w.core.waiting_max = random.chance(200) ? 1 + random.below(4) : 64;
    w.core.progress_slots = 1 + random.below(8);
    w.core.prefix_cache = random.chance(750);
    w.core.snapshots = random.chance(500);
    w.core.snapshot_read_always = random.chance(300);
    w.core.lease_ms = random.chance(500) ? 3'000 : random.between(20, 300);
    w.store_slots = w.core.snapshots ? 1 + random.below(60) : 0;
    w.core.model_identity[0] = static_cast<uint8_t>(seed);
    w.router.waiting_max = random.chance(200) ? 1 + random.below(8) : 512;
    w.router.recovery_tokens = random.chance(500) ? 65'536 : 1 + random.below(100);
    w.router.replacement_wait_ms = seed % 3 == 0 ? 0 : 3'000;
    w.delay_ms = random.between(0, 8);
    w.step_ms = random.between(1, 12);
    w.copy_ms = random.between(0, 6);
    w.slow_copy_ms = random.chance(400) ? random.between(50, 800) : 0;
    w.router_tick_ms = random.between(10, 100);
    w.plans = 1 + random.below(2);
    w.input_waits_for_step = random.chance(500);
    w.reads_the_dead = random.chance(500);
    w.calm = random.chance(150);
    w.arrivals_ms = random.between(0, 80);
    w.faults_until_ms = random.between(400, 1'800);
    w.fault_every_ms = random.between(20, 400);
    w.cancel_ms = random.chance(700) ? 10 : random.between(20, 300);
    w.notice_ms = random.chance(600) ? 30 : random.between(50, 1'000);
    const uint32_t usual[9] = {10, 10, 1, 10, 8, 4, 4, 3, 6};
    for (size_t i = 0; i < 9; ++i) w.weights[i] = random.chance(700) ? usual[i] : 0;
    w.weights[0] += 1;
    const auto now_and_then = [&](uint32_t per_mille) { return random.chance(300) ? random.below(per_mille) : 0; };
    w.step_fails = now_and_then(60);
    w.pull_fails = now_and_then(100);
    w.replays = now_and_then(150);
    w.aborts = now_and_then(500);
    w.deadlines = now_and_then(300);
    if (w.calm) {
        w.core.waiting_max = 64;
        w.router.waiting_max = 512;
        w.replays = 0;
    }
    if (random.chance(300)) w.core.snapshot_blocks_max = 1 + random.below(6);
    if (random.chance(500)) run_ahead(w, random.chance(500) ? 0 : random.between(1, 12));
    return w;
}

}  // namespace baton::pd::sim
