#pragma once

#include <cstdint>

#include "backend/cuda/jitter.cuh"

namespace baton::backend::cuda::gemm {

/// Brings bytes, a multiple of 16, to shared memory through the copy engine; `barrier` counts them.
__device__ __forceinline__ void bring(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
    dev::jitter();
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier)
                 : "memory");
#else
    (void)to, (void)from, (void)bytes, (void)barrier;
#endif
}

}  // namespace baton::backend::cuda::gemm
