#include "baton/tensor/dtype.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace baton::tensor {
namespace {

/// The value of a binary16 by its definition, in double.
double f16_value(uint16_t v) {
    const int exponent = (v >> 10) & 31;
    const double mantissa = v & 1023;
    const double sign = (v & 0x8000) != 0 ? -1.0 : 1.0;
    if (exponent == 0) return sign * std::ldexp(mantissa, -24);
    return sign * std::ldexp(1024.0 + mantissa, exponent - 25);
}

TEST(F16, EveryPatternWidensExactly) {
    for (uint32_t i = 0; i < 65536; ++i) {
        const auto v = static_cast<uint16_t>(i);
        const float f = f16_to_f32(v);
        ASSERT_EQ(std::signbit(f), (i & 0x8000u) != 0) << i;
        if (((i >> 10) & 31u) == 31) {
            if ((i & 1023u) == 0) {
                ASSERT_TRUE(std::isinf(f)) << i;
            } else {
                ASSERT_TRUE(std::isnan(f)) << i;
            }
            continue;
        }
        ASSERT_EQ(static_cast<double>(f), f16_value(v)) << i;
    }
}

TEST(F16, EveryPatternRoundTrips) {
    for (uint32_t i = 0; i < 65536; ++i) {
        const auto v = static_cast<uint16_t>(i);
        const uint16_t back = f32_to_f16(f16_to_f32(v));
        if (((i >> 10) & 31u) == 31 && (i & 1023u) != 0) {
            ASSERT_TRUE(std::isnan(f16_to_f32(back))) << i;
        } else {
            ASSERT_EQ(back, v);
        }
    }
}

TEST(F16, RoundsToNearestEvenBetweenNeighbours) {
    for (uint32_t i = 0; i < 0x7bffu; ++i) {
        const auto low = static_cast<uint16_t>(i);
        const auto high = static_cast<uint16_t>(i + 1);
        const double middle = (f16_value(low) + f16_value(high)) / 2;
        const auto tie = static_cast<float>(middle);
        ASSERT_EQ(static_cast<double>(tie), middle);
        ASSERT_EQ(f32_to_f16(tie), i % 2 == 0 ? low : high) << i;
        ASSERT_EQ(f32_to_f16(std::nextafterf(tie, 0.0f)), low) << i;
        ASSERT_EQ(f32_to_f16(std::nextafterf(tie, 1e9f)), high) << i;
        ASSERT_EQ(f32_to_f16(-tie), (i % 2 == 0 ? low : high) | 0x8000) << i;
    }
}

TEST(F16, OverflowAndUnderflow) {
    EXPECT_EQ(f32_to_f16(65519.996f), 0x7bff);
    EXPECT_EQ(f32_to_f16(65520.0f), 0x7c00);
    EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::infinity()), 0x7c00);
    EXPECT_EQ(f32_to_f16(-std::numeric_limits<float>::max()), 0xfc00);
    EXPECT_EQ(f32_to_f16(std::numeric_limits<float>::denorm_min()), 0);
    EXPECT_EQ(f32_to_f16(-0.0f), 0x8000);
}

TEST(BF16, RoundTripsAndKeepsNan) {
    for (uint32_t i = 0; i < 65536; ++i) {
        const auto v = static_cast<uint16_t>(i);
        const float f = bf16_to_f32(v);
        if (std::isnan(f)) {
            ASSERT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(f))));
        } else {
            ASSERT_EQ(f32_to_bf16(f), v);
        }
    }
    EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);  // tie to even
    EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
    EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
    EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(DType, NamesAreTheFormatNames) {
    EXPECT_EQ(to_string(DType::kF32), "F32");
    EXPECT_EQ(to_string(DType::kQ4_1), "Q4_1");
    EXPECT_EQ(to_string(DType::kQ6_K), "Q6_K");
    EXPECT_EQ(to_string(static_cast<DType>(200)), "unknown");
}

}  // namespace
}  // namespace baton::tensor
