// The portable kernels. Includes nothing with inline functions: code of this unit's instruction set
// must not be what the linker keeps for the rest of the program.
#include "backend/kernels.hpp"

namespace baton::backend {
namespace {
// Each builds on the one before; the blank lines keep the order.
#include "backend/vec_portable.inl"

#include "backend/kernels_body.inl"

#include "backend/attend_body.inl"
#undef BATON_UNROLL

constexpr Kernels kKernels{
    "portable", "portable", act_kind, gemm,   quantize_row, bf16_row,
    rms_norm,   rope,       swiglu,   attend, attend_merge, attend_finish,
};
}  // namespace

const Kernels& kernels_portable() {
    return kKernels;
}

}  // namespace baton::backend
