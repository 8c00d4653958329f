#pragma once

#include <cstdint>
#include <vector>

#include "backend/cuda/attention.hpp"
#include "backend/cuda/attention_qkv.hpp"
#include "backend/cuda/device_ops.hpp"
#include "backend/cuda/linear.hpp"
#include "backend/cuda/linear_mlp.hpp"
#include "backend/cuda/sampler.hpp"
#include "backend/cuda/weights.hpp"
#include "baton/kv/layout.hpp"

namespace baton::backend::cuda {

/// Kernels of a step by what they do; bits of StepShape::plain.
enum class Part : uint32_t { kQkv = 1, kAttention = 2, kOut = 4, kGateUp = 8, kDown = 16, kHead = 32, kSample = 64 };

/// What a step runs. Rows are in the order: sequences of one row for decode attention, then the rows of the others, then
/// padding. Where there are others `decode` may count more sequences than have rows: those beyond have no context. Two steps of equal shape launch the same kernels with the same arguments, which is what lets a graph be replayed.
struct StepShape {
    uint32_t rows = 0;              ///< padding included
    uint32_t decode = 0;            ///< rows that decode attention takes, one a sequence
    uint32_t prefill = 0;           ///< sequences that prefill attention takes
    uint32_t prefill_rows_max = 0;  ///< upper bound of the rows of one of them
    uint32_t logits = 0;            ///< rows whose logits are wanted
    bool gather = false;            ///< they are not the first rows in order, but those that StepArrays::logit_rows names
    uint32_t splits = 1;            ///< of decode attention; with `joined` QkvAttention::splits
    bool whole = true;              ///< any settings of sampling (Sampler::run)
    bool masked = false;            ///< some row has a mask (Sampler::wait_for_masks)
    uint32_t words = 0;             ///< progress words, stored to every few layers
    uint32_t plain = 0;             ///< parts whose kernels start only when the one ahead has ended (Launch::pdl off)
    uint32_t mlp = 0;               ///< the feed-forward part is one kernel, of form mlp - 1 (mlp_shapes); 0: two products
    bool joined = false;            ///< qkv and attention of a layer are one kernel (QkvAttention), with AttentionOut behind it: one_each, 16 rows
    bool ahead = false;             ///< weights that follow attention are brought into L2 before it (Matrix::ahead)
    [[nodiscard]] uint32_t sequences() const { return decode + prefill; }
    /// Row i is that of decode sequence i.
    [[nodiscard]] bool decode_only() const { return prefill == 0 && decode == rows; }
    /// One row a sequence, all of them sampled in their order.
    [[nodiscard]] bool one_each() const { return !gather && logits == rows; }
    friend auto operator<=>(const StepShape&, const StepShape&) = default;
};

/// A step's input, in one run of device memory; offsets in values.
struct ArrayOffsets {
    uint32_t tokens = 0;
    uint32_t positions = 0;
    uint32_t slots = 0;
    uint32_t states = 0;
    uint32_t kv_len = 0;     ///< [sequences]
    uint32_t row_begin = 0;  ///< [prefill + 1]: first row of each
    uint32_t logit_rows = 0; ///< [logits]
    uint32_t words = 0;      ///< ProgressWord [words]
    uint32_t total = 0;
};
[[nodiscard]] ArrayOffsets array_offsets(const StepShape& shape);

/// What a pass works with; made once. All pointers are device memory.
struct PassSetup {
    ModelShape model;
    Elem elem = Elem::kBF16;
    const Weights* weights = nullptr;
    Linear* linear = nullptr;       ///< for the layers
    Linear* head_linear = nullptr;  ///< for the head
    Sampler* sampler = nullptr;
    std::vector<KvView> kv;         ///< of each layer
    const float2* rope = nullptr;
    void* hidden = nullptr;         ///< [rows, hidden], the residual stream
    void* qkv = nullptr;            ///< [rows, (heads + 2 · kv_heads) · head_dim]
    void* q = nullptr;              ///< [rows, heads, head_dim]
    void* attention = nullptr;      ///< [rows, heads, head_dim]
    void* act = nullptr;            ///< [rows, ffn]
    void* last = nullptr;           ///< [logits, hidden]
    float* logits = nullptr;        ///< [logits, vocab]
    float* kept = nullptr;          ///< a copy of the logits for debugging, or null
    void* decode_workspace = nullptr;
    void* mlp_slots = nullptr;     ///< Mlp::slots; null where no step has StepShape::mlp
    void* qkv_slots = nullptr;     ///< QkvAttention::slots; null where no step has StepShape::joined
    StepBegin begin;                ///< the first kernel; what the shape decides is filled in for each pass
    const int32_t* decode_table = nullptr;   ///< [sequences, table_stride]
    const int32_t* prefill_table = nullptr;  ///< the same
    uint32_t table_stride = 0;
    uint32_t* counter = nullptr;    ///< number of the step under way
};

/// The kernels of one step, from token ids to sampled ids. Only launches; may be captured.
cudaError_t run_pass(const PassSetup& setup, const Launch& launch, const StepShape& shape);

}  // namespace baton::backend::cuda
