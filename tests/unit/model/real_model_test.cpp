// SmolLM2-135M-Instruct.Q4_1.gguf (docs/PERFORMANCE.md says where it comes from), when
// BATON_TEST_MODEL names it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <list>
#include <nlohmann/json.hpp>
#include <variant>

#include "baton/model/model.hpp"
#include "cpu_runner.hpp"

namespace baton::model {
namespace {

class RealModel : public testing::Test {
  protected:
    void SetUp() override {
        const char* path = std::getenv("BATON_TEST_MODEL");
        if (path == nullptr)
            GTEST_SKIP() << "BATON_TEST_MODEL does not name SmolLM2-135M-Instruct.Q4_1.gguf";
        path_ = path;
    }
    std::string path_;
};

TEST_F(RealModel, Inspect) {
    const auto info = inspect_model(path_);
    ASSERT_TRUE(info) << info.error().message;
    EXPECT_EQ(info->architecture, "llama");
    EXPECT_EQ(info->shape.layers, 30u);
    EXPECT_EQ(info->shape.hidden, 576u);
    EXPECT_EQ(info->shape.heads, 9u);
    EXPECT_EQ(info->shape.kv_heads, 3u);
    EXPECT_EQ(info->shape.head_dim, 64u);
    EXPECT_EQ(info->shape.ffn, 1536u);
    EXPECT_EQ(info->shape.vocab, 49152u);
    EXPECT_EQ(info->context_length, 8192u);
    EXPECT_EQ(info->quantization, "Q4_1");
    EXPECT_EQ(info->eos, (std::vector<TokenId>{2, 0}));
    EXPECT_EQ(info->bos, 1);
    EXPECT_FALSE(is_recurrent_architecture(info->architecture));
}

/// Ids by Hugging Face tokenizers 0.23.3 and llama.cpp (llama-cpp-python 0.3.36), which agree.
TEST_F(RealModel, TokenIds) {
    const auto info = inspect_model(path_);
    ASSERT_TRUE(info) << info.error().message;
    const auto ids = [&](const char* text, bool special) {
        return info->tokenizer->encode(text, special, false);
    };
    using Ids = std::vector<TokenId>;
    EXPECT_EQ(ids("Hello, world!", false), (Ids{19556, 28, 905, 17}));
    EXPECT_EQ(ids("  two  spaces\n\n\tand 12345", false),
              (Ids{216, 827, 216, 5600, 1116, 197, 397, 216, 33, 34, 35, 36, 37}));
    EXPECT_EQ(ids("The capital of France is", false), (Ids{504, 3575, 282, 4649, 314}));
    EXPECT_EQ(ids("na\xc3\xafve caf\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80", false),
              (Ids{3546, 46494, 37366, 216, 18645, 250, 48392, 138, 40303, 218}));
    EXPECT_EQ(ids("<|im_start|>user\nHi<|im_end|>\n", true), (Ids{1, 4093, 198, 26843, 2, 198}));
    EXPECT_EQ(ids("<|im_start|>user\nHi<|im_end|>\n", false),
              (Ids{44, 108, 306, 79, 3738, 108, 46, 4093, 198, 26843, 44, 108, 306, 79, 486, 108,
                   46, 198}));
}

TEST_F(RealModel, ChatTemplate) {
    const auto info = inspect_model(path_);
    ASSERT_TRUE(info) << info.error().message;
    ASSERT_TRUE(info->chat_template) << info->chat_template_error;
    const nlohmann::json context = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                                    {"add_generation_prompt", true}};
    const auto segments = info->chat_template->render(context.dump());
    ASSERT_TRUE(segments) << segments.error().message;
    std::string text;
    for (const text::Segment& s : *segments) text += s.text;
    EXPECT_EQ(text,
              "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
              "Face<|im_end|>\n"
              "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

/// "The capital of France is", and its largest logit by transformers in f32 on the dequantised
/// weights.
const std::vector<TokenId> kPrompt{504, 3575, 282, 4649, 314};
constexpr TokenId kParis = 7042;
constexpr float kParisLogit = 17.3713f;

/// With the layers' weights dequantised the plan computes what transformers does.
TEST_F(RealModel, DequantisedLayersGiveTheReferenceLogits) {
    auto plan = load_plan(path_);
    ASSERT_TRUE(plan) << plan.error().message;
    std::list<std::vector<float>> owned;
    for (auto& layer : plan->layers) {
        for (auto& step : layer) {
            auto* m = std::get_if<backend::MatMul>(&step);
            if (m == nullptr) continue;
            tensor::TensorView& w = m->weight;
            std::vector<float>& values = owned.emplace_back(w.shape[0] * w.shape[1]);
            for (size_t r = 0; r < w.shape[0]; ++r) {
                float* row = values.data() + r * w.shape[1];
                tensor::dequantize_row(w.dtype, w.row(r), row, w.shape[1]);
            }
            w.dtype = tensor::DType::kF32;
            w.bytes = std::as_bytes(std::span(values));
        }
    }
    auto runner = test::CpuRunner::make(*plan, "");
    ASSERT_TRUE(runner) << runner.error().message;
    const auto logits = (*runner)->step(kPrompt);
    ASSERT_TRUE(logits) << logits.error().message;
    EXPECT_NEAR((*logits)[kParis], kParisLogit, 0.02f);
}

/// " Paris.\n\nThe", steps at which the best two logits lie at least 0.8 apart in the reference.
TEST_F(RealModel, GreedyTokens) {
    auto plan = load_plan(path_);
    ASSERT_TRUE(plan) << plan.error().message;
    auto runner = test::CpuRunner::make(*plan, "");
    ASSERT_TRUE(runner) << runner.error().message;
    auto logits = (*runner)->step(kPrompt);
    ASSERT_TRUE(logits) << logits.error().message;
    // Activations are rounded to int8 beside quantised weights, which shifts all logits a little
    // (measured 0.5 to 0.6 here; the distribution stays as close to f32 as llama.cpp's).
    EXPECT_NEAR((*logits)[kParis], kParisLogit, 1.0f);
    std::vector<TokenId> greedy;
    for (int i = 0; i < 5; ++i) {
        const auto best = std::max_element(logits->begin(), logits->end()) - logits->begin();
        greedy.push_back(static_cast<TokenId>(best));
        logits = (*runner)->step(std::span(&greedy.back(), 1));
        ASSERT_TRUE(logits) << logits.error().message;
    }
    EXPECT_EQ(greedy, (std::vector<TokenId>{kParis, 30, 198, 198, 504}));
}

}  // namespace
}  // namespace baton::model
