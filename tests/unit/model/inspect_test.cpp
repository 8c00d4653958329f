#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "baton/model/model.hpp"
#include "test_files.hpp"

namespace baton::model {
namespace {

using nlohmann::json;

std::string rendered(const ModelInfo& info, const std::string& user_text) {
    const json context = {{"messages", json::array({{{"role", "user"}, {"content", user_text}}})},
                          {"add_generation_prompt", true},
                          {"bos_token", info.bos_token},
                          {"eos_token", info.eos_token}};
    const auto segments = info.chat_template->render(context.dump());
    if (!segments) return "error: " + segments.error().message;
    std::string out;
    for (const text::Segment& s : *segments) out += s.text;
    return out;
}

class InspectDir : public testing::Test {
  protected:
    void use(const std::string& model) { test::copy_model(model, dir_); }
    void change(const std::string& file, const char* key, const json& value) {
        json j = json::parse(test::read_all(dir_.file(file)));
        j[key] = value;
        test::write_all(dir_.file(file), j.dump());
    }
    Expected<ModelInfo> inspect() { return inspect_model(dir_.path()); }
    test::TempDir dir_;
};

TEST(Inspect, GgufAndDirectoryDescribeTheSameModel) {
    const auto a = inspect_model(test::data_path("llama"));
    const auto b = inspect_model(test::data_path("llama.gguf"));
    ASSERT_TRUE(a) << a.error().message;
    ASSERT_TRUE(b) << b.error().message;
    for (const ModelInfo* info : {&*a, &*b}) {
        EXPECT_EQ(info->architecture, "llama");
        EXPECT_EQ(info->family, "llama");
        EXPECT_EQ(info->shape.layers, 2u);
        EXPECT_EQ(info->context_length, 256u);
        EXPECT_EQ(info->sliding_window, 0u);
        EXPECT_EQ(info->bos, 1);
        EXPECT_EQ(info->bos_token, "<|im_start|>");
        EXPECT_EQ(info->eos_token, "<|im_end|>");
        ASSERT_FALSE(info->eos.empty());
        EXPECT_EQ(info->eos.front(), 2);
        ASSERT_TRUE(info->tokenizer);
        EXPECT_EQ(info->tokenizer->vocab_size(), 288u);
        ASSERT_TRUE(info->chat_template) << info->chat_template_error;
        EXPECT_EQ(rendered(*info, "Hi"), "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    }
    EXPECT_EQ(a->format, "safetensors");
    EXPECT_EQ(a->quantization, "F32");
    EXPECT_EQ(b->format, "gguf");
    EXPECT_EQ(b->quantization, "F16");
    EXPECT_GT(a->weight_bytes, b->weight_bytes);
    EXPECT_EQ(a->chat_template_source, b->chat_template_source);
    for (const std::string text : {"the quick brown fox 2024 jumps",
                                   "<|im_start|>user\nhi<|im_end|>", "\xf0\x9f\x98\x80 x"}) {
        EXPECT_EQ(a->tokenizer->encode(text, true, true), b->tokenizer->encode(text, true, true))
            << text;
    }
    // GGUF knows the other end-of-text token by its spelling.
    EXPECT_EQ(b->eos, (std::vector<TokenId>{2, 0}));
}

TEST(Inspect, GenerationDefaults) {
    const auto info = inspect_model(test::data_path("qwen2"));
    ASSERT_TRUE(info) << info.error().message;
    ASSERT_TRUE(info->generation.temperature);
    EXPECT_FLOAT_EQ(*info->generation.temperature, 0.7f);
    EXPECT_FLOAT_EQ(info->generation.top_p.value(), 0.9f);
    EXPECT_FALSE(info->generation.top_k);
    EXPECT_FALSE(info->generation.repetition_penalty);
}

TEST_F(InspectDir, EosIdsAreJoinedWithoutRepeats) {
    use("smollm2");
    change("generation_config.json", "eos_token_id", json::array({7, 2, 7, -1, "x", 400, 1e9}));
    EXPECT_EQ(inspect()->eos, (std::vector<TokenId>{2, 7}));
    change("generation_config.json", "eos_token_id", 5);
    EXPECT_EQ(inspect()->eos, (std::vector<TokenId>{2, 5}));
    std::filesystem::remove(dir_.file("generation_config.json"));
    change("config.json", "eos_token_id", json::array({9, 8}));
    EXPECT_EQ(inspect()->eos, (std::vector<TokenId>{2, 9, 8}));
    std::filesystem::remove(dir_.file("tokenizer_config.json"));
    const auto bare = inspect();
    ASSERT_TRUE(bare) << bare.error().message;
    EXPECT_EQ(bare->eos, (std::vector<TokenId>{9, 8}));
    EXPECT_EQ(bare->bos, 1);
    EXPECT_TRUE(bare->chat_template_source.empty());
    EXPECT_FALSE(bare->chat_template);
}

TEST_F(InspectDir, ChatTemplateMayBeAFileOrAList) {
    use("smollm2");
    change("tokenizer_config.json", "chat_template",
           json::array({{{"name", "tool_use"}, {"template", "T"}},
                        {{"name", "default"}, {"template", "D"}}}));
    EXPECT_EQ(inspect()->chat_template_source, "D");
    test::write_all(dir_.file("chat_template.jinja"), "F{{ messages[0].content }}");
    EXPECT_EQ(rendered(*inspect(), "x"), "Fx");
}

TEST_F(InspectDir, ATemplateThatDoesNotCompileIsReportedNotFatal) {
    use("smollm2");
    change("tokenizer_config.json", "chat_template", "{% include 'x' %}");
    const auto info = inspect();
    ASSERT_TRUE(info) << info.error().message;
    EXPECT_FALSE(info->chat_template);
    EXPECT_FALSE(info->chat_template_error.empty());
}

TEST_F(InspectDir, IdentityFollowsContentNotPlace) {
    use("mistral");
    const Digest here = inspect()->identity;
    EXPECT_EQ(here, inspect_model(test::data_path("mistral"))->identity);
    EXPECT_NE(here, inspect_model(test::data_path("llama"))->identity);
    for (const char* file : {"config.json", "tokenizer_config.json", "generation_config.json"}) {
        const std::string saved = test::read_all(dir_.file(file));
        change(file, "note", "changed");
        EXPECT_NE(here, inspect()->identity) << file;
        test::write_all(dir_.file(file), saved);
    }
    EXPECT_EQ(here, inspect()->identity);
    std::string weights = test::read_all(dir_.file("model.safetensors"));
    weights.back() = static_cast<char>(weights.back() ^ 1);
    test::write_all(dir_.file("model.safetensors"), weights);
    EXPECT_NE(here, inspect()->identity);
}

TEST_F(InspectDir, RefusesATokenizerThatDoesNotFitTheModel) {
    use("smollm2");
    std::filesystem::remove(dir_.file("tokenizer.json"));
    EXPECT_EQ(inspect().error().message, "the model directory has no tokenizer.json");
    std::string json_text = test::read_all(test::data_path("smollm2/tokenizer.json"));
    json j = json::parse(json_text);
    j["added_tokens"].push_back({{"id", 288},
                                 {"content", "<extra>"},
                                 {"single_word", false},
                                 {"lstrip", false},
                                 {"rstrip", false},
                                 {"normalized", false},
                                 {"special", true}});
    test::write_all(dir_.file("tokenizer.json"), j.dump());
    EXPECT_EQ(inspect().error().message, "tokenizer has 289 tokens, but the model only 288");
}

TEST(Inspect, TellsBadWeightsBeforeTheyAreLoaded) {
    const test::TempDir dir;
    test::copy_model("smollm2", dir);
    json j = json::parse(test::read_all(dir.file("config.json")));
    j["num_hidden_layers"] = 4;
    test::write_all(dir.file("config.json"), j.dump());
    const auto info = inspect_model(dir.path());
    ASSERT_FALSE(info);
    EXPECT_EQ(info.error().message, "tensor 'model.layers.3.input_layernorm.weight' is missing");
}

}  // namespace
}  // namespace baton::model
