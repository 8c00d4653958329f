#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "baton/base/digest.hpp"
#include "baton/base/ids.hpp"

namespace baton::kv {

/// Key of a complete block: SHA-256 over the key before it, `identity` for the first, and its token ids. Domain
/// separated and versioned.
[[nodiscard]] Digest block_key(const Digest& previous, std::span<const TokenId> tokens);
/// Keys of all complete blocks of `tokens`.
[[nodiscard]] std::vector<Digest> block_keys(const Digest& identity, std::span<const TokenId> tokens, uint32_t block_tokens);

/// Who holds which block slot of one KV pool: reference counts, generations, and the prefix cache (complete blocks found
/// by key, their token ids compared; unreferenced ones are kept until their slot is needed, least recently used first,
/// chain ends first). No memory, no I/O, one thread.
class BlockPool {
  public:
    BlockPool(uint32_t blocks, uint32_t block_tokens, bool prefix_cache);
    ~BlockPool();
    BlockPool(BlockPool&&) noexcept;
    BlockPool& operator=(BlockPool&&) noexcept;

    /// Takes `n` free blocks, or none. Each comes with one reference and a raised generation.
    [[nodiscard]] std::optional<std::vector<BlockId>> allocate(uint32_t n);
    /// The longest run of `keys` in the cache, each with one more reference. `tokens` are the sequence's ids.
    [[nodiscard]] std::vector<BlockId> match(std::span<const Digest> keys, std::span<const TokenId> tokens);
    /// The block now holds the KV of these tokens; later sequences may find it by key. A key already there keeps its block.
    void publish(BlockId block, const Digest& key, std::span<const TokenId> tokens);
    /// One more reference to a block that has one.
    void retain(BlockId block);
    /// Gives one reference back. With the last one the block is free, or cached where it was published.
    void release(BlockId block);
    /// Gives back one reference of each block of a sequence, last block first, so that chains lose their ends first.
    void release_all(std::span<const BlockId> blocks);
    /// Raised each time the slot is taken for new content: a reader elsewhere that finds another value than it was told
    /// has read void bytes.
    [[nodiscard]] Generation generation(BlockId block) const;
    [[nodiscard]] uint32_t references(BlockId block) const;
    /// True while later sequences may find the block by key, so that nobody may write into it.
    [[nodiscard]] bool published(BlockId block) const;

    [[nodiscard]] uint32_t available() const;  ///< free and cached-but-unreferenced
    [[nodiscard]] uint32_t free_count() const;
    [[nodiscard]] uint32_t used_count() const;    ///< referenced
    [[nodiscard]] uint32_t cached_count() const;  ///< found by key, unreferenced; free + used + cached = blocks
    [[nodiscard]] uint32_t block_tokens() const;
    [[nodiscard]] uint32_t blocks() const;
    /// The reason where an invariant is broken: counts add up, a block is in exactly one state, keys and slots agree.
    [[nodiscard]] std::optional<std::string> check_invariants() const;

    void plant_double_grant(bool on);            ///< test faults
    void plant_skip_generation_raise(bool on);

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace baton::kv
