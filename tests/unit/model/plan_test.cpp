#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <variant>

#include "baton/model/model.hpp"
#include "test_files.hpp"

namespace baton::model {
namespace {

using backend::MatMul;
using backend::Plan;
using backend::RmsNorm;
using nlohmann::json;

std::vector<float> values(const tensor::TensorView& v) {
    std::vector<float> out(v.shape[0] * v.shape[1]);
    for (size_t r = 0; r < v.shape[0]; ++r) {
        tensor::dequantize_row(v.dtype, v.row(r), out.data() + r * v.shape[1], v.shape[1]);
    }
    return out;
}

std::vector<const MatMul*> matmuls(const Plan& plan, size_t layer) {
    std::vector<const MatMul*> out;
    for (const auto& step : plan.layers[layer]) {
        if (const auto* m = std::get_if<MatMul>(&step)) out.push_back(m);
    }
    return out;
}

/// A copy of a golden model whose config.json a test changes.
class ConfigVariant : public testing::Test {
  protected:
    void use(const std::string& model) {
        test::copy_model(model, dir_);
        config_ = json::parse(test::read_all(dir_.file("config.json")));
    }
    Expected<Plan> load() {
        test::write_all(dir_.file("config.json"), config_.dump());
        return load_plan(dir_.path());
    }
    Error error() {
        auto plan = load();
        return plan ? Error{ErrorCode::kOk, "", ""} : plan.error();
    }
    test::TempDir dir_;
    json config_;
};

TEST(Plan, StepsAreInOrderWithTheirShapes) {
    const auto plan = load_plan(test::data_path("qwen3"));
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->shape.layers, 2u);
    EXPECT_EQ(plan->shape.hidden, 64u);
    EXPECT_EQ(plan->shape.heads, 2u);
    EXPECT_EQ(plan->shape.kv_heads, 1u);
    EXPECT_EQ(plan->shape.head_dim, 32u);
    EXPECT_EQ(plan->shape.ffn, 96u);
    EXPECT_EQ(plan->shape.vocab, 288u);
    EXPECT_EQ(plan->shape.context, 256u);
    ASSERT_EQ(plan->layers.size(), 2u);
    std::vector<size_t> kinds;
    for (const auto& step : plan->layers[1]) kinds.push_back(step.index());
    // norm, q, k, v, q norm, k norm, rope, append, attention, out, norm, gate, up, swiglu, down
    EXPECT_EQ(kinds, (std::vector<size_t>{0, 1, 1, 1, 0, 0, 2, 3, 4, 1, 0, 1, 1, 5, 1}));
    const auto& q_norm = std::get<RmsNorm>(plan->layers[1][4]);
    EXPECT_EQ(q_norm.groups, 2u);
    EXPECT_EQ(q_norm.weight.shape[1], 32u);
    const auto m = matmuls(*plan, 0);
    EXPECT_EQ(m[0]->weight.shape, (std::array<size_t, 2>{64, 64}));
    EXPECT_EQ(m[1]->weight.shape, (std::array<size_t, 2>{32, 64}));
    EXPECT_EQ(m[6]->weight.shape, (std::array<size_t, 2>{64, 96}));
    EXPECT_TRUE(m[3]->add);
    EXPECT_TRUE(m[6]->add);
    EXPECT_FALSE(m[0]->add);
    EXPECT_EQ(m[0]->weight.dtype, tensor::DType::kBF16);
    EXPECT_EQ(plan->final_norm.weight.dtype, tensor::DType::kF32);
    EXPECT_TRUE(plan->storage);
}

TEST(Plan, TiedHeadIsTheEmbedding) {
    const auto tied = load_plan(test::data_path("smollm2"));
    ASSERT_TRUE(tied) << tied.error().message;
    EXPECT_EQ(tied->head.bytes.data(), tied->embedding.bytes.data());
    const auto untied = load_plan(test::data_path("llama"));
    ASSERT_TRUE(untied) << untied.error().message;
    EXPECT_NE(untied->head.bytes.data(), untied->embedding.bytes.data());
}

/// A GGUF file and a safetensors directory of the same weights give the same plan: names, order of
/// q and k rows (GGUF llama stores pairs), biases, norms and frequencies (rope_freqs.weight against
/// the llama3 formula).
TEST(Plan, GgufAndSafetensorsAgree) {
    for (const std::string name : {"llama", "qwen2"}) {
        const auto a = load_plan(test::data_path(name));
        const auto b = load_plan(test::data_path(name + ".gguf"));
        ASSERT_TRUE(a) << a.error().message;
        ASSERT_TRUE(b) << b.error().message;
        EXPECT_EQ(values(a->embedding), values(b->embedding));
        EXPECT_EQ(values(a->head), values(b->head));
        EXPECT_EQ(values(a->final_norm.weight), values(b->final_norm.weight));
        EXPECT_EQ(a->final_norm.eps, b->final_norm.eps);
        ASSERT_EQ(a->rope.inv_freq.size(), b->rope.inv_freq.size());
        for (size_t i = 0; i < a->rope.inv_freq.size(); ++i) {
            EXPECT_NEAR(a->rope.inv_freq[i] / b->rope.inv_freq[i], 1.0f, 3e-7f) << i;
        }
        ASSERT_EQ(a->layers.size(), b->layers.size());
        for (size_t layer = 0; layer < a->layers.size(); ++layer) {
            const auto ma = matmuls(*a, layer);
            const auto mb = matmuls(*b, layer);
            ASSERT_EQ(ma.size(), mb.size());
            for (size_t i = 0; i < ma.size(); ++i) {
                EXPECT_EQ(values(ma[i]->weight), values(mb[i]->weight))
                    << name << " " << ma[i]->weight.name;
                EXPECT_EQ(values(ma[i]->bias), values(mb[i]->bias))
                    << name << " " << ma[i]->bias.name;
                EXPECT_EQ(static_cast<bool>(ma[i]->bias), name == "qwen2" && i < 3);
            }
        }
    }
}

TEST_F(ConfigVariant, RopeFrequenciesEqualTransformers) {
    use("llama");
    for (const json& c : json::parse(test::read_all(test::data_path("rope.json")))) {
        // Both spellings: one object (transformers 5) and rope_theta beside rope_scaling (4).
        for (const bool old_style : {false, true}) {
            config_.erase("rope_scaling");
            config_.erase("rope_parameters");
            config_.erase("rope_theta");
            json parameters = c["rope_parameters"];
            if (old_style) {
                config_["rope_theta"] = parameters["rope_theta"];
                parameters.erase("rope_theta");
                if (parameters["rope_type"] != "default") config_["rope_scaling"] = parameters;
            } else {
                config_["rope_parameters"] = parameters;
            }
            const auto plan = load();
            ASSERT_TRUE(plan) << plan.error().message;
            const auto expected = c["inv_freq"].get<std::vector<float>>();
            ASSERT_EQ(plan->rope.inv_freq.size(), expected.size());
            for (size_t i = 0; i < expected.size(); ++i) {
                EXPECT_NEAR(plan->rope.inv_freq[i] / expected[i], 1.0f, 5e-7f)
                    << c.dump() << " " << i;
            }
            EXPECT_NEAR(plan->rope.scale, c["scale"].get<float>(), 1e-6f) << c.dump();
        }
    }
}

TEST_F(ConfigVariant, RefusesWhatItDoesNotCompute) {
    use("llama");
    const auto message = [&](const char* key, const json& value) {
        const json saved = config_;
        config_[key] = value;
        Error e = error();
        config_ = saved;
        EXPECT_EQ(e.code, ErrorCode::kUnsupported) << key;
        return e.message;
    };
    EXPECT_EQ(message("model_type", "qwen3_next"),
              "architecture 'qwen3_next' is not supported by baton yet");
    EXPECT_EQ(message("model_type", "gemma\n"),
              "architecture 'gemma?' is not supported by baton yet");
    EXPECT_EQ(message("architectures", json::array({"LlamaForSequenceClassification"})),
              "architecture 'LlamaForSequenceClassification' is not supported by baton yet");
    EXPECT_EQ(message("hidden_act", "gelu"), "activation 'gelu' is not supported by baton yet");
    EXPECT_EQ(message("rope_parameters", {{"rope_type", "longrope"}, {"factor", 2.0}}),
              "rope scaling 'longrope' is not supported by baton yet");
    EXPECT_EQ(message("partial_rotary_factor", 0.5),
              "partial rotary embedding is not supported by baton yet");
    EXPECT_EQ(message("quantization_config", {{"quant_method", "gptq"}}),
              "quantization_config in config.json is not supported by baton yet");
    EXPECT_EQ(message("layer_types", json::array({"linear_attention", "full_attention"})),
              "layer type linear_attention is not supported by baton yet");
    // The file has weights that this configuration does not use.
    EXPECT_EQ(message("num_hidden_layers", 1),
              "tensor 'model.layers.1.input_layernorm.weight' is not part of architecture 'llama' "
              "as baton runs it");
}

TEST_F(ConfigVariant, RefusesShapesThatTheWeightsDoNotHave) {
    use("llama");
    const json saved = config_;
    for (const char* key :
         {"hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim",
          "intermediate_size", "vocab_size", "num_hidden_layers", "max_position_embeddings"}) {
        for (const json& value : {json(0), json(-1), json(1.5), json("64"), json(json::array()),
                                  json(INT32_MAX), json(UINT64_MAX), json(7), json(48)}) {
            // Any positive context fits the weights.
            if (std::string(key) == "max_position_embeddings" && value.is_number_integer() &&
                value > 0 && value <= INT32_MAX) {
                continue;
            }
            config_ = saved;
            config_[key] = value;
            EXPECT_EQ(error().code, ErrorCode::kCorrupt)
                << key << " = " << value.dump() << ": " << error().message;
        }
    }
    config_ = saved;
    config_["num_attention_heads"] = 8;  // divides, but q_proj has half the rows
    EXPECT_EQ(
        error().message,
        "tensor 'model.layers.0.self_attn.q_proj.weight' has shape [64, 64], expected [128, 64]");
    config_ = saved;
    config_["attention_bias"] = true;
    EXPECT_EQ(error().message, "tensor 'model.layers.0.self_attn.q_proj.bias' is missing");
    config_ = saved;
    config_["rms_norm_eps"] = 0.0;
    EXPECT_EQ(error().code, ErrorCode::kCorrupt);
    config_ = saved;
    config_["rope_parameters"]["factor"] = 0.0;
    EXPECT_EQ(error().code, ErrorCode::kCorrupt);
    config_ = saved;
    config_["rope_parameters"]["rope_theta"] = -1.0;
    EXPECT_EQ(error().code, ErrorCode::kCorrupt);
    config_ = saved;
    EXPECT_EQ(error().code, ErrorCode::kOk) << error().message;
}

TEST_F(ConfigVariant, SlidingWindowLimitsTheContext) {
    use("mistral");
    EXPECT_EQ(load()->shape.context, 256u);  // null: full attention
    config_["sliding_window"] = 64;
    EXPECT_EQ(load()->shape.context, 64u);
    config_["sliding_window"] = 1024;
    EXPECT_EQ(load()->shape.context, 256u);
    config_.erase("sliding_window");  // transformers: 4096
    config_["max_position_embeddings"] = 32768;
    EXPECT_EQ(load()->shape.context, 4096u);
}

TEST_F(ConfigVariant, QwenWindowIsOffUnlessAskedFor) {
    use("qwen3");
    config_["sliding_window"] = 64;
    EXPECT_EQ(load()->shape.context, 256u);
    config_["use_sliding_window"] = true;
    EXPECT_EQ(load()->shape.context, 64u);
    config_["use_sliding_window"] = false;
    config_["layer_types"] = json::array({"full_attention", "sliding_attention"});
    EXPECT_EQ(load()->shape.context, 64u);
}

TEST_F(ConfigVariant, ATiedModelMayCarryACopyOfItsHead) {
    use("llama");
    config_["tie_word_embeddings"] = true;
    const auto plan = load();
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(plan->head.bytes.data(), plan->embedding.bytes.data());
}

TEST_F(ConfigVariant, BrokenJsonIsRefused) {
    use("llama");
    for (const std::string& text :
         {std::string(), std::string("{"), std::string("[]"), std::string("null"),
          std::string(200'000, '['),
          std::string("{\"model_type\":\"llama\",\"model_type\":\"llama\"}"),
          std::string("{\"a\":\"\xff\"}")}) {
        test::write_all(dir_.file("config.json"), text);
        EXPECT_FALSE(load_plan(dir_.path())) << text.substr(0, 50);
    }
}

TEST(Plan, FindsTheModelInADirectory) {
    const test::TempDir dir;
    EXPECT_EQ(load_plan(dir.file("none")).error().code, ErrorCode::kNotFound);
    EXPECT_EQ(load_plan(dir.path()).error().code, ErrorCode::kInvalidArgument);
    std::filesystem::copy(test::data_path("llama.gguf"), dir.file("a.gguf"));
    EXPECT_TRUE(load_plan(dir.path()));
    std::filesystem::copy(test::data_path("qwen2.gguf"), dir.file("b.gguf"));
    EXPECT_NE(load_plan(dir.path()).error().message.find("several .gguf files"), std::string::npos);
    EXPECT_TRUE(load_plan(dir.file("b.gguf")));
    EXPECT_EQ(load_plan(test::data_path("llama/model.safetensors")).error().code,
              ErrorCode::kInvalidArgument);
}

/// A one-layer GGUF llama whose metadata a test may spoil. hidden 64, 2 heads of 32, ffn 32,
/// vocab 4.
test::GgufWriter small_gguf(const std::string& arch, uint32_t q_type, const std::string& q_bytes) {
    test::GgufWriter w;
    w.key_string("general.architecture", arch);
    w.key<uint32_t>(arch + ".block_count", 4, 1).key<uint32_t>(arch + ".embedding_length", 4, 64);
    w.key<uint32_t>(arch + ".attention.head_count", 4, 2)
        .key<uint32_t>(arch + ".attention.head_count_kv", 4, 1);
    w.key<uint32_t>(arch + ".feed_forward_length", 4, 32)
        .key<uint32_t>(arch + ".context_length", 4, 128);
    w.key<float>(arch + ".attention.layer_norm_rms_epsilon", 6, 1e-5f);
    const auto f32 = [&](const std::string& name, const std::vector<uint64_t>& dims) {
        size_t n = 4;
        for (const uint64_t d : dims) n *= d;
        w.tensor(name, dims, 0, std::string(n, '\0'));
    };
    f32("token_embd.weight", {64, 4});
    f32("output_norm.weight", {64});
    f32("blk.0.attn_norm.weight", {64});
    w.tensor("blk.0.attn_q.weight", {64, 64}, q_type, q_bytes);
    f32("blk.0.attn_k.weight", {64, 32});
    f32("blk.0.attn_v.weight", {64, 32});
    f32("blk.0.attn_output.weight", {64, 64});
    f32("blk.0.ffn_norm.weight", {64});
    f32("blk.0.ffn_gate.weight", {64, 32});
    f32("blk.0.ffn_up.weight", {64, 32});
    f32("blk.0.ffn_down.weight", {32, 64});
    return w;
}

Expected<Plan> load_bytes(const test::GgufWriter& w) {
    const test::TempDir dir;
    test::write_all(dir.file("m.gguf"), w.bytes());
    return load_plan(dir.file("m.gguf"));
}

TEST(Plan, QuantisedRowsMoveWhole) {
    // Row r of q holds the byte r everywhere, so that its place afterwards tells where it came
    // from.
    std::string rows;
    for (int r = 0; r < 64; ++r) rows += std::string(2 * 34, static_cast<char>(r));
    const auto llama = load_bytes(small_gguf("llama", 8, rows));
    ASSERT_TRUE(llama) << llama.error().message;
    const auto& q = matmuls(*llama, 0)[0]->weight;
    for (size_t head = 0; head < 2; ++head) {
        for (size_t i = 0; i < 16; ++i) {
            EXPECT_EQ(static_cast<size_t>(q.row(head * 32 + i)[5]), head * 32 + 2 * i);
            EXPECT_EQ(static_cast<size_t>(q.row(head * 32 + 16 + i)[67]), head * 32 + 2 * i + 1);
        }
    }
    // Qwen files are in half order already.
    test::GgufWriter w = small_gguf("qwen3", 8, rows);
    w.tensor("blk.0.attn_q_norm.weight", {32}, 0, std::string(128, '\0'));
    w.tensor("blk.0.attn_k_norm.weight", {32}, 0, std::string(128, '\0'));
    const auto qwen = load_bytes(w);
    ASSERT_TRUE(qwen) << qwen.error().message;
    for (size_t r = 0; r < 64; ++r)
        EXPECT_EQ(static_cast<size_t>(matmuls(*qwen, 0)[0]->weight.row(r)[0]), r);
}

TEST(Plan, GgufRefusals) {
    const std::string q(64 * 64 * 4, '\0');
    const auto message = [&](const auto& spoil) {
        test::GgufWriter w = small_gguf("llama", 0, q);
        spoil(w);
        const auto plan = load_bytes(w);
        return plan ? std::string() : plan.error().message;
    };
    EXPECT_EQ(message([](auto&) {}), "");
    EXPECT_EQ(message([](auto& w) { w.template key<uint32_t>("llama.expert_count", 4, 8); }),
              "mixture of experts is not supported by baton yet");
    EXPECT_EQ(
        message([](auto& w) { w.template key<uint32_t>("llama.rope.dimension_count", 4, 16); }),
        "partial rotary embedding is not supported by baton yet");
    EXPECT_EQ(message([](auto& w) { w.key_string("llama.rope.scaling.type", "su"); }),
              "rope scaling 'su' is not supported by baton yet");
    EXPECT_EQ(
        message([](auto& w) { w.template key<uint32_t>("llama.attention.value_length", 4, 64); }),
        "a value dimension other than the key dimension is not supported by baton yet");
    EXPECT_EQ(message([](auto& w) { w.template key<uint16_t>("split.count", 2, 3); }),
              "a GGUF in 3 files is found by its parts' names, NAME-00001-of-00003.gguf and so on");
    EXPECT_EQ(
        message([](auto& w) {
            w.tensor("blk.0.ffn_gate_inp.weight", {64}, 0, std::string(256, '\0'));
        }),
        "tensor 'blk.0.ffn_gate_inp.weight' is not part of architecture 'llama' as baton runs it");
    EXPECT_EQ(
        message([](auto& w) { w.tensor("rope_freqs.weight", {16}, 0, std::string(64, '\0')); }),
        "rope configuration: a frequency factor is not usable");
    EXPECT_EQ(
        message([](auto& w) { w.tensor("rope_freqs.weight", {8}, 0, std::string(32, '\0')); }),
        "tensor 'rope_freqs.weight' has shape [8], expected [16]");
    for (const std::string arch : {"qwen3next", "mamba", "rwkv7", "gemma3"}) {
        const auto plan = load_bytes(small_gguf(arch, 0, q));
        ASSERT_FALSE(plan);
        EXPECT_EQ(plan.error().code, ErrorCode::kUnsupported);
        EXPECT_EQ(plan.error().message,
                  "architecture '" + arch + "' is not supported by baton yet");
    }
    // A type baton does not compute with, in a layout it can check.
    const auto iq = load_bytes(small_gguf("llama", 20, std::string(64 * 2 * 18, '\0')));
    ASSERT_FALSE(iq);
    EXPECT_EQ(iq.error().message,
              "tensor 'blk.0.attn_q.weight' has type IQ4_NL, which is not supported by baton yet");
}

TEST(Plan, GgufHeadCountsMayBeArraysOfOneValue) {
    const std::string q(64 * 64 * 4, '\0');
    test::GgufWriter same = small_gguf("llama", 0, q);
    same.key_array<int32_t>("llama.rope.dimension_count", 5, {32, 32});
    EXPECT_TRUE(load_bytes(same));
    test::GgufWriter mixed = small_gguf("llama", 0, q);
    mixed.key_array<int32_t>("llama.rope.dimension_count", 5, {32, 16});
    EXPECT_EQ(load_bytes(mixed).error().code, ErrorCode::kUnsupported);
    test::GgufWriter empty = small_gguf("llama", 0, q);
    empty.key_array<int32_t>("llama.rope.dimension_count", 5, {});
    EXPECT_EQ(load_bytes(empty).error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace baton::model
