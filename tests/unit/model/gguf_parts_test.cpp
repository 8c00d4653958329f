// A model whose GGUF is in several files: what it is, must be what it is in one.
#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "baton/model/gguf_file.hpp"
#include "baton/model/model.hpp"
#include "test_files.hpp"

namespace baton::model {
namespace {

constexpr uint32_t kU16 = 2, kI32 = 5;

/// Cuts a good file into parts of which each has every so-many-th tensor.
class Cutter {
  public:
    explicit Cutter(const std::string& name) : text_(test::read_all(test::data_path(name))), file_(*GgufFile::parse(test::as_span(text_))) {
        size_t infos = 0;
        for (const StoredTensor& t : file_.tensors()) infos += 8 + t.name.size() + 4 + 8 * t.shape.size() + 4 + 8;
        pairs_ = text_.substr(24, file_.header().size() - 24 - infos);
        std::memcpy(&pair_count_, text_.data() + 16, sizeof pair_count_);
    }
    /// `spoil` changes what a part says of itself before it is written: number from 0, count, all tensors.
    struct Says {
        uint16_t number, count;
        int32_t tensors;
    };
    void write(const test::TempDir& dir, uint32_t parts, const std::function<void(uint32_t part, Says&)>& spoil = {}, bool first_without_tensors = false) const {
        for (uint32_t part = 0; part < parts; ++part) {
            test::GgufWriter w;
            if (part == 0) {
                w.keys.out = pairs_;
                w.key_count = pair_count_;
            }
            Says says{static_cast<uint16_t>(part), static_cast<uint16_t>(parts), static_cast<int32_t>(file_.tensors().size())};
            if (spoil) spoil(part, says);
            w.key("split.no", kU16, says.number).key("split.count", kU16, says.count).key("split.tensors.count", kI32, says.tensors);
            for (size_t i = 0; i < file_.tensors().size(); ++i) {
                const uint32_t goes_to = first_without_tensors ? 1 + static_cast<uint32_t>(i) % (parts - 1) : static_cast<uint32_t>(i) % parts;
                if (goes_to == part) add(w, file_.tensors()[i]);
            }
            test::write_all(path(dir, part + 1, parts), w.bytes());
        }
    }
    static std::string path(const test::TempDir& dir, uint32_t number, uint32_t parts) {
        char name[64];
        std::snprintf(name, sizeof name, "m-%05u-of-%05u.gguf", number, parts);
        return dir.file(name);
    }

  private:
    static void add(test::GgufWriter& w, const StoredTensor& t) {
        static const std::map<std::string, uint32_t> kTypes = {{"F32", 0}, {"F16", 1}, {"Q4_0", 2}, {"Q4_1", 3}, {"Q8_0", 8}, {"BF16", 30}};
        const std::vector<uint64_t> dims(t.shape.rbegin(), t.shape.rend());
        w.tensor(t.name, dims, kTypes.at(t.type_name), {reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size()});
    }
    std::string text_;
    GgufFile file_;
    std::string pairs_;
    uint64_t pair_count_ = 0;
};

void expect_same_model(const ModelInfo& a, const ModelInfo& b) {
    EXPECT_EQ(a.architecture, b.architecture);
    EXPECT_EQ(a.shape.layers, b.shape.layers);
    EXPECT_EQ(a.shape.vocab, b.shape.vocab);
    EXPECT_EQ(a.context_length, b.context_length);
    EXPECT_EQ(a.eos, b.eos);
    EXPECT_EQ(a.chat_template_source, b.chat_template_source);
    EXPECT_EQ(a.tokenizer->encode("the quick brown fox", true, true), b.tokenizer->encode("the quick brown fox", true, true));
}

class GgufParts : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, GgufParts, testing::Values("llama.gguf", "qwen2.gguf"), [](const auto& which) { return std::string(which.param).substr(0, 5); });

TEST_P(GgufParts, ServeAsTheOneFileTheyWere) {
    const auto whole = inspect_model(test::data_path(GetParam()));
    const auto plan = load_plan(test::data_path(GetParam()));
    ASSERT_TRUE(whole && plan);
    for (const uint32_t parts : {2u, 3u, 7u}) {
        for (const bool bare : {false, true}) {
            const test::TempDir dir;
            Cutter(GetParam()).write(dir, parts, {}, bare);
            for (const std::string& path : {Cutter::path(dir, 1, parts), Cutter::path(dir, parts, parts), dir.path()}) {
                const auto info = inspect_model(path);
                ASSERT_TRUE(info) << path << ": " << info.error().message;
                expect_same_model(*info, *whole);
                EXPECT_EQ(info->quantization, whole->quantization);
                EXPECT_EQ(info->weight_bytes, whole->weight_bytes);
                EXPECT_NE(info->identity, whole->identity) << "other files, other identity";
                const auto loaded = load_plan(path);
                ASSERT_TRUE(loaded) << loaded.error().message;
                EXPECT_EQ(loaded->layers.size(), plan->layers.size());
            }
        }
    }
}

TEST_P(GgufParts, TheFirstDescribesTheModel) {
    const auto whole = inspect_model(test::data_path(GetParam()));
    ASSERT_TRUE(whole);
    for (const bool bare : {false, true}) {
        const test::TempDir dir;
        Cutter(GetParam()).write(dir, 3, {}, bare);
        std::filesystem::remove(Cutter::path(dir, 2, 3));
        std::filesystem::remove(Cutter::path(dir, 3, 3));
        const auto info = inspect_model(Cutter::path(dir, 1, 3), Weights::kAbsent);
        ASSERT_TRUE(info) << info.error().message;
        expect_same_model(*info, *whole);
        const auto missing = inspect_model(Cutter::path(dir, 1, 3));
        ASSERT_FALSE(missing);
        EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
        EXPECT_NE(missing.error().message.find("m-00002-of-00003.gguf"), std::string::npos) << missing.error().message;
    }
}

TEST(GgufPartsOf, WhatDoesNotFitTogetherIsRefused) {
    const Cutter cutter("llama.gguf");
    const auto error = [&](const std::function<void(uint32_t, Cutter::Says&)>& spoil) {
        const test::TempDir dir;
        cutter.write(dir, 3, spoil);
        const auto info = inspect_model(Cutter::path(dir, 1, 3));
        EXPECT_FALSE(info);
        return info ? std::string() : info.error().message;
    };
    EXPECT_NE(error([](uint32_t part, Cutter::Says& s) { s.number = part == 1 ? 2 : s.number; }).find("m-00002-of-00003.gguf says that it is part 3 of 3"), std::string::npos);
    EXPECT_NE(error([](uint32_t part, Cutter::Says& s) { s.count = part == 2 ? 4 : s.count; }).find("part 3 of 4"), std::string::npos);
    EXPECT_NE(error([](uint32_t part, Cutter::Says& s) { s.tensors += part == 0 ? 1 : 0; }).find("tensors, not"), std::string::npos);
    EXPECT_NE(error([](uint32_t, Cutter::Says& s) { s.count = 65535; }).find("too large"), std::string::npos);
    EXPECT_NE(error([](uint32_t, Cutter::Says& s) { s.count = 5; }).find("found by its parts' names"), std::string::npos);
}

TEST(GgufPartsOf, ATensorInTwoPartsIsRefused) {
    const Cutter cutter("llama.gguf");
    const test::TempDir dir, other;
    cutter.write(dir, 3);
    // The second part once more, as the third.
    cutter.write(other, 3, [](uint32_t part, Cutter::Says& s) { s.number = part == 1 ? 2 : s.number; });
    std::filesystem::copy_file(Cutter::path(other, 2, 3), Cutter::path(dir, 3, 3), std::filesystem::copy_options::overwrite_existing);
    const auto info = inspect_model(Cutter::path(dir, 1, 3));
    ASSERT_FALSE(info);
    EXPECT_EQ(info.error().code, ErrorCode::kCorrupt);
    EXPECT_NE(info.error().message.find("is in two parts"), std::string::npos) << info.error().message;
}

TEST(GgufPartsOf, AnotherNameLosesTheOthers) {
    const test::TempDir dir;
    Cutter("llama.gguf").write(dir, 2);
    std::filesystem::copy(Cutter::path(dir, 1, 2), dir.file("renamed.gguf"));
    const auto info = inspect_model(dir.file("renamed.gguf"));
    ASSERT_FALSE(info);
    EXPECT_NE(info.error().message.find("NAME-00001-of-00002.gguf"), std::string::npos) << info.error().message;
}

TEST(GgufPartsOf, LinksKeepTheirNamesBehindTheFence) {
    // As a hub's cache has them: links to blobs without names.
    const test::TempDir dir;
    std::filesystem::create_directories(dir.file("root/blobs"));
    std::filesystem::create_directories(dir.file("root/snapshot"));
    Cutter("llama.gguf").write(dir, 2);
    for (const uint32_t i : {1u, 2u}) {
        const std::string part = Cutter::path(dir, i, 2), blob = dir.file("root/blobs/" + std::to_string(i));
        std::filesystem::rename(part, blob);
        std::filesystem::create_symlink(blob, dir.file("root/snapshot/" + part.substr(part.rfind('/') + 1)));
    }
    const std::string first = dir.file("root/snapshot/m-00001-of-00002.gguf");
    for (const std::string& root : {std::string(), dir.file("root")}) {
        const auto path = resolve_model_path(first, root);
        ASSERT_TRUE(path) << path.error().message;
        const auto info = inspect_model(*path);
        EXPECT_TRUE(info) << info.error().message;
    }
    EXPECT_TRUE(resolve_model_path("snapshot/m-00001-of-00002.gguf", dir.file("root")));
    // A part that leads out of the fence.
    std::filesystem::rename(dir.file("root/blobs/2"), dir.file("outside"));
    std::filesystem::remove(dir.file("root/snapshot/m-00002-of-00002.gguf"));
    std::filesystem::create_symlink(dir.file("outside"), dir.file("root/snapshot/m-00002-of-00002.gguf"));
    EXPECT_EQ(resolve_model_path(first, dir.file("root")).error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(resolve_model_path(first, ""));
}

TEST(Described, ADirectoryWithoutWeightsIsDescribedToo) {
    for (const char* name : {"llama", "qwen2", "qwen3", "mistral", "smollm2"}) {
        const auto whole = inspect_model(test::data_path(name));
        ASSERT_TRUE(whole) << whole.error().message;
        const test::TempDir dir;
        test::copy_model(name, dir);
        for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
            if (entry.path().filename().string().find("safetensors") != std::string::npos) std::filesystem::remove(entry.path());
        EXPECT_FALSE(inspect_model(dir.path()));
        const auto info = inspect_model(dir.path(), Weights::kAbsent);
        ASSERT_TRUE(info) << info.error().message;
        expect_same_model(*info, *whole);
        EXPECT_EQ(info->weight_bytes, 0u);
        EXPECT_EQ(info->format, "safetensors");
    }
}

TEST(Described, AMissingFieldNamesItsFile) {
    for (const char* config : {"{}", R"({"model_type":7})", R"({"model_type":"llama"})", R"({"model_type":"llama","num_hidden_layers":-1})"}) {
        const auto checked = check_config(config);
        ASSERT_FALSE(checked) << config;
        EXPECT_TRUE(checked.error().message.starts_with("config.json: ")) << checked.error().message;
    }
}

}  // namespace
}  // namespace baton::model
