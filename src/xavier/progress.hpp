#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace baton::xavier {

/// How far a prefill replica is with one sequence: all chunks before `begin` are complete, and of the positions
/// [begin, end) the layers below `layers`.
struct Progress {
    uint32_t begin = 0;
    uint32_t end = 0;
    uint32_t layers = 0;
    friend bool operator==(const Progress&, const Progress&) = default;
};

/// Pages are taken when this much is ready, or the chunk is done: a wake-up for less costs more than it hides.
inline constexpr uint64_t kCoalesceBytes = 256 * 1024;

/// One atomic word: begin in bits 0..23, end in 24..47, layers in 48..63.
[[nodiscard]] constexpr uint64_t pack(Progress p) {
    return uint64_t{p.begin} | (uint64_t{p.end} << 24) | (uint64_t{p.layers} << 48);
}
[[nodiscard]] constexpr Progress unpack(uint64_t word) {
    return {static_cast<uint32_t>(word & 0xffffff), static_cast<uint32_t>((word >> 24) & 0xffffff),
            static_cast<uint32_t>(word >> 48)};
}
inline constexpr uint32_t kProgressTokensMax = 0xffffff;

/// A rectangle of pages: K and V of `layers` layers of `indices` blocks of a list.
struct Extent {
    uint32_t first_layer = 0, layers = 0;
    uint32_t first_index = 0, indices = 0;
    [[nodiscard]] uint64_t pairs() const { return uint64_t{layers} * indices; }
    friend bool operator==(const Extent&, const Extent&) = default;
};

/// How many blocks of a list are complete: `ahead` in the layers below `ahead_layers`, `all` in every layer.
struct Ready {
    uint32_t ahead = 0;
    uint32_t ahead_layers = 0;
    uint32_t all = 0;
    [[nodiscard]] uint32_t in_layer(uint32_t layer) const { return layer < ahead_layers && ahead > all ? ahead : all; }
};

/// Complete blocks of a sequence of `tokens` positions. A block is complete in a layer when every position of it that
/// the sequence has is computed there; only such pages are ever copied, so each page is copied once.
[[nodiscard]] Ready ready_blocks(Progress progress, uint32_t tokens, uint32_t block_tokens, uint32_t layers);

/// Which pages of a list of blocks have been taken: in each layer a prefix of the list. Cuts what is ready into extents.
class ExtentCursor {
  public:
    ExtentCursor(uint32_t layers, uint32_t indices);
    /// Page pairs (K and V of one layer of one block) that are ready and not taken.
    [[nodiscard]] uint64_t pending_pairs(const Ready& ready) const;
    /// The next extent of at most `pairs_max` (≥ 1) page pairs; none when nothing is pending.
    [[nodiscard]] std::optional<Extent> next(const Ready& ready, uint64_t pairs_max) const;
    /// True when the extent lies within the list and begins, in each of its layers, where the taken ones end.
    [[nodiscard]] bool accepts(const Extent& extent) const;
    /// Marks an accepted extent as taken.
    void advance(const Extent& extent);
    [[nodiscard]] bool done() const { return left_ == 0; }
    /// Page pairs that are not taken.
    [[nodiscard]] uint64_t left() const { return left_; }

  private:
    uint32_t indices_;
    std::vector<uint32_t> next_;  ///< of each layer
    uint64_t left_;
};

}  // namespace baton::xavier
