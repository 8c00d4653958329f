#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "baton/base/clock.hpp"
#include "baton/xavier/mover.hpp"

namespace baton::xavier::test {

inline const wire::ReplicaTarget kPrefill{{1}, {7}};
inline const wire::ReplicaTarget kDecode{{2}, {9}};

inline kv::PoolLayout layout_of(kv::PoolOrder order, uint32_t blocks, uint32_t layers = 3, uint32_t block_tokens = 4,
                                uint32_t head_dim = 8) {
    kv::PoolLayout l;
    l.order = order;
    l.dtype = 1;
    l.layers = layers;
    l.kv_heads = 2;
    l.head_dim = head_dim;
    l.block_tokens = block_tokens;
    l.blocks = blocks;
    l.page_format = "test-1";
    return l;
}

inline std::unique_ptr<SharedPool> make_pool(const kv::PoolLayout& layout, uint32_t slots = 8) {
    auto pool = SharedPool::create(layout, slots);
    EXPECT_TRUE(pool.has_value()) << pool.error().message;
    return std::move(*pool);
}

/// A byte of a sequence's KV that depends on everything it belongs to.
inline std::byte kv_byte(uint64_t sequence, uint32_t layer, bool v, uint32_t position, size_t offset) {
    uint64_t h = sequence * 0x9e3779b97f4a7c15ull + layer * 0xc2b2ae3d27d4eb4full + (v ? 0x165667b19e3779f9ull : 0) +
                 position * 0x27d4eb2f165667c5ull + offset;
    h ^= h >> 29;
    h *= 0xbf58476d1ce4e5b9ull;
    return static_cast<std::byte>(h >> 56);
}

inline size_t token_bytes(const kv::PoolLayout& l) { return l.page_bytes() / l.block_tokens; }

/// What the engine does for one layer of a chunk: writes K and V of positions [begin, end).
inline void write_layer(std::span<std::byte> pool, const kv::PoolLayout& l, const std::vector<BlockId>& blocks, uint64_t sequence,
                        uint32_t layer, uint32_t begin, uint32_t end) {
    const size_t bytes = token_bytes(l);
    for (uint32_t t = begin; t < end; ++t)
        for (const bool v : {false, true}) {
            auto row = pool.subspan(l.page_offset(layer, v, blocks[t / l.block_tokens]) + (t % l.block_tokens) * bytes, bytes);
            for (size_t i = 0; i < bytes; ++i) row[i] = kv_byte(sequence, layer, v, t, i);
        }
}

inline void write_layer(SharedPool& pool, const std::vector<BlockId>& blocks, uint64_t sequence, uint32_t layer,
                        uint32_t begin, uint32_t end) {
    write_layer(pool.pool(), pool.layout(), blocks, sequence, layer, begin, end);
}

/// How many bytes of positions [first, tokens) differ from what the sequence's must be.
inline size_t wrong_bytes(std::span<const std::byte> pool, const kv::PoolLayout& l, const std::vector<BlockId>& blocks,
                          uint64_t sequence, uint32_t first, uint32_t tokens) {
    const size_t bytes = token_bytes(l);
    size_t wrong = 0;
    for (uint32_t layer = 0; layer < l.layers; ++layer)
        for (const bool v : {false, true})
            for (uint32_t t = first; t < tokens; ++t) {
                const auto row =
                    pool.subspan(l.page_offset(layer, v, blocks[t / l.block_tokens]) + (t % l.block_tokens) * bytes, bytes);
                for (size_t i = 0; i < bytes; ++i) wrong += row[i] != kv_byte(sequence, layer, v, t, i) ? 1 : 0;
            }
    return wrong;
}

inline size_t wrong_bytes(SharedPool& pool, const std::vector<BlockId>& blocks, uint64_t sequence, uint32_t first, uint32_t tokens) {
    return wrong_bytes(pool.pool(), pool.layout(), blocks, sequence, first, tokens);
}

/// `n` different blocks of a pool, in random order.
inline std::vector<BlockId> some_blocks(std::mt19937& rng, uint32_t of, uint32_t n) {
    std::vector<BlockId> all(of);
    std::iota(all.begin(), all.end(), 0u);
    std::shuffle(all.begin(), all.end(), rng);
    all.resize(n);
    return all;
}

/// What a transfer thread reported.
class Reports {
  public:
    TransferThread::Callbacks callbacks() {
        return {[this](pd::PullResult r) {
                    const std::lock_guard lock(mutex_);
                    EXPECT_TRUE(pulls_.emplace(r.pull, r).second) << "pull " << r.pull << " ended twice";
                    changed_.notify_all();
                },
                [this](uint64_t pull, bool equal) {
                    const std::lock_guard lock(mutex_);
                    verified_[pull] = equal;
                    changed_.notify_all();
                },
                [this](uint64_t copy, bool ok) {
                    const std::lock_guard lock(mutex_);
                    copies_[copy] = ok;
                    changed_.notify_all();
                }};
    }
    pd::PullResult pull(uint64_t id) { return wait(pulls_, id); }
    bool verified(uint64_t id) { return wait(verified_, id); }
    bool copied(uint64_t id) { return wait(copies_, id); }
    [[nodiscard]] bool has_pull(uint64_t id) {
        const std::lock_guard lock(mutex_);
        return pulls_.contains(id);
    }

  private:
    template <class T>
    T wait(std::map<uint64_t, T>& in, uint64_t id) {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, std::chrono::seconds(120), [&] { return in.contains(id); })) {
            ADD_FAILURE() << "no report of " << id;
            return T{};
        }
        return in[id];
    }
    std::mutex mutex_;
    std::condition_variable changed_;
    std::map<uint64_t, pd::PullResult> pulls_;
    std::map<uint64_t, bool> verified_, copies_;
};


/// One offer and what the other side makes of it.
struct Handoff {
    uint64_t sequence = 0;
    pd::OpenProgress open;
    pd::StartPull pull;
};

/// An offer of `tokens` positions in random blocks, and a pull of all but the first `first_block` blocks.
inline Handoff make_handoff(std::mt19937& rng, const SharedPool& p, const SharedPool& d, uint64_t id, uint32_t slot,
                            uint32_t tokens, uint32_t first_block, Generation generation = 1) {
    const uint32_t bt = p.layout().block_tokens;
    const uint32_t n = (tokens + bt - 1) / bt;
    Handoff h;
    h.sequence = id * 1000 + 1;
    h.open = {slot, OfferId{id}, tokens, some_blocks(rng, p.layout().blocks, n), std::vector<Generation>(n, generation)};
    h.pull.pull = id;
    h.pull.peer = kPrefill;
    h.pull.offer = OfferId{id};
    h.pull.progress_slot = slot;
    h.pull.tokens = tokens;
    h.pull.first_block = first_block;
    h.pull.source_blocks = h.open.blocks;
    h.pull.source_generations = h.open.generations;
    h.pull.target_blocks = some_blocks(rng, d.layout().blocks, n);
    h.pull.deadline = steady_now() + 600'000;  // sanitizers on a busy machine
    return h;
}

}  // namespace baton::xavier::test
