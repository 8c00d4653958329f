#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/common.hpp"

/// Small kernels around a step. All only launch.
namespace baton::backend::cuda {

/// Copies a step's arrays out of page-locked host memory: `count` values from `from` to `to`, then `patches` pairs (index,
/// value) at `pairs` into `table`. One kernel instead of copies: nothing waits for a copy engine.
cudaError_t upload_rows(cudaStream_t stream, const int32_t* from, int32_t* to, uint32_t count, const int2* pairs, uint32_t patches,
                        int32_t* table);

/// out [positions, half] = cos and sin of the f32 product position × inv_freq[i], both times `scale`. `inv_freq` [half] on the
/// device.
cudaError_t rope_table(cudaStream_t stream, const float* inv_freq, uint32_t half, float scale, uint32_t positions, float2* out);

/// Fills memory with values of about -1 … 1.
cudaError_t fill_noise(cudaStream_t stream, Elem elem, void* out, size_t elements, uint32_t seed);

/// A word that another process watches, as the device reaches it (null: none), and what is stored there when no layer is done.
struct ProgressWord {
    uint64_t* word;
    uint64_t base;
};
/// Stores base + (layers << 48) in each of `count` words, release order at system scope, after everything the stream did
/// before. `words` is device memory.
cudaError_t publish_progress(cudaStream_t stream, const ProgressWord* words, uint32_t count, uint32_t layers);

}  // namespace baton::backend::cuda
