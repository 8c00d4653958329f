#include "worker/gpu_meter.hpp"

#include <gtest/gtest.h>

namespace baton::worker {
namespace {

TEST(GpuMeter, VisibleDevicesAreReadAsCudaReadsThem) {
    EXPECT_EQ(driver_gpu(nullptr, 3), (DriverGpu{3, ""}));
    EXPECT_EQ(driver_gpu("", 0), (DriverGpu{0, ""}));
    EXPECT_EQ(driver_gpu("5", 0), (DriverGpu{5, ""}));
    EXPECT_EQ(driver_gpu("5,2,7", 1), (DriverGpu{2, ""}));
    EXPECT_EQ(driver_gpu("5,GPU-0a1b", 1), (DriverGpu{0, "GPU-0a1b"}));
    EXPECT_FALSE(driver_gpu("5", 1));
    EXPECT_FALSE(driver_gpu("5,-1,6", 2)) << "what comes after a wrong entry is hidden";
    EXPECT_FALSE(driver_gpu("none", 0));
    EXPECT_FALSE(driver_gpu("1,", 1));
}

TEST(GpuMeter, HasNothingToSayWithoutGpus) {
    const GpuMeter meter({});
    EXPECT_TRUE(meter.latest().empty());
    // With a GPU that is not there it asks, and comes to nothing, whatever driver this machine has.
    const GpuMeter wrong({{4095, "none", 1}}, 1);
    EXPECT_TRUE(wrong.latest().empty());
}

}  // namespace
}  // namespace baton::worker
