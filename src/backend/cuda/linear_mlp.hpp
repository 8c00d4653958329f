#pragma once

#include "backend/cuda/linear_kernels.hpp"
#include "backend/cuda/linear_shared.hpp"

namespace baton::backend::cuda {

/// A layer's feed-forward part in one kernel: to = x + down · SwiGLU(gate_up · norm(x)).
struct Mlp {
    Elem elem = Elem::kBF16;
    Matrix gate_up;         ///< with a norm and SwiGLU, without bias
    Matrix down;            ///< added to x, without bias
    Rows x;                 ///< [m, hidden]; for lanes where m ≤ 16
    Rows to;                ///< the same; may be x
    uint32_t m = 0;
    void* slots = nullptr;  ///< mlp_slot_bytes of memory, all bits set at first; every launch leaves them so
};

/// A form of the kernel: tiles of 16 rows of x, tiles of 8 columns of the intermediate rows a block, blocks a team.
struct MlpShape {
    uint8_t x_tiles = 0;
    uint8_t tiles = 0;
    uint8_t ranks = 0;
};
/// All forms; a form is named by its place among them.
[[nodiscard]] std::span<const MlpShape> mlp_shapes();
/// See prepare_at_once.
cudaError_t mlp_prepare(Elem elem, AtOnceLimits& limits);
/// Bytes of Mlp::slots.
[[nodiscard]] size_t mlp_slot_bytes(const Mlp& part, uint8_t shape_index);
/// Whether the form takes the part at its m.
[[nodiscard]] bool mlp_takes(const Mlp& part, uint8_t shape_index, const AtOnceLimits& limits);
/// sm_90, 8 < m ≤ 32. Its blocks wait for each other, so that all must find room at once, whatever else runs on the device: it may not run
/// beside another of its kind. Sums are added in a fixed order.
cudaError_t mlp(const Launch& launch, const Mlp& part, uint8_t shape_index);

}  // namespace baton::backend::cuda
