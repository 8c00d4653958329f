// Every family end to end on the CPU backend against transformers: logits after each prompt token
// and 64 greedy tokens of the small models in tests/data/model (scripts/golden_models.py), on every
// instruction set this machine has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>
#include <string>
#include <tuple>

#include "baton/model/model.hpp"
#include "cpu_runner.hpp"
#include "test_files.hpp"

namespace baton::model {
namespace {

struct Golden {
    std::vector<TokenId> prompt;
    std::vector<TokenId> greedy;
    std::vector<float> logits;  ///< [prompt, vocab]
};

Golden read_golden(const std::string& family) {
    const auto j = nlohmann::json::parse(test::read_all(test::data_path(family + "/golden.json")));
    Golden g{j["prompt"], j["greedy"], {}};
    const std::string bytes = test::read_all(test::data_path(family + "/logits.bin"));
    g.logits.resize(bytes.size() / sizeof(float));
    std::memcpy(g.logits.data(), bytes.data(), g.logits.size() * sizeof(float));
    return g;
}

struct Case {
    std::string model;   ///< under tests/data/model
    std::string golden;  ///< the directory with golden.json
};
using Param = std::tuple<Case, std::string>;  ///< and the instruction set

std::string name_of(const Param& p) {
    std::string name = std::get<0>(p).model + "_" + std::get<1>(p);
    std::replace(name.begin(), name.end(), '.', '_');
    return name;
}
[[maybe_unused]] void PrintTo(const Param& p, std::ostream* out) {
    *out << name_of(p);
}

class GoldenModel : public testing::TestWithParam<Param> {
  protected:
    void SetUp() override {
        const auto& [model, isa] = GetParam();
        golden_ = read_golden(model.golden);
        auto plan = load_plan(test::data_path(model.model));
        ASSERT_TRUE(plan) << plan.error().message;
        // Products of bf16 weights with activations rounded to bf16: 8 bits of mantissa instead
        // of 24.
        rounds_ = isa == "avx512bf16" && model.model == "qwen3";
        auto runner = test::CpuRunner::make(*plan, isa);
        if (!runner && runner.error().param == "isa" && isa != "portable") {
            GTEST_SKIP() << "this machine has no " << isa << ": " << runner.error().message;
        }
        ASSERT_TRUE(runner) << runner.error().message;
        runner_ = std::move(*runner);
        largest_ = 0;
        for (const float l : golden_.logits) largest_ = std::max(largest_, std::fabs(l));
    }
    /// Largest difference from the golden logits after prompt token `at`, over the largest logit.
    float error_at(size_t at, std::span<const float> logits) const {
        float worst = 0;
        for (size_t i = 0; i < logits.size(); ++i) {
            worst = std::max(worst, std::fabs(logits[i] - golden_.logits[at * logits.size() + i]));
        }
        return worst / largest_;
    }
    float tolerance() const { return rounds_ ? 3e-2f : 1e-4f; }
    bool rounds_ = false;
    Golden golden_;
    std::unique_ptr<test::CpuRunner> runner_;
    float largest_ = 0;
};

TEST_P(GoldenModel, PrefillLogitsAndGreedyTokens) {
    auto logits = runner_->step(golden_.prompt);
    ASSERT_TRUE(logits) << logits.error().message;
    EXPECT_LE(error_at(golden_.prompt.size() - 1, *logits), tolerance());
    if (rounds_) return;  // greedy choices may fall otherwise
    std::vector<TokenId> greedy;
    while (greedy.size() < golden_.greedy.size()) {
        const auto best = std::max_element(logits->begin(), logits->end()) - logits->begin();
        greedy.push_back(static_cast<TokenId>(best));
        logits = runner_->step(std::span(&greedy.back(), 1));
        ASSERT_TRUE(logits) << logits.error().message;
    }
    EXPECT_EQ(greedy, golden_.greedy);
}

TEST_P(GoldenModel, LogitsAfterEveryPromptToken) {
    const auto vocab = runner_->vocab();
    ASSERT_EQ(golden_.logits.size(), golden_.prompt.size() * vocab);
    float worst = 0;
    for (size_t i = 0; i < golden_.prompt.size(); ++i) {
        const auto logits = runner_->step(std::span(golden_.prompt).subspan(i, 1));
        ASSERT_TRUE(logits) << logits.error().message;
        worst = std::max(worst, error_at(i, *logits));
    }
    EXPECT_LE(worst, tolerance());
    RecordProperty("worst_relative_error", std::to_string(worst));
}

INSTANTIATE_TEST_SUITE_P(
    Families, GoldenModel,
    testing::Combine(testing::Values(Case{"llama", "llama"}, Case{"llama.gguf", "llama"},
                                     Case{"qwen2", "qwen2"}, Case{"qwen2.gguf", "qwen2"},
                                     Case{"qwen3", "qwen3"}, Case{"mistral", "mistral"},
                                     Case{"smollm2", "smollm2"}),
                     testing::Values("portable", "avx2", "avx512", "avx512bf16")),
    [](const auto& p) { return name_of(p.param); });

}  // namespace
}  // namespace baton::model
