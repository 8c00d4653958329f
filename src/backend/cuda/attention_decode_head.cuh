#pragma once

#include <cstdint>

#include "backend/cuda/attention_device.cuh"

/// One head of a new row, held by a warp.
namespace baton::backend::cuda {

/// Elements 2·lane and D/2 + 2·lane onwards (D = 128), or lane and D/2 + lane (D = 64), of one head, held by a warp.
template <Elem E, int D>
struct HeadPiece {
    using N = dev::Number<E>;
    static constexpr int kEach = D / 64;
    float low[kEach];
    float high[kEach];

    __device__ __forceinline__ void load(const typename N::Type* from, int lane) {
        if constexpr (kEach == 2) {
            const float2 a = N::unpack(*reinterpret_cast<const uint32_t*>(from + 2 * lane));
            const float2 b = N::unpack(*reinterpret_cast<const uint32_t*>(from + D / 2 + 2 * lane));
            low[0] = a.x;
            low[1] = a.y;
            high[0] = b.x;
            high[1] = b.y;
        } else {
            low[0] = N::to_float(from[lane]);
            high[0] = N::to_float(from[D / 2 + lane]);
        }
    }
    /// The same in two steps: the words as they come, and the numbers in them.
    static __device__ __forceinline__ void load_raw(uint32_t (&raw)[2], const typename N::Type* from, int lane) {
        if constexpr (kEach == 2) {
            raw[0] = *reinterpret_cast<const uint32_t*>(from + 2 * lane);
            raw[1] = *reinterpret_cast<const uint32_t*>(from + D / 2 + 2 * lane);
        } else {
            raw[0] = reinterpret_cast<const uint16_t*>(from)[lane];
            raw[1] = reinterpret_cast<const uint16_t*>(from)[D / 2 + lane];
        }
    }
    __device__ __forceinline__ void set_raw(uint32_t first, uint32_t second) {
        const float2 a = N::unpack(first);
        const float2 b = N::unpack(second);
        low[0] = a.x;
        high[0] = b.x;
        if constexpr (kEach == 2) {
            low[1] = a.y;
            high[1] = b.y;
        }
    }
    __device__ __forceinline__ void load_weight(const float* from, int lane) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            low[i] = __ldg(from + kEach * lane + i);
            high[i] = __ldg(from + D / 2 + kEach * lane + i);
        }
    }
    __device__ __forceinline__ void norm(const HeadPiece& weight, float eps) {
        float sum = 0;
#pragma unroll
        for (int i = 0; i < kEach; ++i)
            sum = fmaf(low[i], low[i], fmaf(high[i], high[i], sum));
        const float factor = rsqrtf(dev::warp_sum(sum) / D + eps);
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            low[i] *= factor * weight.low[i];
            high[i] *= factor * weight.high[i];
        }
    }
    __device__ __forceinline__ void turn(const float2 (&turns)[kEach]) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
            const float2 t = turns[i];
            const float a = low[i];
            const float b = high[i];
            low[i] = a * t.x - b * t.y;
            high[i] = b * t.x + a * t.y;
        }
    }
    /// Writes the head to row `row` of a shared tile whose pieces of 16 bytes are turned by the row.
    __device__ __forceinline__ void store(unsigned char* tile, int row, int lane) const {
        const int d = kEach * lane;
        unsigned char* a = tile + row * D * 2 + (((d / 8) ^ (row & 7)) << 4) + (d % 8) * 2;
        unsigned char* b = tile + row * D * 2 + (((D / 16 + d / 8) ^ (row & 7)) << 4) + (d % 8) * 2;
        if constexpr (kEach == 2) {
            *reinterpret_cast<uint32_t*>(a) = N::pack(low[0], low[1]);
            *reinterpret_cast<uint32_t*>(b) = N::pack(high[0], high[1]);
        } else {
            *reinterpret_cast<typename N::Type*>(a) = N::from_float(low[0]);
            *reinterpret_cast<typename N::Type*>(b) = N::from_float(high[0]);
        }
    }
};

}  // namespace baton::backend::cuda
