#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#ifdef BATON_JITTER
#include <vector>
#endif

/// For a test alone. In files that are built with BATON_JITTER, waits between warps and blocks, what ends them, and copies in the
/// background have delays around them, drawn anew each time, so that what no wait holds in order comes in another order some time and
/// gives a wrong result. A wait may also be left out, to see that the test notices. Without BATON_JITTER all of this is nothing.
namespace baton::backend::cuda {

/// What kernels do without.
struct Jitter {
    enum Kind : uint32_t {
        kNothing,
        kWait,     // for barriers in shared memory, by their place in 1,024 bytes
        kNamed,    // named barriers, by their number
        kCluster,  // the barrier of a cluster
    };
    uint32_t left_out = kNothing;
    uint32_t from = 0;
    uint32_t to = 1024;
};

#ifdef BATON_JITTER
/// Of each file with kernels, what tells them.
inline std::vector<cudaError_t (*)(const Jitter&)>& jitter_files() {
    static std::vector<cudaError_t (*)(const Jitter&)> all;
    return all;
}

namespace dev {

static __constant__ Jitter jitter_told;
[[maybe_unused]] static const bool jitter_known = [] {
    jitter_files().push_back([](const Jitter& jitter) { return cudaMemcpyToSymbol(jitter_told, &jitter, sizeof jitter); });
    return true;
}();

/// Mostly short, at most 16 us; the same for all lanes that come together, so that they stay together.
__device__ __forceinline__ void jitter() {
    uint32_t h = static_cast<uint32_t>(clock64()) ^ (threadIdx.x >> 5) * 0x9e3779b9u ^ blockIdx.x * 0x85ebca6bu;
    h = (h ^ h >> 16) * 0x7feb352du;
    h = (h ^ h >> 15) * 0x846ca68bu;
    __nanosleep(h >> 8 & ((1u << (h >> 4) % 15) - 1));
}
__device__ __forceinline__ bool jitter_leaves_out(Jitter::Kind kind, uint32_t which = 0) {
    return jitter_told.left_out == kind && which >= jitter_told.from && which < jitter_told.to;
}
/// Has waited at a barrier in shared memory; what never comes ends the kernel with an error.
__device__ __forceinline__ bool jitter_waits(uint32_t barrier, uint32_t phase) {
    jitter();
    if (jitter_leaves_out(Jitter::kWait, barrier & 1023)) return true;
#if __CUDA_ARCH__ >= 900
    uint32_t done = 0;
    for (const long long began = clock64(); done == 0;) {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(barrier), "r"(phase)
                     : "memory");
        if (clock64() - began > 2'000'000'000) __trap();
    }
#endif
    jitter();
    return true;
}

}  // namespace dev
#else
namespace dev {

__device__ __forceinline__ void jitter() {}
__device__ __forceinline__ bool jitter_leaves_out(Jitter::Kind, uint32_t = 0) { return false; }
__device__ __forceinline__ bool jitter_waits(uint32_t, uint32_t) { return false; }

}  // namespace dev
#endif

}  // namespace baton::backend::cuda
