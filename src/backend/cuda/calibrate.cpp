#include <cublasLt.h>

#include <algorithm>

#include "backend/cuda/device_info.hpp"
#include "backend/cuda/device_ops.hpp"
#include "backend/cuda/memory.hpp"

namespace baton::backend::cuda {

namespace {

constexpr int kRounds = 5;
constexpr size_t kCopyBytes = size_t{1} << 30;
constexpr uint64_t kSide = 8192;

using TimedEvent = Handle<cudaEvent_t, cudaEventDestroy>;

Expected<TimedEvent> timed_event() {
    cudaEvent_t event = nullptr;
    BATON_CUDA_TRY(cudaEventCreate(&event), "an event");
    return TimedEvent(event);
}

/// The shortest of some runs of `work`, in seconds, after one that is not counted.
template <class Work>
Expected<double> shortest(cudaStream_t stream, const Work& work) {
    BATON_TRY_ASSIGN(const TimedEvent begin, timed_event());
    BATON_TRY_ASSIGN(const TimedEvent end, timed_event());
    double best = 1e9;
    for (int round = 0; round <= kRounds; ++round) {
        BATON_CUDA_TRY(cudaEventRecord(begin.get(), stream), "calibration");
        BATON_TRY(work());
        BATON_CUDA_TRY(cudaEventRecord(end.get(), stream), "calibration");
        BATON_CUDA_TRY(cudaEventSynchronize(end.get()), "calibration");
        float ms = 0;
        BATON_CUDA_TRY(cudaEventElapsedTime(&ms, begin.get(), end.get()), "calibration");
        if (round > 0) best = std::min(best, static_cast<double>(ms) / 1000.0);
    }
    return best;
}

/// A product of two square bf16 matrices.
class SquareProduct {
  public:
    ~SquareProduct() {
        if (layout_ != nullptr) cublasLtMatrixLayoutDestroy(layout_);
        if (description_ != nullptr) cublasLtMatmulDescDestroy(description_);
        if (preference_ != nullptr) cublasLtMatmulPreferenceDestroy(preference_);
        if (handle_ != nullptr) cublasLtDestroy(handle_);
    }
    Expected<void> prepare() {
        const cublasOperation_t transposed = CUBLAS_OP_T;
        BATON_TRY_ASSIGN(workspace_, DeviceBuffer::make(kWorkspace, "calibration"));
        const size_t bytes = kWorkspace;
        int found = 0;
        cublasLtMatmulHeuristicResult_t result{};
        if (cublasLtCreate(&handle_) != CUBLAS_STATUS_SUCCESS ||
            cublasLtMatmulDescCreate(&description_, CUBLAS_COMPUTE_32F, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS ||
            cublasLtMatmulDescSetAttribute(description_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)) !=
                CUBLAS_STATUS_SUCCESS ||
            cublasLtMatrixLayoutCreate(&layout_, CUDA_R_16BF, kSide, kSide, static_cast<int64_t>(kSide)) != CUBLAS_STATUS_SUCCESS ||
            cublasLtMatmulPreferenceCreate(&preference_) != CUBLAS_STATUS_SUCCESS ||
            cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)) !=
                CUBLAS_STATUS_SUCCESS ||
            cublasLtMatmulAlgoGetHeuristic(handle_, description_, layout_, layout_, layout_, layout_, preference_, 1, &result, &found) !=
                CUBLAS_STATUS_SUCCESS ||
            found == 0)
            return fail(ErrorCode::kInternal, "cuBLASLt has no product to calibrate with");
        algorithm_ = result.algo;
        return {};
    }
    Expected<void> run(cudaStream_t stream, const void* a, const void* b, void* out) {
        const float one = 1.0f, zero = 0.0f;
        if (cublasLtMatmul(handle_, description_, &one, a, layout_, b, layout_, &zero, out, layout_, out, layout_, &algorithm_,
                           workspace_.data(), kWorkspace, stream) != CUBLAS_STATUS_SUCCESS)
            return fail(ErrorCode::kInternal, "cuBLASLt refused the product to calibrate with");
        return {};
    }

  private:
    static constexpr size_t kWorkspace = size_t{32} << 20;
    cublasLtHandle_t handle_ = nullptr;
    cublasLtMatmulDesc_t description_ = nullptr;
    cublasLtMatrixLayout_t layout_ = nullptr;
    cublasLtMatmulPreference_t preference_ = nullptr;
    cublasLtMatmulAlgo_t algorithm_{};
    DeviceBuffer workspace_;
};

}  // namespace

Expected<CudaCalibration> calibrate(uint32_t index) {
    BATON_TRY(use_device(index));
    BATON_TRY_ASSIGN(const Stream stream, make_stream());
    BATON_TRY_ASSIGN(const DeviceBuffer from, DeviceBuffer::make(kCopyBytes, "calibration"));
    BATON_TRY_ASSIGN(const DeviceBuffer to, DeviceBuffer::make(kCopyBytes, "calibration"));
    BATON_TRY_ASSIGN(const PinnedBuffer host, PinnedBuffer::make(kCopyBytes / 8));
    BATON_CUDA_TRY(fill_noise(stream.get(), Elem::kBF16, from.data(), kCopyBytes / 2, 1), "calibration");
    CudaCalibration c;
    BATON_TRY_ASSIGN(const double copy, shortest(stream.get(), [&]() -> Expected<void> {
        BATON_CUDA_TRY(cudaMemcpyAsync(to.data(), from.data(), kCopyBytes, cudaMemcpyDeviceToDevice, stream.get()), "calibration");
        return {};
    }));
    BATON_TRY_ASSIGN(const double upload, shortest(stream.get(), [&]() -> Expected<void> {
        BATON_CUDA_TRY(cudaMemcpyAsync(to.data(), host.as<void>(), host.size(), cudaMemcpyHostToDevice, stream.get()), "calibration");
        return {};
    }));
    SquareProduct product;
    BATON_TRY(product.prepare());
    const size_t matrix = kSide * kSide * 2;
    BATON_TRY_ASSIGN(const double gemm, shortest(stream.get(), [&] {
        return product.run(stream.get(), from.data(), from.data() + matrix, to.data());
    }));
    c.copy_bytes_per_s = 2.0 * static_cast<double>(kCopyBytes) / copy;
    c.upload_bytes_per_s = static_cast<double>(host.size()) / upload;
    c.gemm_flops_per_s = 2.0 * static_cast<double>(kSide * kSide * kSide) / gemm;
    return c;
}

}  // namespace baton::backend::cuda
