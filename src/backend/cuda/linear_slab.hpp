#pragma once

#include "backend/cuda/linear_kernels.hpp"

namespace baton::backend::cuda {

/// A shape of the tensor-core kernel whose weights wait in shared memory: tiles of 16 rows of x × tiles of 8 weight rows a block,
/// and the warps it may have.
struct SlabShape {
    uint8_t x_tiles = 0;
    uint8_t w_tiles = 0;
    uint8_t warps_max = 0;
};
[[nodiscard]] std::span<const SlabShape> slab_shapes();
/// How slab runs: `slices` warps share a block's part of k, of which a cluster of `splits` (1, 2 or 4) blocks has one each.
struct SlabConfig {
    uint8_t variant = 0;
    uint8_t slices = 1;
    uint8_t splits = 1;
    bool late = false;  ///< the weights are asked for some time after the start, when the kernel ahead has its rows of x
};
/// Bytes of shared memory a block takes.
[[nodiscard]] uint32_t slab_bytes(const Matrix& matrix, SlabConfig config);
/// Sets the shared memory limits of the type's kernels once; reads the current device. `shared_most`: dynamic shared memory a block may
/// have; 0: the kernels do not run here.
cudaError_t slab_prepare(Elem elem, uint32_t& shared_most);
[[nodiscard]] bool slab_takes(const Product& product, SlabConfig config, uint32_t shared_most);
/// sm_90, m ≤ 32: norm, bias, residual, SwiGLU and f32 output fused; all weights of a block are on their way before the wait. Columns of
/// the result must be even.
cudaError_t slab(const Launch& launch, const Product& product, SlabConfig config);

}  // namespace baton::backend::cuda
