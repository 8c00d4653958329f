#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "backend/pack.hpp"
#include "baton/backend/plan.hpp"
#include "baton/base/error.hpp"

namespace baton::backend {

/// Work on single rows: normalisation, rotation, KV append, activation.
struct NormOp {
    Slot in;
    Slot out;
    std::vector<float> weight;
    float eps;
    uint32_t groups;
};
struct RopeOp {};
struct AppendOp {};
struct SwiGluOp {};
using RowOp = std::variant<NormOp, RopeOp, AppendOp, SwiGluOp>;

/// One matrix product of a stage.
struct Product {
    PackedMatrix weight;
    std::vector<float> bias;  ///< empty: none
    Slot out;
    bool add;
};

/// Row work alone.
struct RowStage {
    std::vector<RowOp> ops;
};
/// Row work, then products that all read `in`, in one pass over the weights. With `swiglu` the two
/// products are gate and up, and kAct is computed as soon as a piece of both is there, without
/// storing them. With `quantize_act` that piece is not stored either, but prepared as the int8
/// input of the next stage, which has `in_ready`.
struct ProductStage {
    std::vector<RowOp> before;
    Slot in;
    std::vector<Product> products;
    bool swiglu = false;
    bool quantize_act = false;
    bool in_ready = false;
};
struct AttentionStage {};
using Stage = std::variant<RowStage, ProductStage, AttentionStage>;

/// Where the last layer has attended for the last time. Behind it each row is on its own and leads
/// to nothing but its logits.
struct Tail {
    size_t attention;         ///< that stage's index in the last layer
    std::vector<Slot> reads;  ///< what later stages and the head read and none of them wrote before
};

/// A matrix of the plan and what becomes of it.
struct WeightPart {
    const tensor::TensorView* from;  ///< in the plan
    PackedMatrix to;
};

/// A plan lowered for the CPU.
struct Program {
    ModelShape shape;
    std::vector<std::vector<Stage>> layers;
    std::optional<Tail> tail;  ///< none where the last layer does not attend, or where a stage
                               ///< behind needs a row's position
    NormOp final_norm;
    PackedMatrix head;
    std::vector<WeightPart> parts;  ///< all matrices in the order of their offsets
    size_t image_bytes = 0;         ///< header and all matrices, see weight_image.hpp
};

/// Elements of a row of `slot`.
[[nodiscard]] size_t slot_width(const ModelShape& shape, Slot slot);

/// Checks the shape's own limits: sizes not 0, head_dim even and at most 256, kv_heads divides
/// heads.
[[nodiscard]] Expected<void> check_shape(const ModelShape& shape);

/// Checks every tensor of `plan` against its shape and says where each packed matrix lies in the
/// image; reads no matrix. `plan` must outlive the use of Program::parts. Errors: kInvalidArgument
/// for a plan that does not fit together, kUnsupported for one the CPU kernels cannot run.
[[nodiscard]] Expected<Program> lower(const Plan& plan);
/// Lets every matrix of `program` read its bytes in the image at `image`.
void bind_weights(Program& program, const std::byte* image);

}  // namespace baton::backend
