#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "backend/cuda/common.hpp"

/// Numbers on the device: conversions of the element types, sums over a warp.
namespace baton::backend::cuda::dev {

/// Conversions of one element type, two to a 32-bit word, the first in the low half.
template <class T>
struct Ops;
template <>
struct Ops<__nv_bfloat16> {
    using Type = __nv_bfloat16;
    using Pair = __nv_bfloat162;
    static __device__ __forceinline__ float to_float(Type v) { return __bfloat162float(v); }
    static __device__ __forceinline__ Type from_float(float v) { return __float2bfloat16_rn(v); }
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        const Pair v = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&v);
    }
    static __device__ __forceinline__ float2 unpack(uint32_t word) { return __bfloat1622float2(*reinterpret_cast<const Pair*>(&word)); }
    /// The same numbers by two instructions on the word: what the linear kernels were measured with.
    static __device__ __forceinline__ float2 unpack_bits(uint32_t word) {
        return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
    }
};
template <>
struct Ops<__half> {
    using Type = __half;
    using Pair = __half2;
    static __device__ __forceinline__ float to_float(Type v) { return __half2float(v); }
    static __device__ __forceinline__ Type from_float(float v) { return __float2half_rn(v); }
    static __device__ __forceinline__ uint32_t pack(float low, float high) {
        const Pair v = __floats2half2_rn(low, high);
        return *reinterpret_cast<const uint32_t*>(&v);
    }
    static __device__ __forceinline__ float2 unpack(uint32_t word) { return __half22float2(*reinterpret_cast<const Pair*>(&word)); }
    static __device__ __forceinline__ float2 unpack_bits(uint32_t word) { return unpack(word); }
};
/// The same by the enumerator.
template <Elem E>
using Number = Ops<std::conditional_t<E == Elem::kBF16, __nv_bfloat16, __half>>;

/// Eight numbers as elements in a 16-byte word.
template <class T>
__device__ __forceinline__ uint4 pack8(const float (&f)[8]) {
    return {Ops<T>::pack(f[0], f[1]), Ops<T>::pack(f[2], f[3]), Ops<T>::pack(f[4], f[5]), Ops<T>::pack(f[6], f[7])};
}

template <class T>
__device__ __forceinline__ uint4 pack8(const float4& low, const float4& high) {
    return {Ops<T>::pack(low.x, low.y), Ops<T>::pack(low.z, low.w), Ops<T>::pack(high.x, high.y), Ops<T>::pack(high.z, high.w)};
}

/// Sum over a warp, in one order; every lane gets it.
template <class T>
__device__ __forceinline__ T warp_sum(T v) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    return v;
}

__device__ __forceinline__ float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }

}  // namespace baton::backend::cuda::dev
