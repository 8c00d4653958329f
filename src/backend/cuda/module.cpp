// The entry of libbaton_cuda.so: all that the program sees of it.
#include <cublasLt.h>

#include <exception>

#include "backend/cuda/check.hpp"
#include "backend/cuda/cuda_backend.hpp"
#include "backend/cuda/device_info.hpp"
#include "backend/cuda_abi.hpp"

namespace baton::backend::cuda {

namespace {

Expected<std::unique_ptr<DeviceBackend>> make(const Plan& plan, const CudaOptions& options) {
    try {
        BATON_TRY_ASSIGN(std::unique_ptr<DeviceBackend> backend, CudaBackend::make(plan, options));
        return backend;
    } catch (const std::exception& e) {  // memory and threads of the host run out by exception
        return fail(ErrorCode::kUnavailable, std::string("the CUDA backend could not start: ") + e.what());
    }
}

/// The primary context, and what the library of the products makes at its first use.
Expected<void> open(uint32_t device) {
    BATON_TRY(use_device(device));
    BATON_CUDA_TRY(cudaFree(nullptr), "GPU " + std::to_string(device));
    cublasLtHandle_t handle = nullptr;
    if (cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS) static_cast<void>(cublasLtDestroy(handle));
    return {};
}

constexpr CudaModule kModule{kCudaAbi, BATON_VERSION, list_devices, calibrate, make, open};

}  // namespace

}  // namespace baton::backend::cuda

extern "C" __attribute__((visibility("default"))) const baton::backend::CudaModule* baton_cuda_module() {
    return &baton::backend::cuda::kModule;
}
