// Choice and launch of the instantiations of the product for many rows.
#include <algorithm>

#include "backend/cuda/gemm_bulk_table.cuh"
#include "backend/cuda/linear_bulk.hpp"
#include "backend/cuda/linear_shared.hpp"
#include "backend/cuda/tensor_map.hpp"

namespace baton::backend::cuda {

namespace {

using gemm::BulkEntry;
using gemm::kRingDepth;

constexpr std::array<BulkTile, gemm::kBulkShapes> kShapes = {{{256}, {128}, {224}, {96}, {64}}};
constexpr uint32_t kRows = 128;

std::array<BulkEntry, gemm::kBulkShapes> table_of(Elem elem) { return elem == Elem::kBF16 ? gemm::bulk_table_bf16() : gemm::bulk_table_f16(); }

/// How many clusters of `blocks` blocks run at once: a GPU's parts may have odd numbers of multiprocessors.
cudaError_t clusters_at_once(const BulkEntry& entry, uint32_t blocks, uint32_t& clusters) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(entry.threads);
    config.dynamicSmemBytes = entry.shared_bytes;
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = blocks;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
    config.attrs = &attribute;
    config.numAttrs = 1;
    int found = 0;
    const cudaError_t error = cudaOccupancyMaxActiveClusters(&found, entry.kernel, &config);
    clusters = error == cudaSuccess && found > 0 ? static_cast<uint32_t>(found) : 0;
    return error;
}

}  // namespace

std::span<const BulkTile> bulk_shapes() { return kShapes; }

cudaError_t bulk_prepare(Elem elem, BulkLimits& limits) {
    limits = {};
    const BulkEntry entry = table_of(elem).front();  // of the others, which all are alike, each is loaded when it is first run
    const void* const kernel = reinterpret_cast<const void*>(entry.kernel);
    uint32_t shared = 0;
    if (const cudaError_t error = allow_shared_of_sm90({&kernel, 1}, shared); error != cudaSuccess || shared == 0 || tensor_map_encoder() == nullptr) return error;
    int device = 0;
    int multiprocessors = 0;
    if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) return error;
    if (const cudaError_t error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device); error != cudaSuccess) return error;
    BulkLimits found = {shared, static_cast<uint32_t>(multiprocessors), {}};
    for (uint32_t log = 0; log < 4; ++log)
        if (const cudaError_t error = clusters_at_once(entry, 1u << log, found.clusters[log]); error != cudaSuccess) return error;
    limits = found;
    return cudaSuccess;
}

bool bulk_takes(const Product& product, BulkConfig config, const BulkLimits& limits) {
    const Matrix& matrix = product.matrix;
    if (limits.shared_bytes == 0 || config.variant >= kShapes.size() || product.m == 0 || matrix.n == 0 || matrix.k == 0 || matrix.k % 8 != 0) return false;
    if (result_columns(matrix) % 8 != 0 || (matrix.out == Out::kSwiGlu && matrix.n % 2 != 0)) return false;
    if (kShapes[config.variant].cols % 64 != 0 && matrix.out != Out::kStore && matrix.out != Out::kSwiGlu) return false;
    if (!is_power_up_to(config.share_m, 4) || !is_power_up_to(config.share_n, 2) || config.band == 0) return false;
    if (limits.clusters[log2_of(uint32_t{config.share_m} * config.share_n)] == 0) return false;
    return table_of(product.elem)[config.variant].shared_bytes <= limits.shared_bytes;
}

cudaError_t bulk(const Launch& launch, const Product& product, BulkConfig config, const BulkLimits& limits) {
    const Matrix& matrix = product.matrix;
    const uint32_t cols = kShapes[config.variant].cols;
    const BulkEntry entry = table_of(product.elem)[config.variant];
    gemm::BulkArgs args = {};
    static_cast<gemm::Operands&>(args) = gemm::operands_of(product);
    args.k_tiles = ceil_div(matrix.k, kRingDepth);
    args.share_m_log2 = log2_of(config.share_m);
    args.share_n_log2 = log2_of(config.share_n);
    args.groups_m = ceil_div(ceil_div(product.m, kRows), config.share_m);
    args.groups_n = ceil_div(ceil_div(args.columns, matrix.out == Out::kSwiGlu ? cols / 2 : cols), config.share_n);
    args.band = config.band;
    args.kind = matrix.out;
    const uint32_t cluster = uint32_t{config.share_m} * config.share_n;
    const uint32_t clusters = std::min(args.groups_m * args.groups_n, limits.clusters[log2_of(cluster)]);
    if (const cudaError_t error = cudaFuncSetAttribute(entry.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(entry.shared_bytes));
        error != cudaSuccess)
        return error;
    CUtensorMap w_map;
    CUtensorMap x_map;
    CUtensorMap out_map = {};
    if (matrix.out != Out::kF32 && !describe_rows(out_map, product.elem, product.out, product.m, args.columns, 16)) return cudaErrorInvalidValue;
    if (!describe_rows(w_map, product.elem, matrix.w, matrix.n, matrix.k, cols / std::max<uint32_t>(2, config.share_m)) ||
        !describe_rows(x_map, product.elem, product.x, product.m, matrix.k, kRows / config.share_n))
        return cudaErrorInvalidValue;
    return start(launch, entry.kernel, clusters * cluster, entry.threads, entry.shared_bytes, cluster, args, w_map, x_map, out_map);
}

}  // namespace baton::backend::cuda
