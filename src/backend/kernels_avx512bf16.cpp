// The avx512bf16 kernels. Includes nothing with inline functions: code of this unit's instruction
// set must not be what the linker keeps for the rest of the program. gcc 12 takes the undefined
// pass-through operands inside its own AVX-512 intrinsics for our mistakes.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>

#include "backend/kernels.hpp"

namespace baton::backend {
namespace {
// Each builds on the one before; the blank lines keep the order.
#include "backend/vec_avx512.inl"

#include "backend/kernels_body.inl"

#include "backend/attend_body.inl"
#undef BATON_UNROLL

constexpr Kernels kKernels{
    "avx512bf16", "avx512bf16", act_kind, gemm,   quantize_row, bf16_row,
    rms_norm,     rope,         swiglu,   attend, attend_merge, attend_finish,
};
}  // namespace

const Kernels& kernels_avx512bf16() {
    return kKernels;
}

}  // namespace baton::backend
