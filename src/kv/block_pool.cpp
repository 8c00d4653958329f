#include "baton/kv/block_pool.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "baton/base/check.hpp"

namespace baton::kv {
namespace {

constexpr std::string_view kKeyDomain = "baton.block.1";

constexpr uint32_t kKeysReservedMax = 1 << 20;

}  // namespace

Digest block_key(const Digest& previous, std::span<const TokenId> tokens) {
    // domain ‖ previous key ‖ u32 count ‖ u32 ids, little-endian
    static_assert(std::endian::native == std::endian::little && sizeof(TokenId) == 4);
    std::vector<std::byte> bytes(kKeyDomain.size() + previous.size() + 4 + tokens.size_bytes());
    std::byte* at = bytes.data();
    const auto put = [&at](const void* from, size_t size) {
        if (size > 0) std::memcpy(at, from, size);
        at += size;
    };
    const auto count = static_cast<uint32_t>(tokens.size());
    put(kKeyDomain.data(), kKeyDomain.size());
    put(previous.data(), previous.size());
    put(&count, sizeof count);
    put(tokens.data(), tokens.size_bytes());
    return sha256(bytes);
}

std::vector<Digest> block_keys(const Digest& identity, std::span<const TokenId> tokens,
                               uint32_t block_tokens) {
    BATON_CHECK(block_tokens > 0);
    std::vector<Digest> keys;
    keys.reserve(tokens.size() / block_tokens);
    const Digest* previous = &identity;
    for (size_t at = 0; at + block_tokens <= tokens.size(); at += block_tokens) {
        keys.push_back(block_key(*previous, tokens.subspan(at, block_tokens)));
        previous = &keys.back();
    }
    return keys;
}

/// A slot is in exactly one state: free (on the stack), used (referenced), or cached (published,
/// unreferenced, on the list from least to most recently used).
struct BlockPool::Impl {
    struct Slot {
        uint32_t references = 0;
        Generation generation = 0;
        bool published = false;
        BlockId older = kNoBlock, newer = kNoBlock;  // neighbours on the cached list
        Digest key{};
    };

    Impl(uint32_t blocks, uint32_t block_tokens_in, bool prefix_cache_in)
        : block_tokens(block_tokens_in), prefix_cache(prefix_cache_in), slots(blocks) {
        BATON_CHECK(block_tokens > 0);
        if (prefix_cache) {
            tokens.resize(static_cast<size_t>(blocks) * block_tokens);
            by_key.reserve(std::min(blocks, kKeysReservedMax));  // no step shall wait for a rehash
        }
        free.reserve(blocks);
        for (uint32_t b = blocks; b > 0; --b) free.push_back(b - 1);
    }

    [[nodiscard]] std::span<TokenId> tokens_of(BlockId b) {
        return std::span(tokens).subspan(static_cast<size_t>(b) * block_tokens, block_tokens);
    }

    void link_newest(BlockId b) {
        Slot& s = slots[b];
        s.older = newest;
        s.newer = kNoBlock;
        (newest == kNoBlock ? oldest : slots[newest].newer) = b;
        newest = b;
        ++cached;
    }
    void unlink(BlockId b) {
        Slot& s = slots[b];
        (s.older == kNoBlock ? oldest : slots[s.older].newer) = s.newer;
        (s.newer == kNoBlock ? newest : slots[s.newer].older) = s.older;
        s.older = s.newer = kNoBlock;
        --cached;
    }

    BlockId take_one() {
        BlockId b = kNoBlock;
        if (!free.empty()) {
            b = free.back();
            free.pop_back();
        } else {
            b = oldest;
            unlink(b);
            by_key.erase(slots[b].key);
            slots[b].published = false;
        }
        Slot& s = slots[b];
        s.references = 1;
        if (s.generation == 0 || !skip_generation_raise) {
            if (++s.generation == 0) s.generation = 1;
        }
        return b;
    }

    /// Planted fault: a block somebody holds already.
    [[nodiscard]] BlockId any_private() const {
        for (BlockId b = 0; b < slots.size(); ++b)
            if (slots[b].references == 1 && !slots[b].published) return b;
        return kNoBlock;
    }

    uint32_t block_tokens;
    bool prefix_cache;
    std::vector<Slot> slots;
    std::vector<TokenId> tokens;  // [blocks, block_tokens] of published blocks
    std::vector<BlockId> free;
    std::unordered_map<Digest, BlockId> by_key;
    BlockId oldest = kNoBlock, newest = kNoBlock;
    uint32_t cached = 0;
    bool double_grant = false;
    bool skip_generation_raise = false;
};

BlockPool::BlockPool(uint32_t blocks, uint32_t block_tokens, bool prefix_cache)
    : impl_(std::make_unique<Impl>(blocks, block_tokens, prefix_cache)) {}
BlockPool::~BlockPool() = default;
BlockPool::BlockPool(BlockPool&&) noexcept = default;
BlockPool& BlockPool::operator=(BlockPool&&) noexcept = default;

std::optional<std::vector<BlockId>> BlockPool::allocate(uint32_t n) {
    if (n > available()) return std::nullopt;
    std::vector<BlockId> out;
    out.reserve(n);
    const BlockId shared = impl_->double_grant && n > 0 ? impl_->any_private() : kNoBlock;
    if (shared != kNoBlock) {
        ++impl_->slots[shared].references;
        out.push_back(shared);
    }
    while (out.size() < n) out.push_back(impl_->take_one());
    return out;
}

std::vector<BlockId> BlockPool::match(std::span<const Digest> keys,
                                      std::span<const TokenId> tokens) {
    std::vector<BlockId> out;
    const size_t bt = impl_->block_tokens;
    for (size_t i = 0; i < keys.size() && (i + 1) * bt <= tokens.size(); ++i) {
        const auto found = impl_->by_key.find(keys[i]);
        if (found == impl_->by_key.end()) break;
        const BlockId b = found->second;
        if (!std::ranges::equal(impl_->tokens_of(b), tokens.subspan(i * bt, bt))) break;
        if (impl_->slots[b].references++ == 0) impl_->unlink(b);
        out.push_back(b);
    }
    return out;
}

void BlockPool::publish(BlockId block, const Digest& key, std::span<const TokenId> tokens) {
    Impl::Slot& s = impl_->slots[block];
    BATON_CHECK(s.references > 0 && tokens.size() == impl_->block_tokens);
    if (!impl_->prefix_cache || s.published) return;
    if (!impl_->by_key.emplace(key, block).second) return;
    s.published = true;
    s.key = key;
    std::ranges::copy(tokens, impl_->tokens_of(block).begin());
}

void BlockPool::retain(BlockId block) {
    BATON_CHECK(impl_->slots[block].references > 0);
    ++impl_->slots[block].references;
}

void BlockPool::release(BlockId block) {
    Impl::Slot& s = impl_->slots[block];
    BATON_CHECK(s.references > 0);
    if (--s.references > 0) return;
    if (s.published)
        impl_->link_newest(block);
    else
        impl_->free.push_back(block);
}

void BlockPool::release_all(std::span<const BlockId> blocks) {
    for (size_t i = blocks.size(); i > 0; --i) release(blocks[i - 1]);
}

Generation BlockPool::generation(BlockId block) const {
    return impl_->slots[block].generation;
}
uint32_t BlockPool::references(BlockId block) const {
    return impl_->slots[block].references;
}
bool BlockPool::published(BlockId block) const {
    return impl_->slots[block].published;
}

uint32_t BlockPool::available() const {
    return free_count() + impl_->cached;
}
uint32_t BlockPool::free_count() const {
    return static_cast<uint32_t>(impl_->free.size());
}
uint32_t BlockPool::used_count() const {
    return blocks() - available();
}
uint32_t BlockPool::cached_count() const {
    return impl_->cached;
}
uint32_t BlockPool::block_tokens() const {
    return impl_->block_tokens;
}
uint32_t BlockPool::blocks() const {
    return static_cast<uint32_t>(impl_->slots.size());
}

std::optional<std::string> BlockPool::check_invariants() const {
    enum : uint8_t { kUnseen, kFree, kCached };
    std::vector<uint8_t> seen(impl_->slots.size(), kUnseen);
    for (const BlockId b : impl_->free) {
        if (seen[b] != kUnseen) return "block " + std::to_string(b) + " is free twice";
        seen[b] = kFree;
    }
    uint32_t listed = 0;
    BlockId older = kNoBlock;
    for (BlockId b = impl_->oldest; b != kNoBlock; older = b, b = impl_->slots[b].newer) {
        if (seen[b] != kUnseen) return "cached block " + std::to_string(b) + " is listed twice";
        if (impl_->slots[b].older != older) return "cached list is broken at " + std::to_string(b);
        seen[b] = kCached;
        ++listed;
    }
    if (older != impl_->newest || listed != impl_->cached) return "cached list and count differ";
    size_t published = 0;
    for (BlockId b = 0; b < impl_->slots.size(); ++b) {
        const Impl::Slot& s = impl_->slots[b];
        const std::string name = "block " + std::to_string(b);
        published += s.published ? 1 : 0;
        if ((s.references > 0) != (seen[b] == kUnseen)) return name + " is in two states or none";
        if (seen[b] == kFree && s.published) return name + " is free and published";
        if (seen[b] == kCached && !s.published) return name + " is cached but not published";
        if (s.references > 0 && s.generation == 0) return name + " is used at generation 0";
        if (s.published) {
            const auto found = impl_->by_key.find(s.key);
            if (found == impl_->by_key.end() || found->second != b) return name + " lost its key";
        }
    }
    if (published != impl_->by_key.size()) return "keys and published blocks differ";
    return std::nullopt;
}

void BlockPool::plant_double_grant(bool on) {
    impl_->double_grant = on;
}
void BlockPool::plant_skip_generation_raise(bool on) {
    impl_->skip_generation_raise = on;
}

}  // namespace baton::kv
