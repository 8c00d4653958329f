#include <gtest/gtest.h>

#include "baton/backend/cuda.hpp"

namespace baton::backend {

namespace {

// The module lies beside the program `baton`, not beside this one.
TEST(CudaModule, SaysThatItIsNotThere) {
    const auto devices = cuda_devices();
    ASSERT_FALSE(devices);
    EXPECT_EQ(devices.error().code, ErrorCode::kUnavailable);
    EXPECT_NE(devices.error().message.find("no CUDA module"), std::string::npos) << devices.error().message;
    EXPECT_FALSE(make_cuda_backend(Plan{}, CudaOptions{}));
    EXPECT_FALSE(cuda_calibrate(0));
}

}  // namespace

}  // namespace baton::backend
