// What is said where there is no GPU, no driver, an old one, another GPU than asked for, or no memory left.
#include <gtest/gtest.h>

#include "backend/cuda/device_info.hpp"
#include "backend/cuda/memory.hpp"

namespace baton::backend::cuda {

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Device, NoDriverAnOldDriverAndNoGpuAreToldApart) {
    const std::string needed = std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
    const Error none = no_devices(cudaErrorInsufficientDriver, 0);
    EXPECT_EQ(none.code, ErrorCode::kUnavailable);
    EXPECT_TRUE(has(none.message, "no NVIDIA driver is installed")) << none.message;
    const Error broken = no_devices(cudaErrorInsufficientDriver, 0, "libcuda.so.1: file too short");
    EXPECT_TRUE(has(broken.message, "file too short")) << broken.message;
    const Error old = no_devices(cudaErrorInsufficientDriver, 12040);
    EXPECT_EQ(old.code, ErrorCode::kUnavailable);
    EXPECT_TRUE(has(old.message, "CUDA 12.4")) << old.message;
    EXPECT_TRUE(has(old.message, "needs " + needed)) << old.message;
    const Error empty = no_devices(cudaErrorNoDevice, CUDART_VERSION);
    EXPECT_TRUE(has(empty.message, "no GPU")) << empty.message;
    const Error other = no_devices(cudaErrorSystemDriverMismatch, CUDART_VERSION);
    EXPECT_EQ(other.code, ErrorCode::kUnavailable);
    EXPECT_TRUE(has(other.message, cudaGetErrorString(cudaErrorSystemDriverMismatch))) << other.message;
}

TEST(Device, AMissingNumberNamesWhatIsThere) {
    const auto devices = list_devices();
    const auto used = use_device(4000);
    ASSERT_FALSE(used);
    if (!devices) {
        EXPECT_EQ(used.error().message, devices.error().message);
        GTEST_SKIP() << devices.error().message;
    }
    EXPECT_EQ(used.error().code, ErrorCode::kInvalidArgument);
    EXPECT_TRUE(has(used.error().message, "no GPU 4000")) << used.error().message;
    for (const CudaDevice& device : *devices)
        EXPECT_TRUE(has(used.error().message, std::to_string(device.index) + " " + device.name)) << used.error().message;
}

TEST(Device, MemoryThatIsNotThereNamesBytesNeededAndFree) {
    if (const auto used = use_device(0); !used) GTEST_SKIP() << used.error().message;
    size_t free = 0, total = 0;
    ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    const size_t wanted = total + (size_t{1} << 30);
    const auto buffer = DeviceBuffer::make(wanted, "the test");
    ASSERT_FALSE(buffer);
    EXPECT_EQ(buffer.error().code, ErrorCode::kUnavailable);
    EXPECT_TRUE(has(buffer.error().message, "for the test: " + std::to_string(wanted) + " bytes needed")) << buffer.error().message;
    EXPECT_TRUE(has(buffer.error().message, " free of " + std::to_string(total))) << buffer.error().message;
    EXPECT_TRUE(DeviceBuffer::make(1 << 20, "the test")) << "the device must work afterwards";
}

}  // namespace

}  // namespace baton::backend::cuda
