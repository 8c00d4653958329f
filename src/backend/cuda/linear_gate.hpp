#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace baton::backend::cuda {

/// Holds `stream` until the mapped word reaches `ticket`, or some milliseconds have passed. What is queued behind it must have
/// run before: a kernel's first launch may wait for the device.
cudaError_t gate(cudaStream_t stream, const uint32_t* word, uint32_t ticket);

}  // namespace baton::backend::cuda
