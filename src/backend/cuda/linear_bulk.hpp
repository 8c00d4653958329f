#pragma once

#include "backend/cuda/linear_kernels.hpp"

namespace baton::backend::cuda {

/// A tile of the kernel for many rows: 128 rows of x × `cols` weight rows a block.
struct BulkTile {
    uint16_t cols = 0;
};
[[nodiscard]] std::span<const BulkTile> bulk_shapes();
/// How bulk runs. Blocks of a cluster bring operands for each other: `share_m` (1, 2 or 4) neighbours along m the weights, `share_n` (1 or
/// 2) neighbours along n the rows of x. The tiles of `band` clusters along m follow each other before the next of n.
struct BulkConfig {
    uint8_t variant = 0;
    uint8_t share_m = 1;
    uint8_t share_n = 1;
    uint8_t band = 8;
};
/// What a device allows the kernels; none without sm_90a code for it.
struct BulkLimits {
    uint32_t shared_bytes = 0;  ///< dynamic shared memory a block may have; 0: the kernels do not run here
    uint32_t multiprocessors = 0;
    uint32_t clusters[4] = {};  ///< of 1, 2, 4 and 8 blocks: how many run at once
};
/// Finds out whether and how the type's kernels run on the current device.
cudaError_t bulk_prepare(Elem elem, BulkLimits& limits);
[[nodiscard]] bool bulk_takes(const Product& product, BulkConfig config, const BulkLimits& limits);
/// sm_90a, any m, made for hundreds of rows and more: the copy engine and wgmma; bias, residual, SwiGLU and f32 output fused. The norm is
/// not: x must be normalised already. Columns of the result must be a multiple of 8. The bits of a row do not depend on m, the tile,
/// the cluster or the band.
cudaError_t bulk(const Launch& launch, const Product& product, BulkConfig config, const BulkLimits& limits);

}  // namespace baton::backend::cuda
