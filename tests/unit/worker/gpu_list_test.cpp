#include "worker/gpu_list.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

namespace baton::worker {
namespace {

using Devices = Expected<std::vector<backend::CudaDevice>>;

TEST(GpuList, AnotherProcessAsksTheDriver) {
    const pid_t self = ::getpid();
    const auto list = list_gpus([self]() -> Devices {
        if (::getpid() == self) return fail(ErrorCode::kInternal, "asked in the worker");
        std::vector<backend::CudaDevice> devices(200);
        for (uint32_t i = 0; i < devices.size(); ++i) {
            devices[i].index = i;
            devices[i].name = std::string(100, 'g') + std::to_string(i);
            devices[i].total_bytes = uint64_t{i} << 32;
        }
        return devices;
    });
    EXPECT_EQ(list.error, "");
    ASSERT_EQ(list.gpus.size(), 200u);
    EXPECT_EQ(list.gpus[199].index, 199u);
    EXPECT_EQ(list.gpus[199].name, std::string(100, 'g') + "199");
    EXPECT_EQ(list.gpus[199].memory_bytes, uint64_t{199} << 32);
}

TEST(GpuList, SaysWhatIsMissing) {
    const auto none = list_gpus([]() -> Devices { return fail(ErrorCode::kUnavailable, "no driver"); });
    EXPECT_EQ(none.error, "no driver");
    EXPECT_TRUE(none.gpus.empty());
    EXPECT_EQ(list_gpus([]() -> Devices { return std::vector<backend::CudaDevice>{}; }).error, "the driver lists no GPU");
}

TEST(GpuList, SurvivesADriverThatCrashesHangsOrEndsTheProcess) {
    EXPECT_EQ(list_gpus([]() -> Devices {
                  ::signal(SIGBUS, SIG_DFL);  // a sanitizer has its own handler
                  ::raise(SIGBUS);
                  return {};
              }).error,
              "listing the GPUs was ended by signal 7");
    EXPECT_EQ(list_gpus([]() -> Devices { ::_exit(3); }).error, "listing the GPUs got no answer");
    const auto hung = list_gpus(
        []() -> Devices {
            for (;;) ::pause();
        },
        50);
    EXPECT_EQ(hung.error, "listing the GPUs got no answer");
}

TEST(GpuList, ThisProgramHasNoModule) {
    const auto list = list_gpus();
    if (list.error.empty()) GTEST_SKIP() << "there are GPUs here";
    EXPECT_TRUE(list.gpus.empty());
}

}  // namespace
}  // namespace baton::worker
