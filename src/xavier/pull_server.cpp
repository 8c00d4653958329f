#include "xavier/pull_server.hpp"

#include <algorithm>

#include "baton/base/digest.hpp"
#include "baton/base/limits.hpp"
#include "baton/base/log.hpp"
#include "xavier/faults.hpp"
#include "xavier/page_copy.hpp"
#include "xavier/puller.hpp"

namespace baton::xavier {
namespace {

/// Sleep between looks at the words, or the copies, of a device.
constexpr int64_t kPollUs = 20;
/// A queued copy is looked at without sleeping for that long.
constexpr int64_t kSpinUs = 150;
/// A channel moves large extents well and small ones badly; but what goes last is waited for.
constexpr uint64_t kChannelCoalesceBytes = 16u * 1024 * 1024, kChannelCoalesceBytesLow = 4u * 1024 * 1024;
/// How often a full link is looked at again; it tells nobody when it has drained.
constexpr int64_t kBlockedLookMs = 1;

/// Indices of a request, in the offer's order and within it.
bool well_formed(const std::vector<uint32_t>& indices, size_t blocks) {
    for (size_t i = 0; i < indices.size(); ++i)
        if (indices[i] >= blocks || (i > 0 && indices[i] <= indices[i - 1])) return false;
    return true;
}

}  // namespace

PullServer::PullServer(OwnPool& own, Channels& channels, const TransferThread::Faults& faults)
    : own_(own), channels_(channels), faults_(faults), buffers_(own, std::max<size_t>(kExtentBytesMax, pair_bytes(own.layout()))) {}

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
    auto offer = own_.file().find_offer(request.offer);
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
    die_at(faults_, "serve_started");
}

void PullServer::drop(const wire::ReplicaTarget& peer) {
    for (Serving& s : serving_) {
        if (s.peer != peer) continue;
        const uint64_t all = s.blocks.size() * own_.layout().block_bytes();
        log::info("xavier.serve_lost", {{"pull", s.request.pull}, {"peer", peer.replica.value - 1}, {"left", s.left_bytes}, {"of", all}});
        let_go(s);
    }
    serving_.remove_if([&](const Serving& s) { return s.peer == peer; });
}

bool PullServer::step(TimeMs now) {
    bool worked = false;
    for (auto it = serving_.begin(); it != serving_.end();) {
        const Step did = step_one(*it, now);
        worked = did != Step::kIdle || worked;
        if (did == Step::kEnded) it = serving_.erase(it);
        else ++it;
    }
    return worked;
}

PullServer::Step PullServer::step_one(Serving& s, TimeMs now) {
    if (now < s.not_before) return Step::kIdle;
    const kv::PoolLayout& layout = own_.layout();
    const auto progress = own_.file().progress(s.offer.slot, s.offer.offer);
    if (!progress) return end_failed(s);
    const uint64_t channel = channels_.usable(s.peer);
    if (s.attempt != 0 && s.attempt != channel) return end_failed(s);  // what was under way there is lost
    if (!s.gathering.empty() && own_.settled(s.gathering.front().ticket)) return send_gathered(s, now);
    if (s.cursor.done()) return Step::kIdle;  // all of it is being gathered
    if (faults_.stall && s.left_bytes > 0) return Step::kIdle;
    if (faults_.pace_us > 0 && steady_now_us() < s.paced_until_us) return Step::kIdle;
    s.blocked = s.link->queued_bytes() >= kQueuedBytesHigh;
    if (s.blocked) {
        return now - s.last_progress <= limits::kTransferTimeoutMs ? Step::kIdle : end_failed(s);
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
    const bool chunk_done = progress->layers >= layout.layers, last_chunk = progress->end >= s.offer.tokens;
    s.near = channel != 0 && last_chunk && progress->layers + layout.layers / 8 >= layout.layers;
    const uint64_t coming = s.cursor.left() * pair - s.cursor.pending_pairs(ready) * pair;
    const uint64_t coalesce = channel == 0 ? kCoalesceBytes
                              : last_chunk ? std::clamp(coming, kChannelCoalesceBytesLow, kChannelCoalesceBytes)
                                           : kChannelCoalesceBytes;
    if (!chunk_done && s.cursor.pending_pairs(ready) * pair < coalesce) {
        s.last_progress = now;  // it is the computing that is awaited, not the link
        return Step::kIdle;
    }
    uint64_t bytes_max = channel != 0 ? channels_.extent_bytes_max(s.peer, s.cursor.left() * pair) : kExtentBytesMax;
    if (faults_.pace_us > 0) bytes_max = std::min(bytes_max, std::max(kCopySliceBytes, pair));
    const auto extent = s.cursor.next(ready, std::max<uint64_t>(bytes_max / pair, 1));
    if (!extent) {
        s.last_progress = now;
        return Step::kIdle;
    }
    if (channel != 0 && extent->pairs() * pair <= bytes_max) return start_channel(s, *extent, chunk_done && last_chunk, now);
    return own_.device() == nullptr ? send_extent(s, *extent, now) : start_gathering(s, *extent, now);
}

PullServer::Step PullServer::send_extent(Serving& s, const Extent& e, TimeMs now) {
    const kv::PoolLayout& layout = own_.layout();
    std::vector<std::byte> bytes(e.pairs() * pair_bytes(layout));
    const auto blocks = std::span(s.blocks).subspan(e.first_index, e.indices);
    const auto generations = std::span(s.generations).subspan(e.first_index, e.indices);
    const PoolFile& file = own_.file();
    bool valid = false;
    file.while_open(s.offer.offer, [&] {
        if (!file.generations_match(blocks, generations)) return;
        gather_extent(bytes, {file.bytes(), layout, s.blocks}, e);
        valid = file.generations_match(blocks, generations);
    });
    if (!valid) return end_failed(s);
    s.cursor.advance(e);
    s.last_progress = now;
    if (faults_.pace_us > 0) s.paced_until_us = steady_now_us() + faults_.pace_us;
    const bool last = s.cursor.done();
    s.left_bytes += bytes.size();
    send(s, e, std::move(bytes), last);
    left(last);
    return last ? Step::kEnded : Step::kSent;
}

void PullServer::send(Serving& s, const Extent& e, std::vector<std::byte> bytes, bool last) const {
    const wire::ExtentHeader h{s.request.pull, e.first_layer, e.layers, e.first_index, e.indices, bytes.size(), checksum64(bytes),
                               last, false};
    if (faults_.corrupt_one_byte) bytes[0] ^= std::byte{1};
    s.link->send(h, std::move(bytes));
}

/// While one extent is summed and sent the device gathers the next.
PullServer::Step PullServer::start_gathering(Serving& s, const Extent& e, TimeMs now) {
    if (s.gathering.size() >= kGatheringMax) return Step::kIdle;
    const auto buffer = buffers_.take();
    if (!buffer) return Step::kIdle;
    const auto blocks = std::span(s.blocks).subspan(e.first_index, e.indices);
    const auto ticket = own_.device()->to_host({e.first_layer, e.layers, blocks, blocks},
                                               buffers_.at(*buffer).first(e.pairs() * pair_bytes(own_.layout())));
    if (!ticket) {
        buffers_.give(*buffer, 0);
        log::error("xavier.gather_failed", {{"reason", ticket.error().message}});
        return end_failed(s);
    }
    s.cursor.advance(e);
    s.last_progress = now;
    if (faults_.pace_us > 0) s.paced_until_us = steady_now_us() + faults_.pace_us;
    s.gathering.push_back({e, false, false, *buffer, *ticket, s.cursor.done()});
    s.gathered_us = steady_now_us();
    return Step::kSent;
}

/// Extents are gathered while those before travel. Where nothing is computed for the offer any more, the send is queued behind the
/// gather on the device; before, the gather may have to wait for the computing, and nobody's kernel must spin for that.
PullServer::Step PullServer::start_channel(Serving& s, const Extent& e, bool all, TimeMs now) {
    const auto buffer = channels_.take(s.peer);
    if (!buffer) return Step::kIdle;
    const auto blocks = std::span(s.blocks).subspan(e.first_index, e.indices);
    const auto ticket = channels_.gather(s.peer, *buffer, {e.first_layer, e.layers, blocks, blocks});
    if (!ticket) {
        channels_.give(s.peer, *buffer, 0);
        log::error("xavier.gather_failed", {{"reason", ticket.error().message}});
        return end_failed(s);
    }
    s.attempt = channels_.usable(s.peer);
    s.cursor.advance(e);
    s.last_progress = now;
    if (faults_.pace_us > 0) s.paced_until_us = steady_now_us() + faults_.pace_us;
    s.gathering.push_back({e, true, false, *buffer, *ticket, s.cursor.done()});
    s.gathered_us = steady_now_us();
    // What was gathered for the link before the channel was there goes that way, and ahead of this.
    if (!all || std::any_of(s.gathering.begin(), s.gathering.end(), [](const Gathering& g) { return !g.channel; })) return Step::kSent;
    for (Gathering& g : s.gathering) {  // those before it go before it
        if (g.sent) continue;
        g.sent = true;
        channels_.send(s.peer, static_cast<uint32_t>(g.buffer), s.request.pull, g.extent, g.extent.pairs() * pair_bytes(own_.layout()), g.ticket, now);
    }
    return Step::kSent;
}

/// The blocks may have been reused while the device read them: then the bytes are void.
PullServer::Step PullServer::send_gathered(Serving& s, TimeMs now) {
    const Gathering g = s.gathering.front();
    const auto blocks = std::span(s.blocks).subspan(g.extent.first_index, g.extent.indices);
    const auto generations = std::span(s.generations).subspan(g.extent.first_index, g.extent.indices);
    if (own_.lost() || !own_.file().still_valid(s.offer.slot, s.offer.offer, blocks, generations)) return end_failed(s);
    const uint64_t bytes = g.extent.pairs() * pair_bytes(own_.layout());
    if (g.sent) {
        channels_.prove(s.peer, static_cast<uint32_t>(g.buffer));
    } else if (g.channel) {
        channels_.send(s.peer, static_cast<uint32_t>(g.buffer), s.request.pull, g.extent, bytes, 0, now);
    } else {
        const std::span<const std::byte> from = buffers_.at(g.buffer).first(bytes);
        send(s, g.extent, std::vector<std::byte>(from.begin(), from.end()), g.last);
        buffers_.give(g.buffer, g.ticket);
    }
    s.gathering.pop_front();
    s.left_bytes += bytes;
    s.last_progress = now;
    left(g.last);
    return g.last ? Step::kEnded : Step::kSent;
}

void PullServer::left(bool last) const {
    die_at(faults_, "serve_first");
    if (last) die_at(faults_, "serve_last");
}

PullServer::Step PullServer::end_failed(Serving& s) {
    send_failed(*s.link, s.request.pull);  // before anybody hears that bytes of it were sent
    let_go(s);
    return Step::kEnded;
}

void PullServer::let_go(Serving& s) {
    for (const Gathering& g : s.gathering) {
        if (!g.channel) buffers_.give(g.buffer, g.ticket);
        else if (channels_.usable(s.peer) != s.attempt) continue;
        else if (g.sent) channels_.prove(s.peer, static_cast<uint32_t>(g.buffer));
        else channels_.give(s.peer, static_cast<uint32_t>(g.buffer), g.ticket);
    }
    s.gathering.clear();
}

int64_t PullServer::poll_us() const {
    if (own_.device() == nullptr && faults_.pace_us == 0) return kNoPoll;
    const int64_t now_us = steady_now_us();
    for (const Serving& s : serving_)
        if ((!s.gathering.empty() && now_us - s.gathered_us < kSpinUs) || (s.near && !s.cursor.done() && s.gathering.empty())) return 0;
    return serving_.empty() ? kNoPoll : kPollUs;
}

void PullServer::add_doorbells(std::vector<WaitWord>& words) const {
    if (!serving_.empty()) words.push_back({own_.file().doorbell(), read_doorbell(own_.file().doorbell())});
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
