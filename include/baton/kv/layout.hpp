#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace baton::kv {

/// Order of the outer axes of a KV pool. A page is one layer's K or V of one block; its inside is `page_format`.
enum class PoolOrder : uint8_t {
    kUndescribed = 0,  ///< refused at link time
    kBlockFirst = 1,   ///< [block][layer][k|v] pages: one block is one run of bytes
    kKvFirst = 2,      ///< [k|v][layer][block] pages: one layer's K is one run of bytes
};

/// Describes every byte of a KV pool, so that a peer can compute where a page lies. Travels in the link handshake.
struct PoolLayout {
    PoolOrder order = PoolOrder::kUndescribed;
    uint8_t dtype = 0;            ///< tensor::DType of the elements (bf16 or f32)
    uint32_t layers = 0;
    uint32_t kv_heads = 0;
    uint32_t head_dim = 0;
    uint32_t block_tokens = 0;    ///< tokens a block holds
    uint32_t blocks = 0;
    std::string page_format;      ///< names the order inside a page and the kernels' numerics, e.g. "cpu-avx512bf16-1"
    friend bool operator==(const PoolLayout&, const PoolLayout&) = default;

    [[nodiscard]] size_t element_bytes() const { return dtype == 0 ? 4 : 2; }
    /// Bytes of one page: block_tokens × kv_heads × head_dim elements.
    [[nodiscard]] size_t page_bytes() const {
        return static_cast<size_t>(block_tokens) * kv_heads * head_dim * element_bytes();
    }
    [[nodiscard]] size_t block_bytes() const { return page_bytes() * 2 * layers; }
    [[nodiscard]] size_t pool_bytes() const { return block_bytes() * blocks; }
    /// Byte offset in the pool of the K (`v` = false) or V page of `block` in `layer`.
    [[nodiscard]] size_t page_offset(uint32_t layer, bool v, uint32_t block) const {
        const size_t kv = v ? 1 : 0;
        if (order == PoolOrder::kKvFirst)
            return ((kv * layers + layer) * blocks + block) * page_bytes();
        return ((static_cast<size_t>(block) * layers + layer) * 2 + kv) * page_bytes();
    }
    /// True when two pools hold the same pages in the same inner format, so that pages may be copied between them;
    /// the outer order and the number of blocks may differ.
    [[nodiscard]] bool pages_compatible(const PoolLayout& o) const {
        return dtype == o.dtype && layers == o.layers && kv_heads == o.kv_heads && head_dim == o.head_dim &&
               block_tokens == o.block_tokens && page_format == o.page_format;
    }
};

}  // namespace baton::kv
