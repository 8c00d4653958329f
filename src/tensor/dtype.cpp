#include "baton/tensor/dtype.hpp"

namespace baton::tensor {

std::string_view to_string(DType t) {
    switch (t) {
        case DType::kF32:
            return "F32";
        case DType::kF16:
            return "F16";
        case DType::kBF16:
            return "BF16";
        case DType::kQ8_0:
            return "Q8_0";
        case DType::kQ4_0:
            return "Q4_0";
        case DType::kQ4_1:
            return "Q4_1";
        case DType::kQ5_0:
            return "Q5_0";
        case DType::kQ5_1:
            return "Q5_1";
        case DType::kQ4_K:
            return "Q4_K";
        case DType::kQ5_K:
            return "Q5_K";
        case DType::kQ6_K:
            return "Q6_K";
    }
    return "unknown";
}

// binary16: 1 sign, 5 exponent (bias 15), 10 mantissa bits. binary32: 1, 8 (bias 127), 23.

float f16_to_f32(uint16_t v) {
    const uint32_t sign = static_cast<uint32_t>(v & 0x8000u) << 16;
    const uint32_t exponent = (v >> 10) & 0x1fu;
    const uint32_t mantissa = v & 0x3ffu;
    if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
    if (exponent == 0) {
        // Subnormal: mantissa × 2^-24 is exact in f32.
        const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
        return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
    }
    return std::bit_cast<float>(sign | ((exponent + (127 - 15)) << 23) | (mantissa << 13));
}

uint16_t f32_to_f16(float f) {
    const uint32_t u = std::bit_cast<uint32_t>(f);
    const uint32_t sign = (u >> 16) & 0x8000u;
    const uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {  // NaN: keep it quiet, keep the top payload bits
        return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    }
    // 65520 and above round to infinity.
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (magnitude < 0x38800000u) {
        // Below 2^-14: adding 0.5 puts the value's multiple of 2^-24 into the low mantissa bits,
        // rounded by the FPU.
        const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
        return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
    }
    const uint32_t round = 0xfffu + ((magnitude >> 13) & 1u);
    return static_cast<uint16_t>(sign | ((magnitude + round - (112u << 23)) >> 13));
}

}  // namespace baton::tensor
