#pragma once

#include <cuda_runtime.h>

#include <string>

#include "baton/base/error.hpp"

namespace baton::backend::cuda {

/// The error of a CUDA call that failed while doing `what`; where memory ran out, with what is free. Clears the runtime's own copy
/// of it.
[[nodiscard]] inline tl::unexpected<Error> cuda_failed(cudaError_t status, const std::string& what) {
    static_cast<void>(cudaGetLastError());
    const std::string text = "CUDA: " + what + ": " + cudaGetErrorString(status);
    if (status != cudaErrorMemoryAllocation) return fail(ErrorCode::kIo, text);
    size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) static_cast<void>(cudaGetLastError());
    return fail(ErrorCode::kUnavailable, text + ", " + std::to_string(free) + " bytes free of " + std::to_string(total));
}

}  // namespace baton::backend::cuda

/// Returns the error of a CUDA runtime call to the caller.
#define BATON_CUDA_TRY(expr, what)                                                          \
    do {                                                                                    \
        if (const cudaError_t baton_cuda_r = (expr); baton_cuda_r != cudaSuccess)           \
            return ::baton::backend::cuda::cuda_failed(baton_cuda_r, what);                 \
    } while (false)
