#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "baton/tensor/view.hpp"

namespace baton::tensor {
namespace {

struct Golden {
    std::vector<std::byte> blocks;
    std::vector<float> values;
};

Golden read_golden(const std::string& name) {
    std::ifstream in(std::string(BATON_TEST_DATA) + "/model/dequant/" + name + ".bin",
                     std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    Golden g;
    if (text.size() < 8) return g;
    uint32_t values = 0;
    uint32_t bytes = 0;
    std::memcpy(&values, text.data(), 4);
    std::memcpy(&bytes, text.data() + 4, 4);
    if (text.size() != 8 + bytes + values * sizeof(float)) return g;
    g.blocks.resize(bytes);
    g.values.resize(values);
    std::memcpy(g.blocks.data(), text.data() + 8, bytes);
    std::memcpy(g.values.data(), text.data() + 8 + bytes, values * sizeof(float));
    return g;
}

class Dequantize : public testing::TestWithParam<std::pair<const char*, DType>> {};

/// Values made by the gguf package (scripts/make_goldens.py dequant): equal to the bit.
TEST_P(Dequantize, EqualsTheGgufPackage) {
    const Golden g = read_golden(GetParam().first);
    ASSERT_FALSE(g.values.empty());
    std::vector<float> out(g.values.size(), std::numeric_limits<float>::quiet_NaN());
    dequantize_row(GetParam().second, g.blocks, out.data(), out.size());
    for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_EQ(out[i], g.values[i]) << GetParam().first << " value " << i;
    }
}

/// One block at a time, from an odd address, gives the same values: rows need no alignment.
TEST_P(Dequantize, BlocksAreIndependentAndNeedNoAlignment) {
    const Golden g = read_golden(GetParam().first);
    ASSERT_FALSE(g.values.empty());
    const BlockShape shape = block_shape(GetParam().second);
    std::vector<std::byte> odd(shape.bytes + 1);
    std::vector<float> out(shape.elements);
    for (size_t b = 0; b * shape.elements < g.values.size(); ++b) {
        std::memcpy(odd.data() + 1, g.blocks.data() + b * shape.bytes, shape.bytes);
        dequantize_row(GetParam().second, std::span(odd).subspan(1), out.data(), out.size());
        ASSERT_EQ(std::memcmp(out.data(), g.values.data() + b * shape.elements,
                              shape.elements * sizeof(float)),
                  0);
    }
}

INSTANTIATE_TEST_SUITE_P(
    AllFormats, Dequantize,
    testing::Values(std::pair{"f16", DType::kF16}, std::pair{"bf16", DType::kBF16},
                    std::pair{"q8_0", DType::kQ8_0}, std::pair{"q4_0", DType::kQ4_0},
                    std::pair{"q4_1", DType::kQ4_1}, std::pair{"q5_0", DType::kQ5_0},
                    std::pair{"q5_1", DType::kQ5_1}, std::pair{"q4_k", DType::kQ4_K},
                    std::pair{"q5_k", DType::kQ5_K}, std::pair{"q6_k", DType::kQ6_K}),
    [](const auto& p) { return std::string(p.param.first); });

TEST(DequantizeF32, CopiesBits) {
    const std::vector<float> in{1.5f, -0.0f, std::numeric_limits<float>::infinity(), 3e-42f};
    std::vector<float> out(in.size());
    dequantize_row(DType::kF32, std::as_bytes(std::span(in)), out.data(), out.size());
    EXPECT_EQ(std::memcmp(in.data(), out.data(), in.size() * sizeof(float)), 0);
}

TEST(DequantizeDeathTest, RefusesPartBlocksAndShortRows) {
    std::vector<std::byte> row(34);
    std::vector<float> out(64);
    EXPECT_DEATH(dequantize_row(DType::kQ8_0, row, out.data(), 31), "");
    EXPECT_DEATH(dequantize_row(DType::kQ8_0, row, out.data(), 64), "");
}

TEST(TensorView, RowsOfBlocks) {
    std::vector<std::byte> bytes(3 * 2 * 18);
    const TensorView v{"w", DType::kQ4_0, {3, 64}, bytes};
    EXPECT_TRUE(static_cast<bool>(v));
    EXPECT_EQ(v.row_bytes(), 36u);
    EXPECT_EQ(v.row(2).data(), bytes.data() + 72);
    EXPECT_FALSE(static_cast<bool>(TensorView{}));
}

}  // namespace
}  // namespace baton::tensor
