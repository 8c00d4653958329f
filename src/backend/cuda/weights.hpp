#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cuda/linear.hpp"
#include "backend/cuda/lowering.hpp"
#include "backend/cuda/memory.hpp"

namespace baton::backend::cuda {

/// A model's weights on the device, in one allocation: matrices and biases as Elem, norms as f32.
struct Weights {
    struct Layer {
        Matrix qkv, out, gate_up, down;
        const float* q_norm = nullptr;  ///< [head_dim], null: none
        const float* k_norm = nullptr;
        float qk_eps = 0;
    };
    std::vector<Layer> layers;
    const void* embedding = nullptr;  ///< [vocab, hidden]
    Matrix head;                      ///< with the final norm
    DeviceBuffer memory;
    double seconds = 0;               ///< that the upload took
};

/// Bytes load_weights will take of the device.
[[nodiscard]] size_t weight_bytes(const Lowered& model);

/// Copies the weights to the current device, from the mapped files through page-locked memory; what is stored in another type
/// is converted by the host's threads on the way. Waits until all is there.
[[nodiscard]] Expected<Weights> load_weights(const Lowered& model, Elem elem);

}  // namespace baton::backend::cuda
