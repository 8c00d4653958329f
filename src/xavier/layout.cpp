#include "xavier/layout.hpp"

#include <string>

#include "baton/base/digest.hpp"
#include "baton/xavier/mover.hpp"

namespace baton::xavier {
namespace {

constexpr uint32_t kLayersMax = 1024;
constexpr uint32_t kHeadsMax = 1024;
constexpr uint32_t kHeadDimMax = 4096;
constexpr uint32_t kBlockTokensMax = 1024;
constexpr uint32_t kBlocksMax = 1u << 24;
constexpr uint64_t kPoolBytesMax = uint64_t{1} << 46;
constexpr size_t kPageFormatBytesMax = 128;

Expected<void> check_range(const char* name, uint32_t value, uint32_t max) {
    if (value == 0 || value > max)
        return fail(ErrorCode::kCorrupt, std::string("KV layout: ") + name + " is " + std::to_string(value) +
                                             ", must be within 1.." + std::to_string(max));
    return {};
}

}  // namespace

Expected<void> check_layout(const kv::PoolLayout& l) {
    if (l.order != kv::PoolOrder::kBlockFirst && l.order != kv::PoolOrder::kKvFirst)
        return fail(ErrorCode::kUnsupported, "KV layout is not described: which axis blocks lie on is unknown");
    if (l.dtype > 2) return fail(ErrorCode::kUnsupported, "KV layout: unknown dtype " + std::to_string(l.dtype));
    BATON_TRY(check_range("layers", l.layers, kLayersMax));
    BATON_TRY(check_range("kv_heads", l.kv_heads, kHeadsMax));
    BATON_TRY(check_range("head_dim", l.head_dim, kHeadDimMax));
    BATON_TRY(check_range("block_tokens", l.block_tokens, kBlockTokensMax));
    BATON_TRY(check_range("blocks", l.blocks, kBlocksMax));
    // In steps: a page is below 2^34, a block below 2^45, a product of both maxima still fits.
    if (l.block_bytes() > kPoolBytesMax / l.blocks)
        return fail(ErrorCode::kCorrupt, "KV layout: the pool would be over 2^46 bytes");
    if (l.page_format.empty() || l.page_format.size() > kPageFormatBytesMax)
        return fail(ErrorCode::kCorrupt, "KV layout: page format must be 1..128 bytes long");
    return {};
}

wire::Layout to_wire(const kv::PoolLayout& l) {
    return {static_cast<uint8_t>(l.order), l.dtype, l.layers, l.kv_heads, l.head_dim, l.block_tokens, l.blocks, l.page_format};
}

Expected<kv::PoolLayout> from_wire(const wire::Layout& w) {
    kv::PoolLayout l;
    l.order = w.order <= 2 ? static_cast<kv::PoolOrder>(w.order) : kv::PoolOrder::kUndescribed;
    l.dtype = w.dtype;
    l.layers = w.layers;
    l.kv_heads = w.kv_heads;
    l.head_dim = w.head_dim;
    l.block_tokens = w.block_tokens;
    l.blocks = w.blocks;
    l.page_format = w.page_format;
    BATON_TRY(check_layout(l));
    return l;
}

uint64_t block_checksum(std::span<const std::byte> pool, const kv::PoolLayout& layout, BlockId block) {
    uint64_t sum = 0;
    for (uint32_t layer = 0; layer < layout.layers; ++layer)
        for (const bool v : {false, true})
            sum = checksum64(pool.subspan(layout.page_offset(layer, v, block), layout.page_bytes()), sum);
    return sum;
}

}  // namespace baton::xavier
