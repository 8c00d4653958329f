#include "cli/split_rates.hpp"

#include <gtest/gtest.h>

namespace baton::cli::split {
namespace {

Json whole() {
    return Json::parse(R"({"engine": "cpu amx, 2 threads", "device": "cpu", "max_num_batched_tokens": 256, "max_num_seqs": 32, "block_tokens": 16,
        "kv_tokens": 4096, "kv_bytes_per_token": 23040, "handoff_ms": 1.5, "handoff_gb_per_s": 5,
        "beside": {"prefill": {"prefill": 2, "decode": 1.5}, "decode": {"prefill": 3, "decode": 2.1}},
        "after_pause_ms": {"prefill": 4, "decode": 1},
        "prefill": [{"tokens": 16, "ms": 8.5}, {"tokens": 256, "position": 256, "ms": 99}],
        "decode": [{"batch": 4, "context": 300, "ms": 6.25}], "mixed": [{"tokens": 64, "batch": 2, "context": 300, "ms": 31}]})");
}

TEST(Rates, AreReadAsTheyWereWritten) {
    const auto rates = parse_rates(whole());
    ASSERT_TRUE(rates) << rates.error().message;
    EXPECT_EQ(rates->samples.size(), 4u);
    EXPECT_EQ(rates->step_tokens, 256u);
    EXPECT_EQ(rates->samples[1].position, 256u);
    EXPECT_EQ(rates->samples[3].rows, 2u);
    EXPECT_EQ(rates->samples[3].prompt_tokens, 64u);
    EXPECT_EQ(rates->samples[2].us, 6250);
    EXPECT_EQ(rates->beside[0][1], 1.5);
    EXPECT_EQ(rates->beside[1][0], 3);
    const auto again = parse_rates(to_json(*rates));
    ASSERT_TRUE(again) << again.error().message;
    EXPECT_EQ(to_json(*again), to_json(*rates));
}

TEST(Rates, TakesWhatBenchEnginePrintsOfAGpu) {
    const auto rates = parse_rates(Json::parse(R"({"backend": "cuda 0 NVIDIA H200, bf16", "load_ms": 700, "kv_tokens": 1000000, "block_tokens": 64, "lines": [
        {"phase": "decode", "batch": 8, "tokens": 1024, "floor_ms": 0.5, "error": "", "ms": 0.82}, {"phase": "decode", "batch": 256, "tokens": 4096, "error": "does not fit"},
        {"phase": "prefill", "batch": 1, "tokens": 512, "error": "", "ms": 1.77}]})"));
    ASSERT_TRUE(rates) << rates.error().message;
    EXPECT_TRUE(rates->device);
    ASSERT_EQ(rates->samples.size(), 2u);
    EXPECT_EQ(rates->samples[0].rows, 8u);
    EXPECT_EQ(rates->samples[0].context, 1024u);
    EXPECT_EQ(rates->samples[1].prompt_tokens, 512u);
    EXPECT_EQ(rates->step_tokens, 2048u);
    EXPECT_EQ(rates->kv_tokens, 1'000'000u);
    EXPECT_EQ(rates->beside[0][1], 1);
}

TEST(Rates, OnSharedCoresTwoHaveHalfEachUnlessItWasMeasured) {
    EXPECT_EQ(parse_rates(Json::object())->beside[1][0], 2);
    EXPECT_EQ(parse_rates(Json{{"device", "gpu"}})->beside[1][0], 1);
}

TEST(Rates, TheFieldThatIsWrongIsNamed) {
    const auto field_of = [](const std::string& pointer, const Json& value) {
        Json json = whole();
        json[Json::json_pointer(pointer)] = value;
        const auto rates = parse_rates(json);
        return rates ? std::string("none") : rates.error().param;
    };
    EXPECT_EQ(field_of("/device", "tpu"), "device");
    EXPECT_EQ(field_of("/kv_tokens", -1), "kv_tokens");
    EXPECT_EQ(field_of("/max_num_batched_tokens", 0), "max_num_batched_tokens");
    EXPECT_EQ(field_of("/max_num_seqs", "many"), "max_num_seqs");
    EXPECT_EQ(field_of("/prefill", 3), "prefill");
    EXPECT_EQ(field_of("/prefill/0", 3), "prefill[0]");
    EXPECT_EQ(field_of("/prefill/1/ms", 0), "prefill[1].ms");
    EXPECT_EQ(field_of("/decode/0/batch", 1e9), "decode[0].batch");
    EXPECT_EQ(field_of("/mixed/0/context", Json()), "mixed[0].context");
    EXPECT_EQ(field_of("/after_pause_ms/decode", -1), "after_pause_ms.decode");
    EXPECT_EQ(field_of("/after_pause_ms", 1), "after_pause_ms");
    EXPECT_EQ(field_of("/beside/decode", 2), "beside.decode");
    EXPECT_EQ(field_of("/beside/prefill/decode", 0.5), "beside.prefill.decode");
    EXPECT_EQ(parse_rates(Json::parse(R"({"lines": [{"phase": "prefill", "batch": 1, "tokens": 5, "ms": 2}, {"phase": "sleep", "ms": 1}]})")).error().param, "lines[1].phase");
    EXPECT_EQ(parse_rates(Json::parse("[]")).error().param, "rates");
    EXPECT_EQ(read_rates("/nowhere/rates.json").error().code, ErrorCode::kIo);
}

TEST(Points, AreReadAndTheWrongOneIsNamed) {
    const auto points = parse_points({"512:11.5", "4096:98.8"}, {"1@1024:3.7", "64@4096:11"});
    ASSERT_TRUE(points);
    ASSERT_EQ(points->size(), 4u);
    EXPECT_EQ((*points)[1].prompt_tokens, 4096u);
    EXPECT_EQ((*points)[3].rows, 64u);
    EXPECT_EQ((*points)[3].context, 4096u);
    EXPECT_EQ((*points)[3].us, 11'000);
    for (const char* bad : {"", "512", "512:", ":5", "512:0", "512:-1", "0:5", "512:5x", "x:5", "512:nan", "9999999:5", "512@3:5"}) {
        const auto none = parse_points({bad}, {});
        ASSERT_FALSE(none) << bad;
        EXPECT_NE(none.error().message.find("--prefill-ms: '" + std::string(bad) + "'"), std::string::npos);
    }
    for (const char* bad : {"", "1@2", "1:2", "0@5:1", "5@0:1", "1@1:0", "1@1:inf", "1@@1:1"}) {
        const auto none = parse_points({}, {bad});
        ASSERT_FALSE(none) << bad;
        EXPECT_NE(none.error().message.find("--decode-ms"), std::string::npos);
    }
}

}  // namespace
}  // namespace baton::cli::split
