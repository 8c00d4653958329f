// Beside the tests that are linked with it: all kernels of those run with delays (jitter.cuh), and where a wait is left out the tests notice.
#include "backend/cuda/jitter.cuh"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace baton::backend::cuda {
namespace {

/// BATON_JITTER_WITHOUT="kind from to" is what the kernels do without.
class Delays : public ::testing::Environment {
    void SetUp() override {
        Jitter jitter;
        if (const char* given = std::getenv("BATON_JITTER_WITHOUT"))
            ASSERT_EQ(std::sscanf(given, "%u %u %u", &jitter.left_out, &jitter.from, &jitter.to), 3);
        int devices = 0;
        if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return;
        ASSERT_FALSE(jitter_files().empty());
        for (const auto tell : jitter_files()) ASSERT_EQ(tell(jitter), cudaSuccess);
    }
};
const auto* const delays = ::testing::AddGlobalTestEnvironment(new Delays);

struct Fault {
    const char* name;
    const char* tests;  // that shall fail
    Jitter without;
    friend void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }
};

/// Each in a process of its own: what happens there may end its use of the GPU.
class Faults : public ::testing::TestWithParam<Fault> {};

TEST_P(Faults, AreNoticed) {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU here";
    const Fault& fault = GetParam();
    const std::string self = std::filesystem::read_symlink("/proc/self/exe");
    const Jitter& j = fault.without;
    const std::string command = "export BATON_TEST_SIZE_MAX=30000 BATON_TEST_REDUCED=1 BATON_JITTER_WITHOUT='" + std::to_string(j.left_out) + ' ' + std::to_string(j.from) +
                                ' ' + std::to_string(j.to) + "'; for i in 1 2 3 4 5; do timeout 10 '" + self + "' --gtest_filter='" + fault.tests + "' || exit 1; done 2>&1";
    std::FILE* out = popen(command.c_str(), "r");
    ASSERT_NE(out, nullptr);
    std::string text;
    std::array<char, 4096> some{};
    while (std::fgets(some.data(), some.size(), out) != nullptr) text += some.data();
    EXPECT_NE(WEXITSTATUS(pclose(out)), 0) << text.substr(0, 2000);  // a wrong result, an error of the device, or no end
    EXPECT_NE(text.find("[ RUN      ]"), std::string::npos) << text.substr(0, 2000);
}

constexpr const char* kRings = "*RingForms*48";
INSTANTIATE_TEST_SUITE_P(Planted, Faults,
                         ::testing::Values(Fault{"RingWeights", kRings, {Jitter::kWait, 0, 248}}, Fault{"RingWeightsRead", kRings, {Jitter::kWait, 256, 512}},
                                           Fault{"RingRows", kRings, {Jitter::kWait, 512, 640}}, Fault{"RingRowsRead", kRings, {Jitter::kWait, 640, 768}},
                                           Fault{"RingRowsScaled", kRings, {Jitter::kWait, 768, 896}}, Fault{"RingSums", kRings, {Jitter::kWait, 248, 256}},
                                           Fault{"SlabSums", "*EverySlab", {Jitter::kWait, 8, 16}},
                                           Fault{"BulkStages", "*EveryBulkBf16", {Jitter::kWait, 0, 64}},
                                           Fault{"BulkStagesRead", "*EveryBulkBf16", {Jitter::kWait, 64, 128}},
                                           Fault{"DecodeParts", "DecodeAttentionTest.Match*", {Jitter::kWait, 0, 1024}},
                                           Fault{"DecodeCluster", "DecodeAttentionTest.Match*", {Jitter::kCluster, 0, 1}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace baton::backend::cuda
