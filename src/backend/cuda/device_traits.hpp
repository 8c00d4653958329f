#pragma once

#include <cuda_runtime_api.h>

namespace baton::backend::cuda {

/// What a launch needs to know of the current device. Asking the runtime each time would cost more than the launch.
struct DeviceTraits {
    cudaError_t error = cudaSuccess;
    int index = 0;
    int major = 0;
    int minor = 0;
    int multiprocessors = 0;
    int shared_max = 0;  ///< bytes of shared memory a block may ask for
    int compiled = 0;    ///< the architecture that the code which runs here was compiled for, e.g. 90: not more than the device's
    /// Whether kernels here wait for the ones ahead themselves and know clusters. Newer devices may run PTX of sm_80, which does neither:
    /// there a launch that may overlap (Launch::pdl) would read what is not written yet.
    [[nodiscard]] bool runs_sm90_code() const { return compiled >= 90; }
};
const DeviceTraits& current_device();

}  // namespace baton::backend::cuda
