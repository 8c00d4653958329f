#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "backend/cuda/common.hpp"
#include "backend/cuda/linear.hpp"

/// The own kernels behind Linear: their configurations, limits and launches. Every function only launches; each kernel
/// follows the rule of programmatic dependent launch in common.hpp.
namespace baton::backend::cuda {

/// One product to compute: x [m, k] → out, as `matrix` says.
struct Product {
    Elem elem = Elem::kBF16;
    Matrix matrix;
    const void* x = nullptr;
    uint32_t m = 0;
    void* out = nullptr;
};

/// Columns of the result: n, or n / 2 with SwiGLU.
[[nodiscard]] inline uint32_t result_columns(const Matrix& matrix) {
    return matrix.out == Out::kSwiGlu ? matrix.n / 2 : matrix.n;
}

/// A shape of the matrix-vector kernel: each warp holds `rows` weight rows × `chunks` · 256 elements of k in registers.
struct GemvShape {
    uint8_t rows = 0;
    uint8_t chunks = 0;
    uint8_t m_max = 0;  ///< 1 or 2
};
/// All shapes there are; GemvConfig::variant is an index into them.
[[nodiscard]] std::span<const GemvShape> gemv_shapes();
/// How gemv runs: `k_warps` (1, 2, 4 or 8) warps of a block share a row's k.
struct GemvConfig {
    uint8_t variant = 0;
    uint8_t k_warps = 1;
};
/// Whether gemv takes this product with this configuration.
[[nodiscard]] bool gemv_takes(const Product& product, GemvConfig config);
/// m ≤ 2: CUDA cores, weights in registers before the wait, norm (rounding weight · norm to the element type), bias,
/// residual, SwiGLU and f32 output fused.
cudaError_t gemv(const Launch& launch, const Product& product, GemvConfig config);

/// A shape of the kernel whose weights go straight into tensor-core registers: `units` of 32 elements of k (`half`: 64)
/// that a warp holds of its tile of 16 (8) weight rows.
struct DirectShape {
    uint8_t units = 0;
    uint8_t m_max = 0;
    bool half = false;
};
[[nodiscard]] std::span<const DirectShape> direct_shapes();
/// `slices` warps share a tile's k, `tiles` tiles a block; together at most 16 warps.
struct DirectConfig {
    uint8_t variant = 0;
    uint8_t slices = 1;
    uint8_t tiles = 1;
};
[[nodiscard]] bool direct_takes(const Product& product, DirectConfig config);
/// m ≤ 16, norm (rounding weight · norm to the element type), bias, residual, SwiGLU and f32 output fused.
cudaError_t direct(const Launch& launch, const Product& product, DirectConfig config);

/// A tile of the tensor-core kernel: `rows` weight rows × `cols` rows of x a block, `stages` of 64 along k.
struct TileShape {
    uint16_t rows = 0;
    uint16_t cols = 0;
    uint16_t threads = 0;
    uint8_t stages = 0;
    bool norm = false;    ///< has the form with the RMS norm fused
    bool totals = false;  ///< can run several parts of k in one block and add them in order
};
[[nodiscard]] std::span<const TileShape> tile_shapes();
/// How tile runs. k is cut into `splits` parts whose results are added in order: by as many blocks of a cluster where
/// `cluster`, else in one block. The bits of a row depend on `splits` alone, not on the tile, the cluster or m.
struct TileConfig {
    uint8_t variant = 0;
    uint8_t splits = 1;      ///< 1, 2, 4 or 8
    bool cluster = false;    ///< sm_90
    bool norm_fused = false; ///< weight · norm rounded to the element type, the scale applied to the sums
};
/// What a device allows the tile kernels.
struct TileLimits {
    uint32_t shared_bytes = 0;  ///< dynamic shared memory a block may have
    bool cluster = false;
};
/// Sets the kernels' shared memory limits once; reads the current device.
cudaError_t tile_prepare(TileLimits& limits);
[[nodiscard]] bool tile_takes(const Product& product, TileConfig config, const TileLimits& limits);
/// wgmma or mma.sync with the weights as the left operand; any m. With norm_fused only as TileShape says; a matrix with a norm and
/// norm_fused false expects x normalised already.
cudaError_t tile(const Launch& launch, const Product& product, TileConfig config);

/// out [rows, columns] = silu(in[:, :columns]) · in[:, columns:].
cudaError_t swiglu(const Launch& launch, Elem elem, const void* in, uint32_t rows, uint32_t columns, void* out);
/// out [rows, n] f32 += bias [n].
cudaError_t add_bias_f32(const Launch& launch, Elem elem, const void* bias, uint32_t rows, uint32_t n, float* out);

}  // namespace baton::backend::cuda
