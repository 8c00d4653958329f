#include "supervisor/launch_warnings.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdio>

namespace baton::supervisor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

model::ModelInfo model_of(const char* format, const char* quantization) {
    model::ModelInfo m;
    m.format = format;
    m.quantization = quantization;
    m.context_length = 2048;
    return m;
}

TEST(LaunchWarnings, SayWhenTheContextIsShorterThanWhatWasAskedFor) {
    const auto m = model_of("gguf", "Q4_1");
    config::LaunchRequest r;
    for (const uint32_t fits : {0u, 16u, 2048u}) {
        r.max_model_len = fits;
        EXPECT_THAT(launch_warnings(r, m, true), IsEmpty());
    }
    r.max_model_len = 4096;
    EXPECT_THAT(launch_warnings(r, m, true), ElementsAre("max_model_len 4096 is beyond the model's context: 2048 is used"));
}

TEST(LaunchWarnings, SayWhenEveryRequestWillBeRefused) {
    config::LaunchRequest r;
    r.request_limits = 0;
    EXPECT_THAT(launch_warnings(r, model_of("gguf", "Q4_1"), true), ElementsAre(HasSubstr("request_limits 0")));
}

TEST(LaunchWarnings, SayWhenALabelContradictsTheFiles) {
    struct Case {
        const char *format, *quantization, *label_format, *label_quantization;
        int warnings;
    };
    const Case cases[] = {
        {"gguf", "Q4_1", "", "", 0},           {"gguf", "Q4_1", "ggufv2", "Q4_1", 0}, {"gguf", "Q4_1", "GGUFv2", "q4-1", 0},       {"gguf", "Q4_1", "ggufv2", "none", 0},
        {"gguf", "Q4_K", "ggufv2", "Q4_K_M", 0}, {"gguf", "Q5_0", "ggufv2", "Q5_K_S", 0}, {"safetensors", "BF16", "pytorch", "none", 0}, {"safetensors", "BF16", "pytorch", "bfloat16", 0},
        {"safetensors", "F16", "pytorch", "fp16", 0}, {"gguf", "Q4_1", "pytorch", "", 1}, {"safetensors", "BF16", "ggufv2", "", 1},     {"gguf", "Q4_1", "ggufv2", "Q8_0", 1},
        {"gguf", "Q4_K", "ggufv2", "Q8_K_L", 1}, {"safetensors", "BF16", "gptq", "Int4", 1}, {"safetensors", "BF16", "pytorch", "fp16", 1}, {"gguf", "Q4_1", "pytorch", "Q8_0", 2},
    };
    for (const Case& c : cases) {
        config::LaunchRequest r;
        r.model_format = c.label_format;
        r.quantization = c.label_quantization;
        const auto m = model_of(c.format, c.quantization);
        EXPECT_EQ(launch_warnings(r, m, true).size(), static_cast<size_t>(c.warnings)) << c.format << " " << c.quantization << " " << c.label_format << " " << c.label_quantization;
        EXPECT_THAT(launch_warnings(r, m, false), IsEmpty());  // the registry's words, not the client's
    }
}

TEST(LaunchWarnings, SayWhenTheSizeIsFarFromThatOfTheFiles) {
    auto m = model_of("gguf", "Q4_1");
    config::LaunchRequest r;
    for (const uint64_t held : {0ull, 134'515'008ull, 630'000'000ull, 8'030'000'000ull}) {
        m.parameters = held;
        for (const double factor : {0.3, 0.6, 1.0, 1.7, 3.0})
            for (const char* spelling : {"%.3f", "%.3fB"}) {
                char label[32];
                std::snprintf(label, sizeof label, spelling, static_cast<double>(held) * 1e-9 * factor);
                for (const bool underscore : {false, true}) {
                    r.size_in_billions = label;
                    if (underscore) std::ranges::replace(r.size_in_billions, '.', '_');
                    const bool far = held > 0 && (factor < 0.5 || factor > 2);
                    EXPECT_EQ(launch_warnings(r, m, true).size(), far ? 1u : 0u) << r.size_in_billions << " of " << held;
                    EXPECT_THAT(launch_warnings(r, m, false), IsEmpty());
                }
            }
    }
    for (const char* no_size : {"", "large", "-3", "7 or so", "nan"}) {
        r.size_in_billions = no_size;
        EXPECT_THAT(launch_warnings(r, m, true), IsEmpty()) << no_size;
    }
}

}  // namespace
}  // namespace baton::supervisor
