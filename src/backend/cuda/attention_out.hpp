#pragma once

#include "backend/cuda/linear.hpp"
#include "backend/cuda/linear_shared.hpp"

namespace baton::backend::cuda {

/// The product behind QkvAttention: to = x + out · result.
struct AttentionOut {
    Elem elem = Elem::kBF16;
    Matrix out;                    ///< without norm and bias
    const void* result = nullptr;  ///< [16, out.k] in lanes' order (Rows)
    Rows x;                        ///< [16, out.n]
    Rows to;                       ///< the same; may be x
};
/// Whether the kernel is made for the product: that of Qwen3-0.6B.
[[nodiscard]] bool attention_out_takes(const Matrix& out);
/// sm_80 and up. Sums are added in a fixed order.
cudaError_t attention_out(const Launch& launch, const AttentionOut& part);

}  // namespace baton::backend::cuda
