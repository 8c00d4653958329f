#pragma once

#include <cstdint>
#include <vector>

#include "baton/backend/plan.hpp"
#include "baton/base/error.hpp"

namespace baton::backend::cuda {

/// Matrices whose rows are laid one after the other into one product, with their biases (all or none).
struct Projection {
    std::vector<tensor::TensorView> weights;
    std::vector<tensor::TensorView> biases;
    uint32_t rows = 0;
    uint32_t columns = 0;
};

/// One layer of a plan, as the kernels run it: norm and q|k|v; q/k norm, rotation and append; attention; o and residual;
/// norm, gate|up and SwiGLU; down and residual.
struct LayerParts {
    RmsNorm attention_norm;
    RmsNorm ffn_norm;
    tensor::TensorView q_norm;  ///< [head_dim] or none
    tensor::TensorView k_norm;
    float qk_eps = 0;
    Projection qkv;
    Projection out;
    Projection gate_up;
    Projection down;
};

/// A plan taken apart. Views point into the plan.
struct Lowered {
    ModelShape shape;
    std::vector<LayerParts> layers;
    RmsNorm final_norm;
    tensor::TensorView embedding;
    tensor::TensorView head;
    bool tied = false;  ///< head and embedding are the same bytes
};

/// Matches the plan's steps. Errors: kUnsupported with layer, step and what was expected there; kInvalidArgument for a
/// tensor that does not fit its slots.
[[nodiscard]] Expected<Lowered> lower(const Plan& plan);

}  // namespace baton::backend::cuda
