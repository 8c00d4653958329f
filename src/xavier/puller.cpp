#include "xavier/puller.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "baton/base/digest.hpp"
#include "baton/base/limits.hpp"
#include "baton/base/log.hpp"
#include "xavier/faults.hpp"
#include "xavier/page_copy.hpp"

namespace baton::xavier {
namespace {

/// Sleep between looks at the words of a device's pool, and at long copies.
constexpr int64_t kPollUs = 15;
/// A queued copy is looked at without sleeping for that long.
constexpr int64_t kSpinUs = 150;

}  // namespace

Puller::Puller(OwnPool& own, const TransferThread::Callbacks& callbacks, const TransferThread::Faults& faults)
    : own_(own), callbacks_(callbacks), faults_(faults), buffers_(own, std::max<size_t>(kExtentBytesMax, pair_bytes(own.layout()))) {}

Puller::~Puller() {
    for (auto& [key, source] : sources_) gone_.push_back(std::move(source));
    for (const auto& source : gone_)
        if (source->device_peer != 0) own_.device()->unmap(source->device_peer);
}

void Puller::add_source(Source source) {
    remove_source(source.peer);
    const PeerKey key = key_of(source.peer);
    sources_[key] = std::make_unique<Source>(std::move(source));
}

void Puller::remove_source(const wire::ReplicaTarget& peer) {
    const auto it = sources_.find(key_of(peer));
    if (it == sources_.end()) return;
    std::vector<Pull*> lost;
    for (const auto& [id, pull] : pulls_)
        if (pull->source == it->second.get()) lost.push_back(pull.get());
    for (Pull* pull : lost) finish(*pull, false, "peer_lost");
    gone_.push_back(std::move(it->second));
    sources_.erase(it);
    let_go_of_sources();
}

/// A mapping stays while copies from it are under way; those of a dead peer's pool end like any other.
void Puller::let_go_of_sources() {
    std::erase_if(gone_, [&](const auto& source) {
        if (source->pulls != 0) return false;
        if (source->device_peer != 0) own_.device()->unmap(source->device_peer);
        return true;
    });
}

/// What makes a pull impossible; the lists come from a peer's offer.
const char* Puller::why_invalid(const pd::StartPull& ask, const Source& source) const {
    const kv::PoolLayout& own = own_.layout();
    if (ask.tokens == 0 || ask.tokens > kProgressTokensMax) return "tokens";
    const size_t blocks = (ask.tokens + own.block_tokens - 1) / own.block_tokens;
    if (ask.source_blocks.size() != blocks || ask.source_generations.size() != blocks || ask.target_blocks.size() < blocks)
        return "counts";
    if (ask.first_block > blocks) return "first block";
    if (source.view && ask.progress_slot >= source.view->progress_slots()) return "slot";
    const auto within = [](const std::vector<uint32_t>& list, uint32_t limit) {
        return std::all_of(list.begin(), list.end(), [&](uint32_t b) { return b < limit; });
    };
    if (!within(ask.source_blocks, source.layout.blocks) || !within(ask.target_blocks, own.blocks)) return "blocks";
    return nullptr;
}

void Puller::start(pd::StartPull ask, TimeMs now) {
    const auto source = sources_.find(key_of(ask.peer));
    if (source == sources_.end()) return report({ask.pull, false, "peer_lost", 0, ""});
    if (pulls_.contains(ask.pull) || why_invalid(ask, *source->second) != nullptr)
        return report({ask.pull, false, "invalid", 0, source->second->mover()});
    const size_t count = ask.source_blocks.size() - ask.first_block;
    auto pull = std::make_unique<Pull>(Pull{std::move(ask), source->second.get(),
                                            ExtentCursor(own_.layout().layers, static_cast<uint32_t>(count)),
                                            {}, {}, {}, now + faults_.delay_ms, now, steady_now_us()});
    Pull& p = *pull;
    p.from_blocks = std::span(p.ask.source_blocks).subspan(p.ask.first_block);
    p.to_blocks = std::span(p.ask.target_blocks).subspan(p.ask.first_block, count);
    p.generations = std::span(p.ask.source_generations).subspan(p.ask.first_block);
    pulls_[p.ask.pull] = std::move(pull);
    ++p.source->pulls;
    log::event(faults_.pace_us > 0 ? log::Level::kInfo : log::Level::kDebug, "xavier.pull_started",
               {{"pull", p.ask.pull}, {"peer", p.ask.peer.replica.value - 1}, {"mover", p.source->mover()}, {"bytes", bytes_of(p)}});
    die_at(faults_, "pull_started");
    if (faults_.fail_pulls) return finish(p, false, "planted");
    if (p.cursor.done()) return finish(p, true, "");  // all of it is here already
    if (p.source->view) return;
    wire::PullRequest request{p.ask.offer, p.ask.pull, {}};
    for (size_t i = p.ask.first_block; i < p.ask.source_blocks.size(); ++i)
        request.block_indices.push_back(static_cast<uint32_t>(i));
    p.source->link->send(request);
}

void Puller::cancel(uint64_t pull) {
    if (const auto it = pulls_.find(pull); it != pulls_.end()) finish(*it->second, false, "cancelled");
}

void Puller::on_extent(const wire::ReplicaTarget& peer, const wire::ExtentHeader& h, std::vector<std::byte> bytes, TimeMs now) {
    const auto it = pulls_.find(h.pull);
    // Extents of a pull that is over are still on their way for a while.
    if (it == pulls_.end()) return;
    Pull& p = *it->second;
    if (key_of(p.ask.peer) != key_of(peer) || p.source->view) return;
    if (h.failed) return finish(p, false, "generation");  // also where all has been announced: it may not be proven
    if (p.end) return;
    const Extent e{h.first_layer, h.layers, h.first_index, h.indices};
    if (!p.cursor.accepts(e) || bytes.size() != h.bytes || h.bytes != e.pairs() * pair_bytes(own_.layout()))
        return finish(p, false, "invalid");
    if (checksum64(bytes) != h.checksum) return finish(p, false, "checksum");
    if (own_.device() == nullptr) {
        scatter_extent({own_.file().pool(), own_.layout(), p.to_blocks}, bytes, e);
    } else if (bytes.size() > std::max<size_t>(kExtentBytesMax, pair_bytes(own_.layout()))) {
        return finish(p, false, "invalid");
    } else {
        held_bytes_ += bytes.size();
        p.arrivals.push_back({e, std::move(bytes)});
    }
    took(p, e, now);
    if (p.cursor.done()) return finish(p, true, "");
    if (h.last) finish(p, false, "invalid");
}

bool Puller::accept_channel(const wire::ReplicaTarget& peer, const wire::ChannelExtent& m, TimeMs now) {
    const auto it = pulls_.find(m.pull);
    if (it == pulls_.end() || it->second->end) return false;
    Pull& p = *it->second;
    if (key_of(p.ask.peer) != key_of(peer) || p.source->view) return false;
    const Extent e{m.first_layer, m.layers, m.first_index, m.indices};
    if (!p.cursor.accepts(e) || m.bytes != e.pairs() * pair_bytes(own_.layout())) {
        finish(p, false, "invalid");
        return false;
    }
    p.by_channel = true;
    ++p.on_channel;
    p.on_channel_bytes += m.bytes;
    took(p, e, now);
    if (p.bytes >= bytes_of(p) - bytes_of(p) / 8) tell_near(p);
    if (p.cursor.done()) finish(p, true, "");
    return true;
}

uint64_t Puller::load_channel(uint64_t pull, const Extent& e, backend::DeviceLink& channel, uint32_t buffer) {
    const auto it = pulls_.find(pull);
    if (it == pulls_.end() || it->second->on_channel == 0 || (it->second->end && !it->second->end->ok)) return 0;
    Pull& p = *it->second;
    const auto to = p.to_blocks.subspan(e.first_index, e.indices);
    const auto ticket = channel.scatter(buffer, {e.first_layer, e.layers, to, to});
    if (!ticket) {
        log::error("xavier.pull_failed", {{"reason", ticket.error().message}});
        finish(p, false, "channel");
        return 0;
    }
    p.ticket = *ticket;
    p.queued_us = steady_now_us();
    return *ticket;
}

void Puller::prove_channel(uint64_t pull, const Extent& e) {
    const auto it = pulls_.find(pull);
    if (it == pulls_.end() || it->second->on_channel == 0) return;
    --it->second->on_channel;
    it->second->on_channel_bytes -= e.pairs() * pair_bytes(own_.layout());
}

void Puller::lose_channel(uint64_t pull) {
    if (const auto it = pulls_.find(pull); it != pulls_.end()) finish(*it->second, false, "channel");
}

uint64_t Puller::bytes_of(const Pull& p) const { return p.from_blocks.size() * own_.layout().block_bytes(); }

void Puller::took(Pull& p, const Extent& e, TimeMs now) {
    const uint64_t all = bytes_of(p);
    if (p.bytes == 0) die_at(faults_, "pull_first");
    if (p.bytes < all / 2 && p.bytes + e.pairs() * pair_bytes(own_.layout()) >= all / 2) die_at(faults_, "pull_half");
    p.cursor.advance(e);
    p.bytes += e.pairs() * pair_bytes(own_.layout());
    p.last_progress = now;
    if (faults_.pace_us > 0) p.paced_until_us = steady_now_us() + faults_.pace_us;
}

bool Puller::step(TimeMs now) {
    bool worked = false;
    for (auto it = pulls_.begin(); it != pulls_.end();) {
        Pull& pull = *it->second;
        ++it;  // a pull that ends removes itself
        worked = step_one(pull, now) != Step::kIdle || worked;
    }
    if (!gone_.empty()) let_go_of_sources();
    return worked;
}

Puller::Step Puller::step_one(Pull& p, TimeMs now) {
    if (!p.arrivals.empty()) {
        if (const Step s = load_some(p); s != Step::kIdle) return s;
    }
    if (p.end) return conclude(p) ? Step::kEnded : Step::kIdle;
    const bool stalled = p.offer_complete && now - p.last_progress > limits::kTransferTimeoutMs;
    if (now >= p.ask.deadline || stalled) {
        finish(p, false, "timeout");
        return Step::kEnded;
    }
    if (!p.source->view || now < p.not_before) return Step::kIdle;
    if (faults_.stall && p.bytes > 0) return Step::kIdle;
    if (faults_.pace_us > 0 && steady_now_us() < p.paced_until_us) return Step::kIdle;
    return p.source->device_peer != 0 ? queue_some(p, now) : copy_some(p, now);
}

std::optional<Extent> Puller::look(Pull& p, TimeMs now, uint64_t coalesce_bytes, uint64_t bytes_max) {
    const kv::PoolLayout& own = own_.layout();
    const auto progress = p.source->view->progress(p.ask.progress_slot, p.ask.offer);
    if (!progress) {
        finish(p, false, "generation");
        return std::nullopt;
    }
    Ready ready = ready_blocks(*progress, p.ask.tokens, own.block_tokens, own.layers);
    const bool chunk_done = progress->layers >= own.layers;
    if (progress->end >= p.ask.tokens && progress->layers >= own.layers - own.layers / 8) tell_near(p);
    if (!p.offer_complete && chunk_done && progress->end >= p.ask.tokens) {
        p.offer_complete = true;
        p.last_progress = now;
        p.complete_us = steady_now_us();
    }
    ready.ahead -= std::min(ready.ahead, p.ask.first_block);
    ready.all -= std::min(ready.all, p.ask.first_block);
    const uint64_t pair = pair_bytes(own);
    if (!chunk_done && p.cursor.pending_pairs(ready) * pair < coalesce_bytes) return std::nullopt;
    return p.cursor.next(ready, std::max<uint64_t>(bytes_max / pair, 1));
}

void Puller::tell_near(Pull& p) {
    if (!std::exchange(p.near_told, true) && callbacks_.pull_near) callbacks_.pull_near();
}

Puller::Step Puller::copy_some(Pull& p, TimeMs now) {
    const uint64_t id = p.ask.pull;
    const auto extent = look(p, now, kCoalesceBytes, kCopySliceBytes);
    if (!extent) return pulls_.contains(id) ? Step::kIdle : Step::kEnded;
    const PoolView& view = *p.source->view;
    copy_extent({own_.file().pool(), own_.layout(), p.to_blocks}, {view.pool(), view.layout(), p.from_blocks}, *extent);
    took(p, *extent, now);
    if (!p.cursor.done()) return Step::kCopied;
    finish(p, true, "");
    return Step::kEnded;
}

/// One kernel for all that is ready: K and V pages of some layers of some blocks.
Puller::Step Puller::queue_some(Pull& p, TimeMs now) {
    const uint64_t id = p.ask.pull;
    const auto e = look(p, now, kDeviceCoalesceBytes, faults_.pace_us > 0 ? kCopySliceBytes : kDevicePullBytes);
    if (!e) return pulls_.contains(id) ? Step::kIdle : Step::kEnded;
    const auto ticket = own_.device()->pull(p.source->device_peer, {e->first_layer, e->layers, p.from_blocks.subspan(e->first_index, e->indices),
                                                                    p.to_blocks.subspan(e->first_index, e->indices)});
    if (!ticket) {
        log::error("xavier.pull_failed", {{"reason", ticket.error().message}});
        finish(p, false, "internal");
        return Step::kEnded;
    }
    p.ticket = *ticket;
    p.queued_us = steady_now_us();
    took(p, *e, now);
    if (!p.cursor.done()) return Step::kCopied;
    finish(p, true, "");
    return Step::kEnded;
}

/// Arrived extents go to the device by way of pinned buffers.
Puller::Step Puller::load_some(Pull& p) {
    const auto buffer = buffers_.take();
    if (!buffer) return Step::kIdle;
    const Arrival& a = p.arrivals.front();
    const std::span<std::byte> bytes = buffers_.at(*buffer).first(a.bytes.size());
    std::copy(a.bytes.begin(), a.bytes.end(), bytes.begin());
    const auto to = p.to_blocks.subspan(a.extent.first_index, a.extent.indices);
    const auto ticket = own_.device()->from_host({a.extent.first_layer, a.extent.layers, to, to}, bytes);
    buffers_.give(*buffer, ticket ? *ticket : 0);
    held_bytes_ -= a.bytes.size();
    p.arrivals.pop_front();
    if (ticket) {
        p.host_ticket = *ticket;
        p.queued_us = steady_now_us();
        return Step::kCopied;
    }
    log::error("xavier.pull_failed", {{"reason", ticket.error().message}});
    finish(p, false, "internal");
    return Step::kEnded;
}

void Puller::add_doorbells(std::vector<WaitWord>& words) const {
    std::vector<const Source*> waiting;
    for (const auto& [id, pull] : pulls_)
        if (pull->source->view && std::find(waiting.begin(), waiting.end(), pull->source) == waiting.end())
            waiting.push_back(pull->source);
    for (const Source* s : waiting) words.push_back({s->view->doorbell(), read_doorbell(s->view->doorbell())});
}

TimeMs Puller::next_look(TimeMs now) const {
    TimeMs next = kNever;
    for (const auto& [id, p] : pulls_) {
        next = std::min(next, p->ask.deadline);
        if (p->not_before > now) next = std::min(next, p->not_before);
        if (p->offer_complete) next = std::min(next, p->last_progress + limits::kTransferTimeoutMs + 1);
    }
    return next;
}

int64_t Puller::poll_us() {
    int64_t sleep = kNoPoll;
    if (own_.device() == nullptr && faults_.pace_us == 0) return sleep;
    const int64_t now_us = steady_now_us();
    for (const auto& [id, p] : pulls_) {
        const bool idle = settled(*p);
        if (idle ? p->end && p->on_channel == 0 && p->arrivals.empty() : now_us - p->queued_us < kSpinUs) return 0;  // it can be concluded, or soon
        if (!idle || p->end || p->source->device_peer != 0 || faults_.pace_us > 0) sleep = kPollUs;
    }
    return sleep;
}

void Puller::fail_all(std::string_view reason) {
    std::vector<Pull*> all;
    for (const auto& [id, pull] : pulls_) all.push_back(pull.get());
    for (Pull* pull : all) finish(*pull, false, reason);
    while (!pulls_.empty()) {
        std::this_thread::sleep_for(std::chrono::microseconds(kPollUs));
        for (auto it = pulls_.begin(); it != pulls_.end();) conclude(*(it++)->second);
    }
}

void Puller::finish(Pull& p, bool ok, std::string_view reason) {
    // What goes wrong while the last copies are under way still counts.
    if (!p.end || p.end->ok) p.end = End{ok, std::string(reason)};
    if (!p.end->ok) {
        for (const Arrival& a : p.arrivals) held_bytes_ -= a.bytes.size();
        p.arrivals.clear();
    }
    conclude(p);
}

bool Puller::conclude(Pull& p) {
    if (!p.arrivals.empty() || !settled(p) || (p.end->ok && p.on_channel > 0)) return false;
    if (p.end->ok) die_at(faults_, "pull_copied");
    End end = std::move(*p.end);
    if (end.ok && own_.lost() && (p.ticket != 0 || p.host_ticket != 0)) end = {false, "internal"};
    if (end.ok && p.source->view && p.bytes > 0 &&
        !p.source->view->still_valid(p.ask.progress_slot, p.ask.offer, p.from_blocks, p.generations))
        end = {false, "generation"};
    if (end.ok && faults_.corrupt_one_byte && !p.to_blocks.empty()) own_.corrupt(p.to_blocks[0]);
    if (!end.ok)
        log::info("xavier.pull_lost", {{"pull", p.ask.pull}, {"peer", p.ask.peer.replica.value - 1}, {"mover", mover_of(p)}, {"reason", end.reason},
                                       {"bytes", p.bytes - p.on_channel_bytes}, {"of", bytes_of(p)}});
    const int64_t now_us = steady_now_us();
    pd::PullResult result{p.ask.pull, end.ok, std::move(end.reason), p.bytes, mover_of(p)};
    result.total_us = now_us - p.started_us;
    result.exposed_us = p.complete_us == 0 ? -1 : now_us - p.complete_us;
    --p.source->pulls;
    pulls_.erase(p.ask.pull);
    report(std::move(result));
    return true;
}

void Puller::report(pd::PullResult result) {
    if (callbacks_.pull_done) callbacks_.pull_done(std::move(result));
}

}  // namespace baton::xavier
