#include "baton/base/split_name.hpp"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(SplitName, IsReadAndWritten) {
    const auto name = parse_split_name("/m/a.b/x-q4_k_m-00002-of-00005.gguf");
    ASSERT_TRUE(name);
    EXPECT_EQ(name->stem, "/m/a.b/x-q4_k_m");
    EXPECT_EQ(name->number, 2u);
    EXPECT_EQ(name->count, 5u);
    EXPECT_EQ(name->part(5), "/m/a.b/x-q4_k_m-00005-of-00005.gguf");
    for (uint32_t i = 1; i <= name->count; ++i) EXPECT_EQ(parse_split_name(name->part(i))->number, i);
    EXPECT_TRUE(parse_split_name("x-00001-of-00001.GGUF"));
}

TEST(SplitName, OtherNamesAreNone) {
    for (const char* path : {"", ".gguf", "x.gguf", "-00001-of-00002.gguf", "x-0001-of-00002.gguf", "x-00001-of-00002.safetensors", "x-00001-of-00002", "x-00000-of-00002.gguf",
                             "x-00003-of-00002.gguf", "x-0000a-of-00002.gguf", "x_00001-of-00002.gguf", "x-00001_of_00002.gguf", "x-000011-of-00002.gguf", "x-00001-of-000002.gguf",
                             "x- 0001-of-00002.gguf", "x--0001-of-00002.gguf"})
        EXPECT_FALSE(parse_split_name(path)) << path;
}

}  // namespace
}  // namespace baton
