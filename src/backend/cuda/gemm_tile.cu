// Choice and launch of the tensor-core product's instantiations.
#include <algorithm>

#include "backend/cuda/device_traits.hpp"
#include "backend/cuda/gemm_tile_table.cuh"

namespace baton::backend::cuda {

namespace {

using gemm::kDepth;
using gemm::TileEntry;

constexpr std::array<TileShape, gemm::kTileShapes> kShapes = {{{64, 8, 128, 6, true, false},
                                                              {64, 16, 128, 6, true, false},
                                                              {64, 32, 128, 6, true, false},
                                                              {64, 64, 128, 6, true, false},
                                                              {128, 8, 256, 4, true, false},
                                                              {128, 16, 256, 4, true, false},
                                                              {128, 32, 256, 4, true, false},
                                                              {128, 64, 256, 4, true, false},
                                                              {128, 128, 256, 3, false, true},
                                                              {128, 256, 256, 4, false, false}}};

TileEntry entry_of(Elem elem, uint8_t variant) {
    return elem == Elem::kBF16 ? gemm::tile_table_bf16()[variant] : gemm::tile_table_f16()[variant];
}

uint32_t k_tiles(uint32_t k) { return (k + kDepth - 1) / kDepth; }

size_t shared_bytes(const TileEntry& entry, uint32_t k, TileConfig config) {
    const uint32_t parts = config.cluster ? config.splits : 1;
    const size_t norm = config.norm_fused ? size_t{(k_tiles(k) + parts - 1) / parts} * kDepth * sizeof(float) : 0;
    return entry.shared_bytes + norm;
}

/// Tiles of m that share a column of weights before the next: about 8 MiB of x stay in L2.
uint32_t band_of(uint32_t m_tiles, uint32_t tile_cols, uint32_t k) {
    const uint64_t bytes = static_cast<uint64_t>(tile_cols) * k * 2;
    const uint64_t most = std::max<uint64_t>(1, (uint64_t{8} << 20) / bytes);
    return static_cast<uint32_t>(std::min<uint64_t>(m_tiles, most));
}

}  // namespace

std::span<const TileShape> tile_shapes() { return kShapes; }

cudaError_t tile_prepare(TileLimits& limits) {
    int device = 0;
    int shared = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (error != cudaSuccess) return error;
    limits.shared_bytes = static_cast<uint32_t>(shared);
    limits.cluster = current_device().runs_sm90_code();
    for (const auto& table : {gemm::tile_table_bf16(), gemm::tile_table_f16()})
        for (const TileEntry& entry : table) {
            error = cudaFuncSetAttribute(reinterpret_cast<const void*>(entry.kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         shared);
            if (error != cudaSuccess) return error;
        }
    return cudaSuccess;
}

bool tile_takes(const Product& product, TileConfig config, const TileLimits& limits) {
    const Matrix& matrix = product.matrix;
    if (config.variant >= kShapes.size() || product.m == 0 || matrix.n == 0 || matrix.k == 0 || matrix.k % 8 != 0) return false;
    if (matrix.out == Out::kSwiGlu && matrix.n % 2 != 0) return false;
    const TileShape& shape = kShapes[config.variant];
    const bool power = config.splits == 1 || config.splits == 2 || config.splits == 4 || config.splits == 8;
    if (!power || config.splits > k_tiles(matrix.k)) return false;
    if (config.cluster && (!limits.cluster || config.splits == 1)) return false;
    if (!config.cluster && config.splits > 1 && !shape.totals) return false;
    if (config.norm_fused && (!shape.norm || matrix.norm == nullptr)) return false;
    return shared_bytes(entry_of(product.elem, config.variant), matrix.k, config) <= limits.shared_bytes;
}

cudaError_t tile(const Launch& launch, const Product& product, TileConfig config) {
    const Matrix& matrix = product.matrix;
    const TileShape& shape = kShapes[config.variant];
    const TileEntry entry = entry_of(product.elem, config.variant);
    gemm::TileArgs args = {};
    static_cast<gemm::Operands&>(args) = gemm::operands_of(product);
    if (!config.norm_fused) args.norm = nullptr;
    args.k_tiles = k_tiles(matrix.k);
    args.splits = config.splits;
    for (uint32_t s = config.splits; s > 1; s /= 2) ++args.splits_log2;
    args.cluster = config.cluster ? config.splits : 1;
    args.m_tiles = (product.m + shape.cols - 1) / shape.cols;
    args.n_tiles = (matrix.n + shape.rows - 1) / shape.rows;
    args.band = band_of(args.m_tiles, shape.cols, matrix.k);
    args.eps = matrix.eps;
    args.kind = matrix.out;
    if (matrix.out == Out::kSwiGlu) {
        const uint32_t half = shape.rows / 2u;
        args.n_tiles = (args.columns + half - 1) / half;
    }
    const uint32_t blocks = args.m_tiles * args.n_tiles * args.cluster;
    args.ahead = gemm::deal_ahead(matrix.ahead, matrix.ahead_bytes, blocks);
    return start(launch, entry.kernel, blocks, shape.threads, shared_bytes(entry, matrix.k, config), args.cluster, args);
}

}  // namespace baton::backend::cuda
