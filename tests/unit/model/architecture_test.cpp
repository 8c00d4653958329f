#include <gtest/gtest.h>

#include "baton/model/model.hpp"
#include "test_files.hpp"

namespace baton::model {
namespace {

TEST(Architecture, RecurrentFamiliesByEveryName) {
    for (const char* name : {"qwen3_5",
                             "qwen3_5_moe",
                             "qwen35",
                             "qwen35moe",
                             "Qwen3_5ForConditionalGeneration",
                             "qwen3_next",
                             "qwen3next",
                             "Qwen3NextForCausalLM",
                             "mamba",
                             "mamba2",
                             "Mamba2ForCausalLM",
                             "falcon_mamba",
                             "rwkv",
                             "rwkv6",
                             "rwkv7",
                             "rwkv6qwen2",
                             "jamba",
                             "JambaForCausalLM",
                             "bamba",
                             "zamba2",
                             "recurrent_gemma",
                             "granitehybrid",
                             "granitemoehybrid",
                             "nemotron_h",
                             "NemotronHForCausalLM",
                             "falcon-h1",
                             "falcon_h1",
                             "lfm2",
                             "lfm2moe",
                             "xlstm",
                             "plamo2",
                             "kimi_linear",
                             "kimi-linear",
                             "minimax",
                             "MiniMaxText01ForCausalLM"}) {
        EXPECT_TRUE(is_recurrent_architecture(name)) << name;
    }
    for (const char* name :
         {"llama", "LlamaForCausalLM", "qwen2", "qwen3", "Qwen3ForCausalLM", "qwen3moe", "mistral",
          "gemma3", "phi3", "minimax_m2", "granite", "nemotron", "falcon", "", "model"}) {
        EXPECT_FALSE(is_recurrent_architecture(name)) << name;
    }
}

TEST(ModelPath, StaysInsideTheRoot) {
    const test::TempDir root;
    const test::TempDir outside;
    const std::string real_root = std::filesystem::canonical(root.path());
    const std::string real_outside = std::filesystem::canonical(outside.path());
    std::filesystem::create_directories(real_root + "/a/b");
    std::filesystem::create_directories(real_root + "-sibling");
    std::filesystem::create_directory_symlink(real_outside, real_root + "/link");
    std::filesystem::create_directory_symlink(real_root + "/a", real_root + "/inner");

    EXPECT_EQ(resolve_model_path("a/b", real_root).value(), real_root + "/a/b");
    EXPECT_EQ(resolve_model_path(real_root + "/a/./b", real_root).value(), real_root + "/a/b");
    EXPECT_EQ(resolve_model_path("a/../a/b", real_root).value(), real_root + "/a/b");
    EXPECT_EQ(resolve_model_path("inner/b", real_root).value(), real_root + "/a/b");
    EXPECT_EQ(resolve_model_path(".", real_root).value(), real_root);
    EXPECT_EQ(resolve_model_path(real_outside, "").value(), real_outside);
    EXPECT_EQ(resolve_model_path(real_outside, "/").value(), real_outside);

    const auto code = [&](const std::string& path) {
        return resolve_model_path(path, real_root).error().code;
    };
    EXPECT_EQ(code("a/none"), ErrorCode::kNotFound);
    EXPECT_EQ(code(real_root + "/none"), ErrorCode::kNotFound);
    for (const std::string& path :
         {real_outside, std::string(".."), std::string("/"), std::string("link"),
          std::string("a/../../none"), real_root + "-sibling", std::string("/none"),
          std::string(""), std::string("a\0b", 3)}) {
        EXPECT_EQ(code(path), ErrorCode::kInvalidArgument) << path;
        EXPECT_EQ(resolve_model_path(path, real_root).error().param, "model_path");
    }
    EXPECT_EQ(resolve_model_path("a", real_root + "/none").error().code, ErrorCode::kNotFound);
    EXPECT_EQ(resolve_model_path("/none", "").error().code, ErrorCode::kNotFound);
    std::filesystem::remove_all(real_root + "-sibling");
}

}  // namespace
}  // namespace baton::model
