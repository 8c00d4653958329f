#include "backend/cuda/linear_lt.hpp"

#include <cstring>

namespace baton::backend::cuda {

namespace {

/// Descriptors of one product. Row-major out [m, n] is column-major [n, m]: A = w transposed, B = x, C = D = out.
struct Descriptors {
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t w;
    cublasLtMatrixLayoutOpaque_t x;
    cublasLtMatrixLayoutOpaque_t out;
    bool ok = false;

    explicit Descriptors(const Product& product) {
        const Matrix& matrix = product.matrix;
        const cudaDataType_t type = product.elem == Elem::kBF16 ? CUDA_R_16BF : CUDA_R_16F;
        const cudaDataType_t out_type = matrix.out == Out::kF32 ? CUDA_R_32F : type;
        const cublasOperation_t transposed = CUBLAS_OP_T;
        const auto k = static_cast<int64_t>(matrix.k);
        const auto n = static_cast<int64_t>(matrix.n);
        ok = cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
             set(CUBLASLT_MATMUL_DESC_TRANSA, transposed) &&
             cublasLtMatrixLayoutInit(&w, type, matrix.k, matrix.n, k) == CUBLAS_STATUS_SUCCESS &&
             cublasLtMatrixLayoutInit(&x, type, matrix.k, product.m, k) == CUBLAS_STATUS_SUCCESS &&
             cublasLtMatrixLayoutInit(&out, out_type, matrix.n, product.m, n) == CUBLAS_STATUS_SUCCESS;
        if (ok && matrix.bias != nullptr && Lt::takes_bias(matrix)) {
            const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
            ok = set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue) && set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, matrix.bias);
        }
    }

  private:
    template <class V>
    bool set(cublasLtMatmulDescAttributes_t attribute, const V& value) {
        return cublasLtMatmulDescSetAttribute(&operation, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS;
    }
};

cublasLtMatmulAlgo_t to_algo(const LtAlgo& bytes) {
    cublasLtMatmulAlgo_t algo;
    std::memcpy(&algo, bytes.data(), sizeof algo);
    return algo;
}

}  // namespace

Expected<std::unique_ptr<Lt>> Lt::create() {
    std::unique_ptr<Lt> lt(new Lt);
    if (const auto status = cublasLtCreate(&lt->handle_); status != CUBLAS_STATUS_SUCCESS)
        return fail(ErrorCode::kUnavailable, std::string("cuBLASLt does not start: ") + cublasLtGetStatusString(status));
    if (const cudaError_t error = cudaMalloc(&lt->workspace_, kWorkspaceBytes); error != cudaSuccess)
        return fail(ErrorCode::kUnavailable, "no device memory for the workspace of cuBLASLt (" +
                                                 std::to_string(kWorkspaceBytes >> 20) + " MiB): " + cudaGetErrorString(error));
    return lt;
}

Lt::~Lt() {
    if (workspace_ != nullptr) cudaFree(workspace_);
    if (handle_ != nullptr) cublasLtDestroy(handle_);
}

std::vector<LtAlgo> Lt::heuristics(const Product& product, uint32_t most) const {
    const Descriptors d(product);
    cublasLtMatmulPreferenceOpaque_t preference;
    const size_t workspace = kWorkspaceBytes;
    if (!d.ok || cublasLtMatmulPreferenceInit(&preference) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                             sizeof workspace) != CUBLAS_STATUS_SUCCESS)
        return {};
    std::vector<cublasLtMatmulHeuristicResult_t> found(most);
    int count = 0;
    auto* operation = const_cast<cublasLtMatmulDescOpaque_t*>(&d.operation);
    auto* w = const_cast<cublasLtMatrixLayoutOpaque_t*>(&d.w);
    auto* x = const_cast<cublasLtMatrixLayoutOpaque_t*>(&d.x);
    auto* out = const_cast<cublasLtMatrixLayoutOpaque_t*>(&d.out);
    if (cublasLtMatmulAlgoGetHeuristic(handle_, operation, w, x, out, out, &preference, static_cast<int>(most), found.data(),
                                       &count) != CUBLAS_STATUS_SUCCESS)
        return {};
    std::vector<LtAlgo> algos;
    for (int i = 0; i < count; ++i) {
        if (found[static_cast<size_t>(i)].state != CUBLAS_STATUS_SUCCESS) continue;
        LtAlgo bytes = {};
        std::memcpy(bytes.data(), &found[static_cast<size_t>(i)].algo, sizeof bytes);
        algos.push_back(bytes);
    }
    return algos;
}

bool Lt::check(const Product& product, const LtAlgo& bytes) const {
    Descriptors d(product);
    if (!d.ok) return false;
    const cublasLtMatmulAlgo_t algo = to_algo(bytes);
    cublasLtMatmulHeuristicResult_t result = {};
    return cublasLtMatmulAlgoCheck(handle_, &d.operation, &d.w, &d.x, &d.out, &d.out, &algo, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.state == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kWorkspaceBytes;
}

cudaError_t Lt::run(cudaStream_t stream, const Product& product, const LtAlgo& bytes) const {
    Descriptors d(product);
    if (!d.ok) return cudaErrorInvalidValue;
    const cublasLtMatmulAlgo_t algo = to_algo(bytes);
    const float one = 1.0f;
    const float beta = product.matrix.out == Out::kAdd ? 1.0f : 0.0f;
    const cublasStatus_t status =
        cublasLtMatmul(handle_, &d.operation, &one, product.matrix.w, &d.w, product.x, &d.x, &beta, product.out, &d.out,
                       product.out, &d.out, &algo, workspace_, kWorkspaceBytes, stream);
    return status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

}  // namespace baton::backend::cuda
