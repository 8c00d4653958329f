#pragma once

#include "backend/cuda/attention.hpp"

/// The kernels behind prefill_attention. Which one runs depends on the device alone, so a device always gives the same bits.
namespace baton::backend::cuda {

/// For sm_80 and later.
cudaError_t prefill_attention_portable(const Launch& launch, const PrefillAttention& args);
/// For sm_90a.
cudaError_t prefill_attention_90(const Launch& launch, const PrefillAttention& args);
/// Whether the current device, with this build, runs prefill_attention_90.
[[nodiscard]] bool runs_prefill_90();

}  // namespace baton::backend::cuda
