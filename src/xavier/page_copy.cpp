#include "xavier/page_copy.hpp"

#include <cstring>

#include "baton/base/check.hpp"

namespace baton::xavier {
namespace {

bool block_first(const kv::PoolLayout& layout) { return layout.order == kv::PoolOrder::kBlockFirst; }

/// Calls `run(offset in the pool, offset in packed bytes, bytes)` for each contiguous run of one block's pages.
template <class Run>
void each_run(const kv::PoolLayout& layout, uint32_t block, const Extent& e, Run run) {
    const size_t page = layout.page_bytes();
    if (block_first(layout)) return run(layout.page_offset(e.first_layer, false, block), size_t{0}, e.layers * 2 * page);
    size_t packed = 0;
    for (uint32_t layer = e.first_layer; layer < e.first_layer + e.layers; ++layer)
        for (const bool v : {false, true}) {
            run(layout.page_offset(layer, v, block), packed, page);
            packed += page;
        }
}

}  // namespace

void copy_extent(const MutableBlocks& to, const ConstBlocks& from, const Extent& e) {
    // Page by page, unless both pools keep a block together.
    const bool both = block_first(to.layout) && block_first(from.layout);
    const size_t page = to.layout.page_bytes();
    for (uint32_t i = e.first_index; i < e.first_index + e.indices; ++i) {
        if (both) {
            std::memcpy(to.pool.data() + to.layout.page_offset(e.first_layer, false, to.blocks[i]),
                        from.pool.data() + from.layout.page_offset(e.first_layer, false, from.blocks[i]), e.layers * 2 * page);
            continue;
        }
        for (uint32_t layer = e.first_layer; layer < e.first_layer + e.layers; ++layer)
            for (const bool v : {false, true})
                std::memcpy(to.pool.data() + to.layout.page_offset(layer, v, to.blocks[i]),
                            from.pool.data() + from.layout.page_offset(layer, v, from.blocks[i]), page);
    }
}

void gather_extent(std::span<std::byte> to, const ConstBlocks& from, const Extent& e) {
    const size_t stride = e.layers * 2 * from.layout.page_bytes();
    BATON_CHECK(to.size() == stride * e.indices);
    for (uint32_t i = 0; i < e.indices; ++i)
        each_run(from.layout, from.blocks[e.first_index + i], e, [&](size_t at, size_t packed, size_t bytes) {
            std::memcpy(to.data() + i * stride + packed, from.pool.data() + at, bytes);
        });
}

void scatter_extent(const MutableBlocks& to, std::span<const std::byte> from, const Extent& e) {
    const size_t stride = e.layers * 2 * to.layout.page_bytes();
    BATON_CHECK(from.size() == stride * e.indices);
    for (uint32_t i = 0; i < e.indices; ++i)
        each_run(to.layout, to.blocks[e.first_index + i], e, [&](size_t at, size_t packed, size_t bytes) {
            std::memcpy(to.pool.data() + at, from.data() + i * stride + packed, bytes);
        });
}

}  // namespace baton::xavier
