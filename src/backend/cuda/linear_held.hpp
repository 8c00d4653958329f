#pragma once

#include "backend/cuda/linear_kernels.hpp"

namespace baton::backend::cuda {

/// A shape of the matrix-vector kernel with weights in shared memory: each of eight warps holds `rows` whole weight rows of at most
/// `chunks` · 256 elements.
struct HeldShape {
    uint8_t rows = 0;
    uint8_t chunks = 0;
};
[[nodiscard]] std::span<const HeldShape> held_shapes();
/// Sets the shared memory limits of the type's kernels once; reads the current device. `shared_most`: dynamic shared memory a block may have;
/// 0: the kernels do not run here.
cudaError_t held_prepare(Elem elem, uint32_t& shared_most);
[[nodiscard]] bool held_takes(const Product& product, uint8_t variant, uint32_t shared_most);
/// sm_90, m = 1: norm, bias, residual, SwiGLU and f32 output fused; weights are on their way before the wait.
cudaError_t held(const Launch& launch, const Product& product, uint8_t variant);

}  // namespace baton::backend::cuda
