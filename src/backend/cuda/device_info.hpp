#pragma once

#include <cuda_runtime.h>

#include <vector>

#include "baton/backend/cuda.hpp"

namespace baton::backend::cuda {

/// Why no GPU can be used: what cudaGetDeviceCount said, the CUDA version the driver knows (as in CUDART_VERSION, 0: no driver
/// answers), and why it does not answer.
[[nodiscard]] Error no_devices(cudaError_t status, int driver, const std::string& problem = {});

/// The GPUs the driver shows. Errors: kUnavailable with the reason where there is none.
[[nodiscard]] Expected<std::vector<CudaDevice>> list_devices();

/// Makes the GPU of this number current for the calling thread. An error lists what is there.
[[nodiscard]] Expected<void> use_device(uint32_t index);

/// Measures the ceilings of a GPU: copy, matrix product, upload.
[[nodiscard]] Expected<CudaCalibration> calibrate(uint32_t index);

}  // namespace baton::backend::cuda
