#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace baton::tensor {

/// Element formats of weights, activations and KV. Block formats follow the GGUF layouts (docs/ENGINE.md).
enum class DType : uint8_t {
    kF32 = 0, kF16 = 1, kBF16 = 2, kQ8_0 = 3, kQ4_0 = 4, kQ4_1 = 5, kQ5_0 = 6, kQ5_1 = 7, kQ4_K = 8, kQ5_K = 9, kQ6_K = 10,
};

/// `elements` consecutive values of a row are stored in `bytes`.
struct BlockShape {
    size_t elements;
    size_t bytes;
};

[[nodiscard]] constexpr BlockShape block_shape(DType t) {
    switch (t) {
        case DType::kF32: return {1, 4};
        case DType::kF16: return {1, 2};
        case DType::kBF16: return {1, 2};
        case DType::kQ8_0: return {32, 34};    // f16 d; i8 q[32]
        case DType::kQ4_0: return {32, 18};    // f16 d; u4 q[32] - 8
        case DType::kQ4_1: return {32, 20};    // f16 d, m; u4 q[32]
        case DType::kQ5_0: return {32, 22};    // f16 d; u32 high bits; u4 q[32]; value - 16
        case DType::kQ5_1: return {32, 24};    // f16 d, m; u32 high bits; u4 q[32]
        case DType::kQ4_K: return {256, 144};  // f16 d, dmin; 6-bit scales[12]; u4 q[256]
        case DType::kQ5_K: return {256, 176};  // as Q4_K plus u8 high bits[32]
        case DType::kQ6_K: return {256, 210};  // u4 low[256]; u2 high[256]; i8 scales[16]; f16 d
    }
    return {1, 0};
}
[[nodiscard]] std::string_view to_string(DType t);
[[nodiscard]] constexpr bool is_quantized(DType t) { return t >= DType::kQ8_0; }

[[nodiscard]] inline float bf16_to_f32(uint16_t v) { return std::bit_cast<float>(static_cast<uint32_t>(v) << 16); }
/// Round to nearest even; NaN stays NaN.
[[nodiscard]] inline uint16_t f32_to_bf16(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40u);
    return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
[[nodiscard]] float f16_to_f32(uint16_t v);
[[nodiscard]] uint16_t f32_to_f16(float f);

}  // namespace baton::tensor
