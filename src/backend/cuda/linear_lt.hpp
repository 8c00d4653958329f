#pragma once

#include <cublasLt.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cuda/linear_kernels.hpp"
#include "baton/base/error.hpp"

namespace baton::backend::cuda {

/// A cuBLASLt algorithm as bytes, as its own header allows it to be kept and restored.
using LtAlgo = std::array<uint64_t, 8>;
static_assert(sizeof(LtAlgo) == sizeof(cublasLtMatmulAlgo_t));

/// out [m, n] = x [m, k] · wᵀ through cuBLASLt: f32 accumulation, the bias in its epilogue, the residual as beta = 1, f32
/// output for logits. Norm and SwiGLU are not its part: `matrix.norm` is not looked at and kSwiGlu is taken as kStore of
/// [m, n]. One thread, one stream at a time: it has one workspace.
class Lt {
  public:
    static Expected<std::unique_ptr<Lt>> create();
    ~Lt();
    Lt(const Lt&) = delete;
    Lt& operator=(const Lt&) = delete;

    /// Up to `most` algorithms for the product's shape, best guess first. Pointers of `product` need not be set.
    [[nodiscard]] std::vector<LtAlgo> heuristics(const Product& product, uint32_t most) const;
    /// Whether the installed library takes `algo` for the product's shape within our workspace.
    [[nodiscard]] bool check(const Product& product, const LtAlgo& algo) const;
    /// Launches; may be captured. Errors: cudaErrorInvalidValue where cuBLASLt refuses.
    cudaError_t run(cudaStream_t stream, const Product& product, const LtAlgo& algo) const;
    /// Whether the bias goes into the library's epilogue: not with f32 output, where the caller adds it.
    [[nodiscard]] static bool takes_bias(const Matrix& matrix) { return matrix.out != Out::kF32; }
    [[nodiscard]] static size_t bytes() { return kWorkspaceBytes; }
    [[nodiscard]] static size_t version() { return cublasLtGetVersion(); }

  private:
    static constexpr size_t kWorkspaceBytes = size_t{32} << 20;
    Lt() = default;
    cublasLtHandle_t handle_ = nullptr;
    void* workspace_ = nullptr;
};

}  // namespace baton::backend::cuda
