#include <algorithm>

#include "baton/sched/sampler.hpp"
#include "simulation.hpp"

// A replica process around its core: inputs, steps with the simulated model, the mover's pulls, store copies.
namespace baton::pd::sim {

/// Gives the core an input, now or when the running step or a freeze is over.
void Simulation::input(const ProcessPtr& p, std::function<void()> run) {
    if (!p->alive) return;
    if (frozen(*p) || !p->inbox.empty() || (world_.input_waits_for_step && !p->steps.empty())) {
        p->inbox.push_back(std::move(run));
        return;
    }
    run();
    after_input(p);
}

void Simulation::drain_inbox(const ProcessPtr& p) {
    while (p->alive && !frozen(*p) && !p->inbox.empty()) {
        const auto run = std::move(p->inbox.front());
        p->inbox.pop_front();
        run();
        perform(p);
    }
}

void Simulation::after_input(const ProcessPtr& p) {
    perform(p);
    plan(p);
}

void Simulation::perform(const ProcessPtr& p) {
    for (Action& action : p->core->take_actions()) perform(p, action);
    if (const auto broken = p->core->check_invariants()) fail(describe(p->self) + ": " + *broken);
}

void Simulation::perform(const ProcessPtr& p, Action& action) {
    if (auto* m = std::get_if<ToSupervisor>(&action)) {
        to_supervisor(p, std::move(m->message));
    } else if (auto* peer = std::get_if<ToPeer>(&action)) {
        to_peer(p, peer->peer, std::move(peer->message));
    } else if (auto* store = std::get_if<ToStore>(&action)) {
        to_store(p, std::move(store->message));
    } else if (const auto* open = std::get_if<OpenProgress>(&action)) {
        Process::Progress& slot = p->progress.at(open->slot);
        if (slot.offer) fail(describe(p->self) + " opens a progress slot that is in use");
        slot = {open->offer, open->done_tokens};
        for (size_t i = 0; i < open->blocks.size(); ++i) p->generations.at(open->blocks[i]) = open->generations.at(i);
        wake_readers(*p);
    } else if (const auto* close = std::get_if<CloseProgress>(&action)) {
        Process::Progress& slot = p->progress.at(close->slot);
        if (slot.offer != close->offer) fail(describe(p->self) + " closes a progress slot that is not that offer's");
        slot = {};
        wake_readers(*p);
    } else if (const auto* raise = std::get_if<RaiseGenerations>(&action)) {
        for (size_t i = 0; i < raise->blocks.size(); ++i) p->generations.at(raise->blocks[i]) = raise->generations.at(i);
    } else if (const auto* order = std::get_if<StartPull>(&action)) {
        start_pull(p, *order);
    } else if (const auto* cancel = std::get_if<CancelPull>(&action)) {
        const auto found = p->pulls.find(cancel->pull);
        if (found == p->pulls.end()) return;
        // Until the mover hears of it, it goes on writing.
        in(random_.between(0, world_.cancel_ms), [this, p, pull = found->second] {
            pull->cancelled = true;
            kick(p, pull, random_.between(0, 2));
        });
    } else if (const auto* verify = std::get_if<VerifyPull>(&action)) {
        in(delay(), [this, p, id = verify->pull] { input(p, [this, p, id] { p->core->on_pull_verified(now_, id, true); }); });
    } else if (const auto* copy = std::get_if<StoreCopy>(&action)) {
        ++p->copies;
        if (!copy->to_store) ++report_.snapshots_read;
        claim(*p, copy->blocks, !copy->to_store, true);
        in(copy_pause(), [this, p, store_now = p->store, order = *copy] { store_copy(p, store_now, order, 0); });
    } else if (const auto* log = std::get_if<LogEvent>(&action)) {
        if (trace_) note("  " + describe(p->self) + " " + std::string(log->event) + " " + log->request_id + " " + log->detail);
    }
}

// ---- steps ------------------------------------------------------------------------------------------------------------

void Simulation::plan(const ProcessPtr& p) {
    if (frozen(*p)) return;
    while (p->steps.size() < world_.plans) {
        StepPlan next = p->core->plan_step(now_);
        perform(p);
        if (next.empty()) return;
        submit(p, std::move(next));
    }
}

void Simulation::submit(const ProcessPtr& p, StepPlan plan) {
    const auto step = std::make_shared<DeviceStep>();
    step->plan = std::move(plan);
    if (step->plan.tokens.size() > step_rows_max(world_.core) || step->plan.items.size() > world_.core.max_running) fail(describe(p->self) + " plans too many rows");
    for (const StepItem& item : step->plan.items) {
        step->blocks.emplace_back(item.blocks.begin(), item.blocks.end());
        step->tokens.push_back(item.sequence->prompt);
        step->tokens.back().insert(step->tokens.back().end(), item.sequence->emitted.begin(), item.sequence->emitted.end());
        const size_t known = step->tokens.back().size();
        const bool follows = item.pending == 0 ? item.position + item.tokens <= known : item.position == known && item.tokens == 1;
        if (item.pending > world_.core.steps_ahead || !follows) fail(describe(p->self) + " plans a row of a token nobody will know");
        const bool last = item.pending > 0 && sched::finish_after(*item.sequence, -1, world_.core.max_model_len) == wire::Finish::kLength;
        if (last) fail(describe(p->self) + " plans a row after the last token");
        report_.pending_rows += item.pending;
    }
    const bool idle = std::ranges::all_of(p->steps, [](const auto& other) { return other->computed; });
    p->steps.push_back(step);
    if (idle) schedule_step(p);
}

/// The device begins the oldest step that it has not computed.
void Simulation::schedule_step(const ProcessPtr& p) {
    in(random_.between(1, world_.step_ms), [this, p] { step_computed(p); });
}

/// The device goes on with the next step, whenever the host takes the result.
void Simulation::step_computed(const ProcessPtr& p) {
    if (!p->alive) return;
    if (frozen(*p)) return at(p->frozen_until, [this, p] { step_computed(p); });
    for (size_t i = 0; i < p->steps.size(); ++i) {
        DeviceStep& step = *p->steps[i];
        if (step.computed) continue;
        compute(*p, step);
        step.computed = true;
        if (world_.core.steps_ahead > 0 && i + 1 < p->steps.size()) schedule_step(p);
        break;
    }
    if (world_.core.steps_ahead == 0) return step_done(p);
    in(random_.between(0, world_.collect_ms), [this, p] { step_done(p); });
}

/// The host takes the oldest result.
void Simulation::step_done(const ProcessPtr& p) {
    if (!p->alive) return;
    if (frozen(*p)) return at(p->frozen_until, [this, p] { step_done(p); });
    const std::shared_ptr<DeviceStep> done = p->steps.front();
    p->steps.pop_front();
    if (!p->steps.empty() && world_.core.steps_ahead == 0) schedule_step(p);
    const uint64_t generated = p->core->stats().generated_tokens;
    const bool fails = faults_on() && random_.chance(world_.step_fails);
    if (fails) p->core->on_step_failed(now_, done->plan, "step_failed");
    else p->core->on_step_done(now_, done->plan, done->sampled);
    if (!fails) report_.void_rows += done->sampled.size() - (p->core->stats().generated_tokens - generated);
    perform(p);
    drain_inbox(p);
    plan(p);
}

void Simulation::compute(Process& p, DeviceStep& step) {
    for (uint32_t i = 0; i < step.plan.items.size(); ++i)
        if (!compute_item(p, step, i)) return;
}

bool Simulation::compute_item(Process& p, DeviceStep& step, uint32_t index) {
    const uint32_t n = world_.core.block_tokens;
    const StepItem& item = step.plan.items[index];
    const std::vector<BlockId>& blocks = step.blocks[index];
    const std::string name = describe(p.self) + " sequence " + std::to_string(item.ref.id.value);
    if (item.tokens == 0 || blocks.size() * n < item.position + item.tokens) return fail(name + " has rows without a block"), false;
    if (!check_rows(p, item, blocks)) return false;
    const auto row = [&](uint32_t at_position) -> uint64_t& { return p.rows.at(blocks[at_position / n] * n + at_position % n); };
    Process::LastToken& last = p.last.at(item.state);
    if (item.pending > 0 && last.handle != item.handle) return fail(name + " goes on with the token of another one"), false;
    ModelState state, undisturbed;
    for (uint32_t q = 0; q < item.position; ++q) {
        if (row(q) != undisturbed.compute(step.tokens[index].at(q))) return fail(name + " reads wrong KV at position " + std::to_string(q)), false;
        state.read(row(q));
    }
    for (uint32_t q = 0; q < item.tokens; ++q)
        row(item.position + q) = state.compute(item.pending > 0 ? last.token : step.plan.tokens.at(item.first_token + q));
    if (item.progress_slot) progress(p, *item.progress_slot, item.position + item.tokens);
    if (!item.sample) return true;
    last = {item.handle, state.next_token()};
    step.sampled.push_back({index, {last.token, 0.0f, {}}, {}});
    return true;
}

/// No mover may be at work where a step reads or writes, and readers elsewhere must know that a block is in use again.
bool Simulation::check_rows(const Process& p, const StepItem& item, std::span<const BlockId> blocks) {
    const uint32_t n = world_.core.block_tokens;
    for (uint32_t i = 0; i * n < item.position + item.tokens; ++i) {
        const BlockId block = blocks[i];
        const std::string name = describe(p.self) + " block " + std::to_string(block);
        if (p.written.at(block) > 0) return fail(name + " is computed with while a mover writes it"), false;
        if ((i + 1) * n <= item.position) continue;
        if (p.read.at(block) > 0) return fail(name + " is computed while a mover reads it"), false;
        if (p.role == Role::kPrefill && p.generations.at(block) != p.core->generation(block)) {
            return fail(name + " is written under an old generation"), false;
        }
    }
    return true;
}

/// A mover begins or ends to work on blocks; nobody else may have them to write.
void Simulation::claim(Process& p, std::span<const BlockId> blocks, bool writes, bool begins) {
    for (const BlockId block : blocks) {
        if (begins && (p.written.at(block) > 0 || (writes && p.read.at(block) > 0))) {
            fail(describe(p.self) + " block " + std::to_string(block) + " is given to two movers");
        }
        (writes ? p.written : p.read).at(block) += begins ? 1 : UINT32_MAX;
    }
    if (!begins || !writes) return;
    for (const auto& step : p.steps) {
        for (const auto& of_item : step->blocks) {
            for (const BlockId block : of_item) {
                if (std::find(blocks.begin(), blocks.end(), block) != blocks.end()) {
                    fail(describe(p.self) + " block " + std::to_string(block) + " is given to a mover during a step");
                }
            }
        }
    }
}

void Simulation::progress(Process& p, uint32_t slot, uint32_t tokens) {
    Process::Progress& word = p.progress.at(slot);
    word.tokens = std::max(word.tokens, tokens);
    wake_readers(p);
}

void Simulation::tick(const ProcessPtr& p) {
    if (!p->alive) return;
    if (!frozen(*p)) input(p, [this, p] { p->core->on_tick(now_); });
    in(100, [this, p] { tick(p); });
}

// ---- pulls --------------------------------------------------------------------------------------------------------------

int64_t Simulation::copy_pause() {
    if (world_.slow_copy_ms > 0 && random_.chance(60)) return random_.between(0, world_.slow_copy_ms);
    return random_.between(0, world_.copy_ms);
}

void Simulation::wake_readers(Process& p) {
    std::erase_if(p.readers, [](const std::weak_ptr<Pull>& r) { return r.expired(); });
    for (const auto& reader : p.readers) {
        const auto pull = reader.lock();
        const ProcessPtr owner = pull->reader.lock();
        if (owner && !pull->over) kick(owner, pull, random_.between(0, 2));
    }
}

void Simulation::start_pull(const ProcessPtr& p, const StartPull& order) {
    const auto pull = std::make_shared<Pull>();
    pull->order = order;
    pull->reader = p;
    pull->next = order.first_block;
    p->pulls[order.pull] = pull;
    claim(*p, std::span(order.target_blocks).subspan(order.first_block), true, true);
    const auto peer = p->peers.find(order.peer.replica);
    if (peer != p->peers.end() && peer->second.first == order.peer) pull->source = peer->second.second->ends[0].lock();
    if (!pull->source) return pull_over(p, pull, false, "peer_lost");
    pull->source->readers.push_back(pull);
    kick(p, pull, copy_pause());
    at(order.deadline, [this, p, pull] { kick(p, pull, 0); });
}

void Simulation::kick(const ProcessPtr& p, const std::shared_ptr<Pull>& pull, int64_t after_ms) {
    if (pull->scheduled || pull->over) return;
    pull->scheduled = true;
    in(after_ms, [this, p, pull] {
        pull->scheduled = false;
        pull_on(p, pull);
    });
}

/// Copies the next block, if it is complete at the source; checks generations when all are copied.
void Simulation::pull_on(const ProcessPtr& p, const std::shared_ptr<Pull>& pull) {
    if (!p->alive || pull->over) return;
    if (frozen(*p)) return kick(p, pull, p->frozen_until - now_);
    const StartPull& order = pull->order;
    Process& source = *pull->source;
    if (pull->cancelled) return pull_over(p, pull, false, "cancelled");
    if (now_ >= order.deadline) return pull_over(p, pull, false, "timeout");
    if (pull->lost && !world_.reads_the_dead) return pull_over(p, pull, false, "peer_lost");
    const uint32_t n = world_.core.block_tokens;
    if (pull->next >= order.source_blocks.size()) {
        bool same = true;
        for (size_t i = order.first_block; i < order.source_blocks.size(); ++i) {
            same = same && source.generations.at(order.source_blocks[i]) == order.source_generations[i];
        }
        return pull_over(p, pull, same, same ? "" : "generation");
    }
    const Process::Progress& word = source.progress.at(order.progress_slot);
    if (word.offer == order.offer) pull->progress = std::max(pull->progress, word.tokens);
    const uint32_t needed = std::min((pull->next + 1) * n, order.tokens);
    if (pull->progress < needed) {
        if (word.offer != order.offer) return pull_over(p, pull, false, "generation");
        if (pull->lost) return pull_over(p, pull, false, "peer_lost");
        return;  // woken by progress
    }
    if (faults_on() && random_.chance(world_.pull_fails)) return pull_over(p, pull, false, "transfer");
    const auto from = source.rows.begin() + order.source_blocks[pull->next] * n;
    std::copy(from, from + n, p->rows.begin() + order.target_blocks[pull->next] * n);
    ++pull->next;
    kick(p, pull, copy_pause());
}

void Simulation::pull_over(const ProcessPtr& p, const std::shared_ptr<Pull>& pull, bool ok, std::string reason) {
    pull->over = true;
    const StartPull& order = pull->order;
    claim(*p, std::span(order.target_blocks).subspan(order.first_block), true, false);
    const uint32_t n = world_.core.block_tokens;
    if (ok) {
        const auto rows = rows_of(pull->source->offered.at(order.offer));
        for (uint32_t q = order.first_block * n; q < order.tokens; ++q) {
            if (p->rows.at(order.target_blocks[q / n] * n + q % n) != rows.at(q)) {
                fail(describe(p->self) + " takes void bytes of offer " + std::to_string(order.offer.value) + " of " + describe(order.peer));
                break;
            }
        }
    }
    const uint64_t bytes = ok ? (order.source_blocks.size() - order.first_block) * n * sizeof(uint64_t) : 0;
    PullResult result{order.pull, ok, std::move(reason), bytes, "shm"};
    in(random_.between(0, 5), [this, p, result = std::move(result)] {
        input(p, [this, p, result] {
            if (trace_) note("  " + describe(p->self) + " pull " + std::to_string(result.pull) + (result.ok ? " ok" : " failed: " + result.reason));
            p->pulls.erase(result.pull);
            p->core->on_pull_done(now_, result);
        });
    });
}

void Simulation::store_copy(const ProcessPtr& p, const std::shared_ptr<Store>& store, const StoreCopy& order, uint32_t done) {
    if (!p->alive) return;
    if (frozen(*p)) return at(p->frozen_until, [this, p, store, order, done] { store_copy(p, store, order, done); });
    const bool fails = !store || (faults_on() && random_.chance(world_.pull_fails));
    if (done == order.blocks.size() || fails) {
        claim(*p, order.blocks, !order.to_store, false);
        input(p, [this, p, copy = order.copy, fails] {
            --p->copies;
            p->core->on_store_copied(now_, copy, !fails);
        });
        return;
    }
    const uint32_t n = world_.core.block_tokens;
    const auto block = p->rows.begin() + order.blocks[done] * n;
    const auto slot = store->rows.begin() + order.slots.at(done) * n;
    if (order.to_store) std::copy(block, block + n, slot);
    else std::copy(slot, slot + n, block);
    in(copy_pause(), [this, p, store, order, done] { store_copy(p, store, order, done + 1); });
}

}  // namespace baton::pd::sim
