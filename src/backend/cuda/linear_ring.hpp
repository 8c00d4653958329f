#pragma once

#include "backend/cuda/linear_kernels.hpp"

namespace baton::backend::cuda {

/// A tile of the kernel whose operands come through rings in shared memory: `rows` rows of x × `cols` weight rows a block.
struct RingTile {
    uint16_t rows = 0;
    uint16_t cols = 0;
};
[[nodiscard]] std::span<const RingTile> ring_shapes();
/// How ring runs: `splits` parts of k as blocks of a cluster; `share` blocks of a cluster bring an operand for each other, x
/// with tiles of 64 rows (up to 4), the weights with tiles of 128 (up to 2).
struct RingConfig {
    uint8_t variant = 0;
    uint8_t splits = 1;       ///< 1, 2, 4 or 8
    uint8_t share = 1;
    uint8_t w_stages = 2;     ///< of 64 along k
    uint8_t x_stages = 2;
    bool norm_fused = false;  ///< the norm's weight goes into the rows of x, by warps of their own
};
/// What a device allows the kernels; none without sm_90a code for it.
struct RingLimits {
    uint32_t shared_bytes = 0;  ///< dynamic shared memory a block may have; 0: the kernels do not run here
    uint32_t multiprocessors = 0;
};
/// Sets the shared memory limits of the type's kernels once; reads the current device.
cudaError_t ring_prepare(Elem elem, RingLimits& limits);
[[nodiscard]] bool ring_takes(const Product& product, RingConfig config, const RingLimits& limits);
/// sm_90a: the copy engine and wgmma with x as the left operand; bias, residual, SwiGLU and f32 output fused, the norm where
/// norm_fused; else x must be normalised already. Columns of the result must be a multiple of 8.
cudaError_t ring(const Launch& launch, const Product& product, RingConfig config, const RingLimits& limits);

}  // namespace baton::backend::cuda
