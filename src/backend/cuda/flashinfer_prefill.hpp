#pragma once

#include "backend/cuda/attention.hpp"

/// Prefill attention by FlashInfer's FA3 kernels (sm_90a), in builds with BATON_WITH_FLASHINFER: a
/// yardstick for our own kernels, and their stand-in.
namespace baton::backend::cuda {

/// As prefill_attention, with two differences: a row's bits depend on where its step begins, and
/// scratch memory for the schedule is allotted and freed in stream order. Errors:
/// cudaErrorNotSupported for a head size other than 64 and 128 or a GPU other than Hopper.
cudaError_t flashinfer_prefill_attention(const Launch& launch, const PrefillAttention& args);

}  // namespace baton::backend::cuda
