#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "backend/cuda/common.hpp"
#include "baton/base/error.hpp"

namespace baton::backend::cuda {

/// What becomes of y = x · wᵀ (+ bias).
enum class Out : uint8_t {
    kStore = 0,   ///< out [m, n] = y
    kAdd = 1,     ///< out [m, n] += y: the residual stream
    kSwiGlu = 2,  ///< out [m, n / 2] = silu(y[:, :n/2]) · y[:, n/2:]: gate rows first, then up rows
    kF32 = 3,     ///< out [m, n] f32 = y: logits
};
/// A matrix on the device and how it is used; fixed at load.
struct Matrix {
    const void* w = nullptr;     ///< [n, k]
    const void* bias = nullptr;  ///< [n] or null
    uint32_t n = 0;
    uint32_t k = 0;
    const float* norm = nullptr; ///< [k]: x is RMS-normalised with this weight first; null: not
    float eps = 0;
    Out out = Out::kStore;
    const void* ahead = nullptr; ///< weights that kernels soon after this one read: brought into L2 meanwhile (sm_90, own kernels)
    size_t ahead_bytes = 0;      ///< of them; above 24 MiB nothing is fetched: L2 would not keep it
};

struct LinearOptions {
    Elem elem = Elem::kBF16;
    uint32_t rows_max = 0;        ///< largest m
    uint32_t width_max = 0;       ///< largest n or k of any matrix but the head
    bool deterministic = false;   ///< a row's result is the same bits for every m
    std::string cache_folder;     ///< tuned choices per GPU, library versions and shape; empty: not kept
};

/// Runs the matrix products of a model: own GEMV and skinny kernels for few rows, cuBLASLt or an own kernel for many, norms, SwiGLU and
/// residuals fused where the chosen kernel can and as kernels of their own where it cannot. One thread; one device.
class Linear {
  public:
    static Expected<std::unique_ptr<Linear>> create(const LinearOptions& options);
    virtual ~Linear() = default;
    /// Measures the candidates for `matrix` at every bucket of m (1, 2, 4, 8, 16, … rows_max) and keeps the best; from the
    /// cache file where it has them. Uses `stream` and waits for it. Call for each distinct shape before run.
    virtual Expected<void> tune(const Matrix& matrix, cudaStream_t stream) = 0;
    /// x [m, k] → out. Only launches; may be captured. m = 0 does nothing. Errors: cudaErrorInvalidValue for shapes beyond the options.
    virtual cudaError_t run(const Launch& launch, const Matrix& matrix, const void* x, uint32_t m, void* out) = 0;
    /// How many kernels were nearly as quick as the quickest when `matrix` was tuned at m, that one included; the chosen one alone
    /// where the choice came from the cache. A kernel between others is not the same as a kernel alone: whoever can time a whole
    /// step may try them.
    [[nodiscard]] virtual uint32_t alternatives(const Matrix& matrix, uint32_t m) const = 0;
    /// Takes number `i` of them for the bucket of m from now on; 0 is the quickest alone.
    virtual void choose(const Matrix& matrix, uint32_t m, uint32_t i) = 0;
    /// Writes what is chosen now to the cache file; after calls of choose. Errors: kIo.
    virtual Expected<void> keep() = 0;
    /// Device bytes it holds (workspace and scratch).
    [[nodiscard]] virtual size_t bytes() const = 0;
    /// One line per shape and bucket: which kernel was chosen, its time and share of the memory floor. For the bench and the log.
    [[nodiscard]] virtual std::string choices() const = 0;
    /// What alternatives of several matrices have in common where they are the same kernel, however it is set. Kernels that take few
    /// registers and little shared memory wait for each other on one multiprocessor, each with its weights at hand: which of them do
    /// well together, measuring one product at a time does not show.
    [[nodiscard]] virtual uint32_t family(const Matrix& matrix, uint32_t m, uint32_t i) const = 0;
    /// Whether an alternative asks for its weights some time after it started (SlabConfig::late).
    [[nodiscard]] virtual bool late(const Matrix& matrix, uint32_t m, uint32_t i) const = 0;
};

/// out [rows, k] = RMS norm of x · weight.
cudaError_t rms_norm(const Launch& launch, Elem elem, const void* x, const float* weight, float eps, uint32_t rows, uint32_t k,
                     void* out);
/// out [rows, k] = x[index[i]]: the rows whose logits are wanted. `index` is a device array.
cudaError_t gather_rows(const Launch& launch, Elem elem, const void* x, const int32_t* index, uint32_t rows, uint32_t k, void* out);

}  // namespace baton::backend::cuda
