#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/kernels.hpp"
#include "baton/base/ids.hpp"
#include "baton/kv/layout.hpp"

namespace baton::backend {

/// Where keys and values lie in the pool. A page is [kv_head]; inside a head, tokens form units of
/// 16 (the last unit of a block may be shorter). K of a unit is [head_dim / 2][tokens][2] in bf16
/// or [head_dim][tokens] in f32, so that one vector holds one coordinate of 16 tokens; V is
/// [token][head_dim].
class KvPages {
  public:
    KvPages(const kv::PoolLayout& layout, std::byte* pool)
        : layout_(layout),
          pool_(pool),
          units_((layout.block_tokens + kUnitTokens - 1) / kUnitTokens) {}

    [[nodiscard]] const kv::PoolLayout& layout() const { return layout_; }
    [[nodiscard]] bool f32() const { return layout_.element_bytes() == 4; }
    [[nodiscard]] uint32_t units_per_block() const { return units_; }
    /// First position of unit `u` of a sequence, and how many tokens it can hold.
    [[nodiscard]] uint32_t unit_start(uint32_t u) const {
        return u / units_ * layout_.block_tokens + u % units_ * kUnitTokens;
    }
    [[nodiscard]] uint32_t unit_capacity(uint32_t u) const {
        return std::min(kUnitTokens, layout_.block_tokens - u % units_ * kUnitTokens);
    }
    /// The unit of a sequence that holds `position`.
    [[nodiscard]] uint32_t unit_of(uint32_t position) const {
        return position / layout_.block_tokens * units_ +
               position % layout_.block_tokens / kUnitTokens;
    }
    /// Start of unit `u` in the K page (`v` = false) or V page of `block`.
    [[nodiscard]] std::byte* unit(uint32_t layer, bool v, BlockId block, uint32_t head,
                                  uint32_t u) const {
        const size_t token = size_t{head} * layout_.block_tokens + u % units_ * kUnitTokens;
        return pool_ + layout_.page_offset(layer, v, block) +
               token * layout_.head_dim * layout_.element_bytes();
    }
    /// Writes one token's keys and values [kv_heads, head_dim] at `position` of a sequence, which
    /// `block` holds.
    void append(uint32_t layer, BlockId block, uint32_t position, const float* k,
                const float* v) const;

  private:
    kv::PoolLayout layout_;
    std::byte* pool_;
    uint32_t units_;
};

}  // namespace baton::backend
