// Stands in for src/backend/cuda_module.cpp in the program `baton-fake-gpu`, so that everything above the CUDA backend runs
// on a machine without a GPU. For tests:
//   BATON_FAKE_GPUS          how many there are (default 1)
//   BATON_FAKE_GPU_BYTES     memory of each (default 2 GiB)
//   BATON_FAKE_GPU_STEP_US   least time of a step
//   BATON_FAKE_GPU_HOLLOW    1: a step computes nothing and its tokens are made up, to measure what the host costs
//   BATON_FAKE_GPU_FAIL_AT   number of the step that fails, in the first process that gets so far
//   BATON_FAKE_GPU_FAIL_MARK a file that the failing process makes
#include <cstdlib>

#include "baton/backend/cuda.hpp"
#include "fake_gpu/fake_backend.hpp"

namespace baton::backend {
namespace {

uint64_t number_from(const char* variable, uint64_t otherwise) {
    const char* text = std::getenv(variable);
    return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

uint64_t gpu_bytes() { return number_from("BATON_FAKE_GPU_BYTES", uint64_t{2} << 30); }

}  // namespace

Expected<std::vector<CudaDevice>> cuda_devices() {
    std::vector<CudaDevice> devices;
    for (uint32_t i = 0; i < number_from("BATON_FAKE_GPUS", 1); ++i) {
        CudaDevice& d = devices.emplace_back();
        d.index = i;
        d.name = "Fake GPU";
        d.uuid = "GPU-fake-" + std::to_string(i);
        d.total_bytes = d.free_bytes = gpu_bytes();
    }
    if (devices.empty()) return fail(ErrorCode::kUnavailable, "no fake GPU is set up");
    return devices;
}

Expected<void> cuda_open(uint32_t) { return {}; }

Expected<CudaCalibration> cuda_calibrate(uint32_t) { return CudaCalibration{}; }

Expected<std::unique_ptr<DeviceBackend>> make_cuda_backend(const Plan& plan, const CudaOptions& options) {
    BATON_TRY_ASSIGN(const auto devices, cuda_devices());
    if (options.device >= devices.size())
        return fail(ErrorCode::kInvalidArgument, "GPU " + std::to_string(options.device) + " is not there; there are " + std::to_string(devices.size()));
    BATON_TRY_ASSIGN(std::unique_ptr<DeviceBackend> made,
                     fake_gpu::FakeBackend::make(plan, options, options.memory_bytes != 0 ? options.memory_bytes : gpu_bytes()));
    return made;
}

}  // namespace baton::backend
