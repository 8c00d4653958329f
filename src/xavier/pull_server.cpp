#include "xavier/pull_server.hpp"

#include <algorithm>

#include "baton/base/digest.hpp"
#include "baton/base/limits.hpp"
#include "xavier/page_copy.hpp"
#include "xavier/puller.hpp"

namespace baton::xavier {
namespace {

/// How often a full link is looked at again; it tells nobody when it has drained.
constexpr int64_t kBlockedLookMs = 1;

/// Indices of a request, in the offer's order and within it.
bool well_formed(const std::vector<uint32_t>& indices, size_t blocks) {
    for (size_t i = 0; i < indices.size(); ++i)
        if (indices[i] >= blocks || (i > 0 && indices[i] <= indices[i - 1])) return false;
    return true;
}

}  // namespace

PullServer::PullServer(const PoolFile& own, const TransferThread::Faults& faults) : own_(own), faults_(faults) {}

void PullServer::send_failed(net::Connection& link, uint64_t pull) {
    wire::ExtentHeader h;
    h.pull = pull;
    h.last = true;
    h.failed = true;
    link.send(h);
}

void PullServer::request(const wire::ReplicaTarget& peer, wire::PullRequest request, std::shared_ptr<net::Connection> link,
                         TimeMs now) {
    const bool twice = std::any_of(serving_.begin(), serving_.end(), [&](const Serving& s) {
        return s.request.pull == request.pull && s.peer == peer;
    });
    if (twice) return;
    auto offer = own_.find_offer(request.offer);
    if (!offer || request.block_indices.empty() || !well_formed(request.block_indices, offer->blocks.size()) ||
        serving_.size() >= kRequestsMax)
        return send_failed(*link, request.pull);
    const auto count = static_cast<uint32_t>(request.block_indices.size());
    Serving s{peer, std::move(request), std::move(link), std::move(*offer), {}, {}, ExtentCursor(own_.layout().layers, count),
              now + faults_.delay_ms, now};
    for (const uint32_t i : s.request.block_indices) {
        s.blocks.push_back(s.offer.blocks[i]);
        s.generations.push_back(s.offer.generations[i]);
    }
    serving_.push_back(std::move(s));
}

void PullServer::drop(const wire::ReplicaTarget& peer) {
    serving_.remove_if([&](const Serving& s) { return s.peer == peer; });
}

bool PullServer::step(TimeMs now) {
    bool worked = false;
    for (auto it = serving_.begin(); it != serving_.end();) {
        const Step did = step_one(*it, now);
        worked = did != Step::kIdle || worked;
        it = did == Step::kEnded ? serving_.erase(it) : std::next(it);
    }
    return worked;
}

PullServer::Step PullServer::step_one(Serving& s, TimeMs now) {
    if (now < s.not_before) return Step::kIdle;
    const kv::PoolLayout& layout = own_.layout();
    const auto progress = own_.progress(s.offer.slot, s.offer.offer);
    if (!progress) {
        send_failed(*s.link, s.request.pull);
        return Step::kEnded;
    }
    s.blocked = s.link->queued_bytes() >= kQueuedBytesHigh;
    if (s.blocked) {
        if (now - s.last_progress <= limits::kTransferTimeoutMs) return Step::kIdle;
        send_failed(*s.link, s.request.pull);
        return Step::kEnded;
    }
    Ready ready = ready_blocks(*progress, s.offer.tokens, layout.block_tokens, layout.layers);
    // From blocks of the offer to positions in the request.
    const auto& indices = s.request.block_indices;
    const auto to_position = [&](uint32_t blocks) {
        return static_cast<uint32_t>(std::lower_bound(indices.begin(), indices.end(), blocks) - indices.begin());
    };
    ready.ahead = to_position(ready.ahead);
    ready.all = to_position(ready.all);
    const uint64_t pair = pair_bytes(layout);
    const bool chunk_done = progress->layers >= layout.layers;
    if (!chunk_done && s.cursor.pending_pairs(ready) * pair < kCoalesceBytes) {
        s.last_progress = now;  // it is the computing that is awaited, not the link
        return Step::kIdle;
    }
    const auto extent = s.cursor.next(ready, std::max<uint64_t>(kExtentBytesMax / pair, 1));
    if (!extent) {
        s.last_progress = now;
        return Step::kIdle;
    }
    return send_extent(s, *extent, now);
}

PullServer::Step PullServer::send_extent(Serving& s, const Extent& e, TimeMs now) {
    const kv::PoolLayout& layout = own_.layout();
    std::vector<std::byte> bytes(e.pairs() * pair_bytes(layout));
    const auto blocks = std::span(s.blocks).subspan(e.first_index, e.indices);
    const auto generations = std::span(s.generations).subspan(e.first_index, e.indices);
    bool valid = false;
    own_.while_open(s.offer.offer, [&] {
        if (!own_.generations_match(blocks, generations)) return;
        gather_extent(bytes, {own_.bytes(), layout, s.blocks}, e);
        valid = own_.generations_match(blocks, generations);
    });
    if (!valid) {
        send_failed(*s.link, s.request.pull);
        return Step::kEnded;
    }
    s.cursor.advance(e);
    s.last_progress = now;
    wire::ExtentHeader h{s.request.pull, e.first_layer, e.layers, e.first_index, e.indices, bytes.size(), checksum64(bytes),
                         s.cursor.done(), false};
    if (faults_.corrupt_one_byte) bytes[0] ^= std::byte{1};
    s.link->send(h, std::move(bytes));
    return h.last ? Step::kEnded : Step::kSent;
}

void PullServer::add_doorbells(std::vector<WaitWord>& words) const {
    if (!serving_.empty()) words.push_back({own_.doorbell(), read_doorbell(own_.doorbell())});
}

TimeMs PullServer::next_look(TimeMs now) const {
    TimeMs next = kNever;
    for (const Serving& s : serving_) {
        if (s.not_before > now) next = std::min(next, s.not_before);
        if (s.blocked) next = std::min(next, now + kBlockedLookMs);
    }
    return next;
}

}  // namespace baton::xavier
