#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "baton/kv/layout.hpp"
#include "xavier/progress.hpp"

/// Where the pages of an extent lie in a pool, and copies between pools. The caller has checked that every block of the
/// lists is within its pool and that the two pools' pages are compatible.
namespace baton::xavier {

/// A pool and the blocks an extent's indices name.
struct ConstBlocks {
    std::span<const std::byte> pool;
    const kv::PoolLayout& layout;
    std::span<const uint32_t> blocks;
};
struct MutableBlocks {
    std::span<std::byte> pool;
    const kv::PoolLayout& layout;
    std::span<const uint32_t> blocks;
};

[[nodiscard]] inline uint64_t pair_bytes(const kv::PoolLayout& layout) { return uint64_t{2} * layout.page_bytes(); }

/// Pool to pool; the orders of the two may differ.
void copy_extent(const MutableBlocks& to, const ConstBlocks& from, const Extent& extent);
/// Pool to bytes in (block, layer, k|v) order, the order on the wire and in a snapshot. `to` has exactly the bytes.
void gather_extent(std::span<std::byte> to, const ConstBlocks& from, const Extent& extent);
/// The way back.
void scatter_extent(const MutableBlocks& to, std::span<const std::byte> from, const Extent& extent);

}  // namespace baton::xavier
