#include "backend/kv_pages.hpp"

#include <cstring>

#include "baton/tensor/dtype.hpp"

namespace baton::backend {

void KvPages::append(uint32_t layer, BlockId block, uint32_t position, const float* k,
                     const float* v) const {
    const size_t hd = layout_.head_dim;
    const uint32_t u = unit_of(position), capacity = unit_capacity(u);
    const size_t t = position - unit_start(u);
    for (uint32_t h = 0; h < layout_.kv_heads; ++h, k += hd, v += hd) {
        std::byte* keys = unit(layer, false, block, h, u);
        std::byte* values = unit(layer, true, block, h, u);
        if (f32()) {
            for (size_t d = 0; d < hd; ++d) std::memcpy(keys + (d * capacity + t) * 4, k + d, 4);
            std::memcpy(values + t * hd * 4, v, hd * 4);
            continue;
        }
        for (size_t d = 0; d < hd; d += 2) {
            const uint16_t pair[2] = {tensor::f32_to_bf16(k[d]), tensor::f32_to_bf16(k[d + 1])};
            std::memcpy(keys + (d * capacity + 2 * t) * 2, pair, 4);
        }
        for (size_t d = 0; d < hd; ++d) {
            const uint16_t x = tensor::f32_to_bf16(v[d]);
            std::memcpy(values + (t * hd + d) * 2, &x, 2);
        }
    }
}

}  // namespace baton::backend
