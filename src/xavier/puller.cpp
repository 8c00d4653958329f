#include "xavier/puller.hpp"

#include <algorithm>
#include <string>

#include "baton/base/digest.hpp"
#include "baton/base/limits.hpp"
#include "xavier/page_copy.hpp"

namespace baton::xavier {

Puller::Puller(SharedPool& own, const TransferThread::Callbacks& callbacks, const TransferThread::Faults& faults)
    : own_(own), callbacks_(callbacks), faults_(faults) {}

void Puller::add_source(Source source) {
    remove_source(source.peer);
    const PeerKey key = key_of(source.peer);
    sources_[key] = std::make_unique<Source>(std::move(source));
}

void Puller::remove_source(const wire::ReplicaTarget& peer) {
    const auto it = sources_.find(key_of(peer));
    if (it == sources_.end()) return;
    std::vector<uint64_t> lost;
    for (const auto& [id, pull] : pulls_)
        if (pull->source == it->second.get()) lost.push_back(id);
    for (const uint64_t id : lost) finish(id, false, "peer_lost");
    sources_.erase(it);
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
    if (source == sources_.end()) return report(ask.pull, false, "peer_lost", 0, "");
    const char* mover = source->second->view ? "shm" : "tcp";
    if (pulls_.contains(ask.pull) || why_invalid(ask, *source->second) != nullptr)
        return report(ask.pull, false, "invalid", 0, mover);
    const size_t count = ask.source_blocks.size() - ask.first_block;
    auto pull = std::make_unique<Pull>(Pull{std::move(ask), source->second.get(),
                                            ExtentCursor(own_.layout().layers, static_cast<uint32_t>(count)),
                                            {}, {}, {}, now + faults_.delay_ms, now, false, 0});
    Pull& p = *pull;
    p.from_blocks = std::span(p.ask.source_blocks).subspan(p.ask.first_block);
    p.to_blocks = std::span(p.ask.target_blocks).subspan(p.ask.first_block, count);
    p.generations = std::span(p.ask.source_generations).subspan(p.ask.first_block);
    const uint64_t id = p.ask.pull;
    pulls_[id] = std::move(pull);
    if (faults_.fail_pulls) return finish(id, false, "planted");
    if (p.cursor.done()) return finish(id, true, "");  // all of it is here already
    if (p.source->view) return;
    wire::PullRequest request{p.ask.offer, id, {}};
    for (size_t i = p.ask.first_block; i < p.ask.source_blocks.size(); ++i)
        request.block_indices.push_back(static_cast<uint32_t>(i));
    p.source->link->send(request);
}

void Puller::cancel(uint64_t pull) {
    if (pulls_.contains(pull)) finish(pull, false, "cancelled");
}

void Puller::on_extent(const wire::ReplicaTarget& peer, const wire::ExtentHeader& h, std::span<const std::byte> bytes,
                       TimeMs now) {
    const auto it = pulls_.find(h.pull);
    // Extents of a pull that is over are still on their way for a while.
    if (it == pulls_.end()) return;
    Pull& p = *it->second;
    if (key_of(p.ask.peer) != key_of(peer) || p.source->view) return;
    if (h.failed) return finish(h.pull, false, "generation");
    const Extent e{h.first_layer, h.layers, h.first_index, h.indices};
    if (!p.cursor.accepts(e) || bytes.size() != h.bytes || h.bytes != e.pairs() * pair_bytes(own_.layout()))
        return finish(h.pull, false, "invalid");
    if (checksum64(bytes) != h.checksum) return finish(h.pull, false, "checksum");
    scatter_extent({own_.pool(), own_.layout(), p.to_blocks}, bytes, e);
    p.cursor.advance(e);
    p.bytes += h.bytes;
    p.last_progress = now;
    if (p.cursor.done()) return finish(h.pull, true, "");
    if (h.last) finish(h.pull, false, "invalid");
}

bool Puller::step(TimeMs now) {
    bool worked = false;
    for (auto it = pulls_.begin(); it != pulls_.end();) {
        Pull& pull = *it->second;
        ++it;  // a pull that ends removes itself
        worked = step_one(pull, now) != Step::kIdle || worked;
    }
    return worked;
}

Puller::Step Puller::step_one(Pull& p, TimeMs now) {
    const bool stalled = p.offer_complete && now - p.last_progress > limits::kTransferTimeoutMs;
    if (now >= p.ask.deadline || stalled) {
        finish(p.ask.pull, false, "timeout");
        return Step::kEnded;
    }
    if (!p.source->view || now < p.not_before) return Step::kIdle;
    return copy_some(p, now);
}

Puller::Step Puller::copy_some(Pull& p, TimeMs now) {
    const PoolView& view = *p.source->view;
    const kv::PoolLayout& own = own_.layout();
    const auto progress = view.progress(p.ask.progress_slot, p.ask.offer);
    if (!progress) {
        finish(p.ask.pull, false, "generation");
        return Step::kEnded;
    }
    Ready ready = ready_blocks(*progress, p.ask.tokens, own.block_tokens, own.layers);
    const bool chunk_done = progress->layers >= own.layers;
    if (!p.near_told && progress->end >= p.ask.tokens && progress->layers >= own.layers - own.layers / 8) {
        p.near_told = true;
        if (callbacks_.pull_near) callbacks_.pull_near();
    }
    if (!p.offer_complete && chunk_done && progress->end >= p.ask.tokens) {
        p.offer_complete = true;
        p.last_progress = now;
    }
    ready.ahead -= std::min(ready.ahead, p.ask.first_block);
    ready.all -= std::min(ready.all, p.ask.first_block);
    const uint64_t pair = pair_bytes(own);
    if (!chunk_done && p.cursor.pending_pairs(ready) * pair < kCoalesceBytes) return Step::kIdle;
    const auto extent = p.cursor.next(ready, std::max<uint64_t>(kCopySliceBytes / pair, 1));
    if (!extent) return Step::kIdle;
    copy_extent({own_.pool(), own, p.to_blocks}, {view.pool(), view.layout(), p.from_blocks}, *extent);
    p.cursor.advance(*extent);
    p.bytes += extent->pairs() * pair;
    p.last_progress = now;
    if (!p.cursor.done()) return Step::kCopied;
    const bool valid = view.still_valid(p.ask.progress_slot, p.ask.offer, p.from_blocks, p.generations);
    finish(p.ask.pull, valid, valid ? "" : "generation");
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

void Puller::fail_all(std::string_view reason) {
    while (!pulls_.empty()) finish(pulls_.begin()->first, false, reason);
}

void Puller::finish(uint64_t id, bool ok, std::string_view reason) {
    const auto it = pulls_.find(id);
    const auto pull = std::move(it->second);
    pulls_.erase(it);
    if (ok && faults_.corrupt_one_byte && !pull->to_blocks.empty())
        own_.pool()[own_.layout().page_offset(0, false, pull->to_blocks[0])] ^= std::byte{1};
    report(id, ok, reason, pull->bytes, pull->source->view ? "shm" : "tcp");
}

void Puller::report(uint64_t pull, bool ok, std::string_view reason, uint64_t bytes, const char* mover) {
    if (callbacks_.pull_done) callbacks_.pull_done({pull, ok, std::string(reason), bytes, mover});
}

}  // namespace baton::xavier
