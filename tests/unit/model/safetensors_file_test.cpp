#include "baton/model/safetensors_file.hpp"

#include <gtest/gtest.h>

#include "test_files.hpp"

namespace baton::model {
namespace {

std::string error_of(std::string_view header, std::string_view data) {
    const std::string bytes = test::safetensors(header, data);
    const auto file = SafetensorsFile::parse(test::as_span(bytes));
    return file ? std::string() : file.error().message;
}

const std::string kEight = "12345678";

TEST(SafetensorsFile, ReadsTensors) {
    const std::string bytes = test::safetensors(
        R"({"__metadata__":{"format":"pt","a":"b"},"b":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},)"
        R"("a":{"data_offsets":[0,8],"shape":[1,2],"dtype":"F32"},"i":{"dtype":"I32","shape":[],"data_offsets":[12,16]},)"
        R"("z":{"dtype":"F32","shape":[0,5],"data_offsets":[16,16]}}   )",
        "aaaaaaaabbbbiiii");
    const auto file = SafetensorsFile::parse(test::as_span(bytes));
    ASSERT_TRUE(file) << file.error().message;
    ASSERT_EQ(file->tensors().size(), 4u);
    EXPECT_EQ(file->tensors()[0].name, "b");
    EXPECT_EQ(file->tensors()[0].dtype, tensor::DType::kF16);
    EXPECT_EQ(file->tensors()[0].bytes.size(), 4u);
    EXPECT_EQ(static_cast<char>(file->tensors()[0].bytes[0]), 'b');
    EXPECT_EQ(file->tensors()[1].shape, (std::vector<uint64_t>{1, 2}));
    EXPECT_FALSE(file->tensors()[2].dtype);
    EXPECT_EQ(file->tensors()[2].type_name, "I32");
    EXPECT_TRUE(file->tensors()[3].bytes.empty());
}

TEST(SafetensorsFile, RefusesHeaderLengthsThatDoNotFit) {
    for (const uint64_t length :
         {uint64_t{3}, uint64_t{1} << 27, uint64_t{1} << 62, UINT64_MAX, UINT64_MAX - 7}) {
        test::Bytes b;
        b.num(length);
        b.out += "{}";
        EXPECT_FALSE(SafetensorsFile::parse(test::as_span(b.out))) << length;
    }
    EXPECT_FALSE(SafetensorsFile::parse(test::as_span(std::string("1234567"))));
    EXPECT_FALSE(SafetensorsFile::parse({}));
    EXPECT_EQ(error_of("{}", ""), "");
}

TEST(SafetensorsFile, RefusesOffsetsThatLie) {
    const auto one = [&](const std::string& rest) {
        return error_of(R"({"t":{"dtype":"F32",)" + rest + "}}", kEight);
    };
    EXPECT_EQ(one(R"("shape":[2],"data_offsets":[0,8])"), "");
    EXPECT_EQ(one(R"("shape":[3],"data_offsets":[0,12])"),
              "safetensors tensor 't' lies outside the file's 8 bytes of data; is it whole?");
    EXPECT_EQ(one(R"("shape":[2],"data_offsets":[8,0])"),
              "safetensors tensor 't' lies outside the file's 8 bytes of data; is it whole?");
    EXPECT_EQ(one(R"("shape":[2],"data_offsets":[18446744073709551608,0])"),
              "safetensors tensor 't' lies outside the file's 8 bytes of data; is it whole?");
    EXPECT_EQ(one(R"("shape":[1],"data_offsets":[0,8])"),
              "safetensors tensor 't' does not have the size of its shape and type");
    EXPECT_EQ(one(R"("shape":[4611686018427387904,4],"data_offsets":[0,0])"),
              "safetensors tensor 't' does not have the size of its shape and type");
    EXPECT_EQ(one(R"("shape":[18446744073709551615],"data_offsets":[0,8])"),
              "safetensors tensor 't' does not have the size of its shape and type");
    EXPECT_EQ(one(R"("shape":[1],"data_offsets":[4,8])"),
              "bytes before tensor 't' belong to no tensor");
    EXPECT_EQ(one(R"("shape":[1],"data_offsets":[0,4])"),
              "bytes after the last tensor belong to no tensor");
    EXPECT_EQ(error_of("{}", kEight), "bytes after the last tensor belong to no tensor");
    EXPECT_EQ(error_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                       kEight),
              "tensor 'b' overlaps another");
}

TEST(SafetensorsFile, RefusesWhatTheSchemaDoesNotName) {
    const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
    EXPECT_EQ(error_of("{\"t\":{" + good + "}}", kEight), "");
    const std::vector<std::string> bad = {
        "{\"t\":{" + good + "},\"t\":{" + good + "}}",                         // twice
        "{\"t\":{" + good + ",\"dtype\":\"F16\"}}",                            // field twice
        "{\"t\":{" + good + ",\"extra\":1}}",                                  // unknown field
        "{\"t\":{" + good + "}} x",                                            // tail
        "{\"t\":{" + good + "}",                                               // cut
        "[{" + good + "}]",                                                    // not an object
        "7",                                                                   //
        "{\"t\":[1]}",                                                         //
        "{\"t\":{\"t\":{" + good + "}}}",                                      // one level too many
        "{\"t\":{\"dtype\":\"F32\",\"shape\":[[2]],\"data_offsets\":[0,8]}}",  //
        "{\"t\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}",   //
        "{\"t\":{\"dtype\":\"F32\",\"shape\":[2.0],\"data_offsets\":[0,8]}}",  //
        "{\"t\":{\"dtype\":\"F32\",\"shape\":[\"2\"],\"data_offsets\":[0,8]}}",      //
        "{\"t\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,2],\"data_offsets\":[0,8]}}",  //
        "{\"t\":{\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]}}",            //
        "{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,9]}}",        //
        "{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8]}}",            //
        "{\"t\":{\"dtype\":null,\"shape\":[2],\"data_offsets\":[0,8]}}",             //
        "{\"t\":{\"dtype\":\"F32\",\"shape\":[2]}}",                                 // no offsets
        "{\"t\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}",          // unknown type
        "{\"\":{" + good + "}}",                                                     // no name
        "{\"__metadata__\":{\"a\":1},\"t\":{" + good + "}}",                         //
        "{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"},\"t\":{" + good + "}}",         //
        "{\"__metadata__\":{\"a\":{\"b\":\"c\"}},\"t\":{" + good + "}}",             //
        "{\"t\xff\":{" + good + "}}",                                                // not UTF-8
        std::string(1 << 20, '['),
        std::string(1 << 20, '{'),
        "{\"t\":{\"shape\":" + std::string(1 << 20, '['),
    };
    for (const std::string& header : bad) {
        EXPECT_NE(error_of(header, kEight), "") << header.substr(0, 200);
    }
    EXPECT_EQ(error_of("{\"t\":{\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]}}", kEight),
              "safetensors tensor 't' has unknown type F31");
}

class SafetensorsDir : public testing::Test {
  protected:
    void write_shard(const std::string& name, const std::string& tensor) {
        test::write_all(
            dir_.file(name),
            test::safetensors(
                "{\"" + tensor + "\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
                kEight));
    }
    std::string open_with(const std::string& weight_map) {
        test::write_all(dir_.file("model.safetensors.index.json"),
                        R"({"metadata":{},"weight_map":)" + weight_map + "}");
        const auto files = open_safetensors_dir(dir_.path());
        return files ? std::string() : files.error().message;
    }
    test::TempDir dir_;
};

TEST_F(SafetensorsDir, OpensShards) {
    write_shard("one.safetensors", "a");
    write_shard("two.safetensors", "b");
    EXPECT_EQ(open_with(R"({"a":"one.safetensors","b":"two.safetensors"})"), "");
    EXPECT_EQ(open_safetensors_dir(dir_.path())->size(), 2u);
}

TEST_F(SafetensorsDir, OpensTheSingleFileWithoutAnIndex) {
    EXPECT_EQ(open_safetensors_dir(dir_.path()).error().code, ErrorCode::kNotFound);
    write_shard("model.safetensors", "a");
    EXPECT_EQ(open_safetensors_dir(dir_.path())->size(), 1u);
}

TEST_F(SafetensorsDir, RefusesAnIndexThatLies) {
    write_shard("one.safetensors", "a");
    write_shard("two.safetensors", "b");
    write_shard("again.safetensors", "a");
    EXPECT_NE(open_with(R"({"a":"two.safetensors","b":"one.safetensors"})"), "");
    EXPECT_NE(open_with(R"({"a":"one.safetensors","c":"two.safetensors"})"), "");
    EXPECT_NE(open_with(R"({"a":"none.safetensors"})"), "");
    EXPECT_NE(open_with(R"({"a":"one.safetensors","b":"again.safetensors"})"), "");
    EXPECT_NE(open_with(R"({"a":"one.safetensors","a":"one.safetensors"})"), "");
    EXPECT_NE(open_with(R"([])"), "");
    EXPECT_NE(open_with(R"({"a":7})"), "");
    EXPECT_NE(open_with(std::string(100'000, '[') + "1"), "");
}

TEST_F(SafetensorsDir, ShardNamesCannotLeaveTheDirectory) {
    write_shard("one.safetensors", "a");
    const std::string outside = std::filesystem::path(dir_.path()).filename().string();
    for (const std::string& name :
         {"../" + outside + "/one.safetensors", dir_.file("one.safetensors"),
          std::string("./one.safetensors"), std::string(".."), std::string(""),
          std::string("sub/one.safetensors"), std::string("one.safetensors\\u0000x")}) {
        EXPECT_NE(open_with(R"({"a":")" + name + R"("})").find("is not a file name"),
                  std::string::npos)
            << name;
    }
}

}  // namespace
}  // namespace baton::model
