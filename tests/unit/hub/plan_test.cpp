#include "hub/plan.hpp"

#include <gtest/gtest.h>

#include "baton/wire/messages.hpp"

namespace baton::hub {
namespace {

using Names = std::vector<std::string>;

PullRequest ask(const std::string& format = "", const std::string& quantization = "") {
    PullRequest r;
    r.repo = "org/name";
    r.format = format;
    r.quantization = quantization;
    return r;
}

const Names kSafetensors = {".gitattributes", "LICENSE", "README.md", "config.json", "generation_config.json", "merges.txt", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.json", "onnx/model.onnx", "pytorch_model.bin"};

TEST(Plan, SafetensorsTakeConfigurationTokenizerAndWeights) {
    for (const char* format : {"", "pytorch", "safetensors"}) {
        const auto p = plan_files(kSafetensors, ask(format, "none"));
        ASSERT_TRUE(p) << p.error().message;
        EXPECT_EQ(p->format, "pytorch");
        EXPECT_EQ(p->first, (Names{"config.json", "tokenizer.json", "generation_config.json", "tokenizer_config.json", "vocab.json", "merges.txt"}));
        EXPECT_EQ(p->weights, Names{"model.safetensors"});
        EXPECT_EQ(p->index, "");
    }
}

TEST(Plan, ShardsComeFromTheIndex) {
    const auto p = plan_files({"config.json", "tokenizer.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors", "consolidated.safetensors"}, ask());
    ASSERT_TRUE(p);
    EXPECT_EQ(p->index, "model.safetensors.index.json");
    EXPECT_TRUE(p->weights.empty());
    const auto shards = shards_of_index(R"({"metadata":{},"weight_map":{"a":"m-2.safetensors","b":"m-1.safetensors","c":"m-2.safetensors"}})");
    EXPECT_EQ(*shards, (Names{"m-1.safetensors", "m-2.safetensors"}));
    for (const char* bad : {"", "[]", "{}", R"({"weight_map":{}})", R"({"weight_map":{"a":1}})", R"({"weight_map":{"a":"../m.safetensors"}})", R"({"weight_map":{"a":"x/m.safetensors"}})",
                            R"({"weight_map":{"a":"/m.safetensors"}})", R"({"weight_map":{"a":"m.bin"}})", R"({"weight_map":[]})"})
        EXPECT_FALSE(shards_of_index(bad)) << bad;
}

TEST(Plan, ADescriptionIsConfigurationAndTokenizer) {
    PullRequest r = ask();
    r.description_only = true;
    const auto p = plan_files(kSafetensors, r);
    ASSERT_TRUE(p) << p.error().message;
    EXPECT_EQ(p->format, "pytorch");
    EXPECT_EQ(p->first.front(), "config.json");
    EXPECT_TRUE(p->weights.empty() && p->index.empty());
    // A cache has no more of it than what was taken.
    EXPECT_TRUE(plan_files(p->first, r));
    EXPECT_FALSE(plan_files(p->first, ask())) << "for a launch that is not enough";
    r.format = "ggufv2";
    EXPECT_EQ(plan_files({"x-q8_0.gguf"}, r)->weights, Names{"x-q8_0.gguf"});
    const Names parts = {"x-q8_0-00001-of-00003.gguf", "x-q8_0-00002-of-00003.gguf", "x-q8_0-00003-of-00003.gguf"};
    EXPECT_EQ(plan_files(parts, r)->weights, Names{parts[0]});
    EXPECT_EQ(plan_files({parts[0]}, r)->weights, Names{parts[0]});
    EXPECT_FALSE(plan_files({parts[1], parts[2]}, r)) << "the first has the metadata";
    r.description_only = false;
    EXPECT_EQ(plan_files(parts, r)->weights, parts);
}

TEST(Plan, AMessageBecomesARequest) {
    const auto none = [](std::string_view) -> Expected<void> { return {}; };
    const auto r = request_of(wire::PullModel{7, "modelscope", "org/name", "main", "ggufv2", "q4_0", "x.gguf"}, none);
    ASSERT_TRUE(r);
    EXPECT_EQ(r->hub, Hub::kModelScope);
    EXPECT_EQ(r->repo + r->revision + r->format + r->quantization + r->gguf_file, "org/namemainggufv2q4_0x.gguf");
    EXPECT_TRUE(r->cached_is_enough && r->check_config && !r->description_only && r->files.empty());
    EXPECT_EQ(request_of(wire::PullModel{7, "elsewhere", "org/name", "", "", "", ""}, none).error().param, "download_hub");
}

TEST(Plan, AMissingFileIsNamed) {
    EXPECT_EQ(plan_files({"config.json", "model.safetensors"}, ask()).error().message, "org/name has no tokenizer.json");
    EXPECT_EQ(plan_files({"tokenizer.json", "model.safetensors"}, ask()).error().message, "org/name has no config.json");
    EXPECT_EQ(plan_files({"tokenizer.json", "config.json"}, ask("pytorch")).error().message, "org/name has no model.safetensors");
    EXPECT_EQ(plan_files({"a.json"}, ask("ggufv2")).error().message, "org/name has no GGUF file");
}

TEST(Plan, PickledWeightsAndOtherFormatsAreRefused) {
    EXPECT_EQ(plan_files({"config.json", "pytorch_model.bin"}, ask()).error().code, ErrorCode::kUnsupported);
    for (const char* format : {"gptq", "awq", "mlx", "fp8"}) EXPECT_EQ(plan_files(kSafetensors, ask(format)).error().param, "model_format") << format;
    EXPECT_EQ(plan_files(kSafetensors, ask("pytorch", "8-bit")).error().param, "quantization");
}

TEST(Plan, OneGgufIsChosenByItsQuantization) {
    const Names names = {"README.md", "x-1b-q4_0.gguf", "x-1b-q4_k_m.gguf", "x-1b-Q8_0.gguf", "mmproj-x-f16.gguf", "BF16/x-1b-BF16.gguf"};
    EXPECT_EQ(plan_files(names, ask("ggufv2", "Q4_K_M"))->weights, Names{"x-1b-q4_k_m.gguf"});
    EXPECT_EQ(plan_files(names, ask("", "q8_0"))->weights, Names{"x-1b-Q8_0.gguf"});
    EXPECT_EQ(plan_files(names, ask("", "bf16"))->weights, Names{"BF16/x-1b-BF16.gguf"});
    EXPECT_EQ(plan_files({"only-q5_k_m.gguf"}, ask())->weights, Names{"only-q5_k_m.gguf"});
    EXPECT_EQ(plan_files(names, ask("ggufv2")).error().message, "org/name has several GGUF files; choose a quantization: bf16, q4_0, q4_k_m, q8_0");
    EXPECT_EQ(plan_files(names, ask("ggufv2", "q9")).error().message, "org/name has no quantization 'q9'; it has bf16, q4_0, q4_k_m, q8_0");
    PullRequest named = ask("ggufv2");
    named.gguf_file = "X-1B-q4_0.gguf";
    EXPECT_EQ(plan_files(names, named)->weights, Names{"x-1b-q4_0.gguf"});
    // A repository with both formats: safetensors unless a quantization is asked for.
    Names both = kSafetensors;
    both.push_back("x-q4_0.gguf");
    EXPECT_EQ(plan_files(both, ask())->format, "pytorch");
    EXPECT_EQ(plan_files(both, ask("", "q4_0"))->format, "ggufv2");
}

TEST(Plan, ASplitGgufHasAllItsParts) {
    const Names names = {"x-q4_k_m-00002-of-00003.gguf", "x-q4_k_m-00001-of-00003.gguf", "x-q4_k_m-00003-of-00003.gguf", "x-q8_0.gguf"};
    const auto p = plan_files(names, ask("ggufv2", "q4_k_m"));
    ASSERT_TRUE(p) << p.error().message;
    EXPECT_TRUE(p->split);
    EXPECT_EQ(p->weights, (Names{"x-q4_k_m-00001-of-00003.gguf", "x-q4_k_m-00002-of-00003.gguf", "x-q4_k_m-00003-of-00003.gguf"}));
    const auto lacking = plan_files({names[0], names[1]}, ask("ggufv2", "q4_k_m"));
    EXPECT_EQ(lacking.error().message, "org/name lacks part 3 of 3 of x-q4_k_m-00001-of-00003.gguf");
}

TEST(Plan, QuantizationsAreReadFromNames) {
    EXPECT_EQ(gguf_quantization("SmolLM2-135M-Instruct-Q4_K_M.gguf"), "q4_k_m");
    EXPECT_EQ(gguf_quantization("SmolLM2-135M-Instruct.Q4_1.gguf"), "q4_1");
    EXPECT_EQ(gguf_quantization("a/b-IQ4_XS-00001-of-00002.gguf"), "iq4_xs");
    EXPECT_EQ(gguf_quantization("model-f16.gguf"), "f16");
    EXPECT_EQ(gguf_quantization("bf16.gguf"), "bf16");
    EXPECT_EQ(gguf_quantization("model.gguf"), "");
    EXPECT_EQ(gguf_quantization("xq4_0.gguf"), "");
}

TEST(Plan, NamedFilesAreTakenAsTheyAre) {
    PullRequest r = ask();
    r.files = {"README.md", "LICENSE"};
    EXPECT_EQ(plan_files(kSafetensors, r)->first, r.files);
    r.files = {"nope"};
    EXPECT_EQ(plan_files(kSafetensors, r).error().message, "org/name has no nope");
}

}  // namespace
}  // namespace baton::hub
