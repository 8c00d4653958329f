#pragma once

#include <cstdint>

#include "backend/cuda/jitter.cuh"

/// Numbers that blocks of a kernel hand each other through L2. What has not come yet is known by its bits, so that the data need no flag
/// and nobody a fence. Who reads them makes them absent again.
namespace baton::backend::cuda::slots {

constexpr uint32_t kAbsent = 0xffffffffu;  // bits of what has not come: NaNs that arithmetic does not make

__device__ __forceinline__ uint32_t present(uint32_t bits) { return bits == kAbsent ? 0x7fff7fffu : bits; }
__device__ __forceinline__ void publish(unsigned char* to, const uint4& v) {
    dev::jitter();
    asm volatile("st.relaxed.gpu.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(present(v.x)), "r"(present(v.y)), "r"(present(v.z)),
                 "r"(present(v.w))
                 : "memory");
}
__device__ __forceinline__ uint4 look(const unsigned char* from) {
    dev::jitter();
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from) : "memory");
    return v;
}
__device__ __forceinline__ uint32_t look_word(const unsigned char* from) {
    dev::jitter();
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.b32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}
__device__ __forceinline__ bool has_come(const uint4& v) { return v.x != kAbsent && v.y != kAbsent && v.z != kAbsent && v.w != kAbsent; }
/// For the next launch, which begins behind this one.
__device__ __forceinline__ void forget(unsigned char* at) { *reinterpret_cast<uint4*>(at) = {kAbsent, kAbsent, kAbsent, kAbsent}; }

}  // namespace baton::backend::cuda::slots
