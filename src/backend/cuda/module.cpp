// The entry of libbaton_cuda.so: all that the program sees of it.
#include <exception>

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

constexpr CudaModule kModule{kCudaAbi, BATON_VERSION, list_devices, calibrate, make};

}  // namespace

}  // namespace baton::backend::cuda

extern "C" __attribute__((visibility("default"))) const baton::backend::CudaModule* baton_cuda_module() {
    return &baton::backend::cuda::kModule;
}
