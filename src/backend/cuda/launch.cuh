#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "backend/cuda/common.hpp"

namespace baton::backend::cuda {

/// Launches with the attribute of programmatic stream serialisation where `launch.pdl`, and in clusters where > 1.
template <class... Params, class... Args>
cudaError_t start(const Launch& launch, void (*kernel)(Params...), dim3 grid, uint32_t threads, size_t shared_bytes,
                  uint32_t cluster, Args&&... args) {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = launch.stream;
    cudaLaunchAttribute attributes[2] = {};
    unsigned int count = 0;
    if (launch.pdl) {
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attributes[count].id = cudaLaunchAttributeClusterDimension;
        attributes[count].val.clusterDim.x = cluster;
        attributes[count].val.clusterDim.y = 1;
        attributes[count++].val.clusterDim.z = 1;
    }
    config.attrs = attributes;
    config.numAttrs = count;
    return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(std::forward<Args>(args))...);
}

}  // namespace baton::backend::cuda
