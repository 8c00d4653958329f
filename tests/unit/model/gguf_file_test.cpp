#include "baton/model/gguf_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "test_files.hpp"

namespace baton::model {
namespace {

using test::Bytes;
using test::GgufWriter;

/// The error message of a file, or "" when it is read.
std::string error_of(const std::string& bytes) {
    const auto file = GgufFile::parse(test::as_span(bytes));
    return file ? std::string() : file.error().message;
}
std::string error_of(const GgufWriter& w) {
    return error_of(w.bytes());
}

TEST(GgufFile, ReadsEveryValueType) {
    GgufWriter w;
    w.key<uint8_t>("u8", 0, 200)
        .key<int8_t>("i8", 1, 5)
        .key<uint16_t>("u16", 2, 60000)
        .key<int16_t>("i16", 3, 7);
    w.key<uint32_t>("u32", 4, 4000000000u).key<int32_t>("i32", 5, -3).key<float>("f32", 6, 1.5f);
    w.key<uint8_t>("yes", 7, 1).key_string("text", "a\0b").key<uint64_t>("u64", 10, 1ull << 40);
    w.key<int64_t>("i64", 11, 9).key<double>("f64", 12, -2.25);
    w.key_strings("words", {"one", "", "three"}).key_array<int32_t>("ints", 5, {1, -2, 3});
    w.key_array<uint8_t>("bytes", 0, {1, 255});
    const std::string bytes = w.bytes();
    const auto file = GgufFile::parse(test::as_span(bytes));
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->get_uint("u8").value(), 200u);
    EXPECT_EQ(file->get_uint("i8").value(), 5u);
    EXPECT_EQ(file->get_uint("u16").value(), 60000u);
    EXPECT_EQ(file->get_uint("i16").value(), 7u);
    EXPECT_EQ(file->get_uint("u32").value(), 4000000000u);
    EXPECT_EQ(file->get_uint("u64").value(), 1ull << 40);
    EXPECT_EQ(file->get_uint("i64").value(), 9u);
    EXPECT_EQ(file->get_float("f32").value(), 1.5);
    EXPECT_EQ(file->get_float("f64").value(), -2.25);
    EXPECT_TRUE(file->get_bool("yes").value());
    EXPECT_EQ(file->get_string("text").value(), "a");
    EXPECT_EQ(file->get_strings("words").value(), (std::vector<std::string>{"one", "", "three"}));
    EXPECT_EQ(file->get_ints("ints").value(), (std::vector<int32_t>{1, -2, 3}));
    EXPECT_EQ(file->get_ints("bytes").value(), (std::vector<int32_t>{1, 255}));
    EXPECT_TRUE(file->is_array("ints"));
    EXPECT_FALSE(file->is_array("u8"));
    EXPECT_FALSE(file->is_array("nothing"));
}

TEST(GgufFile, RefusesValuesReadAsAnotherType) {
    GgufWriter w;
    w.key<int32_t>("negative", 5, -3).key_string("text", "x").key<float>("f32", 6, 1.0f);
    w.key_array<uint64_t>("longs", 10, {1}).key_array<uint8_t>("bytes", 0, {1, 2, 3, 4});
    w.key<uint64_t>("huge", 10, UINT64_MAX)
        .key<float>("nan", 6, std::numeric_limits<float>::quiet_NaN());
    w.key_array<uint32_t>("big", 4, {4000000000u}).key_array<float>("floats", 6, {1.0f});
    const std::string bytes = w.bytes();
    const auto file = GgufFile::parse(test::as_span(bytes));
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_FALSE(file->get_uint("negative"));
    EXPECT_FALSE(file->get_uint("huge"));
    EXPECT_FALSE(file->get_uint("text"));
    EXPECT_FALSE(file->get_uint("f32"));
    EXPECT_FALSE(file->get_uint("bytes"));
    EXPECT_FALSE(file->get_float("text"));
    EXPECT_FALSE(file->get_float("nan"));
    EXPECT_FALSE(file->get_bool("f32"));
    EXPECT_FALSE(file->get_string("f32"));
    EXPECT_FALSE(file->get_string("bytes"));
    EXPECT_FALSE(file->get_strings("bytes"));
    EXPECT_FALSE(file->get_strings("text"));
    EXPECT_FALSE(file->get_ints("longs"));
    EXPECT_FALSE(file->get_ints("big"));
    EXPECT_FALSE(file->get_ints("floats"));
    EXPECT_FALSE(file->get_ints("text"));
    EXPECT_EQ(file->get_uint("none").error().message, "GGUF metadata 'none' is missing");
}

TEST(GgufFile, ReadsTensorsWithReversedDimensions) {
    GgufWriter w;
    w.tensor("a", {4, 2}, 0, std::string(32, 'a'))
        .tensor("q", {64, 3}, 8, std::string(3 * 68, 'q'));
    w.tensor("odd", {256}, 16, std::string(66, 'x'));
    const std::string bytes = w.bytes();
    const auto file = GgufFile::parse(test::as_span(bytes));
    ASSERT_TRUE(file) << file.error().message;
    ASSERT_EQ(file->tensors().size(), 3u);
    EXPECT_EQ(file->tensors()[0].shape, (std::vector<uint64_t>{2, 4}));
    EXPECT_EQ(file->tensors()[0].bytes.size(), 32u);
    EXPECT_EQ(file->tensors()[1].dtype, tensor::DType::kQ8_0);
    EXPECT_EQ(file->tensors()[1].bytes.size(), 204u);
    EXPECT_EQ(static_cast<char>(file->tensors()[1].bytes.back()), 'q');
    EXPECT_FALSE(file->tensors()[2].dtype);
    EXPECT_EQ(file->tensors()[2].type_name, "IQ2_XXS");
}

TEST(GgufFile, RefusesHeadersItDoesNotKnow) {
    GgufWriter w;
    EXPECT_EQ(error_of(w), "");
    EXPECT_NE(error_of("GGML" + w.bytes().substr(4)), "");
    EXPECT_NE(error_of(std::string("GGU")), "");
    w.version = 1;
    EXPECT_EQ(error_of(w), "GGUF version 1 is not supported (2 and 3 are)");
    w.version = 0;
    EXPECT_EQ(error_of(w), "GGUF version 0 is not supported (2 and 3 are)");
    w.version = 0x03000000;
    EXPECT_EQ(error_of(w), "big-endian GGUF files are not supported");
    w.version = 2;
    EXPECT_EQ(error_of(w), "");
}

TEST(GgufFile, RefusesCountsThatTheFileCannotHold) {
    for (const uint64_t count : {uint64_t{1} << 20, uint64_t{1} << 63, UINT64_MAX}) {
        GgufWriter w;
        w.key<uint32_t>("a", 4, 1);
        w.tensor_count = count;
        EXPECT_EQ(error_of(w), "GGUF tensor count " + std::to_string(count) + " is too large");
        w.tensor_count = 0;
        w.key_count = count;
        EXPECT_EQ(error_of(w), "GGUF metadata count " + std::to_string(count) + " is too large");
    }
}

TEST(GgufFile, RefusesStringsAndArraysPastTheEnd) {
    for (const uint64_t length :
         {uint64_t{100}, uint64_t{1} << 24, uint64_t{1} << 32, UINT64_MAX, UINT64_MAX - 7}) {
        GgufWriter key;
        key.keys.num(length);
        key.keys.out += "short key and some bytes";
        key.key_count = 1;
        EXPECT_NE(error_of(key), "") << length;
        GgufWriter text;
        text.keys.str("t").num<uint32_t>(8).num(length);
        text.keys.out += "short";
        text.key_count = 1;
        EXPECT_NE(error_of(text), "") << length;
        for (const uint32_t type : {0u, 4u, 7u, 8u, 10u}) {
            GgufWriter array;
            array.keys.str("a").num<uint32_t>(9).num(type).num(length);
            array.keys.out += "12345678";
            array.key_count = 1;
            EXPECT_NE(error_of(array), "") << length << " of type " << type;
        }
    }
}

TEST(GgufFile, RefusesBadValues) {
    GgufWriter twice;
    twice.key<uint32_t>("a", 4, 1).key<uint32_t>("a", 4, 2);
    EXPECT_EQ(error_of(twice), "GGUF metadata 'a' is there twice");
    GgufWriter empty_key;
    empty_key.key<uint32_t>("", 4, 1);
    EXPECT_EQ(error_of(empty_key), "GGUF metadata key is empty");
    GgufWriter type;
    type.key<uint32_t>("a", 13, 1);
    EXPECT_EQ(error_of(type), "GGUF value type 13 is unknown (at metadata 'a')");
    GgufWriter truth;
    truth.key<uint8_t>("a", 7, 2);
    EXPECT_EQ(error_of(truth), "GGUF bool is neither 0 nor 1 (at metadata 'a')");
    GgufWriter nested;
    nested.keys.str("a").num<uint32_t>(9).num<uint32_t>(9).num<uint64_t>(1);
    nested.keys.num<uint32_t>(4).num<uint64_t>(1).num<uint32_t>(7);
    nested.key_count = 1;
    EXPECT_EQ(error_of(nested), "GGUF arrays of arrays are not supported (at metadata 'a')");
    GgufWriter forged;
    forged.key<uint32_t>("a\n\x1b[31m", 13, 1);
    EXPECT_EQ(error_of(forged), "GGUF value type 13 is unknown (at metadata 'a??[31m')");
    for (const uint32_t alignment : {0u, 1u, 7u, 24u, 1u << 30}) {
        GgufWriter w;
        w.key<uint32_t>("general.alignment", 4, alignment);
        EXPECT_EQ(error_of(w),
                  "GGUF general.alignment " + std::to_string(alignment) + " is not usable");
    }
    GgufWriter text;
    text.key_string("general.alignment", "32");
    EXPECT_NE(error_of(text), "");
}

TEST(GgufFile, RefusesTensorsThatDoNotFit) {
    const std::string block(256, 'x');
    const auto outside = testing::MatchesRegex("GGUF tensor 't' lies outside the file of [0-9]+ bytes; is it whole\\?");
    const auto one = [&](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
        GgufWriter w;
        w.data = block;
        w.info("t", dims, type, offset);
        return error_of(w);
    };
    EXPECT_EQ(one({64}, 0, 0), "");
    EXPECT_THAT(one({65}, 0, 0), outside);
    EXPECT_THAT(one({64}, 0, 32), outside);
    EXPECT_THAT(one({1}, 0, 1ull << 62), outside);
    EXPECT_THAT(one({1}, 0, UINT64_MAX - 31), outside);
    EXPECT_EQ(one({8}, 0, 4), "GGUF tensor 't' is not aligned");
    EXPECT_EQ(one({}, 0, 0), "GGUF tensor 't' has 0 dimensions");
    EXPECT_EQ(one({1, 1, 1, 1, 1}, 0, 0), "GGUF tensor 't' has 5 dimensions");
    EXPECT_EQ(one({4, 0}, 0, 0), "GGUF tensor 't' has an empty dimension");
    EXPECT_EQ(one({33}, 8, 0), "GGUF tensor 't' has a shape that does not fit its type");
    EXPECT_EQ(one({1ull << 32, 1ull << 32}, 0, 0),
              "GGUF tensor 't' has a shape that does not fit its type");
    EXPECT_EQ(one({1ull << 31, 1ull << 31, 4}, 0, 0),
              "GGUF tensor 't' has a shape that does not fit its type");
    EXPECT_EQ(one({UINT64_MAX}, 0, 0), "GGUF tensor 't' has a shape that does not fit its type");
    EXPECT_EQ(one({1ull << 60, 1}, 8, 0), "GGUF tensor 't' has a shape that does not fit its type");
    EXPECT_EQ(one({4}, 4, 0), "GGUF tensor 't' has type 4, which is unknown");
    EXPECT_EQ(one({4}, 99, 0), "GGUF tensor 't' has type 99, which is unknown");
}

TEST(GgufFile, RefusesOverlapsAndDuplicates) {
    GgufWriter overlap;
    overlap.data = std::string(256, 'x');
    overlap.info("a", {16}, 0, 0).info("b", {16}, 0, 32);
    EXPECT_EQ(error_of(overlap), "tensor 'b' overlaps another");
    GgufWriter same;
    same.data = std::string(256, 'x');
    same.info("a", {8}, 0, 64).info("b", {8}, 0, 64);
    EXPECT_NE(error_of(same), "");
    GgufWriter twice;
    twice.data = std::string(256, 'x');
    twice.info("a", {8}, 0, 0).info("a", {8}, 0, 64);
    EXPECT_EQ(error_of(twice), "tensor 'a' is there twice");
    GgufWriter apart;
    apart.data = std::string(256, 'x');
    apart.info("b", {8}, 0, 64).info("a", {16}, 0, 0);
    EXPECT_EQ(error_of(apart), "");
}

TEST(GgufFile, OpenTellsMissingFromEmptyAndDirectory) {
    const test::TempDir dir;
    EXPECT_EQ(GgufFile::open(dir.file("none.gguf")).error().code, ErrorCode::kNotFound);
    test::write_all(dir.file("empty.gguf"), "");
    EXPECT_FALSE(GgufFile::open(dir.file("empty.gguf")));
    EXPECT_FALSE(GgufFile::open(dir.path()));
    const auto file = GgufFile::open(test::data_path("llama.gguf"));
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->get_string("general.architecture").value(), "llama");
    EXPECT_EQ(file->version(), 3u);
    EXPECT_LT(file->header().size(), file->bytes().size());
}

}  // namespace
}  // namespace baton::model
