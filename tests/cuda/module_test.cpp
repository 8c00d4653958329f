// libbaton_cuda.so as the program opens it.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "backend/cuda_abi.hpp"

namespace baton::backend {

namespace {

const CudaModule* open_built_module() {
    const char* other = std::getenv("BATON_CUDA_MODULE");  // where the tests were moved to another machine
    void* library = dlopen(other != nullptr ? other : BATON_CUDA_MODULE, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    EXPECT_NE(library, nullptr) << dlerror();
    if (library == nullptr) return nullptr;
    const auto entry = reinterpret_cast<CudaModuleEntry>(dlsym(library, kCudaModuleEntry));
    EXPECT_NE(entry, nullptr);
    // Nothing else of it can be seen.
    EXPECT_EQ(dlsym(library, "_ZN5baton7backend4cuda12list_devicesEv"), nullptr);
    return entry != nullptr ? entry() : nullptr;
}

TEST(CudaModule, IsOfThisBuild) {
    const CudaModule* module = open_built_module();
    ASSERT_NE(module, nullptr);
    EXPECT_EQ(module->abi, kCudaAbi);
    EXPECT_EQ(std::string(module->version), BATON_VERSION);
}

TEST(CudaModule, ListsGpusOrSaysWhyThereAreNone) {
    const CudaModule* module = open_built_module();
    ASSERT_NE(module, nullptr);
    const auto devices = module->devices();
    if (!devices) {
        EXPECT_EQ(devices.error().code, ErrorCode::kUnavailable);
        EXPECT_FALSE(devices.error().message.empty());
        const auto made = module->make(Plan{}, CudaOptions{});
        EXPECT_FALSE(made);
        GTEST_SKIP() << devices.error().message;
    }
    ASSERT_FALSE(devices->empty());
    for (const CudaDevice& device : *devices) {
        EXPECT_TRUE(device.uuid.starts_with("GPU-")) << device.uuid;
        EXPECT_EQ(device.uuid.size(), 40u);
        EXPECT_GE(device.major, 1u);
        EXPECT_GE(device.total_bytes, device.free_bytes);
        EXPECT_GT(device.free_bytes, 0u);
    }
}

}  // namespace

}  // namespace baton::backend
