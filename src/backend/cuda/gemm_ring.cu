// Choice and launch of the instantiations of the product with its operands in rings.
#include <algorithm>

#include "backend/cuda/gemm_ring_table.cuh"
#include "backend/cuda/linear_ring.hpp"
#include "backend/cuda/linear_shared.hpp"
#include "backend/cuda/tensor_map.hpp"

namespace baton::backend::cuda {

namespace {

using gemm::kRingDepth;
using gemm::RingEntry;

constexpr std::array<RingTile, gemm::kRingShapes> kShapes = {{{64, 48}, {64, 64}, {64, 96}, {64, 128}, {64, 224}}};
constexpr uint32_t kTwoBlocks = 113u << 10;  // bytes of shared memory a block may have so that two fit

RingEntry entry_of(Elem elem, uint8_t variant) {
    return elem == Elem::kBF16 ? gemm::ring_table_bf16()[variant] : gemm::ring_table_f16()[variant];
}

uint32_t shared_bytes(const RingEntry& entry, RingConfig config, uint32_t k) {
    const uint32_t rings = config.w_stages * entry.stage_w + config.x_stages * entry.stage_x;
    const uint32_t factors = config.norm_fused ? ceil_div(ceil_div(k, kRingDepth), config.splits) * kRingDepth * 2 + 512 : 0;
    return entry.header + rings + (config.splits > 1 ? entry.sum_bytes : 0) + factors;
}

}  // namespace

std::span<const RingTile> ring_shapes() { return kShapes; }

cudaError_t ring_prepare(Elem elem, RingLimits& limits) {
    limits = {};
    const auto table = elem == Elem::kBF16 ? gemm::ring_table_bf16() : gemm::ring_table_f16();
    std::array<const void*, 2 * gemm::kRingShapes> all = {};
    for (size_t i = 0; i < table.size(); ++i) {
        all[2 * i] = reinterpret_cast<const void*>(table[i].kernel);
        all[2 * i + 1] = reinterpret_cast<const void*>(table[i].norm_kernel);
    }
    uint32_t shared = 0;
    if (const cudaError_t error = allow_shared_of_sm90(all, shared); error != cudaSuccess || shared == 0 || tensor_map_encoder() == nullptr) return error;
    int device = 0;
    int multiprocessors = 0;
    if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
    if (const cudaError_t error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device); error != cudaSuccess) return error;
    limits = {shared, static_cast<uint32_t>(multiprocessors)};
    return cudaSuccess;
}

bool ring_takes(const Product& product, RingConfig config, const RingLimits& limits) {
    const Matrix& matrix = product.matrix;
    if (limits.shared_bytes == 0 || config.variant >= kShapes.size() || product.m == 0 || matrix.n == 0 || matrix.k == 0 || matrix.k % 8 != 0) return false;
    if (result_columns(matrix) % 8 != 0 || (matrix.out == Out::kSwiGlu && matrix.n % 2 != 0)) return false;
    const RingTile& shape = kShapes[config.variant];
    const bool tall = shape.rows == 128;
    if (!tall && product.m > shape.rows) return false;
    if (!is_power_up_to(config.splits, 8) || !is_power_up_to(config.share, tall ? 2 : 4) || config.splits * config.share > 8) return false;
    const uint32_t k_tiles = ceil_div(matrix.k, kRingDepth);
    if (config.splits > k_tiles) return false;
    if (config.w_stages < 2 || config.w_stages > gemm::kRingWMost || config.x_stages < 2 || config.x_stages > gemm::kRingXMost) return false;
    if (config.norm_fused && matrix.norm == nullptr) return false;
    return shared_bytes(entry_of(product.elem, config.variant), config, matrix.k) <= limits.shared_bytes;
}

cudaError_t ring(const Launch& launch, const Product& product, RingConfig config, const RingLimits& limits) {
    const Matrix& matrix = product.matrix;
    const RingTile& shape = kShapes[config.variant];
    const RingEntry entry = entry_of(product.elem, config.variant);
    const bool tall = shape.rows == 128;
    gemm::RingArgs args = {};
    static_cast<gemm::Operands&>(args) = gemm::operands_of(product);
    if (!config.norm_fused) args.norm = nullptr;
    args.k_tiles = ceil_div(matrix.k, kRingDepth);
    args.splits_log2 = log2_of(config.splits);
    args.share_log2 = log2_of(config.share);
    args.m_tiles = ceil_div(product.m, shape.rows);
    args.n_tiles = matrix.out == Out::kSwiGlu ? ceil_div(args.columns, shape.cols / 2u) : ceil_div(matrix.n, shape.cols);
    args.w_stages = config.w_stages;
    args.x_stages = config.x_stages;
    args.eps = matrix.eps;
    args.kind = matrix.out;
    const uint32_t groups = tall ? ceil_div(args.m_tiles, config.share) : 1;
    args.units = tall ? groups * args.n_tiles : ceil_div(args.n_tiles, config.share);
    args.band = std::min(groups, std::max(1u, 16u / config.share));
    const uint32_t cluster = uint32_t{config.splits} * config.share;
    const uint32_t shared = shared_bytes(entry, config, matrix.k);
    const uint32_t resident = limits.multiprocessors * (shared <= kTwoBlocks ? 2 : 1) / cluster;
    const uint32_t clusters = config.splits > 1 ? args.units : std::min(args.units, std::max(1u, resident));
    args.ahead = gemm::deal_ahead(matrix.ahead, matrix.ahead_bytes, clusters * cluster);
    CUtensorMap w_map;
    CUtensorMap x_map;
    if (!describe_rows(w_map, product.elem, matrix.w, matrix.n, matrix.k, shape.cols / 2u, CU_TENSOR_MAP_L2_PROMOTION_L2_128B) ||
        !describe_rows(x_map, product.elem, product.x, product.m, matrix.k, tall ? 128u : 64u / config.share))
        return cudaErrorInvalidValue;
    const bool norm = args.norm != nullptr;
    return start(launch, norm ? entry.norm_kernel : entry.kernel, clusters * cluster, norm ? entry.norm_threads : entry.threads, shared, cluster, args, w_map, x_map);
}

}  // namespace baton::backend::cuda
