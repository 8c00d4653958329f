// Dequantisation of GGUF block formats, one block at a time, in f32 with the operations in the
// order the format defines (scale product first, then the element, then the offset), so that
// results are exact to the bit.
#include <array>
#include <cstring>

#include "baton/base/check.hpp"
#include "baton/tensor/view.hpp"

namespace baton::tensor {
namespace {

using Bytes = const std::byte*;

uint32_t u8(Bytes p) {
    return std::to_integer<uint32_t>(*p);
}
int32_t i8(Bytes p) {
    return static_cast<int8_t>(std::to_integer<uint8_t>(*p));
}

uint16_t u16(Bytes p) {
    uint16_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

uint32_t u32(Bytes p) {
    uint32_t v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

float half(Bytes p) {
    return f16_to_f32(u16(p));
}

/// Element `j` of 32 packed as 16 bytes: elements 0-15 are the low nibbles, 16-31 the high ones.
uint32_t nibble32(Bytes q, size_t j) {
    return j < 16 ? u8(q + j) & 15u : u8(q + j - 16) >> 4;
}

void block_q8_0(Bytes b, float* out) {
    const float d = half(b);
    for (size_t j = 0; j < 32; ++j) out[j] = static_cast<float>(i8(b + 2 + j)) * d;
}

void block_q4_0(Bytes b, float* out) {
    const float d = half(b);
    for (size_t j = 0; j < 32; ++j) {
        out[j] = static_cast<float>(static_cast<int32_t>(nibble32(b + 2, j)) - 8) * d;
    }
}

void block_q4_1(Bytes b, float* out) {
    const float d = half(b);
    const float m = half(b + 2);
    for (size_t j = 0; j < 32; ++j) out[j] = static_cast<float>(nibble32(b + 4, j)) * d + m;
}

void block_q5_0(Bytes b, float* out) {
    const float d = half(b);
    const uint32_t high = u32(b + 2);
    for (size_t j = 0; j < 32; ++j) {
        const uint32_t q = nibble32(b + 6, j) | (((high >> j) & 1u) << 4);
        out[j] = static_cast<float>(static_cast<int32_t>(q) - 16) * d;
    }
}

void block_q5_1(Bytes b, float* out) {
    const float d = half(b);
    const float m = half(b + 2);
    const uint32_t high = u32(b + 4);
    for (size_t j = 0; j < 32; ++j) {
        const uint32_t q = nibble32(b + 8, j) | (((high >> j) & 1u) << 4);
        out[j] = static_cast<float>(q) * d + m;
    }
}

struct ScaleMin {
    uint32_t scale;
    uint32_t min;
};

/// The 6-bit scale and minimum of sub-block `i` of 8, packed in 12 bytes: bytes 0-3 hold scales 0-3
/// and bytes 4-7 minima 0-3 in their low six bits; the low nibbles of bytes 8-11 are scales 4-7,
/// the high nibbles minima 4-7, whose upper two bits are the top bits of bytes 0-3 and 4-7.
ScaleMin scale_min(Bytes packed, size_t i) {
    if (i < 4) return {u8(packed + i) & 63u, u8(packed + i + 4) & 63u};
    const uint32_t low = u8(packed + i + 4);
    return {(low & 15u) | ((u8(packed + i - 4) >> 6) << 4),
            (low >> 4) | ((u8(packed + i) >> 6) << 4)};
}

/// Nibble of element `l` in sub-block `s`: sub-blocks 2c and 2c + 1 share 32 bytes, low and high
/// nibbles.
uint32_t nibble_k(Bytes q, size_t s, size_t l) {
    const uint32_t byte = u8(q + (s / 2) * 32 + l);
    return s % 2 == 0 ? byte & 15u : byte >> 4;
}

void block_q4_k(Bytes b, float* out) {
    const float d = half(b);
    const float dmin = half(b + 2);
    for (size_t s = 0; s < 8; ++s) {
        const ScaleMin sm = scale_min(b + 4, s);
        const float scale = d * static_cast<float>(sm.scale);
        const float min = dmin * static_cast<float>(sm.min);
        for (size_t l = 0; l < 32; ++l) {
            out[s * 32 + l] = scale * static_cast<float>(nibble_k(b + 16, s, l)) - min;
        }
    }
}

void block_q5_k(Bytes b, float* out) {
    const float d = half(b);
    const float dmin = half(b + 2);
    for (size_t s = 0; s < 8; ++s) {
        const ScaleMin sm = scale_min(b + 4, s);
        const float scale = d * static_cast<float>(sm.scale);
        const float min = dmin * static_cast<float>(sm.min);
        for (size_t l = 0; l < 32; ++l) {
            const uint32_t high = (u8(b + 16 + l) >> s) & 1u;
            out[s * 32 + l] =
                scale * static_cast<float>(nibble_k(b + 48, s, l) | (high << 4)) - min;
        }
    }
}

/// Two halves of 128 elements; in each, quarter `k` (32 elements) takes its low four bits from byte
/// (k % 2) * 32 + l (low nibbles for k < 2) and its upper two from bits 2k of high byte l. One i8
/// scale for each 16 elements.
void block_q6_k(Bytes b, float* out) {
    constexpr size_t kHigh = 128;
    constexpr size_t kScales = 192;
    const float d = half(b + 208);
    for (size_t h = 0; h < 2; ++h) {
        for (size_t k = 0; k < 4; ++k) {
            for (size_t l = 0; l < 32; ++l) {
                const uint32_t low_byte = u8(b + h * 64 + (k % 2) * 32 + l);
                const uint32_t low = k < 2 ? low_byte & 15u : low_byte >> 4;
                const uint32_t high = (u8(b + kHigh + h * 32 + l) >> (2 * k)) & 3u;
                const int32_t q = static_cast<int32_t>(low | (high << 4)) - 32;
                const float scale =
                    d * static_cast<float>(i8(b + kScales + h * 8 + k * 2 + l / 16));
                out[h * 128 + k * 32 + l] = scale * static_cast<float>(q);
            }
        }
    }
}

template <void (*kBlock)(Bytes, float*)>
void blocks(DType dtype, std::span<const std::byte> row, float* out, size_t n) {
    const BlockShape shape = block_shape(dtype);
    for (size_t i = 0; i < n / shape.elements; ++i) {
        kBlock(row.data() + i * shape.bytes, out + i * shape.elements);
    }
}

}  // namespace

void dequantize_row(DType dtype, std::span<const std::byte> row, float* out, size_t n) {
    const BlockShape shape = block_shape(dtype);
    BATON_CHECK(n % shape.elements == 0);
    BATON_CHECK(row.size() >= n / shape.elements * shape.bytes);
    switch (dtype) {
        case DType::kF32:
            if (n > 0) std::memcpy(out, row.data(), n * sizeof(float));
            return;
        case DType::kF16:
            for (size_t i = 0; i < n; ++i) out[i] = half(row.data() + 2 * i);
            return;
        case DType::kBF16:
            for (size_t i = 0; i < n; ++i) out[i] = bf16_to_f32(u16(row.data() + 2 * i));
            return;
        case DType::kQ8_0:
            return blocks<block_q8_0>(dtype, row, out, n);
        case DType::kQ4_0:
            return blocks<block_q4_0>(dtype, row, out, n);
        case DType::kQ4_1:
            return blocks<block_q4_1>(dtype, row, out, n);
        case DType::kQ5_0:
            return blocks<block_q5_0>(dtype, row, out, n);
        case DType::kQ5_1:
            return blocks<block_q5_1>(dtype, row, out, n);
        case DType::kQ4_K:
            return blocks<block_q4_k>(dtype, row, out, n);
        case DType::kQ5_K:
            return blocks<block_q5_k>(dtype, row, out, n);
        case DType::kQ6_K:
            return blocks<block_q6_k>(dtype, row, out, n);
    }
    BATON_CHECK(!"unreachable dtype");
}

}  // namespace baton::tensor
